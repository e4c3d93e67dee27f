"""Managing a space: who may do what, who is let in, and who has to leave (PROTOCOL 3 and 7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.running_handler import awaited, release_slot
from meup_agent.client.waits import TIMEOUT
from meup_agent.errors import OutcomeUnknown, Refused, UsageError
from meup_agent.protocol.wire import kinds, management_payloads
from meup_agent.protocol.wire.management_payloads import Grant
from meup_agent.session.pending_calls import checked_timeout
from meup_agent.session.session import refusal_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.session import Session


@dataclass(frozen=True, slots=True)
class Invitation:
    """A participant was let into the space.

    Attributes:
        participant: Who.
        token: The token to join with. It is told once and never again, so hand it on safely; it
            stands in no ``repr``. ``None`` for one that had been removed, and comes back with
            the token they have.
        url: The address to dial, where the gateway knows it; it may hold the token, so it stands
            in no ``repr`` either.
    """

    participant: str
    token: str | None = field(repr=False)
    url: str | None = field(repr=False)


class AwaitedAnswer:
    """The first envelope that answers one of ours: of a kind, or the gateway's refusal.

    It comes from the participant that is asked, else from the gateway. Where the kind is our own
    envelope's, it is the echo.
    """

    said: Envelope
    """Ours, as it was sent."""

    def __init__(self, kind: str, asked: str = "") -> None:
        self.came = anyio.Event()
        self.envelope: Envelope | None = None
        self.kind = kind
        self.asked = asked

    def put(self, envelope: Envelope) -> None:
        """Keep the first answer."""
        if self.envelope is None and self._is_answer(envelope):
            self.envelope = envelope
            self.came.set()

    def _is_answer(self, envelope: Envelope) -> bool:
        is_gateways = envelope.sender in kinds.GATEWAY_NAMES
        if envelope.id == self.said.id and not is_gateways:
            return envelope.kind == self.said.kind == self.kind
        if self.said.id not in envelope.correlation:
            return False
        if envelope.kind == kinds.SYSTEM_ERROR:
            return is_gateways
        answers = envelope.sender == self.asked if self.asked else is_gateways
        return answers and envelope.kind == self.kind


class Members:
    """Management of who is in a space and what they may, as ``space.members``."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @awaited
    async def grant(
        self,
        participant: str,
        capabilities: Iterable[Mapping[str, Any]],
        *,
        reason: str = "",
        timeout: float | None = TIMEOUT,
    ) -> Grant:
        """Grant a participant capabilities, at once; they outlive its connection.

        It returns when the gateway has taken it; where a gateway sends nothing back
        (``guarantees.echo``), when it is on its way.

        Args:
            participant: The participant; it need not be present.
            capabilities: Envelopes that it may send now, for example ``[{"kind": "chat"}]``:
                nothing that we lack ourselves. What we lose later they lose, too.
            reason: Why, for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Returns:
            The grant, by which it can be revoked.

        Raises:
            Refused: The gateway did not let it through: we may not grant, or lack what we give,
                or there is no such participant.
            OutcomeUnknown: The gateway did not say in time what became of it.
            NotSent: There is no connection any more, and there will be none.
        """
        listed = [dict(each) for each in capabilities]
        payload = {"recipient": participant, "capabilities": listed, **given(reason=reason)}
        said = await ask(
            self._session, management_payloads.GRANT, payload, to=participant, timeout=timeout
        )
        return Grant(said.id, self._session.me, participant, tuple(listed), reason)

    @awaited
    async def revoke(
        self,
        participant: str,
        capabilities: Iterable[Mapping[str, Any]] = (),
        *,
        grant: Grant | str | None = None,
        reason: str = "",
        timeout: float | None = TIMEOUT,
    ) -> None:
        """Revoke capabilities, at once: what the participant has in flight without them ends, too.

        Args:
            participant: The participant.
            capabilities: Patterns: everything that they cover is revoked, configured or granted.
            grant: In place of patterns, the grant to revoke, or its id.
            reason: Why, for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: The gateway did not let it through: we may not revoke, or there is nothing
                that could be.
            OutcomeUnknown: As :meth:`grant`.
            NotSent: As :meth:`grant`.
            UsageError: Neither capabilities nor a grant was given, or both.
        """
        listed = [dict(each) for each in capabilities]
        if bool(listed) == (grant is not None):
            raise UsageError("say what is revoked: either capabilities, or a grant")
        what: dict[str, Any] = {"capabilities": listed}
        if grant is not None:
            what = {"grant_id": grant.id if isinstance(grant, Grant) else grant}
        payload = {"recipient": participant, **what, **given(reason=reason)}
        await ask(
            self._session, management_payloads.REVOKE, payload, to=participant, timeout=timeout
        )

    @awaited
    async def invite(
        self,
        participant: str,
        capabilities: Iterable[Mapping[str, Any]] = (),
        *,
        email: str = "",
        reason: str = "",
        timeout: float | None = TIMEOUT,
    ) -> Invitation:
        """Invite a participant that could not join the space so far, or was removed.

        Args:
            participant: Its name, which no participant here has yet.
            capabilities: Envelopes that it may send: nothing that we lack ourselves.
            email: The person's address; every member of the space can read it, and our own gateway
                sends no mail.
            reason: Why, for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Returns:
            The invitation, with the token, which is told to us alone and this once.

        Raises:
            Refused: The gateway did not let it through.
            OutcomeUnknown: As :meth:`grant`.
            NotSent: As :meth:`grant`.
        """
        payload = {
            "participant_id": participant,
            "initial_capabilities": [dict(each) for each in capabilities],
            **given(email=email, reason=reason),
        }
        said = await ask(
            self._session,
            management_payloads.INVITE,
            payload,
            answer=AwaitedAnswer(management_payloads.INVITE_ACK),
            timeout=timeout,
        )
        ack = said.payload_object
        if ack.get("status") == management_payloads.ALREADY_EXISTS:
            message = f"the space/invite was refused: {participant!r} is a participant already"
            raise Refused(management_payloads.ALREADY_EXISTS, message, ack)
        token, url = ack.get("token"), ack.get("connection_url")
        return Invitation(
            participant,
            token if isinstance(token, str) else None,
            url if isinstance(url, str) else None,
        )

    @awaited
    async def kick(
        self, participant: str, *, reason: str = "", timeout: float | None = TIMEOUT
    ) -> None:
        """Remove a participant from the space: it stays out until it is invited again.

        What they were granted is revoked, and what they have in flight ends.

        Args:
            participant: The participant.
            reason: Why, for them and for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: The gateway did not let it through.
            OutcomeUnknown: As :meth:`grant`.
            NotSent: As :meth:`grant`.
        """
        payload = {"participant_id": participant, **given(reason=reason)}
        await ask(self._session, management_payloads.KICK, payload, timeout=timeout)


