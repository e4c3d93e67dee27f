"""A space with its connections: carries out what :class:`SpaceState` decides.

The road of a frame: an edge calls :meth:`SpaceServer.receive`, :class:`SpaceState` decides, the
journal keeps what was accepted, :class:`Fanout` hands it to each subscriber's queue. Everything
that members get passes the journal first, in one order: nothing is seen that a restart could undo
(PROTOCOL 6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.kinds import STREAM_OPEN
from meup_agent.protocol.management_payloads import INVITE_ACK
from meup_agent.protocol.space.allowance import Allowance
from meup_agent.protocol.space.counters import SpaceCounters, log_cancel
from meup_agent.protocol.space.decisions import (
    Acceptance,
    Answer,
    Broadcast,
    Consequence,
    Discard,
    Disconnect,
    Notice,
    Refusal,
    Repetition,
    TokenIssued,
    draft_refusal,
    over_limit,
)
from meup_agent.protocol.space.fanout import Fanout
from meup_agent.protocol.space.frame_relay import CallLater, StreamServer
from meup_agent.protocol.space.indexes import OpenItem
from meup_agent.protocol.space.journal import Entry, Journal
from meup_agent.protocol.space.management import KICKED_CODE, REMOVED, InviteIssuer
from meup_agent.protocol.space.members import (
    CROWDED_CODE,
    NO_BACKPRESSURE,
    Announcer,
    Backpressure,
    ConnectionGroups,
    Member,
    Recorder,
)
from meup_agent.protocol.space.presence import JoinState, ReplayedEnvelope
from meup_agent.protocol.space.rate_limits import NoticeThrottle, RateExceeded, RateLimiter
from meup_agent.protocol.space.recovery import SpaceClock, recover_state
from meup_agent.protocol.space.state import SpaceState
from meup_agent.protocol.space.subscriber import FrameReader, Place, Subscriber
from meup_agent.protocol.streams import MARK

log = logging.getLogger("meup_agent.gateway")

TAKEN_OVER: Final = 4409
"""Close code for a connection that a newer one of the same participant replaced (PROTOCOL 3)."""

ANSWERED_SECONDS: Final = 0.001
"""Time for which the connection that asked for proposals is not read: a page takes the loop as long
as thirty messages, so the others have their turn before the next."""

EXPIRY_CHECK_SECONDS: Final = 60.0
"""Time after which the next expiry is looked at again at the latest: a proposal may have days, and
a closed space is not to be kept so long."""

DecisionCallback = Callable[[Entry | Refusal | Discard | Answer], None]
"""Takes what became of a frame: accepted (and kept), refused, dropped, or answered."""


class SpaceServer:
    """A space and its members; every call takes effect in its order."""

    def __init__(
        self,
        name: str,
        *,
        participants: Mapping[str, Capabilities],
        journal: Journal,
        new_id: Callable[[], str],
        now: Callable[[], int],
        counters: SpaceCounters,
        allowance: Allowance | None = None,
        invites: InviteIssuer | None = None,
        announce_withdrawals: bool = False,
        backpressure: Backpressure = NO_BACKPRESSURE,
        recorder: Recorder | None = None,
        call_later: CallLater | None = None,
        takes_published: bool = False,
    ) -> None:
        self.name = name
        self.counters = counters
        self.journal = journal
        self._backpressure = backpressure
        self._record = None if recorder is None else partial(recorder.decided, name)
        self.now: Final = SpaceClock(now)
        """The gateway's clock, in microseconds since 1970."""
        allowance = allowance or Allowance()
        self._invites = invites
        self._state = SpaceState(
            participants,
            allowance=allowance,
            now=self.now,
            announce_withdrawals=announce_withdrawals,
            new_token=None if invites is None else invites.new_token,
            address=str if invites is None else invites.address,
            new_id=new_id,
            takes_published=takes_published,
        )
        self.grants = self._state.grants
        self._limiter = self._state.limiter
        # Its own, so that what observers send in vain slows down no agent of their participant.
        self._observers_limiter = RateLimiter(allowance)
        self._notices = NoticeThrottle()
        self._members: dict[str, Member] = {}
        self.beside: Final = ConnectionGroups(
            "connections beside", allowance.max_beside, "max_beside"
        )
        """Connections that take part beside the one that answers for their participant."""
        self.observers: Final = ConnectionGroups(
            "observers", allowance.max_observers, "max_observers"
        )
        """Connections that get everything and send nothing."""
        self.fanout = Fanout(name, journal, counters, allowance, recorder)
        """Delivers what was accepted."""
        self._announcer = Announcer(name, journal, self.fanout, new_id, self.now, self._is_here)
        self.fanout.frames.tell = self._tell_reader
        self._call_later = call_later
        self._is_expiry_due = self._closed = False
        self.streams: Final = StreamServer(
            self._state,
            self.fanout.frames,
            journal,
            counters,
            self.now,
            self._follow_all,
            call_later,
        )
        """The frames of streams, and their ends."""
        self._recover()

    @property
    def members(self) -> tuple[Member, ...]:
        """Every connection that takes part at this moment."""
        return (*self._members.values(), *self.beside.all)

    @property
    def in_flight(self) -> tuple[OpenItem, ...]:
        """The requests and proposals that have not ended."""
        return self._state.open.items

    def proposed_at(self, proposer: str, proposal: str) -> int | None:
        """The time of an open proposal, in microseconds since 1970; ``None``: none is open."""
        return self._state.open.proposed_at(proposer, proposal)

    def paused_by(self, participant: str) -> str:
        """The participant whose pause holds for one; empty: none does."""
        held = self._state.control.pause_of(participant, self.now())
        return "" if held is None else held.pause.by

    @property
    def present(self) -> list[dict[str, Any]]:
        """The members with what they may send, as a welcome lists them."""
        return self._state.described()

    def described(self, reader: str) -> list[dict[str, Any]]:
        """The same, as it is said to a reader of a dialect."""
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
        """True for a participant that is in the space."""
        return participant in self._state

    def member(self, participant: str) -> Member | None:
        """The connection that answers for a participant, if there is one."""
        return self._members.get(participant)

    def is_kicked(self, participant: str) -> bool:
        """True for a participant that was removed, and not invited again."""
        return self._state.management.is_kicked(participant)

    # --- coming and going -----------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Add a member; an older one that answers for the same participant is closed with 4409.

        A participant that was removed since its token was checked is closed with 4403 instead. A
        connection beside replaces none, and is announced only as the first one of its participant.
        An observer replaces none and is not announced.
        """
        participant = member.participant
        if self.is_kicked(participant):
            member.close(KICKED_CODE, REMOVED)
            return
        if member.place is Place.OBSERVING:
            self._observe(member)
            return
        if member.place is Place.BESIDE:
            if not _enter(self.beside, member):
                return
        else:
            older = self._members.get(participant)
            self._members[participant] = member
            if older is not None:
                self.counters.taken_over += 1
                self.fanout.remove(older)
                older.close(TAKEN_OVER, "a newer connection of the same participant took over")
        self.counters.joined += 1
        self._state.register_dialect(member.form.dialect)
        join_state = self.fanout.join_state(member.form, member.last_seen)
        at, beside = self.now(), self.beside.number_of(member)
        joined = self._state.join(
            participant, join_state, at=at, dialect=member.form.dialect, beside=beside
        )
        replayed = self._state.select_replayed(participant, join_state, beside=beside is not None)
        welcome = partial(self._welcome, member, joined.welcome, join_state, replayed)
        if joined.presence is None:
            self.journal.call_when_kept(welcome)
            return
        arrive = partial(self._arrive, welcome)
        self._announcer.broadcast(joined.presence, at, joined.facts, arrive)
        self._follow_all(joined.then, at)

    def _arrive(self, welcome: Callable[[], None], presence: Entry) -> None:
        """Welcome a newcomer whose presence is kept, and announce it.

        Not before: after a restart it has to be known which welcome came last.
        """
        self._state.arrivals.note(presence)
        welcome()
        self.fanout.deliver(presence)

    def leave(self, member: Member) -> None:
        """Remove a member; one that was taken over, or has left, changes nothing."""
        if self.observers.remove(member) is not None:
            self.fanout.remove(member)
            return
        participant = member.participant
        at, number = self.now(), self.beside.remove(member)
        if number is not None:
            self._state.beside_left(participant, number, at)
        else:
            if self._members.get(participant) is not member:
                return
            del self._members[participant]
        self.fanout.remove(member)
        self.counters.left += 1
        beside = self.beside.of(participant)
        if not beside and participant not in self._members:
            self._follow_all(self._state.leave(participant, at), at)
        elif member.place is not Place.BESIDE:
            dialect = beside[0].form.dialect
            self._follow_all(self._state.stop_answering(participant, dialect, at), at)
        self.streams.expire()

    def close(self, code: int, reason: str) -> None:
        """Close every connection; no member is told that the others leave."""
        self._closed = True
        everything: tuple[Subscriber, ...] = (
            *self._members.values(),
            *self.beside.clear(),
            *self.observers.clear(),
            *self.fanout.clear(),
        )
        self._members = {}
        for subscriber in everything:
            subscriber.close(code, reason)

    def _observe(self, member: Member) -> None:
        if not _enter(self.observers, member):
            return
        self.counters.observed += 1
        join_state = self.fanout.join_state(member.form, member.last_seen)
        welcome = self._state.observe(member.participant, join_state, dialect=member.form.dialect)
        # No open proposals are replayed: an observer may decide none.
        self.journal.call_when_kept(partial(self._welcome, member, welcome, join_state, ()))

    def _welcome(
        self,
        member: Member,
        welcome: Envelope,
        join_state: JoinState,
        replayed: Sequence[ReplayedEnvelope],
    ) -> None:
        if self._is_here(member):
            self.fanout.welcome(member, self._announcer.stamp(welcome), join_state, replayed)

    # --- what members send ----------------------------------------------------------------

    def receive(self, member: Member, frame: bytes) -> float:
        """Decide about a frame of a member, and carry the decision out.

        A frame of a connection that has been taken over is ignored: its participant sends through
        the newer one.

        Returns:
            Seconds for which to read no more of this member, since it sends too fast; what it sends
            meanwhile is not lost.
        """
        if not self._is_here(member):
            return 0.0
        participant, form, at = member.participant, member.form, self.now()
        self.counters.frames_in += 1
        if member.place is Place.OBSERVING:
            size, rest = len(frame), 0.0
            decision = self._state.decide_observed(participant, frame, form.dialect, at)
            if isinstance(decision, Answer):
                size += decision.size
                rest = ANSWERED_SECONDS
                self._answer(member, decision)
            else:
                self._refuse(member, decision)
            over = self._observers_limiter.consume(participant, at, size)
            return rest if over is None else max(over.seconds, rest)
        size, wait = len(frame), 0.0
        if frame[:1] == MARK and form.pack_frame is not None:
            refused = self.streams.receive(participant, frame, at)
            if refused is not None:
                self._refuse(member, refused)
        else:
            answered = self._receive_envelope(member, frame, at)
            size += answered
            wait = ANSWERED_SECONDS if answered else 0.0
        over = self._limiter.consume(participant, at, size)
        wait = max(wait, self.backpressure_wait(participant))
        if over is None:
            return wait
        self._slow_down(member, over)
        return max(over.seconds, wait)

    def _receive_envelope(self, member: Member, frame: bytes, at: int) -> int:
        """Decide about an envelope; the bytes that its answer counts besides, if it has one."""
        participant, form = member.participant, member.form
        decision = self._state.decide(
            participant,
            frame,
            form.dialect,
            at=at,
            repeats=form.numbered,
            beside=self.beside.number_of(member),
        )
        if self._record is not None:
            self._record(participant, frame, decision, self.grants[participant], "websocket")
        if isinstance(decision, Acceptance):
            self._carry_out(decision, None, member)
        elif isinstance(decision, Repetition):
            self._echo(decision, None, member)
        elif isinstance(decision, Refusal):
            self._refuse(member, decision)
        elif isinstance(decision, Answer):
            self._answer(member, decision)
            return decision.size
        else:
            self.counters.dropped += 1
        return 0

    def _answer(self, member: Member, answer: Answer) -> None:
        """Answer a question to its asker alone, behind all that was accepted before it."""
        self.journal.call_when_kept(partial(self._answer_now, member, answer))

    def _answer_now(self, member: Member, answer: Answer) -> None:
        self._announcer.notify_now(
            member, self._announcer.stamp(answer.write(self.fanout.delivered))
        )

    def _tell_reader(self, reader: FrameReader, draft: Envelope) -> None:
        self._announcer.notify_now(cast("Member", reader), self._announcer.stamp(draft))

    def receive_as(
        self,
        participant: str,
        frame: bytes,
        dialect: str,
        then: DecisionCallback,
        *,
        repeats: bool = True,
        private: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Decide about a frame of a participant that may be away; ``then`` takes the decision.

        ``private`` takes, before that, what answers the sender alone: the acknowledgement of an
        invitation, without which a sender that is away cannot invite, and the id of a stream.
        """
        self.counters.frames_in += 1
        decision = self._state.decide(
            participant, frame, dialect, repeats=repeats, waits=False, answers=private is not None
        )
        if self._record is not None:
            self._record(participant, frame, decision, self.grants[participant], "http")
        if isinstance(decision, Acceptance):
            for each in decision.then:
                if private and isinstance(each, Notice) and each.draft.kind == INVITE_ACK:
                    private(each.draft.payload_object)
                elif private and isinstance(each, Broadcast) and each.draft.kind == STREAM_OPEN:
                    private({"stream_id": each.draft.payload_object["stream_id"]})
            self._carry_out(decision, then)
        elif isinstance(decision, Repetition):
            self._echo(decision, then, self._members.get(participant))
        elif isinstance(decision, Answer):
            self._limiter.consume(participant, self.now(), decision.size)
            self.journal.call_when_kept(partial(then, decision))
        elif isinstance(decision, Refusal):
            # Not told on the participant's connection: that has sent nothing.
            self.counters.refused[decision.code] += 1
            then(decision)
        else:
            self.counters.dropped += 1
            then(decision)

    def backpressure_wait(self, participant: str) -> float:
        """Seconds for which a heavy sender waits now for a slow reader, before it asks again."""
        if not self._backpressure.filling or not self._limiter.load.is_heavy(participant):
            return 0.0
        return self._backpressure.wait(participant)

    def check_rate(self, participant: str, size: int) -> RateExceeded | None:
        """The limit that a message without a connection exceeds; ``None``: it counts."""
        wait = self.backpressure_wait(participant)
        if wait:
            return RateExceeded("slow_reader_seconds", self._backpressure.patience, wait)
        return self._limiter.try_consume(participant, self.now(), size)

    def tell_refused(self, participant: str, refused: Refusal) -> None:
        """Tell a member of a refusal that is counted already."""
        self._notify(participant, refused.error)

    def refuse_frame(self, member: Member, code: str, message: str, **details: Any) -> None:
        """Tell a member that a message was refused before it was a frame, for its size say."""
        self.counters.frames_in += 1
        refused = draft_refusal(member.participant, code, message, **details)
        self._refuse(member, refused)

    def _refuse(self, member: Member, refused: Refusal) -> None:
        """Tell a connection, and no other of its participant, that a frame of its was refused."""
        self.counters.refused[refused.code] += 1
        self._announcer.notify(member, refused.error)

    def _slow_down(self, member: Member, over: RateExceeded) -> None:
        participant = member.participant
        what = over.limit.removesuffix("_per_second")
        message = f"more than {over.most:g} {what} a second are read later; none of them is lost"
        if self._notices.due(participant, over.limit, self.now()):
            self.counters.slowed += 1
            line = "%s in %s sends more than %g %s a second; the rest is read later"
            log.warning(line, ascii(participant), ascii(self.name), over.most, what)
            told = over_limit(participant, over.limit, over.most, message)
            self._announcer.notify(member, told.error)

    # --- what is decided ------------------------------------------------------------------

    def _carry_out(
        self, accepted: Acceptance, then: DecisionCallback | None, sender: Member | None = None
    ) -> None:
        self.counters.accepted += 1
        envelope = accepted.envelope
        log_cancel(self.name, envelope)
        before: Sequence[tuple[Member, Envelope]] = ()
        if accepted.before:
            before = [
                (member, self._announcer.stamp(each.draft))
                for each in accepted.before
                for member in self._connections(each.participant)
            ]
        if accepted.closes:
            self.streams.end(accepted.closes)
        deliver = partial(self._deliver, accepted, before, then)
        self.journal.append(
            self.name, accepted.at, envelope, accepted.facts, deliver, accepted.changes
        )
        self._follow_all(accepted.then, accepted.at, sender)
        self.expire(accepted.at)

    def expire(self, at: int | None = None) -> None:
        """Announce the proposals that have expired, and look again when the next one may."""
        due = self._state.open.next_expiry
        if due is None:
            return
        at = self.now() if at is None else at
        if due < at:
            self._follow_all(self._state.expire(at), at)
            due = self._state.open.next_expiry
        if due is not None and self._call_later is not None and not self._is_expiry_due:
            self._is_expiry_due = True
            wait = min((due - at + 1) / 1_000_000, EXPIRY_CHECK_SECONDS)
            self._call_later(max(0.0, wait), self._expire_later)

    def _expire_later(self) -> None:
        self._is_expiry_due = False
        if not self._closed:
            self.expire()

    def _deliver(
        self,
        accepted: Acceptance,
        before: Sequence[tuple[Member, Envelope]],
        then: DecisionCallback | None,
        entry: Entry,
    ) -> None:
        """Deliver an accepted envelope that is kept, behind notices that must come before it."""
        for each in (accepted.receipt, accepted.begun):
            if each is not None:
                each.seq = entry.seq
        for member, notice in before:
            self._announcer.notify_now(member, notice)
        self.fanout.deliver(entry)
        if then is not None:
            then(entry)

    def _echo(
        self, repeated: Repetition, then: DecisionCallback | None, member: Member | None
    ) -> None:
        """Tell the sender alone under which number its envelope was accepted before."""
        self.counters.repeated += 1
        # Once the first one is kept, too: only then its number is known.
        self.journal.call_when_kept(partial(self._echo_now, member, repeated, then))

    def _echo_now(
        self, member: Member | None, repeated: Repetition, then: DecisionCallback | None
    ) -> None:
        receipt = repeated.receipt
        first = Entry(receipt.seq, self.name, receipt.at, repeated.envelope)
        if member is not None and self._is_here(member):
            self.fanout.deliver_again(member, first)
        if then is not None:
            then(first)

    def _follow_all(
        self, consequences: Iterable[Consequence], at: int, sender: Member | None = None
    ) -> None:
        """Carry out what follows from a decision, about a frame of a sender, at its time."""
        for consequence in consequences:
            self._follow(consequence, at, sender)

    def _follow(self, consequence: Consequence, at: int, sender: Member | None) -> None:
        match consequence:
            case Broadcast(draft, closes, facts, changes):
                if closes:
                    self.streams.end(closes)
                log_cancel(self.name, draft)
                self._announcer.broadcast(draft, at, facts, changes=changes)
            case Notice(participant, draft):
                # It has a token, which is for the connection that asked for it.
                if draft.kind == INVITE_ACK and sender is not None:
                    self._announcer.notify(sender, draft)
                else:
                    self._notify(participant, draft)
            case Disconnect(participant, code, reason):
                # Last the one that answers: no reader is to hear that the others stay beside it.
                connections = reversed(self._connections(participant))
                for member in (*connections, *self.observers.of(participant)):
                    self.journal.call_when_kept(partial(self._remove, member, code, reason))
            case TokenIssued(participant, token_sha256):
                self.journal.call_when_kept(partial(self._admit, participant, token_sha256))

    def _admit(self, participant: str, token_sha256: str) -> None:
        """Admit an invited participant, where the space takes invitations."""
        if self._invites is not None:
            self._invites.admit(participant, token_sha256)

    def _remove(self, member: Member, code: int, reason: str) -> None:
        """Close a member's connection, and do not wait for its end to remove it."""
        member.close(code, reason)
        self.leave(member)

    def _notify(self, participant: str, draft: Envelope) -> None:
        for member in self._connections(participant):
            self._announcer.notify(member, draft)

    def _connections(self, participant: str) -> tuple[Member, ...]:
        """The connections by which a participant takes part."""
        answering = self._members.get(participant)
        beside = self.beside.of(participant)
        return beside if answering is None else (answering, *beside)

    def _is_here(self, member: Member) -> bool:
        match member.place:
            case Place.OBSERVING:
                return member in self.observers
            case Place.BESIDE:
                return member in self.beside
            case Place.ANSWERING:
                return self._members.get(member.participant) is member

    def _recover(self) -> None:
        """Go on where the gateway was before it was restarted."""
        recover_state(self._state, self.journal, self.name, self.now)
        at = self.now()
        for participant, token_sha256 in self._state.management.digests.items():
            self._admit(participant, token_sha256)
        self._follow_all(self._state.end_recovered(at), at)
        self.expire(at)


def _enter(group: ConnectionGroups, member: Member) -> bool:
    """Add a connection to those of its place, or close it: its participant has as many as it may.

    An edge refuses it before; this is for those that pass the edge at one time.
    """
    if group.is_crowded(member.participant):
        member.close(CROWDED_CODE, group.crowded)
        return False
    group.add(member)
    return True
