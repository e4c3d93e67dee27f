"""System messages: the gateway's own words on us, on presence, on resuming and on refusals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import Envelope, encode_leniently
from meup_agent.protocol.exchange.control_messages import ControlMessages
from meup_agent.protocol.exchange.effects import CaughtUp, Role
from meup_agent.protocol.exchange.handler_scheduler import TablePart
from meup_agent.protocol.exchange.listed_proposals import ListedProposals
from meup_agent.protocol.exchange.roster import UPDATE, Presence
from meup_agent.protocol.exchange.stream_table import StreamTable
from meup_agent.protocol.guarantees import read_guarantees
from meup_agent.protocol.payloads import as_object
from meup_agent.protocol.resume import ARRIVED, MISSED_NOTHING, read_missed

_SAID_BY_MEMBERS = frozenset({"system/heartbeat", "system/register"})
"""Kinds without meaning that existing clients send although only the gateway may (PROTOCOL 2)."""


@dataclass
class SystemMessages(TablePart):
    """Applies welcomes, presence and errors to the roster and to both sides of the table."""

    _control: ControlMessages
    _streams: StreamTable
    _listed: ListedProposals
    _welcomed_before: bool = False
    _last_welcome: Envelope | None = None

    def receive(self, envelope: Envelope, seq: int | None) -> None:
        """Apply a message of a kind that only the gateway may send."""
        if envelope.sender not in kinds.GATEWAY_NAMES:
            expected = envelope.kind in _SAID_BY_MEMBERS
            self._context.drop("forged_system", envelope, expected=expected)
            return
        payload = envelope.payload_object
        match envelope.kind:
            case kinds.SYSTEM_WELCOME:
                self._welcome(envelope, payload, seq)
            case kinds.SYSTEM_PRESENCE:
                self._presence(envelope, payload)
            case kinds.SYSTEM_ERROR if envelope.concerns(self._context.me):
                names = envelope.correlation
                known = [self._outbound.refused(name, payload) for name in names]
                known.append(self._streams.own.refused(names, payload))
                if self._context.roster.shows_eviction(payload):
                    # No participant got it, so it is sent again when we are in again.
                    envelope_sender = self._context.envelope_sender
                    known += [envelope_sender.resend_once(name) for name in names]
                if not any(known) and not self._context.envelope_sender.is_from_sibling(names):
                    self._context.drop("refused_by_gateway", envelope)
            case _:
                pass
        self._scheduler.notify(Role.KIND, envelope)

    def _welcome(self, envelope: Envelope, payload: dict[str, Any], seq: int | None) -> None:
        """Apply the welcome of a connection; a further one on it changes capabilities."""
        context = self._context
        if envelope.to and context.me and context.me not in envelope.to:
            context.drop("foreign_welcome", envelope)
            return
        update = context.connected
        missed = read_missed(payload) if read_guarantees(payload, "").resume else None
        back = missed is not None and missed.resumed and context.cursor.seq is not None
        changed = context.roster.apply_welcome(
            payload,
            context.now,
            update=update,
            dialect=envelope.protocol,
            later=back and not update,
        )
        if changed is None:
            context.drop("malformed_welcome", envelope)
            return
        context.envelope_sender.me = context.me
        context.connected = True
        context.read_clock(envelope)
        self._control.welcomed(as_object(payload.get("you")))
        if update:
            for participant in changed.left:
                self._scheduler.participant_left(participant)
            for participant in changed.joined:
                self._scheduler.participant_joined(participant)
            self._outbound.presence_changed()
            context.envelope_sender.resend_to(changed.joined)
            self._notify_changes(envelope, changed)
            return
        cursor = context.cursor
        cursor.begin(missed, seq, context.now, context.time_of_day())
        self._streams.welcomed(payload)
        context.watch_expiries()
        context.envelope_sender.copies_get_new_ids = cursor.seq is not None
        self._last_welcome = envelope
        self._scheduler.pause(paused=back)
        if cursor.gap is not None:
            self._scheduler.notify(Role.GAP, envelope, cursor.gap)
        if not back:
            self._enter(envelope, changed)
        elif cursor.until is None:
            self.caught_up()

    def caught_up(self) -> None:
        """End the replay: from here on, what comes is new (PROTOCOL 6)."""
        context, welcome = self._context, self._last_welcome
        cursor = context.cursor
        cursor.until = None
        context.effects.append(CaughtUp(cursor.missed, cursor.away, cursor.gap))
        assert welcome is not None  # it said that there is something to read
        changed = context.roster.settle(context.now)
        context.watch_expiries()
        self._enter(welcome, changed, complete=cursor.gap is None)
        self._scheduler.pause(paused=False)

    def _enter(self, welcome: Envelope, changed: Presence, *, complete: bool = False) -> None:
        """Put in order what a lost connection has left; ``complete``: nothing was missed."""
        self._scheduler.welcomed()
        if complete:
            self._outbound.caught_up()
        else:
            self._outbound.welcomed()
            self._listed.ask()
        self._streams.settle(welcome, complete=complete)
        if self._welcomed_before:
            if not complete:
                # Those present may have missed what we sent before the connection broke.
                present = [item.id for item in self._context.roster.participants()]
                self._context.envelope_sender.resend_to(present)
            self._notify_changes(welcome, changed)
        self._welcomed_before = True

    def _notify_changes(self, welcome: Envelope, changed: Presence) -> None:
        """Tell handlers of the participants that came and went unseen, as of all others."""
        events = (("leave", Role.LEAVE, changed.left), ("join", Role.JOIN, changed.joined))
        for event, role, names in events:
            handler = self._context.find_handler(role, welcome, None) if names else None
            if not handler:
                continue
            for name in names:
                if name == self._context.me:
                    continue
                participant = {
                    "id": name,
                    "capabilities": self._context.roster.capabilities_of(name),
                }
                payload = {"event": event, "participant": participant}
                presence = welcome.replace(
                    kind=kinds.SYSTEM_PRESENCE, to=(), raw_payload=encode_leniently(payload)
                )
                self._scheduler.notify(role, presence, handler=handler)

    def _presence(self, envelope: Envelope, payload: dict[str, Any]) -> None:
        update = self._context.roster.apply_presence(payload, self._context.now)
        if update is None:
            return
        if self._context.cursor.until is None:
            self._context.read_clock(envelope)  # it may have been set since the welcome
        event, participant = update
        self._outbound.presence_changed(joined=event == "join")
        if participant.id == self._context.me or event == UPDATE:
            return
        if event == "join":
            self._scheduler.participant_joined(participant.id)
            if not self._missed_nothing(payload):
                self._context.envelope_sender.resend_to([participant.id])
            self._scheduler.notify(Role.JOIN, envelope)
        else:
            self._scheduler.participant_left(participant.id)
            self._streams.participant_left(participant.id)
            self._scheduler.notify(Role.LEAVE, envelope)

    def _missed_nothing(self, presence: dict[str, Any]) -> bool:
        """True if a newcomer needs nothing sent again, or gets it after our own gap (4.14)."""
        cursor = self._context.cursor
        if cursor.until is not None and cursor.gap is not None:
            return True
        resumes = self._context.roster.guarantees.resume
        return resumes and presence.get(ARRIVED) in MISSED_NOTHING
