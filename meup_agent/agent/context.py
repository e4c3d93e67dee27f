"""The context of a handler: the facts of its exchange, and the verbs in it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel

from meup_agent.client.running_handler import handler_is
from meup_agent.client.space import send_note
from meup_agent.client.streams import streaming_beside
from meup_agent.client.talk import REASONING_SECONDS
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.streams import build_request

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Generator
    from contextlib import AbstractAsyncContextManager

    from meup_agent.agent.scope import Scope
    from meup_agent.causes import Cause
    from meup_agent.client.space import Space
    from meup_agent.client.streams import StreamWriter
    from meup_agent.client.talk import Reasoning
    from meup_agent.protocol.wire.envelope import Envelope

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
