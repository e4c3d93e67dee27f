"""Messages of the gateway about us, and of those who may control us."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from meup_agent.causes import Reason
from meup_agent.errors import InvalidEnvelope, NotExpressible, Refused
from meup_agent.protocol.exchange.effects import CaughtUp, Leave, Priority, Role
from meup_agent.protocol.exchange.handlers import TablePart
from meup_agent.protocol.exchange.inbound_calls import ListedProposals
from meup_agent.protocol.exchange.inbound_exchange import InboundExchange, cause_of_end
from meup_agent.protocol.exchange.streams import StreamTable
from meup_agent.protocol.exchange.table_context import CONTROL
from meup_agent.protocol.roster import (
    UPDATE,
    Presence,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.control_payloads import (
    ANSWERS,
    COMPACT_DONE,
    HELD_KINDS,
    REQUEST_STATUS,
    RESUME,
    STATUS,
    Clear,
    Compact,
    CompactDone,
    Control,
    Forget,
    ParticipantStatus,
    Pause,
    Restart,
    Resumption,
    Shutdown,
    StatusRequest,
    outlasts,
    read_control,
    read_pause,
)
from meup_agent.protocol.wire.envelope import Envelope, encode_json, encode_leniently
from meup_agent.protocol.wire.membership import (
    ARRIVED,
    MISSED_NOTHING,
    read_guarantees,
    read_missed,
)
from meup_agent.protocol.wire.payloads import JsonObject, as_object

# --- control messages ---
# What an agent does when it is paused, asked for its status, shut down.
#
# See PROTOCOL 5, control. Each is done at once, whatever else waits, and answered to its sender.

SHUTDOWN_SECONDS: Final = 5.0
"""Grace of what runs when an agent is shut down; then it is cancelled."""

MAX_STATUS_BYTES: Final = 64 * 1024
"""Bytes of what an author adds to a status; more is left out."""

_DONE: Final[dict[Role, str]] = {
    Role.FORGET: "forgotten",
    Role.CLEAR: "cleared",
    Role.RESTART: "restarted",
    Role.COMPACT: "compacted",
    Role.SHUTDOWN: "shutting_down",
}
"""The words of a status after each."""


class ActivePause(NamedTuple):
    """The pause in force, until a time of the table's clock where it has one."""

    pause: Pause
    until: float | None


