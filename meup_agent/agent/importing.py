"""A module that is only looked into must not run its agent."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from meup_agent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator

_importing: ContextVar[bool] = ContextVar("meup_agent.importing", default=False)


@contextmanager
def agents_stay_put() -> Generator[None]:
    """In this block, which imports somebody's module, no agent runs."""
    token = _importing.set(True)
    try:
        yield
    finally:
        _importing.reset(token)


def check_may_run() -> None:
    """Check that an agent may run now.

    Raises:
        UsageError: Its module is only being looked into.
    """
    if _importing.get():
        raise UsageError(
            "the module runs its agent when it is imported; put agent.run() under "
            "if __name__ == '__main__'"
        )
