"""The owner of a space: recovers it, decides about each frame, appends to the journal.

A :class:`SpaceServer` is an owner with the delivery to its connections.

It knows connections by their :class:`~meup_agent.protocol.space.link.Connection` alone. Everything
that it hands on leaves it when the journal has kept what was decided before, in one order: nothing
is seen that a restart could undo (PROTOCOL 6). Only a connection that has no place any more is
closed at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.dialects import DEFAULT_DIALECT, encode
from meup_agent.protocol.proposals import ProposalKey, ProposalState
from meup_agent.protocol.space.allowance import (
    Allowance,
    NoticeThrottle,
    RateExceeded,
    RateLimiter,
    SpaceCounters,
)
from meup_agent.protocol.space.delivery import Member, SpaceDelivery
from meup_agent.protocol.space.journal import Entry, Fact, Journal, ProposalChange
from meup_agent.protocol.space.link import (
    AcceptedMessage,
    CloseMessage,
    Connection,
    DirectMessage,
    EchoMessage,
    FrameMessage,
    LinkMessage,
    Place,
    StreamEndMessage,
    WelcomeMessage,
)
from meup_agent.protocol.space.state.grants import KICKED_CODE, REMOVED, InviteIssuer
from meup_agent.protocol.space.state.indexes import (
    LIMIT_EXCEEDED,
    Acceptance,
    Answer,
    Broadcast,
    Consequence,
    DecisionTracer,
    Discard,
    Disconnect,
    FrameVerdict,
    Notice,
    OpenItem,
    Recorder,
    Refusal,
    Repetition,
    TokenIssued,
    draft_refusal,
    shown_limit,
    stamp,
)
from meup_agent.protocol.space.state.state import SpaceState
from meup_agent.protocol.space.state.streams import JoinState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.kinds import STREAM_OPEN
from meup_agent.protocol.wire.payloads import INVITE_ACK, JsonObject
from meup_agent.protocol.wire.scoped_yes import KeptYes
from meup_agent.protocol.wire.streams import MARK, StreamInfo

# --- recovery ---
# What a space knew before its gateway was restarted, read from the journal.
#
# By itself, since the state does not read a journal, and a server does this once in its life.

log = logging.getLogger("meup_agent.gateway")

RECOVERED_SECONDS: Final = 24 * 3_600.0
"""Time before its start of which a gateway reads all that was said; what may still be decided it
reads however old it is (PROTOCOL 9.9)."""

RECOVERED_ENTRIES: Final = 100_000
"""Entries that are read when a gateway starts, to know again what is open, and sent twice."""

TOLD_SECONDS: Final = 1.0
"""By which a clock is put back before the log says so."""


class SpaceClock:
    """The time of a space, in which what is expired stays so (PROTOCOL 4.2).

    In microseconds since 1970 (UTC). It continues, after a restart, from the last time in the
    journal. The gateway's own never goes back while it runs.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._ahead = 0

    def __call__(self) -> int:
        """The time at this moment."""
        return self._now() + self._ahead

    def advance(self, at: int) -> float:
        """Let the time be no earlier than one at which something was decided; seconds gained."""
        gained = max(0, at - self())
        self._ahead += gained
        return gained / 1_000_000


