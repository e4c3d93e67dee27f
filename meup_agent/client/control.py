"""Verbs that manage participants (grants, invitations) and control them (PROTOCOL 3, 5)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint

from meup_agent.client.messages import TIMEOUT, awaited, release_slot
from meup_agent.errors import OutcomeUnknown, Refused, UsageError
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import (
    CompactDone,
    Direction,
    Grant,
    ParticipantStatus,
    Pause,
    read_control,
)
from meup_agent.session.outbox import checked_timeout
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
        self.envelope: Envelope | None = None
        self.kind = kind
        self.asked = asked

    def take(self, envelope: Envelope) -> bool:
        """Keep the first answer; ``True`` for that."""
        is_first = self.envelope is None and self._is_answer(envelope)
        if is_first:
            self.envelope = envelope
        return is_first

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
        said = await ask(self._session, payloads.GRANT, payload, to=participant, timeout=timeout)
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
        await ask(self._session, payloads.REVOKE, payload, to=participant, timeout=timeout)

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
            payloads.INVITE,
            payload,
            answer=AwaitedAnswer(payloads.INVITE_ACK),
            timeout=timeout,
        )
        ack = said.payload_object
        if ack.get("status") == payloads.ALREADY_EXISTS:
            message = f"the space/invite was refused: {participant!r} is a participant already"
            raise Refused(payloads.ALREADY_EXISTS, message, ack)
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
        await ask(self._session, payloads.KICK, payload, timeout=timeout)


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
        session.watchers.told_of(said.id, answer.take) as answers,
        release_slot(session),
        anyio.move_on_after(timeout),
    ):
        await anext(answers, None)
    if answer.envelope is None:
        who = repr(answer.asked) if answer.asked else "the gateway"
        why = session.over or f"{who} did not answer in {timeout:g} s"
        raise OutcomeUnknown(f"the {kind} was sent, and no answer came: {why}")
    if answer.envelope.kind == kinds.SYSTEM_ERROR:
        raise refusal_in(answer.envelope.payload_object, f"the {kind}")
    return answer.envelope


def given(**fields: Any) -> dict[str, Any]:
    """The fields of a payload that the caller gave."""
    return {name: each for name, each in fields.items() if each not in (None, "", [])}


class Control:
    """Control of other participants, as ``space.control``; each verb takes a capability."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @property
    def paused(self) -> Pause | None:
        """The pause that we keep at this moment; ``None``: we are not paused."""
        return self._session.table.pause

    @awaited
    async def pause(
        self, participant: str, *, reason: str = "", timeout: float | None = None
    ) -> Pause:
        """Pause a participant: it begins nothing new until it is resumed; what runs goes on.

        Our own gateway holds it to that. It returns when the gateway has taken it.

        Args:
            participant: The participant.
            reason: Why, for it and for those who read it.
            timeout: Seconds after which it resumes by itself; ``None``: it waits for
                :meth:`resume`.

        Returns:
            The pause, by which it can be resumed.

        Raises:
            Refused: We may not pause it, or there is no such participant.
            OutcomeUnknown: The gateway did not say in time what became of it.
            NotSent: There is no connection any more, and there will be none.
        """
        payload = given(reason=reason, timeout_seconds=checked_timeout(timeout))
        said = await ask(self._session, payloads.PAUSE, payload, to=participant)
        return Pause(said.id, self._session.me, reason, timeout)

    @awaited
    async def resume(
        self, participant: str, *, pause: Pause | str | None = None, reason: str = ""
    ) -> None:
        """Let a paused participant go on.

        Args:
            participant: The participant.
            pause: The pause that ends, or its id; where another one holds by now, that goes on.
                ``None``: whichever holds.
            reason: Why, for it and for those who read it.

        Raises:
            Refused: We may not resume it, or it is ourselves that another participant paused.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        meant = pause.id if isinstance(pause, Pause) else pause
        await ask(
            self._session,
            payloads.RESUME,
            given(reason=reason),
            to=participant,
            correlation=() if meant is None else (meant,),
        )

    @awaited
    async def request_status(
        self, participant: str, fields: Iterable[str] = (), *, timeout: float | None = TIMEOUT
    ) -> ParticipantStatus:
        """Ask a participant for its status, and wait for the answer.

        Args:
            participant: The participant.
            fields: Fields that are wanted, for example ``tokens``; empty: all.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: We may not ask.
            OutcomeUnknown: No answer came in time.
            NotSent: As :meth:`pause`.
        """
        said = await ask(
            self._session,
            payloads.REQUEST_STATUS,
            given(fields=list(fields)),
            to=participant,
            answer=AwaitedAnswer(payloads.STATUS, participant),
            timeout=timeout,
        )
        status = read_control(said, said.payload_object)
        assert isinstance(status, ParticipantStatus)
        return status

    @awaited
    async def report_status(
        self, status: str = "active", fields: Mapping[str, Any] | None = None, *, to: str = ""
    ) -> None:
        """Tell our status unasked, for example before a limit is reached.

        Args:
            status: It in a word.
            fields: More of it: ``tokens``, ``max_tokens``, ``messages_in_context`` …
            to: The participant that is told; empty: every member.

        Raises:
            Refused: We may not.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        payload = {"messages_in_context": 0, **(fields or {}), "status": status}
        await ask(self._session, payloads.STATUS, payload, to=to)

    @awaited
    async def forget(
        self,
        participant: str,
        *,
        direction: Direction = "oldest",
        entries: int | None = None,
        reason: str = "",
    ) -> None:
        """Have a participant drop a part of its context; it tells its status afterwards.

        Args:
            participant: The participant.
            direction: ``oldest`` or ``newest`` first.
            entries: Entries to drop; ``None``: it decides.
            reason: Why, for it and for those who read it.

        Raises:
            Refused: We may not.
            OutcomeUnknown: As :meth:`pause`.
            NotSent: As :meth:`pause`.
        """
        payload = given(direction=direction, entries=entries, reason=reason)
        await ask(self._session, payloads.FORGET, payload, to=participant)

    @awaited
    async def compact(
        self,
        participant: str,
        *,
        target_tokens: int | None = None,
        reason: str = "",
        timeout: float | None = TIMEOUT,
    ) -> CompactDone:
        """Have a participant shorten its context, and wait until it has.

        Args:
            participant: The participant.
            target_tokens: Tokens that may remain; ``None``: it decides.
            reason: Why, for it and for those who read it.
            timeout: Seconds to wait; ``None``: as long as it takes.

        Raises:
            Refused: We may not.
            OutcomeUnknown: No answer came in time.
            NotSent: As :meth:`pause`.
        """
        said = await ask(
            self._session,
            payloads.COMPACT,
            given(target_tokens=target_tokens, reason=reason),
            to=participant,
            answer=AwaitedAnswer(payloads.COMPACT_DONE, participant),
            timeout=timeout,
        )
        done = read_control(said, said.payload_object)
        assert isinstance(done, CompactDone)
        return done

    @awaited
    async def clear(self, participant: str, *, reason: str = "") -> None:
        """Have a participant drop all of its context; errors as of :meth:`pause`."""
        payload = given(reason=reason)
        await ask(self._session, payloads.CLEAR, payload, to=participant)

    @awaited
    async def restart(self, participant: str, *, reason: str = "") -> None:
        """Have a participant begin anew: what it runs ends; errors as of :meth:`pause`."""
        payload = given(reason=reason)
        await ask(self._session, payloads.RESTART, payload, to=participant)

    @awaited
    async def shutdown(self, participant: str, *, reason: str = "") -> None:
        """Have a participant finish what it runs, and leave; errors as of :meth:`pause`.

        Until it joins anew, our own gateway refuses what it would begin.
        """
        payload = given(reason=reason)
        await ask(self._session, payloads.SHUTDOWN, payload, to=participant)
