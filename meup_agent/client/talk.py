"""Talk in a space: chats, their acknowledgement and cancel, lines of thought, any other kind.

A line of thought can be followed by others, and stopped (PROTOCOL 4.18).
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.causes import Cause, Reason, read_reason
from meup_agent.client.messages import Chat, shown
from meup_agent.client.running_handler import CallScope, awaited, cause_of_leaving
from meup_agent.errors import NotSent, ReasoningCancelled, Refused, UsageError
from meup_agent.protocol.exchange.inbound_exchange import cause_of_end
from meup_agent.protocol.wire import kinds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from meup_agent.client.messages import Outbound
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session import Session


# --- explanations ---
# The explanations of our own rejects and withdraws: said later, as a chat (PROTOCOL 4.3).

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meup_agent.client.messages import Outbound
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session import Session

    Send = Callable[..., Awaitable[str]]
    """:meth:`Space.send`."""

    Explainer = Callable[[Envelope, str], Awaitable[str]]
    """Sends the words that explain a reject or withdraw of ours; the id of the chat."""


class DecisionReceipt:
    """A reject or withdraw of ours that was sent, which can be explained later.

    Attributes:
        id: The id of its envelope; empty where there was nothing to send: the proposal was decided
            already, or had not been sent itself.
        proposal_ids: The proposals that it ends.
    """

    def __init__(
        self,
        sent: Envelope | None,
        proposal_ids: tuple[str, ...],
        explain: Explainer,
        *,
        explained: bool = False,
    ) -> None:
        self._sent = sent
        self._explain = explain
        self._explained = explained
        self.id = "" if sent is None else sent.id
        self.proposal_ids = proposal_ids

    def __repr__(self) -> str:
        return f"<DecisionReceipt {self.id or 'of nothing sent'} of {len(self.proposal_ids)}>"

    @awaited
    async def explain(self, text: str) -> str:
        """Say why, to those who heard of the decision; once, since readers keep the first words.

        Args:
            text: The words. Readers keep 4,000 characters.

        Returns:
            The id of the chat.

        Raises:
            UsageError: There are no words, or it was explained before.
            NotSent: Nothing was rejected or withdrawn that could be explained, or there will be no
                connection any more.
            Refused: Our capabilities do not allow a chat, or the gateway did not let it through.
        """
        if self._sent is None:
            raise NotSent(
                "the explanation was not sent: neither was a withdrawal, since the proposal was "
                "decided before, or had not been sent"
            )
        if not text:
            raise UsageError(f"an explanation of {self.id} needs words")
        if self._explained:
            raise UsageError(
                f"{self.id} was explained already, and its readers keep the first explanation"
            )
        self._explained = True
        try:
            return await self._explain(self._sent, text)
        except BaseException:
            self._explained = False
            raise


def explainer_of(session: Session, outbound: Outbound | None) -> Explainer:
    """Sends explanations over a session, through the middleware as the chats that they are."""

    async def explain(decision: Envelope, text: str) -> str:
        async def send(message: Any) -> str:
            payload, to = message.payload, message.to
            check_may_explain(session, payload, to=to)
            chat = session.send_message(kinds.CHAT, payload, to=to, correlation=(decision.id,))
            await session.taken((chat.id,))
            return chat.id

        fields = shown(
            kind=kinds.CHAT, payload={"message": text}, to=decision.to, correlation=decision.id
        )
        if outbound is None:
            return await send(SimpleNamespace(**fields))
        return str(await outbound("send", fields, send))

    return explain


def check_may_explain(
    session: Session,
    payload: Any,
    *,
    to: tuple[str, ...],
    what: str = "the explanation was not sent",
) -> None:
    """Raise Refused where no capability of ours allows the words, UsageError where none fit."""
    session.check_message(kinds.CHAT, payload, to=to, correlation=(session.table.new_id(),))
    check_may_send(session, kinds.CHAT, payload, what, to=to)


def check_may_decide(
    session: Session,
    kind: str,
    payload: dict[str, Any],
    what: str,
    *,
    to: tuple[str, ...],
    explain: str | None,
) -> None:
    """Raise for a decision, or its explanation, that may not be sent; nothing was, by then."""
    check_may_send(session, kind, payload, what, to=to)
    if explain:
        check_may_explain(session, {"message": explain}, to=to, what=what)


def check_may_send(
    session: Session, kind: str, payload: Any, what: str, *, to: tuple[str, ...]
) -> None:
    """Raise Refused for what our announced capabilities do not allow."""
    roster = session.table.roster
    # Some gateways announce nothing to those whom they have forgotten (PROTOCOL 2).
    known = bool(roster.my_capabilities) or roster.guarantees.identity_checked
    if known and not roster.is_allowed(roster.me, kind, payload, to):
        said = f" with the reason {payload['reason']!r}" if "reason" in payload else ""
        raise Refused(
            "capability_violation",
            f"{what}: none of the capabilities of {roster.me!r} allows {kind}{said}; ask a "
            f'participant that manages the space to grant {{"kind": "{kind}"}}',
        )


# --- talk in a space ---

REASONING_SECONDS: Final = 3600.0
"""Longest time of a line of thought; ``timeout=…`` changes it."""

MAX_THOUGHTS: Final = 10_000
"""Thoughts in one line of thought: each is kept by the gateway, and shown to people."""

MAX_REASONINGS: Final = 256
"""Lines of thought of one participant at once."""

WORD_SECONDS: Final = 5.0
"""Wait for the first word of a line of thought, and for the last where it is cancelled: they are
said whole, and pass middleware."""


class Reasoning:
    """A line of thought of ours, for the length of a block.

    Attributes:
        id: The id of its ``reasoning/start``, which is the context of all that belongs to it.
        concluded: A conclusion was sent.
        reason: The cause for which another participant stopped it; ``None`` while none did.
    """

    def __init__(self, send: Send, session: Session, scope: CallScope) -> None:
        self.id = ""
        self.concluded = False
        self._send_any = send
        self._session = session
        self._scope = scope
        self.reason: Cause | None = None
        self._thoughts = 0

    async def thought(self, text: str, **more: Any) -> None:
        """Send a thought.

        Args:
            text: The thought.
            more: More fields of the payload, for readers that know them.

        Raises:
            UsageError: It is concluded, or has had more thoughts than are taken.
        """
        self._check_open()
        self._thoughts += 1
        if self._thoughts > MAX_THOUGHTS:
            raise UsageError(
                f"a line of thought has at most {MAX_THOUGHTS} thoughts; conclude it, and begin"
                " another one, or send longer thoughts"
            )
        await self._send(kinds.REASONING_THOUGHT, {**more, "message": text})

    async def conclude(self, text: str, **more: Any) -> None:
        """Send the conclusion, which ends the line of thought.

        Args:
            text: The conclusion.
            more: More fields of the payload, for readers that know them.

        Raises:
            UsageError: It is concluded already.
        """
        self._check_open()
        self.concluded = True
        try:
            await self._send(kinds.REASONING_CONCLUSION, {**more, "message": text})
        except BaseException:
            # A middleware was left, or refused it: the others are owed an end still.
            self.concluded = False
            raise

    def put(self, envelope: Envelope) -> None:
        """Look whether an envelope stops it; only one who may stops it (PROTOCOL 4.18)."""
        if (
            envelope.kind != kinds.REASONING_CANCEL
            or envelope.context != self.id
            or self.reason is not None
        ):
            return
        session, sender = self._session, envelope.sender
        if sender == session.me or self.concluded:
            return
        payload, roster = envelope.payload_object, session.table.roster
        if sender in roster and not roster.is_allowed(
            sender, kinds.REASONING_CANCEL, payload, envelope.to
        ):
            return
        reason = read_reason(payload.get("reason"))
        self.reason = cause_of_end(sender, self.id, reason, "", session.now())
        self._scope.cancel(reason)

    async def stop(self, reason: str) -> None:
        """Tell the others that it ends without a conclusion, also where we are cancelled."""
        if not self.concluded:
            self.concluded = True
            with anyio.move_on_after(WORD_SECONDS, shield=True):
                await self._send(kinds.REASONING_CANCEL, {"reason": reason})

    def _check_open(self) -> None:
        if self.concluded:
            raise UsageError("this line of thought is concluded; begin another one")

    async def _send(self, kind: str, payload: dict[str, Any]) -> None:
        await self._send_any(kind, payload, context=self.id)


class Talk:
    """Lines of thought, and what follows a chat, as ``space.talk``."""

    def __init__(self, session: Session, send: Send) -> None:
        self._session = session
        self._send = send

    @awaited
    async def acknowledge(self, chat: Chat, status: str = "received") -> str:
        """Confirm a chat message to its sender; the id of the acknowledgement.

        Args:
            chat: The message.
            status: What became of it: ``received``, ``read``, ``processing`` …
        """
        return await self._send(
            kinds.CHAT_ACKNOWLEDGE, {"status": status}, to=chat.sender, correlation=chat.id
        )

    @awaited
    async def cancel(
        self,
        chat_id: str,
        *,
        to: str | Iterable[str] = (),
        reason: str = Reason.NO_LONGER_NEEDED,
    ) -> str:
        """Take a chat message of ours back: what handles it ends; the id of the cancel.

        Args:
            chat_id: The message, as :meth:`Space.chat` returned it.
            to: The addressees of the message; empty: every member.
            reason: Why; a handler of it finds that in ``ctx.reason``.
        """
        return await self._send(
            kinds.CHAT_CANCEL, {"reason": str(reason)}, to=to, correlation=chat_id
        )

    @asynccontextmanager
    async def reasoning(
        self,
        text: str = "",
        *,
        about: str | None = None,
        timeout: float | None = REASONING_SECONDS,
    ) -> AsyncGenerator[Reasoning]:
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
        session = self._session
        payload = {"message": text}
        check_may_send(session, kinds.REASONING_START, payload, "the reasoning", to=())
        count = sum(isinstance(each, Reasoning) for each in session.watchers.listeners)
        if count >= MAX_REASONINGS:
            raise UsageError(f"{MAX_REASONINGS} lines of thought are open; conclude one of them")
        scope = CallScope()
        reasoning = Reasoning(self._send, session, scope)
        with session.watchers.listening(reasoning):
            # Else a cancellation at that moment would leave a beginning without an end.
            with anyio.move_on_after(WORD_SECONDS, shield=True):
                reasoning.id = await self._send(
                    kinds.REASONING_START,
                    payload,
                    correlation=about or (),
                )
            if not reasoning.id:
                held = "middleware held its beginning"
                raise ReasoningCancelled(Reason.TIMEOUT, session.me, held)
            with anyio.move_on_after(timeout) as clock, scope:
                try:
                    yield reasoning
                    if reasoning.reason is None and not reasoning.concluded:
                        await reasoning.conclude("")
                except BaseException as error:
                    reason = "error"
                    if reasoning.reason is not None:
                        reason = str(reasoning.reason.code)
                    elif clock.cancel_called:
                        reason = Reason.TIMEOUT
                    elif isinstance(error, anyio.get_cancelled_exc_class()):
                        reason = str(cause_of_leaving(session).code)
                    await reasoning.stop(reason)
                    raise
                if reasoning.reason is not None:
                    await reasoning.stop(reasoning.reason.code)
        if reasoning.reason is not None:
            raise ReasoningCancelled(reasoning.reason.code, reasoning.reason.by)
        if clock.cancelled_caught:
            raise ReasoningCancelled(Reason.TIMEOUT, session.me, f"it took more than {timeout:g} s")

    @awaited
    async def cancel_reasoning(
        self, reasoning_id: str, *, reason: str = Reason.NO_LONGER_NEEDED
    ) -> str:
        """Stop another participant's line of thought; the id of the cancel.

        Args:
            reasoning_id: The id of its ``reasoning/start``.
            reason: Why; the block of the line of thought is cancelled with it.
        """
        return await self._send(
            kinds.REASONING_CANCEL, {"reason": str(reason)}, context=reasoning_id
        )
