"""What the gateway says itself: who we are and who is here, what was missed, what was refused."""

from __future__ import annotations

from typing import Any

from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import Envelope, encode_leniently
from meup_agent.protocol.exchange.effects import CaughtUp, Role
from meup_agent.protocol.exchange.incoming import Incoming
from meup_agent.protocol.exchange.outgoing import Outgoing
from meup_agent.protocol.exchange.roster import UPDATE, Presence
from meup_agent.protocol.exchange.situation import Situation
from meup_agent.protocol.guarantees import read_guarantees
from meup_agent.protocol.resume import ARRIVED, MISSED_NOTHING, read_missed

_SAID_BY_MEMBERS = frozenset({"system/heartbeat", "system/register"})
"""What clients that exist send although only the gateway may (PROTOCOL 2); it means nothing."""


class GatewaysWords:
    """Applies welcomes, presence and errors to the roster and to both sides of the table."""

    def __init__(self, situation: Situation, outgoing: Outgoing, incoming: Incoming) -> None:
        self._situation = situation
        self._outgoing = outgoing
        self._incoming = incoming
        self._welcomed_before = False
        self._last_welcome: Envelope | None = None

    def take(self, envelope: Envelope, now: float, seq: int | None) -> None:
        """Something of a kind that only the gateway says."""
        if envelope.sender not in kinds.GATEWAY_NAMES:
            expected = envelope.kind in _SAID_BY_MEMBERS
            self._situation.drop("forged_system", envelope, expected=expected)
            return
        payload = envelope.payload_object
        match envelope.kind:
            case kinds.SYSTEM_WELCOME:
                self._welcome(envelope, payload, now, seq)
            case kinds.SYSTEM_PRESENCE:
                self._presence(envelope, payload, now)
            case kinds.SYSTEM_ERROR if envelope.concerns(self._situation.me):
                names = envelope.correlation
                known = [self._outgoing.refused(name, payload, now) for name in names]
                if self._situation.roster.shows_eviction(payload):
                    # Nobody heard it, so it is to be said when we are in again.
                    voice = self._situation.voice
                    known += [voice.say_once_more(name, now) for name in names]
                if not any(known) and not self._situation.voice.said_beside(names, now):
                    self._situation.drop("refused_by_gateway", envelope)
            case _:
                pass
        self._incoming.notice(Role.KIND, envelope, now)

    def _welcome(
        self, envelope: Envelope, payload: dict[str, Any], now: float, seq: int | None
    ) -> None:
        """We are in; or, on a connection that was welcomed before, our capabilities changed."""
        situation = self._situation
        if envelope.to and situation.me and situation.me not in envelope.to:
            situation.drop("foreign_welcome", envelope)
            return
        update = situation.connected
        missed = read_missed(payload) if read_guarantees(payload, "").resume else None
        back = missed is not None and missed.resumed and situation.reading.seq is not None
        changed = situation.roster.welcome(
            payload, now, update=update, dialect=envelope.protocol, later=back and not update
        )
        if changed is None:
            situation.drop("malformed_welcome", envelope)
            return
        situation.voice.me = situation.me
        situation.connected = True
        if update:
            for participant in changed.left:
                self._incoming.participant_left(participant, now)
            for participant in changed.joined:
                self._incoming.participant_joined(participant)
            self._outgoing.presence_changed(now)
            situation.voice.say_again(changed.joined, now)
            self._notice_changes(envelope, changed, now)
            return
        reading = situation.reading
        wall_clock = situation.wall_clock
        reading.welcomed(missed, seq, now, None if wall_clock is None else wall_clock())
        situation.voice.anew = reading.seq is not None
        self._last_welcome = envelope
        self._incoming.pause(now, paused=back)
        if reading.gap is not None:
            self._incoming.notice(Role.GAP, envelope, now, reading.gap)
        if not back:
            self._enter(envelope, changed, now)
        elif reading.until is None:
            self.caught_up(now)

    def caught_up(self, now: float) -> None:
        """We have read what we missed: from here on, what comes is new (PROTOCOL 6)."""
        situation, welcome = self._situation, self._last_welcome
        reading = situation.reading
        reading.until = None
        situation.effects.append(CaughtUp(reading.missed, reading.away, reading.gap))
        assert welcome is not None  # it said that there is something to read
        changed = situation.roster.settle(now)
        self._enter(welcome, changed, now, complete=reading.gap is None)
        self._incoming.pause(now, paused=False)

    def _enter(
        self, welcome: Envelope, changed: Presence, now: float, *, complete: bool = False
    ) -> None:
        """Put in order what a lost connection has left, by who is present now.

        Args:
            welcome: The welcome of this connection.
            changed: Who came and went unseen.
            now: The time.
            complete: We have read everything that we missed.
        """
        self._incoming.welcomed(now)
        if complete:
            self._outgoing.caught_up(now)
        else:
            self._outgoing.welcomed(now)
        if self._welcomed_before:
            if not complete:
                # Whoever is here may have missed what we said before the connection broke.
                present = [item.id for item in self._situation.roster.participants()]
                self._situation.voice.say_again(present, now)
            self._notice_changes(welcome, changed, now)
        self._welcomed_before = True

    def _notice_changes(self, welcome: Envelope, changed: Presence, now: float) -> None:
        """Handlers hear of whoever came and went unseen, as of everybody else."""
        events = (("leave", Role.LEAVE, changed.left), ("join", Role.JOIN, changed.joined))
        for event, role, names in events:
            if not self._situation.wants(role, welcome, None):
                continue
            for name in names:
                if name == self._situation.me:
                    continue
                participant = {"id": name, "capabilities": self._situation.roster.announced(name)}
                payload = {"event": event, "participant": participant}
                presence = welcome.replace(
                    kind=kinds.SYSTEM_PRESENCE, to=(), raw_payload=encode_leniently(payload)
                )
                self._incoming.notice(role, presence, now)

    def _presence(self, envelope: Envelope, payload: dict[str, Any], now: float) -> None:
        update = self._situation.roster.update(payload, now)
        if update is None:
            return
        event, participant = update
        self._outgoing.presence_changed(now, joined=event == "join")
        if participant.id == self._situation.me or event == UPDATE:
            return
        if event == "join":
            self._incoming.participant_joined(participant.id)
            if not self._missed_nothing(payload):
                self._situation.voice.say_again([participant.id], now)
            self._incoming.notice(Role.JOIN, envelope, now)
        else:
            self._incoming.participant_left(participant.id, now)
            self._incoming.notice(Role.LEAVE, envelope, now)

    def _missed_nothing(self, presence: dict[str, Any]) -> bool:
        """Whether a newcomer needs nothing said again (PROTOCOL 4.14).

        After a gap of our own all are told again who are present when we have caught up.
        """
        reading = self._situation.reading
        if reading.until is not None and reading.gap is not None:
            return True
        resumes = self._situation.roster.guarantees.resume
        return resumes and presence.get(ARRIVED) in MISSED_NOTHING
