"""The context of a handler: the facts of its exchange, and the verbs in it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.from_thread
import anyio.lowlevel

from meup_agent.client.proposal_handle import Ttl
from meup_agent.client.running_handler import awaited, handler_is
from meup_agent.client.space import send_progress
from meup_agent.client.stream_verbs import streaming_beside
from meup_agent.client.talk import REASONING_SECONDS
from meup_agent.protocol import payloads
from meup_agent.protocol.exchange import Wait
from meup_agent.protocol.streams import build_request

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncGenerator, Generator, Iterable
    from contextlib import AbstractAsyncContextManager

    from meup_agent.agent.scope import Scope
    from meup_agent.causes import Cause
    from meup_agent.client.messages import OnProgress
    from meup_agent.client.proposal_handle import ProposalHandle
    from meup_agent.client.space import Space
    from meup_agent.client.streams import OnStream, StreamWriter
    from meup_agent.client.talk import Reasoning
    from meup_agent.protocol.envelope import Envelope

PROGRESS_SECONDS: Final = 0.1
"""Progress is told at most this often: it is for people (PROTOCOL 4.9)."""


class Context:
    """The exchange that a handler handles.

    Whatever is begun through it, or through its :attr:`space`, is part of the handler: when the
    handler is cancelled or ends, its requests are cancelled and its undecided proposals withdrawn.

    Attributes:
        space: The space, with all its verbs.
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

    # --- verbs ---

    @awaited
    async def call(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        timeout: Ttl = "space",
        total_timeout: float | None = None,
        idempotent: bool = False,
        accept_edits: bool = False,
        on_progress: OnProgress | None = None,
        on_stream: OnStream | None = None,
    ) -> Any:
        """Call a participant's tool: a request if our capabilities allow it, otherwise a proposal.

        It is part of the handler: when the handler is cancelled or ends, the request is cancelled,
        or the proposal withdrawn.

        Args:
            participant: The participant that has the tool; ``None``: the one that has it, found by
                the tool's name and the same from then on (:meth:`Space.find`).
            tool: Its name.
            arguments: Its arguments.
            to: If it becomes a proposal: the participants that should decide it; empty: any that
                may.
            timeout: Seconds to wait, for a request as for a proposal; ``None``: as long as it
                takes. By default the space's ``ttl`` (:class:`Settings`).
            total_timeout: Seconds to wait in all if it becomes a request: each progress
                (``on_progress``) lets the ``timeout`` begin anew. ``None``: ten times the timeout;
                as much as the timeout: progress does not extend it. Of a proposal the timeout is
                the whole wait, since those who decide it are told its end.
            idempotent: A request may be sent again after a reconnect, under the same id.
            accept_edits: If it becomes a proposal: take the result also of what was carried out
                otherwise than proposed, or perhaps so.
            on_progress: Called with each progress; must return at once.
            on_stream: An async function that reads each stream which the tool opens about the call
                (:meth:`Context.stream`), in a task beside it; no handler of ours gets these. The
                call returns when it has read all that came before the answer. What it raises
                cancels the call.

        Returns:
            The tool's structured content, else its content.

        Raises:
            InvalidArguments: There is no such tool, or it does not take these; nothing was sent.
            OwnerUnknown: No single participant has a tool of that name, or no longer the one that
                had it; nothing was sent.
            ToolError: The tool ran and failed.
            RequestError: It was answered with an error, for example for wrong arguments.
            ProposalEdited: The proposal was carried out otherwise than proposed, or it is unknown
                whether it was.
            ProposalRejected: The proposal was rejected.
            ProposalExpired: It was not decided, or not done, in time.
            RequestTimeout: No response came in time; it was cancelled.
            Refused: The gateway let through neither.
            ParticipantGone: Every participant that could answer has left.
            ConnectionFailed: It was not sent, or its outcome is not known.
        """
        return await self.space.call(
            participant,
            tool,
            arguments,
            to=to,
            timeout=timeout,
            total_timeout=total_timeout,
            idempotent=idempotent,
            accept_edits=accept_edits,
            on_progress=on_progress,
            on_stream=on_stream,
        )

    def propose(
        self,
        participant: str | None,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        to: str | Iterable[str] = (),
        ttl: Ttl = "space",
        wait: Wait | str = Wait.ADDRESSED,
        depends_on: Iterable[ProposalHandle | str] = (),
        on_progress: OnProgress | None = None,
    ) -> AbstractAsyncContextManager[ProposalHandle]:
        """Propose a call of a tool; leaving the block undecided withdraws it.

        It is part of the handler: when the handler is cancelled or ends, it is withdrawn, too.

        Args:
            participant: The participant that should carry it out; ``None``: the fulfiller's choice.
            tool: The tool's name.
            arguments: Its arguments.
            to: The participants that should decide it; empty: any that may.
            ttl: Seconds to wait for a decision and its result; ``None``: as long as it takes. By
                default the space's (:class:`Settings`). The handle can :meth:`renew
                <ProposalHandle.renew>` it.
            wait: The rejection that ends the wait: ``addressed``, ``first``, ``later``, ``all`` or
                ``deadline`` (PROTOCOL 4.5).
            depends_on: Proposals of ours, or their ids, that must be fulfilled first (PROTOCOL
                4.15). Until then no participant hears of this one, and its ``ttl`` has not begun;
                if one of them ends otherwise, or fails, this one is withdrawn.
            on_progress: Called with each progress; must return at once.

        Returns:
            An async context manager that gives a :class:`ProposalHandle`; entering it proposes.

        Raises:
            InvalidArguments: The participant's list of tools is known (:meth:`Space.tools`), and
                there is no such tool, or it does not take these arguments; nothing was sent.
            UsageError: It was awaited, or asked for something, instead of entered; or it depends on
                what is no proposal of ours, on itself, or on more than 64.
        """
        return self.space.propose(
            participant,
            tool,
            arguments,
            to=to,
            ttl=ttl,
            wait=wait,
            depends_on=depends_on,
            on_progress=on_progress,
        )

    def reasoning(
        self, text: str = "", *, timeout: float | None = REASONING_SECONDS
    ) -> AbstractAsyncContextManager[Reasoning]:
        """Think aloud about what the handler was started for, for the length of a block.

        Others can follow it, and those who may stop it. A block that ends without
        :meth:`Reasoning.conclude` concludes without words.

        Example::

            async with ctx.reasoning("which file is meant?") as reasoning:
                await reasoning.thought("there are two of that name")
                await reasoning.conclude("the newer one")

        Args:
            text: What it is about, for people.
            timeout: Seconds after which it is stopped; ``None``: as long as it takes.

        Raises:
            ReasoningCancelled: Another participant stopped it, or its time was over; the block is
                cancelled, and its calls with it.
            Refused: We are paused.
            UsageError: Too many are open.
        """
        return self.space.reasoning(text, about=self.envelope.id, timeout=timeout)

    @awaited
    async def chat(
        self, text: str, *, to: str | Iterable[str] = (), about: str | None = None
    ) -> str:
        """Send a chat message to participants; the id of its envelope.

        Args:
            text: Its text.
            to: The addressees; empty: every member.
            about: The id of the envelope that it refers to.

        Raises:
            Refused: We are paused.
            NotSent: There is no connection any more, and there will be none.
            UsageError: It is larger than a gateway takes, or this space is only observed.
        """
        return await self.space.chat(text, to=to, about=about)

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
        return streaming_beside(self.space, payload, about)

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
        send_progress(self.space, told, to=self.sender, request_id=self.envelope.id)


class SentProgress:
    """Progress that is on its way already; awaiting it only lets other tasks run."""

    def __await__(self) -> Generator[Any, Any, None]:
        """Let other tasks run."""
        return anyio.lowlevel.checkpoint().__await__()
