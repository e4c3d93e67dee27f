"""The handler that runs here, and call scopes: an exchange that it begins ends with it."""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, TypeVar

import anyio

from meup_agent.causes import Cause, Reason
from meup_agent.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from contextlib import AbstractContextManager
    from contextvars import Token
    from types import TracebackType
    from typing import Self

    from meup_agent.protocol.exchange import Key
    from meup_agent.session import Session


# --- call scopes ---
# A caller that cancels its own calls, and says why.

_current_scope: ContextVar[CallScope | None] = ContextVar("meup_agent.call_scope", default=None)


class CallScope:
    """A block whose calls can be cancelled from outside, with a reason that travels along.

    The block is cancelled as that of :class:`anyio.CancelScope` is; what was begun in it (requests,
    calls, proposals, also by its tasks) is cancelled or withdrawn with the reason, in every process
    that it reached. Scopes nest: of those that were cancelled, the innermost gives the reason.

    Example::

        with CallScope() as scope:
            on_stop_button = partial(scope.cancel, text="stopped by the user")
            result = await space.call("printer", "print", {"page": 1})
        if scope.cancelled:
            ...
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._outer: CallScope | None = None
        self._reason: tuple[str, str] | None = None
        self._token: Token[CallScope | None] | None = None

    @property
    def cancelled(self) -> bool:
        """True once the block has ended because it was cancelled here."""
        return self._scope.cancelled_caught

    def cancel(self, reason: str = Reason.NO_LONGER_NEEDED, *, text: str = "") -> None:
        """Cancel the block; the first reason stays. No effect once the block has ended.

        Args:
            reason: The reason code that the others see.
            text: The words that a cancelled request is told, for example those of a person;
                a withdrawn proposal is told the code alone.
        """
        if self._reason is None:
            self._reason = (str(reason), text)
        self._scope.cancel(f"{reason}: {text}" if text else str(reason))

    def cause(self, by: str, at: float) -> Cause | None:
        """The cause of what ends with the block; ``None`` if no scope here was cancelled."""
        if self._reason is None:
            return None if self._outer is None else self._outer.cause(by, at)
        code, text = self._reason
        return Cause(code, by, text, at=at)

    def __enter__(self) -> Self:
        """Begin the block."""
        self._scope.__enter__()
        self._outer = _current_scope.get()
        self._token = _current_scope.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End the block."""
        assert self._token is not None
        _current_scope.reset(self._token)
        return bool(self._scope.__exit__(kind, error, traceback))


# --- the handler that runs here ---


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
    scope, handler, now = _current_scope.get(), _current.get(), session.now()
    cause = None if scope is None else scope.cause(session.me, now)
    if cause is None and handler is not None:
        cause = handler.cause()
    return cause or Cause(Reason.NO_LONGER_NEEDED, session.me, at=now)


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
                f"{verb.__name__}() was called by {name}, which is not an async function, so "
                f"nothing was done; declare it with async def and await {verb.__name__}(), or call "
                f"anyio.from_thread.run(…) with it"
            )
        return verb(*args, **kwargs)

    return call
