"""The explanations of our own rejects and withdraws: said later, as a chat (PROTOCOL 4.3)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from meup_agent.client.outbound import shown
from meup_agent.client.running_handler import awaited
from meup_agent.errors import NotSent, Refused, UsageError
from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meup_agent.client.outbound import Outbound
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session import Session

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
