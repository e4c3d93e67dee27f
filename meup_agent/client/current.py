"""Which handler is running here: what it begins is part of it, and ends with it."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

    from meup_agent.protocol.exchange import Key

_current: ContextVar[Key | None] = ContextVar("meup_agent.handler", default=None)


def current_handler() -> Key | None:
    """The exchange whose handler runs here; ``None`` outside handlers and in clean-ups."""
    return _current.get()


@contextmanager
def handler_is(key: Key | None) -> Generator[None]:
    """Everything begun in the block is part of this handler; ``None``: of none."""
    token = _current.set(key)
    try:
        yield
    finally:
        _current.reset(token)