class SpaceFold:
    """The state of a space after entries of its journal.

    A gateway that may own the space later can take them as they come.
    """

    def __init__(self, parameters: SpaceParameters) -> None:
        self.clock: Final = SpaceClock(parameters.now)
        """The space's."""
        self.state: Final = SpaceState(
            parameters.participants,
            allowance=parameters.allowance,
            now=self.clock,
            announce_withdrawals=parameters.announce_withdrawals,
            invites=parameters.invites,
            new_id=parameters.new_id,
            takes_published=parameters.takes_published,
        )
        """The state; nothing is decided by it yet."""
        self._last = 0

    def apply(self, entry: Entry) -> None:
        """Take the next entry."""
        self.state.apply(entry)
        self.state.open.pop_changes()  # the journal has them
        self._last = max(self._last, entry.at)

    def recover(self, journal: Journal, space: str) -> SpaceState:
        """Take the rest from the journal: the state in which a space goes on.

        Restores the time, what holds, what is open and what is recognized.
        """
        at = self.clock()
        since = at - round(RECOVERED_SECONDS * 1_000_000)
        recovered = journal.recover(space, since=since, limit=RECOVERED_ENTRIES, open_at=at)
        for entry in chain(recovered.older, recovered.entries):
            self.apply(entry)
        # What was expired is so for good, also where the clock has been put back meanwhile.
        gained = self.clock.advance(self._last)
        if gained >= TOLD_SECONDS:
            said = (
                "%s: the clock is %.0f s behind the journal's last entry: time goes on from there"
            )
            log.warning(said, space, gained)
        for grant in self.state.restore(recovered.facts):
            said = "%s: grant %s holds no more: who gave or got it is not what they were"
            log.warning(said, space, grant)
        self.state.restart(self.clock())
        return self.state


# --- the owner of a space ---

TAKEN_OVER: Final = 4409
"""Close code for a connection that a newer one of the same participant replaced (PROTOCOL 3)."""

MIN_ACKED_BYTES: Final = 4096
"""Size of an envelope of which its sender gets an acknowledgement if it asks for them: of less the
echo, which is made for all in one form, takes no longer to write and to read."""

ANSWERED_SECONDS: Final = 0.001
"""Time for which the connection that asked for proposals is not read: a page takes the loop as long
as thirty messages, so the others have their turn before the next."""

EXPIRY_CHECK_SECONDS: Final = 60.0
"""Time after which the next expiry is looked at again at the latest: the clock of the loop may
stand while a machine sleeps."""

