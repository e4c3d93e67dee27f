"""Verbs of talk: chats, their acknowledgement and cancel, lines of thought, any other kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio.lowlevel import checkpoint

from meup_agent.causes import Reason
from meup_agent.client.messages import Chat
from meup_agent.client.reasoning import REASONING_SECONDS, Reasoning, reason_aloud
from meup_agent.client.running_handler import awaited
from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from meup_agent.session import Session


class TalkVerbs:
    """The verbs of a participant that talks."""

    _session: Session

    @awaited
    async def chat(
        self, text: str, *, to: str | Iterable[str] = (), about: str | None = None
    ) -> str:
        """Send a chat message; its id.

        Args:
            text: Its text.
            to: The addressees; empty: every member.
            about: The id of the envelope that it refers to.
        """
        return await self.send(
            kinds.CHAT, {"message": text}, to=to, correlation=() if about is None else (about,)
        )

    @awaited
    async def acknowledge(self, chat: Chat, status: str = "received") -> str:
        """Confirm a chat message to its sender; the id of the acknowledgement.

        Args:
            chat: The message.
            status: What became of it: ``received``, ``read``, ``processing`` …
        """
        return await self.send(
            kinds.CHAT_ACKNOWLEDGE, {"status": status}, to=chat.sender, correlation=chat.id
        )

    @awaited
    async def cancel_chat(
        self,
        chat_id: str,
        *,
        to: str | Iterable[str] = (),
        reason: str = Reason.NO_LONGER_NEEDED,
    ) -> str:
        """Take a chat message of ours back: what handles it ends; the id of the cancel.

        Args:
            chat_id: The message, as :meth:`chat` returned it.
            to: The addressees of the message; empty: every member.
            reason: Why; a handler of it finds that in ``ctx.reason``.
        """
        return await self.send(
            kinds.CHAT_CANCEL, {"reason": str(reason)}, to=to, correlation=chat_id
        )

    def reasoning(
        self,
        text: str = "",
        *,
        about: str | None = None,
        timeout: float | None = REASONING_SECONDS,
    ) -> AbstractAsyncContextManager[Reasoning]:
        """Think aloud, for the length of a block: others can follow it, and those who may stop it.

        A block that ends without :meth:`Reasoning.conclude` concludes without words; one that is
        left by an exception or a cancellation says that it was stopped.

        Args:
            text: What it is about, for people.
            about: The id of the envelope that it is about; ``ctx.reasoning`` knows it.
            timeout: Seconds after which it is stopped; ``None``: as long as it takes.

        Raises:
            ReasoningCancelled: Another participant stopped it, or its time was over; the block is
                cancelled, and its calls with it.
            Refused: We are paused.
            UsageError: Too many are open.
        """
        return reason_aloud(self, self._session, text, about=about, timeout=timeout)

    @awaited
    async def cancel_reasoning(
        self, reasoning_id: str, *, reason: str = Reason.NO_LONGER_NEEDED
    ) -> str:
        """Stop another participant's line of thought; the id of the cancel.

        Args:
            reasoning_id: The id of its ``reasoning/start``.
            reason: Why; the block of the line of thought is cancelled with it.
        """
        return await self.send(
            kinds.REASONING_CANCEL, {"reason": str(reason)}, context=reasoning_id
        )

    @awaited
    async def send(
        self,
        kind: str,
        payload: Any,
        *,
        to: str | Iterable[str] = (),
        correlation: str | Iterable[str] = (),
        context: str | None = None,
    ) -> str:
        """Send an envelope of any kind that begins no exchange of ours; its id.

        Args:
            kind: The kind, with slashes or dots.
            payload: JSON values.
            to: The addressees; empty: every member.
            correlation: Ids of the envelopes that it refers to.
            context: The id of the context that it belongs to, as of a line of thought.
        """
        sent = self._say(
            kinds.canonical(kind),
            payload,
            to=names(to),
            correlation=names(correlation),
            context=context,
        )
        await checkpoint()
        return sent

    def _say(
        self,
        kind: str,
        payload: Any,
        *,
        to: tuple[str, ...],
        correlation: tuple[str, ...],
        context: str | None = None,
    ) -> str:
        said = self._session.say(kind, payload, to=to, correlation=correlation, context=context)
        return said.id


def names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Several names, or the only one."""
    return (given,) if isinstance(given, str) else tuple(given)
