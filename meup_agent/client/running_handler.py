"""The handler that runs here: an exchange that it begins is part of it, and ends with it."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

from meup_agent.causes import Cause, Reason
from meup_agent.client.call_scope import cause_of_calls
from meup_agent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextlib import AbstractContextManager

    from meup_agent.protocol.exchange import Key
    from meup_agent.session import Session


class RunningHandler(NamedTuple):
    """A handler that runs; without a session it is only a cause for ended waits."""

    key: Key
    session: Session | None
    cause: Callable[[], Cause | None]


_current: ContextVar[RunningHandler | None] = ContextVar("meup_agent.handler", default=None)


def parent_in(session: Session) -> Key | None:
    """The handler that runs here, if its exchange is one of this session.

    ``None`` outside handlers and in clean-ups.
    """
    handler = _current.get()
    return None if handler is None or handler.session is not session else handler.key


def release_slot(session: Session) -> AbstractContextManager[None]:
    """Give up the place of the handler that runs here, for the length of a block: it waits."""
    return session.pending_calls.release_slot(parent_in(session))


def begins_more(session: Session) -> bool:
    """True unless the handler that runs here has ended or is cancelled."""
    handler = _current.get()
    if handler is None or handler.session is not session:
        return True
    return handler.cause() is None and session.table.is_open(handler.key)


def cause_of_leaving(session: Session) -> Cause:
    """The cause of a wait given up here: a call scope's, or the handler's, in whatever space."""
    handler = _current.get()
    cause = cause_of_calls(session.me, session.now())
    if cause is None and handler is not None:
        cause = handler.cause()
    return cause or Cause(Reason.NO_LONGER_NEEDED, session.me, at=session.now())


def begin_handler(handler: RunningHandler) -> None:
    """Everything that this task begins from here on is part of this handler."""
    _current.set(handler)


@contextmanager
def handler_is(handler: RunningHandler | None) -> Generator[None]:
    """Everything begun in the block is part of this handler; ``None``: of none."""
    token = _current.set(handler)
    try:
        yield
    finally:
        _current.reset(token)


P = ParamSpec("P")
T = TypeVar("T")

_running: Final = threading.local()


@contextmanager
def plain_handler(name: str) -> Generator[None]:
    """In the block this thread runs a handler that is not ``async``.

    It is the thread's own, and not a context variable's: what such a handler has the event loop do
    has the handler's context.
    """
    _running.name = name
    try:
        yield
    finally:
        del _running.name


def awaited(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Refuse a verb in a handler that cannot await it."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        name = getattr(_running, "name", None)
        if name is not None:
            raise UsageError(
                f"{verb.__name__}() was called by {name}, which is no async function, so nothing "
                f"was done; declare it with async def and await {verb.__name__}(), or call "
                f"anyio.from_thread.run(…) with it"
            )
        return verb(*args, **kwargs)

    return call