MAX_WAITING_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames of streams that wait until the envelopes before them are kept."""

_NEVER: Final = 1 << 63

VerdictCallback = Callable[[Entry | Refusal | Discard | Answer], None]
"""Takes what became of a frame: accepted (and kept), refused, dropped, or answered."""


class DelayedCall(Protocol):
    """A call that comes later."""

    def cancel(self) -> None:
        """Do not call any more."""


CallLater = Callable[[float, Callable[[], None]], DelayedCall]
"""Calls a function after so many seconds."""


class Backpressure(Protocol):
    """Tells senders to wait while queues of slow readers are filling."""

    @property
    def filling(self) -> bool:
        """True while a queue is filling that is worth waiting for."""
        ...

    @property
    def patience(self) -> float:
        """Seconds for which senders wait for one reader at most."""
        ...

    def wait(self, sender: str) -> float:
        """Seconds for which a heavy sender waits before it asks again; 0: it need not."""
        ...


class SpaceParameters(NamedTuple):
    """A space as its gateway makes it."""

    name: str
    participants: Mapping[str, Capabilities]
    journal: Journal
    new_id: Callable[[], str]
    now: Callable[[], int]  # the gateway's clock, in microseconds since 1970 (UTC)
    counters: SpaceCounters
    allowance: Allowance = Allowance()
    invites: InviteIssuer | None = None
    announce_withdrawals: bool = False
    backpressure: Backpressure | None = None
    recorder: Recorder | None = None
    tracer: DecisionTracer | None = None
    call_later: CallLater | None = None
    takes_published: bool = False
    fold: SpaceFold | None = None  # of entries that the journal does not recover again


class SpaceOwner:
    """Decides in a space; every call takes effect in its order."""

    def __init__(
        self, parameters: SpaceParameters, fold: SpaceFold, hand_on: Callable[[LinkMessage], None]
    ) -> None:
        self._name = name = parameters.name
        self._journal = parameters.journal
        self._new_id = parameters.new_id
        self._now = fold.clock
        self._counters = parameters.counters
        self._hand_on = hand_on
        self._backpressure = parameters.backpressure
        self._recorder = parameters.recorder
        self._tracer = parameters.tracer
        self._invites = parameters.invites
        self._state = fold.state
        self.grants: Final = self._state.grants
        self._limiter = self._state.limiter
        # Its own, so that what observers send in vain slows down no agent of their participant.
        self._observers_limiter = RateLimiter(parameters.allowance)
        self._notices = NoticeThrottle()
        # By participant, and by their numbers.
        self._here: dict[str, dict[int, Connection]] = {}
        self._handed_on = self._journal.latest(name)
        self._waiting_bytes = 0
        self._call_later = parameters.call_later
        self._timer: DelayedCall | None = None
        # The earliest moment that is waited for.
        self._timer_at = _NEVER if self._call_later is not None else 0
        self._recover(fold)

    @property
    def in_flight(self) -> tuple[OpenItem, ...]:
        """The requests and proposals that have not ended."""
        return self._state.open.items

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The open streams, oldest first."""
        return self._state.streams.active

    @property
    def yeses(self) -> list[KeptYes]:
        """The scoped yeses that are kept, oldest first."""
        return self._state.yeses.kept(self._now())

    def proposed_at(self, proposer: str, proposal: str) -> int | None:
        """The time of an open proposal, in microseconds since 1970; ``None``: none is open."""
        return self._state.open.proposed_at(proposer, proposal)

    def waiting_for(self, participant: str = "") -> list[OpenItem]:
        """The proposals that wait for the decision of a participant, the oldest first.

        A thousand are looked at, the newest of each proposer first; empty: for that of any.
        """
        return self._state.waiting_for(participant)

    def state_of(self, proposal: ProposalKey) -> ProposalState | None:
        """The state of a proposal, open or ended; ``None``: it was forgotten."""
        return self._state.open.state_of(proposal)

    def open_at(self, at: int) -> frozenset[int]:
        """The numbers of the proposals that are open though their deadline was before a time."""
        return frozenset(
            item.seq
            for item in self._state.open.open_in_order()
            if item.expires_at is not None
            and item.expires_at <= at
            and item.state_at(at).is_pending
        )

    def paused_by(self, participant: str) -> str:
        """The participant whose pause holds for one; empty: none does."""
        held = self._state.control.pause_of(participant, self._now())
        return "" if held is None else held.pause.by

    def described(self, reader: str = "") -> list[JsonObject]:
        """The members with what they may send, as a welcome lists them to a reader of a dialect."""
        return self._state.described(reader)

    def left_after(self, participant: str, accepted: int) -> int | None:
        """The time at which an absent participant left that was here for what was accepted.

        Both in microseconds since 1970; ``None``: it is here, or was never seen.
        """
        return self._state.left_after(participant, accepted)

    def __len__(self) -> int:
        """The number of participants in the space."""
        return len(self._state.present)

    def __contains__(self, participant: object) -> bool:
        return participant in self._state

    def is_kicked(self, participant: str) -> bool:
        """True for a participant that was removed, and not invited again."""
        return self._state.management.is_kicked(participant)

    def reconfigure(self, participants: Mapping[str, Capabilities]) -> None:
        """Take over the participants of a configuration that was read again.

        Those that it has no more are closed with 4401; nobody else is.
        """
        at = self._now()
        self._follow_all(self._state.reconfigure(participants, at), at)

    # --- coming and going -----------------------------------------------------------------

    def join(self, connection: Connection) -> None:
        """Add a connection; an older one that answers for the same participant is closed with 4409.

        A participant that was removed since its token was checked is closed with 4403 instead. A
        connection beside replaces none, and is announced only as the first one of its participant.
        An observer replaces none and is not announced.
        """
        number, participant, place = connection.number, connection.participant, connection.place
        if self.is_kicked(participant):
            self._hand_on(CloseMessage(number, KICKED_CODE, REMOVED))
            return
        here = self._here.setdefault(participant, {})
        if place is Place.ANSWERING:
            self._replace(here)
        here[number] = connection
        dialect, at = connection.dialect, self._now()
        join_state = JoinState.read(
            self._journal, self._name, connection.last_seen, can_resume=connection.numbered
        )
        if place is Place.OBSERVING:
            self._counters.observed += 1
            welcome = self._state.observe(participant, join_state, dialect=dialect)
            self._queue(WelcomeMessage(number, self._stamp(welcome, at), join_state))
            return
        self._counters.joined += 1
        self._state.register_dialect(dialect)
        beside = number if place is Place.BESIDE else None
        joined = self._state.join(participant, join_state, at=at, dialect=dialect, beside=beside)
        message = WelcomeMessage(number, self._stamp(joined.welcome, at), join_state)
        if joined.presence is None:
            self._queue(message)
            return
        arrive = partial(self._arrive, message)
        self._broadcast(joined.presence, at, joined.facts, then=arrive)
        self._follow_all(joined.then, at)

    def _replace(self, here: dict[int, Connection]) -> None:
        """Close the connection that answered until now."""
        for older in tuple(here.values()):
            if older.place is Place.ANSWERING:
                del here[older.number]
                self._counters.taken_over += 1
                why = "a newer connection of the same participant took over"
                self._hand_on(CloseMessage(older.number, TAKEN_OVER, why))

    def _arrive(self, welcome: WelcomeMessage, presence: Entry) -> None:
        """Welcome a newcomer whose presence is kept, and announce it.

        Not before: after a restart it has to be known which welcome came last.
        """
        self._hand_on(welcome)
        self._deliver(presence)

    def leave(self, connection: Connection) -> None:
        """Remove a connection; one that was taken over, or has left, changes nothing."""
        participant, place = connection.participant, connection.place
        here = self._here.get(participant, {})
        if here.pop(connection.number, None) is None:
            return
        if not here:
            del self._here[participant]
        if place is Place.OBSERVING:
            return
        at = self._now()
        self._counters.left += 1
        if place is Place.BESIDE:
            self._state.beside_left(participant, connection.number, at)
        stays = self._taking_part(participant)
        if not stays:
            self._follow_all(self._state.leave(participant, at), at)
        elif place is Place.ANSWERING:
            self._follow_all(self._state.stop_answering(participant, stays[0].dialect, at), at)
        self.expire(at)

    def close(self) -> None:
        """End: nothing expires any more, and no connection leaves."""
        self._here.clear()
        self._timer_at = 0
        if self._timer is not None:
            self._timer.cancel()

    def _taking_part(self, participant: str) -> list[Connection]:
        here = self._here.get(participant, {}).values()
        return [each for each in here if each.place is not Place.OBSERVING]

    # --- what members send ----------------------------------------------------------------

    def receive(self, connection: Connection, frame: bytes) -> float:
        """Decide about a frame of a connection, and carry the decision out.

        A frame of a connection that has been taken over is ignored: its participant sends through
        the newer one.

        Returns:
            Seconds for which to read no more of this connection, since it sends too fast; what it
            sends meanwhile is not lost.
        """
        participant = connection.participant
        if connection.number not in self._here.get(participant, ()):
            return 0.0
        size, wait, at = len(frame), 0.0, self._now()
        self._counters.frames_in += 1
        if connection.place is Place.OBSERVING:
            observed = self._state.decide_observed(participant, frame, connection.dialect, at)
            answered = self._reply(connection, observed)
            over = self._observers_limiter.consume(participant, at, size + answered)
            wait = ANSWERED_SECONDS if answered else 0.0
            return wait if over is None else max(over.seconds, wait)
        if frame[:1] == MARK and connection.takes_frames:
            refused = self._relay(participant, frame, at)
            if refused is not None:
                self._reply(connection, refused)
        elif answered := self._receive_envelope(connection, frame, at):
            size += answered
            wait = ANSWERED_SECONDS
        over = self._limiter.consume(participant, at, size)
        wait = max(wait, self.backpressure_wait(participant))
        if over is None:
            return wait
        self._slow_down(connection, over)
        return max(over.seconds, wait)

    def _receive_envelope(self, connection: Connection, frame: bytes, at: int) -> int:
        """Decide about an envelope; the bytes that its answer counts besides, if it has one."""
        participant = connection.participant
        decision = self._state.decide(
            participant,
            frame,
            connection.dialect,
            at=at,
            repeats=connection.numbered,
            beside=connection.number if connection.place is Place.BESIDE else None,
            is_local=connection.is_local,
        )
        self._record(participant, frame, decision, "websocket")
        if isinstance(decision, Acceptance):
            # What was filled in or changed here, its sender has to read.
            acked = connection.acked and len(frame) >= MIN_ACKED_BYTES
            as_sent = acked and decision.envelope.frame is frame
            self._carry_out(decision, None, connection, as_sent=as_sent)
        elif isinstance(decision, Repetition):
            self._echo(decision, None, connection)
        elif isinstance(decision, Discard):
            self._counters.dropped += 1
        else:
            return self._reply(connection, decision)
        return 0

    def receive_as(
        self,
        participant: str,
        frame: bytes,
        dialect: str,
        then: VerdictCallback,
        *,
        private: Callable[[JsonObject], None] | None = None,
    ) -> None:
        """Decide about a frame of a participant that may be away; ``then`` takes the decision.

        ``private`` takes, before that, what answers the sender alone: the acknowledgement of an
        invitation, without which a sender that is away cannot invite, and the id of a stream.
        """
        self._counters.frames_in += 1
        decision = self._state.decide(
            participant, frame, dialect, repeats=True, waits=False, answers=private is not None
        )
        self._record(participant, frame, decision, "http")
        if isinstance(decision, Acceptance):
            for each in decision.then:
                if private and isinstance(each, Notice) and each.draft.kind == INVITE_ACK:
                    private(each.draft.payload_object)
                elif private and isinstance(each, Broadcast) and each.draft.kind == STREAM_OPEN:
                    private({"stream_id": each.draft.payload_object["stream_id"]})
            self._carry_out(decision, then)
        elif isinstance(decision, Repetition):
            here = self._taking_part(participant)
            answering = (each for each in here if each.place is Place.ANSWERING)
            self._echo(decision, then, next(answering, None))
        elif isinstance(decision, Answer):
            self._limiter.consume(participant, self._now(), decision.size)
            self._journal.call_when_kept(partial(then, decision))
        elif isinstance(decision, Refusal):
            # Not told on the participant's connection: that has sent nothing.
            self._counters.refused[decision.code] += 1
            then(decision)
        else:
            self._counters.dropped += 1
            then(decision)

    def _record(
        self, participant: str, frame: bytes, decision: FrameVerdict, transport: str
    ) -> None:
        if self._recorder is not None:
            may = self.grants[participant]
            self._recorder.decided(self._name, participant, frame, decision, may, transport)

    def relay_as(self, participant: str, frame: bytes) -> Refusal | None:
        """Hand on a frame of a stream, of a participant without a connection, or beside it."""
        self._counters.frames_in += 1
        refused = self._relay(participant, frame, self._now())
        if refused is not None:
            self._counters.refused[refused.code] += 1
            # A frame has no id: what its sender logs has to say which it was, as elsewhere.
            self.notify(participant, refused.error)
        return refused

    def _relay(self, participant: str, frame: bytes, at: int) -> Refusal | None:
        """Hand on a frame of a stream; else the reason for which it goes no further."""
        stream = self._state.route_frame(participant, frame, at)
        if isinstance(stream, Refusal):
            return stream
        self._counters.stream_frames += 1
        size = len(frame)
        self._waiting_bytes += size
        # Beyond this all readers lose it, or what waits for a slow disk would be without bounds.
        kept = frame if self._waiting_bytes <= MAX_WAITING_BYTES else None
        self._journal.call_when_kept(partial(self._hand_on_frame, FrameMessage(stream, kept, size)))
        return None

    def _hand_on_frame(self, message: FrameMessage) -> None:
        self._waiting_bytes -= message.size
        self._hand_on(message)

    def backpressure_wait(self, participant: str) -> float:
        """Seconds for which a heavy sender waits now for a slow reader, before it asks again."""
        pressure = self._backpressure
        if pressure is None or not pressure.filling or not self._limiter.load.is_heavy(participant):
            return 0.0
        return pressure.wait(participant)

    def check_rate(self, participant: str, size: int) -> RateExceeded | None:
        """The limit that a message without a connection exceeds; ``None``: it counts."""
        wait = self.backpressure_wait(participant)
        if wait and self._backpressure is not None:
            return RateExceeded("slow_reader_seconds", self._backpressure.patience, wait)
        return self._limiter.try_consume(participant, self._now(), size)

    def refuse_frame(self, connection: Connection, code: str, message: str, **details: Any) -> None:
        """Tell a connection that a message was refused before it was a frame, for its size say."""
        self._counters.frames_in += 1
        self._reply(connection, draft_refusal(connection.participant, code, message, **details))

    def notify(self, participant: str, draft: Envelope) -> None:
        self._send(self._taking_part(participant), draft)

    def _reply(self, connection: Connection, reply: Refusal | Answer) -> int:
        """Answer a connection, and no other of its participant; the bytes that it counts."""
        if isinstance(reply, Answer):
            # Behind all that was accepted before it.
            self._journal.call_when_kept(partial(self._answer, connection, reply))
            return reply.size
        self._counters.refused[reply.code] += 1
        self._send((connection,), reply.error)
        return 0

    def _answer(self, connection: Connection, answer: Answer) -> None:
        said = self._stamp(answer.write(self._handed_on))
        self._hand_on(DirectMessage((connection.number,), said))

    def _slow_down(self, connection: Connection, over: RateExceeded) -> None:
        participant = connection.participant
        what = over.limit.removesuffix("_per_second")
        message = f"more than {over.most:g} {what} a second are read later; none of them is lost"
        if self._notices.due(participant, over.limit, self._now()):
            self._counters.slowed += 1
            line = "%s in %s sends more than %g %s a second; the rest is read later"
            log.warning(line, ascii(participant), ascii(self._name), over.most, what)
            most = shown_limit(over.most)
            told = draft_refusal(participant, LIMIT_EXCEEDED, message, limit=over.limit, max=most)
            self._send((connection,), told.error)

    # --- what is decided ------------------------------------------------------------------

    def _carry_out(
        self,
        accepted: Acceptance,
        then: VerdictCallback | None,
        sender: Connection | None = None,
        *,
        as_sent: bool = False,
    ) -> None:
        self._counters.accepted += 1
        envelope = accepted.envelope
        _log_cancel(self._name, envelope)
        before = [
            self._direct(self._taking_part(each.participant), each.draft)
            for each in accepted.before
        ]
        if accepted.closes:
            self._queue(StreamEndMessage(accepted.closes))
        if self._tracer is not None:
            self._tracer.accepted(self._name, envelope, accepted.changes, accepted.begun)
        acked = sender.number if sender is not None and as_sent else None
        deliver = partial(self._deliver_accepted, accepted, before, then, acked)
        self._journal.append(
            self._name, accepted.at, envelope, accepted.facts, deliver, accepted.changes
        )
        if accepted.then:
            self._follow_all(accepted.then, accepted.at, sender)
        due = self._state.open.next_expiry
        if due is None:
            return
        if due < accepted.at:
            self.expire(accepted.at)
        else:  # not by looking at all streams: each proposal may be nearer
            self._expire_by(due, accepted.at)

    def expire(self, at: int | None = None) -> None:
        """Announce what has expired, proposals and streams, and look again when the next may."""
        at = self._now() if at is None else at
        proposals, streams = self._state.open, self._state.streams
        due = proposals.next_expiry
        if due is not None and due < at:
            self._follow_all(self._state.expire(at), at)
            due = proposals.next_expiry
        if len(streams):
            self._follow_all(streams.expire(at), at)
            until = streams.expires_at
            due = until if due is None else due if until is None else min(due, until)
        if due is not None:
            self._expire_by(due, at)

    def _expire_by(self, due: int, at: int) -> None:
        """Look for what has expired at a time, if that is sooner than the next look."""
        if due >= self._timer_at or self._call_later is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        wait = min(max(0.0, (due - at + 1) / 1_000_000), EXPIRY_CHECK_SECONDS)
        self._timer = self._call_later(wait, self._expire_later)

    def _expire_later(self) -> None:
        self._timer, self._timer_at = None, _NEVER
        self.expire()

    def _deliver_accepted(
        self,
        accepted: Acceptance,
        before: Iterable[DirectMessage],
        then: VerdictCallback | None,
        acked: int | None,
        entry: Entry,
    ) -> None:
        """Deliver an accepted envelope that is kept, behind notices that must come before it."""
        if accepted.receipt is not None:
            accepted.receipt.seq = entry.seq
        if accepted.begun is not None:
            accepted.begun.seq = entry.seq
        for message in before:
            self._hand_on(message)
        self._deliver(entry, acked)
        if then is not None:
            then(entry)

    def _deliver(self, entry: Entry, acked: int | None = None) -> None:
        self._handed_on = entry.seq
        self._hand_on(entry if acked is None else AcceptedMessage(acked, entry))

    def _echo(
        self, repeated: Repetition, then: VerdictCallback | None, to: Connection | None
    ) -> None:
        """Tell the sender alone under which number its envelope was accepted before."""
        self._counters.repeated += 1
        # Once the first one is kept, too: only then its number is known.
        self._journal.call_when_kept(partial(self._echo_now, repeated, then, to))

    def _echo_now(
        self, repeated: Repetition, then: VerdictCallback | None, to: Connection | None
    ) -> None:
        receipt = repeated.receipt
        first = Entry(receipt.seq, self._name, receipt.at, repeated.envelope)
        if to is not None:
            self._hand_on(EchoMessage(to.number, first))
        if then is not None:
            then(first)

    def _follow_all(
        self, consequences: Iterable[Consequence], at: int, sender: Connection | None = None
    ) -> None:
        """Carry out what follows from a decision, about a frame of a sender, at its time."""
        for consequence in consequences:
            match consequence:
                case Broadcast(draft, closes, facts, changes):
                    if closes:
                        self._queue(StreamEndMessage(closes))
                    _log_cancel(self._name, draft)
                    self._broadcast(draft, at, facts, changes)
                case Notice(participant, draft):
                    # It has a token, which is for the connection that asked for it.
                    if draft.kind == INVITE_ACK and sender is not None:
                        self._send((sender,), draft)
                    else:
                        self.notify(participant, draft)
                case Disconnect(participant, code, reason):
                    # Last the one that answers: none is to hear that the others stay beside it.
                    here = self._here.get(participant, {}).values()
                    for each in sorted(here, key=lambda one: one.place is Place.ANSWERING):
                        self._journal.call_when_kept(partial(self._remove, each, code, reason))
                case TokenIssued(participant, token_sha256):
                    self._journal.call_when_kept(partial(self._admit, participant, token_sha256))

    def _admit(self, participant: str, token_sha256: str) -> None:
        if self._invites is not None:
            self._invites.admit(participant, token_sha256)

    def _remove(self, connection: Connection, code: int, reason: str) -> None:
        self._hand_on(CloseMessage(connection.number, code, reason))
        self.leave(connection)

    # --- what is handed on ----------------------------------------------------------------

    def _stamp(self, draft: Envelope, at: int | None = None) -> Envelope:
        return stamp(draft, self._new_id, self._now() if at is None else at)

    def _broadcast(
        self,
        draft: Envelope,
        at: int,
        facts: tuple[Fact, ...] = (),
        changes: tuple[ProposalChange, ...] = (),
        then: Callable[[Entry], None] | None = None,
    ) -> None:
        """Send to all: the only way there is, through the journal; with facts that hold now.

        ``at`` is the time of the decision that it follows from. ``then`` is called in place of the
        delivery.
        """
        envelope = self._stamp(draft, at)
        if self._tracer is not None:
            self._tracer.accepted(self._name, envelope, changes)
        # Encoded here, so that the journal and the fanout do not both encode it.
        frame = encode(envelope, DEFAULT_DIALECT)
        envelope = msgspec.structs.replace(envelope, protocol=DEFAULT_DIALECT, frame=frame)
        self._journal.append(self._name, at, envelope, facts, then or self._deliver, changes)

    def _direct(self, connections: Iterable[Connection], draft: Envelope) -> DirectMessage:
        """A draft for connections that are here at this moment.

        A connection that takes over meanwhile does not get it: nothing may come before its welcome,
        and that was decided later.
        """
        return DirectMessage(tuple([each.number for each in connections]), self._stamp(draft))

    def _send(self, connections: Iterable[Connection], draft: Envelope) -> None:
        self._queue(self._direct(connections, draft))

    def _queue(self, message: LinkMessage) -> None:
        """Hand on a message after everything that was decided before."""
        self._journal.call_when_kept(partial(self._hand_on, message))

    def _recover(self, fold: SpaceFold) -> None:
        """Go on where the gateway was before it was restarted."""
        fold.recover(self._journal, self._name)
        at = self._now()
        for participant, token_sha256 in self._state.management.digests.items():
            self._admit(participant, token_sha256)
        self._follow_all(self._state.end_recovered(at), at)
        self.expire(at)


