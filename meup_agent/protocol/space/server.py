"""A space with its members: what it decides is carried out here, whatever carries the frames.

Everything that members get passes the journal first, in one order: nobody sees what a restart could
undo (PROTOCOL 6).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from meup_agent.protocol import kinds
from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.counters import Counters, log_cancel
from meup_agent.protocol.space.decisions import (
    Accepted,
    Broadcast,
    Consequence,
    Disconnect,
    Dropped,
    Notice,
    Refused,
    TokenIssued,
    over_limit,
    refusal,
)
from meup_agent.protocol.space.fanout import (
    NO_BACKPRESSURE,
    Backpressure,
    Fanout,
    Member,
    Subscriber,
)
from meup_agent.protocol.space.inbound import InboundFrame
from meup_agent.protocol.space.indexes import Deduplicator
from meup_agent.protocol.space.inflight import OPEN_SECONDS
from meup_agent.protocol.space.journal import Entry, Journal
from meup_agent.protocol.space.management import KICKED_CODE, NO_INVITES, REMOVED, InviteIssuer
from meup_agent.protocol.space.members import (
    CROWDED_CODE,
    Observers,
    crowded,
    refuse_observer,
)
from meup_agent.protocol.space.presence import JoinState, ReplayedEnvelope
from meup_agent.protocol.space.rate_limits import (
    Allowance,
    NoticeThrottle,
    RateExceeded,
    RateLimiter,
)
from meup_agent.protocol.space.state import SpaceState
from meup_agent.protocol.timestamps import rfc3339

log = logging.getLogger("meup_agent.gateway")

TAKEN_OVER: Final = 4409
"""Close code for a connection that a newer one of the same participant replaced (PROTOCOL 3)."""

RECOVERED_ENTRIES: Final = 100_000
"""Entries that are read when a gateway starts, to know again what is open, and sent twice."""

DecisionCallback = Callable[[Entry | Refused | Dropped], None]
"""Told what became of a frame: accepted (and kept), refused, or dropped."""


def _ignore(_: object) -> None:
    """The sender sees by the echo what became of its frame."""


class SpaceServer:
    """A :class:`SpaceState` and the members in it; every call takes effect in its order.

    Args:
        name: The space's name.
        participants: Who may join, and what they may send.
        journal: Keeps what is accepted.
        new_id: Makes the ids of the gateway's own envelopes.
        now: Tells the time in microseconds since 1970 (UTC).
        counters: Where to count.
        allowance: How much each participant may say.
        doors: Lets in who is invited; ``None``: nobody can be invited.
        announce_withdrawals: Everybody is told of each withdrawal that took effect.
        readers: Tells whether senders have to wait for somebody who reads slowly.
    """

    def __init__(
        self,
        name: str,
        *,
        participants: Mapping[str, Capabilities],
        journal: Journal,
        new_id: Callable[[], str],
        now: Callable[[], int],
        counters: Counters,
        allowance: Allowance | None = None,
        doors: InviteIssuer | None = None,
        announce_withdrawals: bool = False,
        readers: Backpressure = NO_BACKPRESSURE,
    ) -> None:
        self.name = name
        self._readers = readers
        self.counters = counters
        self.journal = journal
        self._new_id = new_id
        self._now = now
        self._allowance = allowance or Allowance()
        self._doors: InviteIssuer = doors or NO_INVITES
        self._space = SpaceState(
            participants,
            allowance=self._allowance,
            now=now,
            announce_withdrawals=announce_withdrawals,
            new_token=None if doors is None else doors.new_token,
            address=self._doors.address,
        )
        self._pace = RateLimiter(self._allowance)
        # Its own, so that what observers send in vain slows down nobody's agent.
        self._observers_pace = RateLimiter(self._allowance)
        self._told = NoticeThrottle()
        self._members: dict[str, Member] = {}
        self.observers: Final = Observers(self._allowance.max_observers)
        """Whoever looks on, and is no member."""
        self.audience = Fanout(name, journal, counters)
        """Whoever hears what is said here."""
        self._recent = Deduplicator()
        self._recover()

    @property
    def members(self) -> tuple[Member, ...]:
        """Every member at this moment."""
        return tuple(self._members.values())

    @property
    def present(self) -> list[dict[str, Any]]:
        """Who is in the space, with what they may send, as a welcome says it."""
        return [
            {"id": name, "capabilities": list(self._space.capabilities(name).patterns)}
            for name in self._space.present
        ]

    def __len__(self) -> int:
        """How many members there are at this moment."""
        return len(self._members)

    def __contains__(self, participant: object) -> bool:
        """Whether a participant is in the space."""
        return participant in self._members

    def member(self, participant: str) -> Member | None:
        """A participant's connection, if it is in the space."""
        return self._members.get(participant)

    def is_kicked(self, participant: str) -> bool:
        """Whether somebody was removed from the space, and not invited again."""
        return self._space.is_kicked(participant)

    def capabilities(self, participant: str) -> Capabilities:
        """What a participant may send at this moment, present or not.

        Raises:
            KeyError: Nobody knows this participant here.
        """
        return self._space.capabilities(participant)

    def admit(self, participant: str, capabilities: Capabilities) -> None:
        """Let somebody be a participant, or change what they may send."""
        self._space.admit(participant, capabilities)

    # --- coming and going -----------------------------------------------------------------

    def join(self, member: Member) -> None:
        """Take a member in; an older connection of the same participant is closed with 4409.

        Whoever was removed since it was let in at the door is closed with 4403 instead. An
        observer replaces nobody, and nobody is told of it.
        """
        participant = member.participant
        if self.is_kicked(participant):
            member.close(KICKED_CODE, REMOVED)
            return
        if member.observes:
            self._observe(member)
            return
        older = self._members.get(participant)
        self._members[participant] = member
        self.counters.joined += 1
        if older is not None:
            self.counters.taken_over += 1
            self.audience.remove(older)
            older.close(TAKEN_OVER, "a newer connection of the same participant took over")
        self._space.register_dialect(member.form.dialect)
        begin = self.audience.begin(member.last_seen)
        joined = self._space.join(participant, self._arriving(member, begin))
        # Who continues without a gap reads what it missed. And who does not say that it resumes
        # may take a replay for something new.
        is_told = member.form.numbered and (begin is None or begin != member.last_seen)
        replays = self._space.select_replayed(participant) if is_told else []
        self.journal.after(partial(self._enter, member, joined.welcome, begin, replays))
        self._publish(self._stamped(joined.presence))

    def leave(self, member: Member) -> None:
        """Take a member out; one that was taken over, or has left, changes nothing."""
        if self.observers.remove(member):
            self.audience.remove(member)
            return
        if self._members.get(member.participant) is not member:
            return
        del self._members[member.participant]
        self.audience.remove(member)
        self.counters.left += 1
        self._publish(self._stamped(self._space.leave(member.participant)))

    def close(self, code: int, reason: str) -> None:
        """Close every member; nobody is told that the others leave."""
        everybody: tuple[Subscriber, ...] = (
            *self._members.values(),
            *self.observers.clear(),
            *self.audience.clear(),
        )
        self._members = {}
        for listener in everybody:
            listener.close(code, reason)

    def _observe(self, member: Member) -> None:
        """Let a connection hear what everybody hears."""
        if self.observers.is_crowded(member.participant):
            member.close(CROWDED_CODE, crowded(self.observers.limit))
            return
        self.observers.add(member)
        self.counters.observed += 1
        begin = self.audience.begin(member.last_seen)
        welcome = self._space.observe(member.participant, self._arriving(member, begin))
        # No open proposals are replayed: an observer may decide none.
        self.journal.after(partial(self._enter, member, welcome, begin, ()))

    def _arriving(self, member: Member, begin: int | None) -> JoinState | None:
        if not member.form.numbered:
            return None
        until = self.journal.latest(self.name)
        return JoinState(until, gap=begin != member.last_seen, resumed=begin is not None)

    def _enter(
        self,
        member: Member,
        welcome: Envelope,
        begin: int | None,
        replays: Sequence[ReplayedEnvelope],
    ) -> None:
        if self._is_here(member):
            self.audience.enter(member, self._stamped(welcome), begin, replays)

    # --- what members say -----------------------------------------------------------------

    def receive(self, member: Member, frame: bytes) -> float:
        """Take a frame from a member, and do what is decided about it.

        A frame of a connection that has been taken over is ignored: its participant speaks
        through the newer one.

        Returns:
            Seconds for which to read no more of this member, since it says too much at a time;
            what it sends meanwhile is not lost.
        """
        participant = member.participant
        if not self._is_here(member):
            return 0.0
        form = member.form
        if member.observes:
            self.counters.frames_in += 1
            self._refuse_to_observer(member, refuse_observer(participant, frame, form.dialect))
            paced = self._observers_pace.take(participant, self._now(), len(frame))
            return 0.0 if paced is None else paced.seconds
        at = self._now()
        self._receive(participant, frame, form.dialect, _ignore, form.numbered, at)
        over = self._pace.take(participant, at, len(frame))
        wait = self.backpressure_wait(participant)
        if over is None:
            return wait
        self._slow_down(participant, over)
        return max(over.seconds, wait)

    def backpressure_wait(self, participant: str) -> float:
        """Seconds for which a participant is not read now since a reader does not keep up.

        Only who is loud waits. Ask again after these seconds, before anything more is read.
        """
        if not self._readers.filling or not self._pace.load.is_heavy(participant):
            return 0.0
        return self._readers.wait(participant)

    def check_rate(self, participant: str, size: int) -> RateExceeded | None:
        """The limit for which to refuse a message of a participant who has no connection.

        Args:
            participant: Its sender.
            size: Its bytes; it is counted if nothing is returned.
        """
        wait = self.backpressure_wait(participant)
        if wait:
            return RateExceeded("slow_reader_seconds", self._readers.patience, wait)
        return self._pace.try_consume(participant, self._now(), size)

    def receive_as(
        self,
        participant: str,
        frame: bytes,
        dialect: str,
        answer: DecisionCallback = _ignore,
        *,
        repeats: bool = True,
    ) -> None:
        """Take a frame from a participant, whether it is in the space or not.

        Args:
            participant: Who sent it, as its token told.
            frame: One message, as it came.
            dialect: The dialect that it is in.
            answer: Told what became of it; of an accepted one, when it is kept.
            repeats: The sender may send again what it does not know to be accepted. Clients that
                do not resume begin to count their ids anew when they start, and mean what they
                say a second time.
        """
        self._receive(participant, frame, dialect, answer, repeats, self._now())

    def _receive(
        self,
        participant: str,
        frame: bytes,
        dialect: str,
        answer: DecisionCallback,
        repeats: bool,
        at: int,
    ) -> None:
        self.counters.frames_in += 1
        checked = self._space.check(participant, frame, dialect, at)
        match checked:
            case InboundFrame():
                seq = self._recent.find(checked.envelope, at) if repeats else None
                if seq is not None:
                    self._repeated(Entry(seq, self.name, at, checked.envelope), answer)
                    return
                refused = self._space.check_new(checked) or self._paced(checked, answer)
                if refused is not None:
                    self._refuse_to(participant, refused, answer)
                    return
                accepted = self._space.accept(checked)
                self.counters.accepted += 1
                log_cancel(self.name, checked.envelope, checked.payload)
                if checked.envelope.kind == kinds.MCP_WITHDRAW:
                    self._pace.count_withdrawal(participant, at)
                seq = self._carry_out(accepted, answer)
                if repeats:
                    self._recent.remember(checked.envelope, seq, at)
            case Refused():
                self._refuse_to(participant, checked, answer)
            case Dropped():
                self.counters.dropped += 1
                answer(checked)

    def _paced(self, arrival: InboundFrame, answer: DecisionCallback) -> Refused | None:
        """Have a withdrawal said again that comes too fast, where its sender waits for the answer.

        On a connection none is refused: what follows it is read later (PROTOCOL 3).
        """
        envelope = arrival.envelope
        if answer is _ignore or envelope.kind != kinds.MCP_WITHDRAW:
            return None
        over = self._pace.check_withdrawal(envelope.sender, arrival.at)
        if over is None:
            return None
        said = f"more than {over.most:g} withdrawals a second are taken later; say it again"
        refused = over_limit(envelope.sender, over.limit, over.most, said, about=envelope.id)
        return msgspec.structs.replace(refused, retry_after=over.seconds)

    def _refuse_to(self, participant: str, refused: Refused, answer: DecisionCallback) -> None:
        if answer is _ignore:
            self.refuse(participant, refused)
        else:
            # Not the participant's connection: that has sent nothing.
            self.counters.refused[refused.code] += 1
            answer(refused)

    def refuse(self, participant: str, refused: Refused) -> None:
        """Tell a member that a frame of its was refused."""
        self.counters.refused[refused.code] += 1
        self._tell(participant, refused.error)

    def refuse_frame(self, member: Member, code: str, message: str, **details: Any) -> None:
        """Tell a member that a message was refused before it was a frame, for its size say."""
        self.counters.frames_in += 1
        refused = refusal(member.participant, code, message, **details)
        if member.observes:
            self._refuse_to_observer(member, refused)
        else:
            self.refuse(member.participant, refused)

    def _refuse_to_observer(self, member: Member, refused: Refused) -> None:
        """Tell an observer, and not its participant's agent, that it was refused."""
        self.counters.refused[refused.code] += 1
        self.journal.after(partial(self._tell_now, member, self._stamped(refused.error)))

    def _carry_out(self, accepted: Accepted, answer: DecisionCallback) -> int:
        then = self.audience.deliver if answer is _ignore else partial(self._deliver_and, answer)
        if accepted.before:
            told = [
                (member, self._stamped(each.draft))
                for each in accepted.before
                if (member := self._members.get(each.participant)) is not None
            ]
            then = partial(self._tell_and, told, then)
        seq = self.journal.append(self.name, accepted.envelope, accepted.facts, then)
        for consequence in accepted.then:
            self._follow(consequence)
        return seq

    def _slow_down(self, participant: str, over: RateExceeded) -> None:
        what = over.limit.removesuffix("_per_second")
        message = f"more than {over.most:g} {what} a second are read later; none of them is lost"
        if self._told.due(participant, over.limit, self._now()):
            self.counters.slowed += 1
            said = "%s in %s sends more than %g %s a second; the rest is read later"
            log.warning(said, ascii(participant), ascii(self.name), over.most, what)
            self._tell(participant, over_limit(participant, over.limit, over.most, message).error)

    def _follow(self, consequence: Consequence) -> None:
        match consequence:
            case Broadcast(draft):
                log_cancel(self.name, draft)
                self._publish(self._stamped(draft))
            case Notice(participant, draft):
                self._tell(participant, draft)
            case Disconnect(participant, code, reason):
                removed = (self._members.get(participant), *self.observers.of(participant))
                for member in removed:
                    if member is not None:
                        self.journal.after(partial(self._remove, member, code, reason))
            case TokenIssued(participant, token_sha256):
                self.journal.after(partial(self._doors.admit, participant, token_sha256))

    def _remove(self, member: Member, code: int, reason: str) -> None:
        """Close a member's connection, and do not wait for its end to take it out."""
        member.close(code, reason)
        self.leave(member)

    def _repeated(self, first: Entry, answer: DecisionCallback) -> None:
        """Tell the sender alone under which number its envelope was accepted before."""
        self.counters.repeated += 1
        member = self._members.get(first.envelope.sender)
        self.journal.after(partial(self._echo_again, member, first, answer))

    def _echo_again(self, member: Member | None, first: Entry, answer: DecisionCallback) -> None:
        if member is not None and self._is_here(member):
            self.audience.tell_again(member, first)
        answer(first)

    # --- what members get -----------------------------------------------------------------

    def _publish(self, envelope: Envelope) -> None:
        """The one way to everybody for what the gateway says itself."""
        self.journal.append(self.name, envelope, (), self.audience.deliver)

    def _deliver_and(self, answer: DecisionCallback, entry: Entry) -> None:
        self.audience.deliver(entry)
        answer(entry)

    def _tell_and(
        self, told: list[tuple[Member, Envelope]], then: Callable[[Entry], None], entry: Entry
    ) -> None:
        """Tell some members something before everybody gets the envelope that is the reason."""
        for member, envelope in told:
            self._tell_now(member, envelope)
        then(entry)

    def _tell(self, participant: str, draft: Envelope) -> None:
        """Tell one member, after everything that was decided before.

        A connection that takes over meanwhile is not told: nothing may come before its welcome,
        and that was decided later.
        """
        member = self._members.get(participant)
        if member is not None:
            self.journal.after(partial(self._tell_now, member, self._stamped(draft)))

    def _tell_now(self, member: Member, envelope: Envelope) -> None:
        if self._is_here(member):
            self.audience.tell(member, envelope)

    def _is_here(self, member: Member) -> bool:
        if member.observes:
            return member in self.observers
        return self._members.get(member.participant) is member

    def _stamped(self, draft: Envelope) -> Envelope:
        return msgspec.structs.replace(draft, id=self._new_id(), ts=rfc3339(self._now()))

    def _recover(self) -> None:
        """Know again what was accepted lately, and what holds and is open since then."""
        since = self._now() - round(OPEN_SECONDS * 1_000_000)
        recovered = self.journal.recover(self.name, since=since, limit=RECOVERED_ENTRIES)
        # Before any request: whoever spoke a dialect will answer in it.
        for dialect in {entry.envelope.protocol for entry in recovered.entries}:
            self._space.register_dialect(dialect)
        for entry in recovered.entries:
            self._recent.remember(entry.envelope, entry.seq, entry.at)
            self._space.remember(entry.envelope, entry.envelope.payload_object, entry.at)
        for grant in self._space.restore(recovered.facts):
            log.warning(
                "%s: grant %s holds no more: who gave or got it is not what they were",
                self.name,
                grant,
            )
        for participant, token_sha256 in self._space.digests.items():
            self._doors.admit(participant, token_sha256)
        for consequence in self._space.end_revoked():
            self._follow(consequence)