async def ask(
    session: Session,
    kind: str,
    payload: dict[str, Any],
    *,
    to: str = "",
    correlation: tuple[str, ...] = (),
    answer: AwaitedAnswer | None = None,
    timeout: float | None = TIMEOUT,
) -> Envelope:
    """Send something, and wait for its answer; without one, until the gateway has taken it.

    The handler that waits gives its place free. Raises for a refusal, and where nothing came.
    """
    timeout = checked_timeout(timeout)
    answer = answer or AwaitedAnswer(kind)
    said = session.send_message(kind, payload, to=(to,) if to else (), correlation=correlation)
    if answer.kind == kind and not session.table.roster.guarantees.echo:
        await checkpoint()
        return said  # this gateway does not confirm it
    answer.said = said
    with (
        session.watchers.told_of(said.id, answer),
        release_slot(session),
        anyio.move_on_after(timeout),
    ):
        await answer.came.wait()
    if answer.envelope is None:
        who = repr(answer.asked) if answer.asked else "the gateway"
        raise OutcomeUnknown(f"the {kind} was sent, and {who} did not answer in {timeout:g} s")
    if answer.envelope.kind == kinds.SYSTEM_ERROR:
        raise refusal_in(answer.envelope.payload_object, f"the {kind}")
    return answer.envelope


def given(**fields: Any) -> dict[str, Any]:
    """The fields of a payload that the caller gave."""
    return {name: each for name, each in fields.items() if each not in (None, "", [])}