MAX_CANCEL_CHARS: Final = 200
"""Characters of a cancel's reason, and of what it names, in the gateway's log."""


def _log_cancel(space: str, envelope: Envelope) -> None:
    """Log an accepted request if it is a cancel, and the log is read so closely."""
    if envelope.kind != kinds.MCP_REQUEST or not log.isEnabledFor(logging.DEBUG):
        return
    call = payloads.read_call(envelope.payload_object)
    if call.method == kinds.CANCELLED:
        params = call.params
        said = "in %s %s cancels request %s of %s: %s"
        whose = payloads.on_behalf_of(envelope.sender, params)
        words = (space, envelope.sender, params.get("requestId"), whose, params.get("reason"))
        log.debug(said, *map(_shown, words))


def _shown(value: object) -> str:
    """A stranger's text, escaped and cut; empty for anything else."""
    text = str(value) if isinstance(value, int | str) else ""
    return ascii(text[:MAX_CANCEL_CHARS])


class SpaceServer:
    """A space and its members; every call takes effect in its order."""

    def __init__(self, parameters: SpaceParameters) -> None:
        self.name = parameters.name
        self.counters = parameters.counters
        self.journal = parameters.journal
        fold = parameters.fold or SpaceFold(parameters)
        self.now: Final = fold.clock
        """The gateway's clock, in microseconds since 1970."""
        self.delivery: Final = SpaceDelivery(
            parameters.name,
            parameters.journal,
            parameters.counters,
            parameters.allowance,
            lambda draft: stamp(draft, parameters.new_id, self.now()),
            parameters.recorder,
        )
        self.fanout: Final = self.delivery.fanout
        """Delivers what was accepted."""
        self.owner: Final = SpaceOwner(parameters, fold, self.delivery.take)

    def join(self, member: Member) -> None:
        """Add a member; see :meth:`SpaceOwner.join`."""
        connection = self.delivery.add(member)
        if connection is not None:
            self.owner.join(connection)

    def leave(self, member: Member) -> None:
        """Remove a member; one that was taken over, or has left, changes nothing."""
        connection = self.delivery.remove(member)
        if connection is not None:
            self.owner.leave(connection)

    def receive(self, member: Member, frame: bytes) -> float:
        """Decide about a frame of a member; see :meth:`SpaceOwner.receive`."""
        connection = self.delivery.find(member)
        return 0.0 if connection is None else self.owner.receive(connection, frame)

    def refuse_frame(self, member: Member, code: str, message: str, **details: Any) -> None:
        """Tell a member that a message was refused before it was a frame, for its size say."""
        connection = self.delivery.find(member)
        if connection is not None:
            self.owner.refuse_frame(connection, code, message, **details)

    def close(self, code: int, reason: str) -> None:
        """Close every connection; no member is told that the others leave."""
        self.owner.close()
        self.delivery.close(code, reason)
