"""One handler: one task, one cancel scope, one cause, at most one answer.

*Stop now* is the cancel scope; *you were asked to stop, and why* is the cause. Whether a handler
was cancelled is read from the cause, our own flag: what a cancel scope reports about itself
differs between loops when a handler swallows its cancellation.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.exchange import Key
    from meup_agent.protocol.reasons import Cause

LATE_SECONDS: Final = 1.0
"""A handler that goes on this long after its cancellation is named in the log."""

THREADS: Final = 64
"""Worker threads of one agent: as many as handlers run at once."""


class HandlerCancelled(BaseException):
    """Raised in a worker thread by ``ctx.check_cancelled()``; let it pass, like a cancellation."""


class Scope:
    """The running of one handler.

    Attributes:
        key: The exchange that it handles.
        name: The handler's name, for the log.
        cause: Why it was cancelled; ``None`` while it was not. Written once.
        ended: Set when it has ended.
    """

    def __init__(self, key: Key, name: str) -> None:
        self.key = key
        self.name = name
        self.cause: Cause | None = None
        self.ended = anyio.Event()
        self._cancel_scope = anyio.CancelScope()
        self._thread: anyio.CancelScope | None = None

    def cancel(self, cause: Cause) -> None:
        """End it, with a cause; a second one changes nothing."""
        if self.cause is None:
            self.cause = cause
            self._cancel_scope.cancel()

    def abandon(self) -> None:
        """Do not wait for its worker thread any longer."""
        if self._thread is not None:
            self._thread.cancel()

    async def run(
        self,
        fn: Callable[..., Any],
        arguments: dict[str, Any],
        *,
        is_async: bool,
        threads: anyio.CapacityLimiter,
    ) -> Any:
        """Run a handler's function; ``None`` if it was cancelled.

        A function that is not ``async`` runs in a worker thread. The thread is waited for, even
        when the handler is cancelled, until :meth:`abandon`.
        """
        with self._cancel_scope:
            if self.cause is None:
                if is_async:
                    return await fn(**arguments)
                return await self._run_in_thread(partial(fn, **arguments), threads)
        return None

    async def _run_in_thread(self, fn: Callable[[], Any], threads: anyio.CapacityLimiter) -> Any:
        def unless_cancelled() -> Any:
            self.check_cancelled()
            return fn()

        with anyio.CancelScope(shield=True) as self._thread:
            return await anyio.to_thread.run_sync(
                unless_cancelled, abandon_on_cancel=True, limiter=threads
            )

    def check_cancelled(self) -> None:
        """Raise if it was cancelled; from any thread.

        Raises:
            HandlerCancelled: It was cancelled.
        """
        if self.cause is not None:
            raise HandlerCancelled(str(self.cause))


def is_cancelled_here() -> bool:
    """Whether the current task is being cancelled by a scope around it."""
    return anyio.current_effective_deadline() == -math.inf
