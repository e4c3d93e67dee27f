"""One handler: one task, one cancel scope, one cause, at most one answer.

*Stop now* is the cancel scope; *you were asked to stop, and why* is the cause. Whether a handler
was cancelled is read from the cause, our own flag: what a cancel scope reports about itself
differs between loops when a handler swallows its cancellation.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakSet

import anyio
import anyio.to_thread

from meup_agent.client.running_handler import plain_handler
from meup_agent.errors import HandlerCancelled, leaves_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import Key
    from meup_agent.tracing import CallSpan

T = TypeVar("T")

LATE_SECONDS: Final = 1.0
"""A handler that goes on this long after its cancellation is named in the log."""


abandoned: Final[WeakSet[threading.Thread]] = WeakSet()
"""Threads that were not waited for any longer; on asyncio Python waits for them at its end."""


class Scope:
    """The running of one handler, or of several for the same exchange.

    Only :meth:`cancel` ends it, never a cancellation from outside: so a handler that is cancelled
    is told why, and an agent that leaves a space gives its handlers their grace. Its cause is
    written once.
    """

    __slots__ = (
        "_cancel_scope",
        "_outside",
        "_over",
        "_threads",
        "cause",
        "ended",
        "key",
        "name",
        "span",
    )

    def __init__(self, key: Key, name: str) -> None:
        self.key = key
        self.name = name
        self.cause: Cause | None = None
        self.span: CallSpan | None = None  # of a request that is traced
        self.ended = False
        self._over: anyio.Event | None = None
        self._cancel_scope = anyio.CancelScope(shield=True)
        self._outside: anyio.CancelScope | None = None
        self._threads: dict[anyio.CancelScope, threading.Thread | None] = {}

    def why(self) -> Cause | None:
        """The cause, as a function of its own."""
        return self.cause

    def note_failure(self, error_type: str) -> None:
        """Note in its span that its work failed."""
        if self.span is not None:
            self.span.fail(error_type)

    def note_result(self, result: object) -> None:
        """Note in its span what is answered, which may say that a tool failed."""
        if self.span is not None:
            self.span.note_result(result)

    def end(self) -> None:
        """Note its end, and wake those that wait for it."""
        self.ended = True
        if self._over is not None:
            self._over.set()

    async def wait_ended(self) -> None:
        """Return when it has ended."""
        if not self.ended:
            self._over = self._over or anyio.Event()
            await self._over.wait()

    def cancel(self, cause: Cause) -> None:
        """End it, with a cause; a second one changes nothing."""
        if self.cause is None:
            self.cause = cause
            self._cancel_scope.cancel()
            self.end_outside()

    def abandon(self) -> bool:
        """Do not wait for its worker threads any longer; ``True`` if there were any."""
        for waiting, thread in self._threads.items():
            if thread is not None:
                abandoned.add(thread)
            waiting.cancel()
        return bool(self._threads)

    async def run(self, work: Callable[[], Awaitable[T]]) -> T | None:
        """Do the handler's work in the scope; ``None`` if it was cancelled."""
        with self._cancel_scope:
            if self.cause is None:
                return await work()
        return None

    async def run_outside(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do the handler's work in a task that may be outside the scope, and end it with it."""
        with anyio.CancelScope() as self._outside:
            return await work()
        raise HandlerCancelled(str(self.cause or f"{self.name} has ended"))

    def end_outside(self) -> None:
        """End the work that :meth:`run_outside` does, if there is any."""
        if self._outside is not None:
            self._outside.cancel()

    async def call_in_thread(
        self, fn: Callable[..., Any], arguments: dict[str, Any], threads: anyio.CapacityLimiter
    ) -> Any:
        """Call a function that is not ``async`` in a worker thread, inside :meth:`run`.

        The thread is waited for, even when the handler is cancelled, until :meth:`abandon`.
        """

        def unless_cancelled() -> tuple[Any, BaseException | None]:
            self._threads[waiting] = threading.current_thread()
            # Boxed: trio has a word of its own for a thread that returns a coroutine, and asyncio
            # for one that raises SystemExit.
            try:
                self.check_cancelled()
                with plain_handler(getattr(fn, "__qualname__", self.name)):
                    return fn(**arguments), None
            except BaseException as error:
                return None, error

        with anyio.CancelScope(shield=True) as waiting:
            self._threads[waiting] = None
            try:
                result, error = await anyio.to_thread.run_sync(
                    unless_cancelled, abandon_on_cancel=True, limiter=threads
                )
            finally:
                del self._threads[waiting]
            if error is not None:
                raise error
            return result

    def check_cancelled(self) -> None:
        """Raise :exc:`HandlerCancelled` if it was cancelled; from any thread."""
        if self.cause is not None:
            raise HandlerCancelled(str(self.cause))


def without_cancellations(error: BaseException) -> BaseException | None:
    """The rest of an exception without :class:`HandlerCancelled`, which a task group wraps."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).split(HandlerCancelled)[1]
    return None if isinstance(error, HandlerCancelled) else error


def is_failure(error: BaseException) -> bool:
    """True if an exception fails the handler alone.

    ``SystemExit`` and ``GeneratorExit`` are, too: a tool that raises one ends no agent.
    """
    others = (KeyboardInterrupt, HandlerCancelled, anyio.get_cancelled_exc_class())
    return not any(isinstance(each, others) for each in leaves_of(error))
