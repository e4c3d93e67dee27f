"""The context of a handler: its scope, the facts of its exchange, and the verbs in it."""

from __future__ import annotations

import threading
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast
from weakref import WeakSet

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from meup_agent.client.messages import REASONING_SECONDS, Reasoning, handler_is, plain_handler
from meup_agent.client.space import Space, send_note
from meup_agent.client.streams import StreamWriter, streaming_beside
from meup_agent.errors import HandlerCancelled, leaves_of
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.streams import build_request

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator

    from meup_agent.causes import Cause
    from meup_agent.protocol.exchange import Key
    from meup_agent.protocol.wire.envelope import Envelope
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


PROGRESS_SECONDS: Final = 0.1
"""Progress is told at most this often: it is for people (PROTOCOL 4.9)."""


class Context:
    """The exchange that a handler handles.

    Whatever the handler begins, by the verbs of :attr:`space`, is part of it: when the handler is
    cancelled or ends, its requests are cancelled and its undecided proposals withdrawn.

    Attributes:
        space: The space, with all its verbs: ``await ctx.space.call(…)``.
        envelope: What the handler was started for.
        sender: Who sent that.
        log: A logger of the agent's.
    """

    def __init__(
        self, *, space: Space, envelope: Envelope, scope: Scope, log: logging.Logger
    ) -> None:
        self.space = space
        self.envelope = envelope
        self.sender = envelope.sender
        self.log = log
        self._scope = scope
        self._loop_thread = get_ident()
        self._last_progress = float("-inf")
        self._progress_at = float("-inf")

    # --- cancellation ---

    @property
    def cancelled(self) -> bool:
        """True once the handler was asked to stop. May be read from any thread."""
        return self._scope.cause is not None

    @property
    def reason(self) -> Cause | None:
        """The reason why the handler was asked to stop; ``None`` while it was not.

        It has code, text, by whom, when, and the chain that it came along. The
        participant that ended our own exchange, the first step, is known; the rest of the chain is
        what that one says.
        """
        return self._scope.cause

    def check_cancelled(self) -> None:
        """Raise if the handler was asked to stop; for loops in worker threads.

        Raises:
            HandlerCancelled: It was. Let it pass.
        """
        self._scope.check_cancelled()

    @asynccontextmanager
    async def cleanup(self, seconds: float = 5.0) -> AsyncGenerator[None]:
        """Protect a finaliser from the cancellation, for some seconds.

        Calls made in the block are not part of what was cancelled.

        Args:
            seconds: After this long the block is cancelled all the same.
        """
        with anyio.move_on_after(seconds, shield=True) as scope, handler_is(None):
            yield
        if scope.cancelled_caught:
            self.log.warning(
                "the clean-up of %s took more than %g s and was cut off", self._scope.name, seconds
            )

    # --- what is told about the exchange ---

    def reasoning(
        self, text: str = "", *, timeout: float | None = REASONING_SECONDS
    ) -> AbstractAsyncContextManager[Reasoning]:
        """Think aloud about what the handler was started for; see ``space.talk.reasoning``.

        Example::

            async with ctx.reasoning("which file is meant?") as reasoning:
                await reasoning.thought("there are two of that name")
                await reasoning.conclude("the newer one")

        Args:
            text: What it is about, for people.
            timeout: Seconds after which it is stopped; ``None``: as long as it takes.
        """
        return self.space.talk.reasoning(text, about=self.envelope.id, timeout=timeout)

    def stream(
        self,
        *,
        format: str | None = None,
        content_type: str | None = None,
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> AbstractAsyncContextManager[StreamWriter]:
        """Stream to the participant that the handler works for, beside the answer.

        The stream is about the envelope that the handler was started for; that of a request which
        carries out a proposal goes to the proposer, too. ``space.call(…, on_stream=…)`` reads it.
        It ends with its block, and a cancelled handler ends it with the reason. The answer does not
        depend on it: where no stream can be had (the caller's dialect has none, we may not), or
        where it was ended by another, :meth:`StreamWriter.send` does nothing.

        Args:
            format: The form of its frames, for example ``jsonl``.
            content_type: Their media type, for example ``text/plain``.
            description: Its purpose, for people.
            metadata: More about it, as JSON values.

        Returns:
            An async context manager that gives a :class:`StreamWriter`.
        """
        said = payloads.read_call(self.envelope.payload).meta.get(payloads.PROPOSER)
        present = {each.id for each in self.space.participants}
        to = [self.sender, *([said] if self.envelope.correlation and said in present else [])]
        payload = build_request(
            targets=tuple(dict.fromkeys(to)),
            description=description,
            format=format,
            content_type=content_type,
            metadata=metadata,
        )
        about = (self.envelope.id, *self.envelope.correlation)
        return streaming_beside(self.space.streams, payload, about)

    def progress(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> SentProgress:
        """Tell the requester how far the work is, if it asked for that.

        May be called from a worker thread, and may be awaited. Values must grow; what comes more
        often than every 0.1 s is left out, except for the last one (PROTOCOL 4.9).

        Args:
            done: How much is done.
            total: How much there is to do.
            message: What is being done, for a person.
        """
        if get_ident() == self._loop_thread:
            self._tell_progress(done, total, message)
        else:
            anyio.from_thread.run_sync(self._tell_progress, done, total, message)
        return SentProgress()

    def _tell_progress(self, done: float, total: float | None, message: str | None) -> None:
        call = payloads.read_call(self.envelope.payload)
        token = call.meta.get(payloads.PROGRESS_TOKEN)
        if not isinstance(token, int | str) or payloads.rpc_name(token) is None:
            return
        if self.cancelled or self._scope.ended:
            return
        now = anyio.current_time()
        is_last = total is not None and done >= total
        if done <= self._last_progress or (
            now - self._progress_at < PROGRESS_SECONDS and not is_last
        ):
            return
        self._last_progress, self._progress_at = done, now
        told = payloads.progress(token, done, total, message)
        send_note(self.space, told, to=(self.sender,), about=self.envelope.id)


class SentProgress:
    """Progress that is on its way already; awaiting it only lets other tasks run."""

    def __await__(self) -> Generator[Any, Any, None]:
        """Let other tasks run."""
        return anyio.lowlevel.checkpoint().__await__()