@dataclass
class ControlMessages(TablePart):
    """Obeys control messages, and answers them; tells handlers."""

    def __post_init__(self) -> None:
        self._held: ActivePause | None = None
        self._began: float | None = None
        self._added: JsonObject = {}
        self._shutdown: tuple[Shutdown, Envelope, float] | None = None
        self._scheduler.on_control_end = self._answered
        self._scheduler.on_idle = self._leave_if_idle

    @property
    def pause(self) -> Pause | None:
        return None if self._held is None else self._held.pause

    def check_held(self, kind: str) -> None:
        """Raise Refused for what begins something while we are paused."""
        if self._held is not None and kind in HELD_KINDS:
            pause = self._held.pause
            because = f": {pause.reason}" if pause.reason else ""
            said = f"the {kind} was not sent: {pause.by!r} has paused us{because}"
            raise Refused("paused", said, {"id": pause.id, "by": pause.by, "reason": pause.reason})

    # --- in ---

    def welcomed(self, you: JsonObject) -> None:
        """Take the pause that a welcome tells; our own gateway knows, others do not tell."""
        self._began = self._context.now if self._began is None else self._began
        if self._context.mode.answers and self._is_ours:
            pause = read_pause(you)
            if pause is None:
                self._lift()
            else:
                self._hold(pause)

    def receive(self, envelope: Envelope) -> None:
        """Apply a control message that concerns us; all but requests of a status must name us."""
        context, me = self._context, self._context.me
        if not context.mode.answers or not envelope.concerns(me):
            return
        payload = envelope.payload_object
        try:
            control = read_control(envelope, payload)
        except InvalidEnvelope:
            context.drop("malformed_control", envelope)
            return
        if isinstance(control, ParticipantStatus):
            self._scheduler.notify(Role.STATUS, envelope, control)
        elif isinstance(control, CompactDone):
            self._scheduler.notify(Role.COMPACT_DONE, envelope, control)
        elif isinstance(control, Resumption) and self._held is None:
            pass  # a participant that we paused tells that it goes on
        elif not self._may_control(envelope, payload):
            context.drop("control_not_allowed", envelope)
        elif me in envelope.to or envelope.kind == REQUEST_STATUS:
            self._obey(control, envelope)

    def _may_control(self, envelope: Envelope, payload: JsonObject) -> bool:
        """True if its sender may control us, as far as we know what it may."""
        roster, sender = self._context.roster, envelope.sender
        if sender not in roster:
            return self._is_ours  # it asks over HTTP, and the gateway has looked
        return roster.is_allowed(sender, envelope.kind, payload, envelope.to)

    def _obey(self, control: Control, envelope: Envelope) -> None:
        # The welcome after our absence has told what became of the pauses meanwhile.
        told = self._is_ours and self._context.cursor.until is not None
        match control:
            case Pause():
                if not told and self._hold(control):
                    self._answer_status("paused", envelope)
                    self._notify(Role.PAUSE, envelope, control)
            case Resumption():
                held = self._held
                if not told and held and control.pauses in ((), (held.pause.id,)):
                    self._lift()
                    self._answer_status("active", envelope)
                    self._notify(Role.RESUME, envelope, control)
            case StatusRequest():
                if not self._notify(Role.STATUS_REQUEST, envelope, control):
                    self._answer_status(self._word, envelope, control.fields)
            case Forget():
                self._carry_out(Role.FORGET, control, envelope)
            case Clear():
                self._carry_out(Role.CLEAR, control, envelope)
            case Compact():
                if self._notify(Role.COMPACT, envelope, control):
                    self._answer_status("compacting", envelope)
                else:
                    self._compacted({"skipped": True, "status": "skipped"}, envelope)
            case Restart():
                text = control.reason or "it was restarted"
                cause = cause_of_end(
                    envelope.sender,
                    envelope.id,
                    Reason.NO_LONGER_NEEDED,
                    text,
                    self._context.now,
                )
                self._scheduler.restart(cause)
                self._outbound.give_up_all(cause)
                self._carry_out(Role.RESTART, control, envelope)
            case Shutdown():
                self._shut_down(control, envelope)
            case _:
                pass

    def _carry_out(self, role: Role, control: Control, envelope: Envelope) -> None:
        if not self._notify(role, envelope, control):
            self._answer_status(_DONE[role], envelope)

    def _notify(self, role: Role, envelope: Envelope, control: Control) -> bool:
        return self._scheduler.notify_control(role, envelope, control)

    # --- a pause ---

    def _hold(self, pause: Pause) -> bool:
        """Begin a pause; ``False`` if another participant's, which ends later, goes on."""
        until = None if pause.seconds is None else self._context.now + pause.seconds
        held = self._held
        if (
            held is not None
            and held.pause.id != pause.id
            and outlasts((held.pause.by, held.until), (pause.by, until))
        ):
            return False
        self._held = ActivePause(pause, until)
        self._scheduler.hold(held=True)
        self._context.look_again(until, CONTROL)
        return True

    def _lift(self) -> None:
        if self._held is not None:
            self._held = None
            self._scheduler.hold(held=False)

    def _time_is_over(self, held: ActivePause) -> None:
        """Resume by ourselves, and tell the one that paused us."""
        pause, me = held.pause, self._context.me
        self._lift()
        self._answer(STATUS, self._status("active"), pause.by, pause.id)
        self._answer(RESUME, {"reason": "timeout"}, pause.by, pause.id)
        told = Envelope(id=pause.id, sender=me, kind=RESUME)
        self._notify(Role.RESUME, told, Resumption(me, "timeout", (pause.id,)))

    # --- the end ---

    def _shut_down(self, control: Shutdown, envelope: Envelope) -> None:
        """Take nothing new, and leave when what runs has ended."""
        if self._shutdown is not None:
            return
        until = self._context.now + SHUTDOWN_SECONDS
        self._shutdown = (control, envelope, until)
        self._answer_status(_DONE[Role.SHUTDOWN], envelope)
        self._notify(Role.SHUTDOWN, envelope, control)
        self._context.closing = True
        self._scheduler.shutdown()
        self._context.look_again(until, CONTROL)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        """Leave, if we were shut down and nothing runs any more."""
        if self._shutdown is None or not self._scheduler.limiter.is_idle:
            return
        control, envelope, _ = self._shutdown
        self._shutdown = None
        self._context.effects.append(Leave(control.by, control.reason, envelope.id))

    def check_deadlines(self) -> None:
        """End a pause whose time is over, and the grace of a shutdown."""
        now = self._context.now
        held = self._held
        if held is not None and held.until is not None:
            if now >= held.until:
                self._time_is_over(held)
            else:
                self._context.look_again(held.until, CONTROL)
        if self._shutdown is not None:
            if now >= self._shutdown[2]:
                self._scheduler.shutdown_over()
            else:
                self._context.look_again(self._shutdown[2], CONTROL)

    # --- answers ---

    @property
    def _is_ours(self) -> bool:
        """True at a gateway that holds participants to their pauses."""
        given = self._context.roster.guarantees
        return given.identity_checked and given.resume

    @property
    def _word(self) -> str:
        if self._context.closing:
            return _DONE[Role.SHUTDOWN]
        return "active" if self._held is None else "paused"

    def _status(self, word: str) -> JsonObject:
        limiter = self._scheduler.limiter
        pause = self.pause
        return {
            "messages_in_context": 0,
            **({"paused_by": pause.by, "paused_for": pause.reason} if pause else {}),
            "handlers": limiter.running,
            "queued": limiter.queued,
            "waiting": len(self._outbound),
            **self._added,
            "status": word,
        }

    def _answer_status(self, word: str, about: Envelope, fields: tuple[str, ...] = ()) -> None:
        status = self._status(word)
        if self._began is not None:
            status["uptime_seconds"] = round(self._context.now - self._began, 3)
        if fields:
            always = ("status", "messages_in_context")
            status = {key: value for key, value in status.items() if key in (*always, *fields)}
        self._answer(STATUS, status, about.sender, about.id)

    def _compacted(self, done: JsonObject, about: Envelope) -> None:
        self._answer(COMPACT_DONE, done, about.sender, about.id)
        self._answer_status(_DONE[Role.COMPACT], about)

    def _answer(self, kind: str, payload: JsonObject, to: str, about: str) -> None:
        """Answer what we were asked, unless our gateway asks for a capability that we lack."""
        context = self._context
        free = self._is_ours and kind in ANSWERS
        if free or context.roster.is_allowed(context.me, kind, payload, (to,)):
            context.envelope_sender.send(
                kind, payload, priority=Priority.ANSWER, to=(to,), correlation=(about,)
            )

    def _answered(self, exchange: InboundExchange, result: object) -> None:
        """Answer when the handler has ended; what it returns is added to the status."""
        envelope, role = exchange.work.envelope, exchange.work.role
        added = _object(result)
        if added is not None:
            self._added = {**self._added, **added} if role is Role.STATUS_REQUEST else self._added
        if role is Role.STATUS_REQUEST:
            asked = cast("StatusRequest", exchange.work.subject)
            self._answer_status(self._word, envelope, asked.fields)
        elif role is Role.COMPACT:
            self._compacted({"status": "compacted", **(added or {})}, envelope)
        elif role in _DONE and role is not Role.SHUTDOWN:
            self._answer_status(_DONE[role], envelope)


def _object(result: object) -> JsonObject | None:
    """The value of a handler, where it can stand in a status."""
    if not isinstance(result, dict):
        return None
    try:
        fits = len(encode_json(cast("dict[str, Any]", result))) <= MAX_STATUS_BYTES
    except NotExpressible:
        return None
    return cast("JsonObject", result) if fits else None


# --- system messages ---

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
                known.append(self._streams.refused(names, payload))
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
        missed = read_missed(payload) if read_guarantees(payload).resume else None
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
        context.me = context.envelope_sender.me = context.roster.me
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
        context.envelope_sender.copies_get_new_ids = cursor.seq is not None
        self._last_welcome = envelope
        self._scheduler.pause(paused=back)
        if cursor.gap is not None:
            self._scheduler.notify(Role.GAP, envelope, cursor.gap)
        if not back:
            self._enter(envelope, changed)
            self._scheduler.expire()
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
        self._enter(welcome, changed, complete=cursor.gap is None)
        # Before anything begins: what expired while we were away may be the next to be asked for.
        self._scheduler.expire()
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
