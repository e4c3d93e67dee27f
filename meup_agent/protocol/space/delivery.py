"""Delivery: the connections in a space, and what each of them is handed (PROTOCOL 3).

A participant has one connection that answers, and several beside it, which take part as well. An
observer gets what all get, and sends questions alone. It is not a member: it is not announced,
and counts for no wait. Neither takes over the connection of its participant, which may have a
running agent.

Nothing is decided here: what is handed to whom comes as messages of the space's owner
(:mod:`~meup_agent.protocol.space.link`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.space.allowance import Allowance, SpaceCounters
from meup_agent.protocol.space.journal import Entry, Journal
from meup_agent.protocol.space.link import (
    AcceptedMessage,
    CloseMessage,
    Connection,
    DirectMessage,
    EchoMessage,
    FrameMessage,
    LinkMessage,
    Place,
    ResumeProgress,
    StreamEndMessage,
    Subscriber,
    WelcomeMessage,
)
from meup_agent.protocol.space.state.indexes import Recorder, gateway_draft
from meup_agent.protocol.space.state.streams import JoinState
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES, Envelope
from meup_agent.protocol.wire.membership import (
    AckFrame,
    add_until,
    encode_ack,
    numbered,
)
from meup_agent.protocol.wire.streams import StreamInfo, build_lost

if TYPE_CHECKING:
    from meup_agent.protocol.space.link import FrameFormat, FrameReader


# --- the streams of a space at work ---
# Their frames, handed to readers, and what slow ones lose.
#
# A frame is packed once for all. It waits in the queue of its reader as envelopes do, but only a
# few of each stream: while a reader is behind, further frames are lost, and the reader is told how
# many once it has caught up (PROTOCOL 8). So a stream costs no reader its connection.

STREAMS_TOGETHER: Final = 4
"""Frames of all streams that wait for one reader: so many times what may wait of one."""


@dataclass(slots=True)
class _Count:
    frames: int = 0
    size: int = 0

    def add(self, size: int) -> None:
        self.frames += 1
        self.size += size


@dataclass(slots=True, eq=False)
class _Gate:
    """Counts the frames for one reader since it fell behind."""

    reader: FrameReader
    waiting: dict[str, _Count] = field(default_factory=dict[str, _Count])
    together: _Count = field(default_factory=_Count)
    lost: dict[str, _Count] = field(default_factory=dict[str, _Count])


class FrameRelay:
    """The readers of streams in a space, and what they lose."""

    def __init__(
        self,
        counters: SpaceCounters,
        allowance: Allowance,
        tell: Callable[[FrameReader, Envelope], None],
        *,
        by_form: Mapping[FrameFormat, Mapping[int, Subscriber]],
        by_name: Mapping[str, Iterable[Subscriber]],
        resuming: Mapping[int, ResumeProgress],
    ) -> None:
        self._tell = tell  # sends a draft of the gateway to one reader
        self._counters = counters
        self._most_frames = allowance.max_stream_queued_frames
        self._most_bytes = allowance.max_stream_queued_bytes
        self._by_form = by_form
        self._by_name = by_name
        self._resuming = resuming
        # By identity, and only of readers that are behind.
        self._gates: dict[int, _Gate] = {}

    def deliver(self, message: FrameMessage) -> None:
        """Hand a frame to the stream's readers."""
        stream, frame, size = message.stream, message.frame, message.size
        for each in self._resuming.values():
            self._miss(each.subscriber, stream, size)
        if stream.targets:
            for name in stream.targets:
                for found in self._by_name.get(name, ()):
                    if found.form.pack_frame is not None:
                        group = {id(found): cast("FrameReader", found)}
                        packed = None if frame is None else found.form.pack_frame(frame)
                        self._deliver_to(group, stream.id, packed, size)
            return
        # Forms that differ in nothing but their envelopes share one packed frame.
        packed_by: dict[Callable[[bytes], bytes], bytes | None] = {}
        for form, subscribers in self._by_form.items():
            pack = form.pack_frame
            if pack is not None:
                if pack not in packed_by:
                    packed_by[pack] = None if frame is None else pack(frame)
                group = cast("dict[int, FrameReader]", subscribers)
                self._deliver_to(group, stream.id, packed_by[pack], size)

    def close(self, stream: str) -> None:
        """Tell what readers lost of a stream that is closed, before they hear of that."""
        for gate in tuple(self._gates.values()):
            gate.waiting.pop(stream, None)
            self._tell_lost(gate.reader, stream, gate.lost.pop(stream, None))

    def catch_up(self, subscriber: Subscriber) -> None:
        """Tell a reader that is behind no more what it lost."""
        gate = self._gates.pop(id(subscriber), None)
        if gate is not None:
            for stream, count in gate.lost.items():
                self._tell_lost(gate.reader, stream, count)

    def remove(self, subscriber: Subscriber) -> None:
        """Forget a reader that has gone."""
        self._gates.pop(id(subscriber), None)

    def _deliver_to(
        self, readers: Mapping[int, FrameReader], stream: str, packed: bytes | None, size: int
    ) -> None:
        gates, lost = self._gates, 0
        for key, reader in readers.items():
            if (packed is None or reader.paused or key in gates) and not self._admit(
                reader, stream, size, lost=packed is None
            ):
                lost += 1
            elif packed is not None:
                reader.deliver(packed)
        self._counters.stream_frames_lost += lost
        self._counters.stream_frames_delivered += len(readers) - lost

    def _miss(self, subscriber: Subscriber, stream: StreamInfo, size: int) -> None:
        """Count a frame that a reader loses since it still reads the envelopes that it missed."""
        named = getattr(subscriber, "participant", None) in stream.targets
        if subscriber.form.pack_frame is None or (stream.targets and not named):
            return
        reader = cast("FrameReader", subscriber)
        gate = self._gates.setdefault(id(reader), _Gate(reader))
        gate.lost.setdefault(stream.id, _Count()).add(size)
        self._counters.stream_frames_lost += 1

    def _admit(self, reader: FrameReader, stream: str, size: int, *, lost: bool) -> bool:
        """Count a frame for a reader that is behind; true if it may wait in the queue.

        Once one of a stream is lost, so are all until the reader has caught up: it is told of one
        gap, at its place, and not of many.
        """
        gate = self._gates.get(id(reader))
        if gate is None:
            gate = self._gates[id(reader)] = _Gate(reader)
            reader.ready(partial(self.catch_up, reader))
        count = gate.lost.get(stream)
        if count is None:
            waiting = gate.waiting.setdefault(stream, _Count())
            if (
                not lost
                and self._fits(waiting, 1, size)
                and self._fits(gate.together, STREAMS_TOGETHER, size)
            ):
                waiting.add(size)
                gate.together.add(size)
                return True
            count = gate.lost[stream] = _Count()
        count.add(size)
        return False

    def _fits(self, count: _Count, times: int, size: int) -> bool:
        return (
            count.frames < times * self._most_frames
            and count.size + size <= times * self._most_bytes
        )

    def _tell_lost(self, reader: FrameReader, stream: str, count: _Count | None) -> None:
        if count is not None:
            told = build_lost(stream, count.frames, count.size)
            name = getattr(reader, "participant", "")
            self._tell(reader, gateway_draft(kinds.STREAM_LOST, told, to=name))


# --- fanout ---
# Hands accepted envelopes to all subscribers of a space, in one order.
#
# An envelope is encoded once per dialect and framed once per form, however many subscribers there
# are. A subscriber that resumes reads what it missed from the journal, page by page, before
# anything new (PROTOCOL 6). Subscribers have queues of their own; nothing waits here.

log = logging.getLogger("meup_agent.gateway")

PAGE: Final = 500
"""Entries that are read at a time for a subscriber that resumes, so that others are served in
between."""

MAX_HELD: Final = 1_000
"""Frames for one subscriber alone that wait while it still reads what it missed."""

MAX_HELD_BYTES: Final = 2 * MAX_FRAME_BYTES
"""The same, in bytes: a frame of the largest, and some pages of proposals."""

TOO_SLOW: Final = 1013

_TOO_SLOW_REASON: Final = "you read too slowly; connect again"


class Fanout:
    """The subscribers of a space."""

    def __init__(
        self,
        space: str,
        journal: Journal,
        counters: SpaceCounters,
        allowance: Allowance,
        stamp: Callable[[Envelope], Envelope],
        recorder: Recorder | None = None,
    ) -> None:
        self._recorder = recorder
        self._space = space
        self._journal = journal
        self._counters = counters
        # The envelope that was encoded last, in each dialect that was asked for.
        self._encoded: Envelope | None = None
        self._frames: dict[str, bytes | None] = {}
        self.delivered = journal.latest(space)
        """The number of the last envelope that was delivered."""
        # By identity: two connections of a participant can be here for a moment.
        self._by_form: dict[FrameFormat, dict[int, Subscriber]] = {}
        self._by_name: dict[str, tuple[Subscriber, ...]] = {}
        self._resuming: dict[int, ResumeProgress] = {}
        # Event streams, which are not members: ended here when the space is closed.
        self._streams: dict[int, Subscriber] = {}
        self.frames: Final = FrameRelay(
            counters,
            allowance,
            lambda reader, draft: self.deliver_to(reader, stamp(draft)),
            by_form=self._by_form,
            by_name=self._by_name,
            resuming=self._resuming,
        )
        """Hands on the frames of streams."""

    # --- coming and going -----------------------------------------------------------------

    def welcome(self, member: Subscriber, welcome: Envelope, join_state: JoinState) -> None:
        """Hand a newcomer its welcome, and then all that comes."""
        if join_state.can_resume:
            welcome = add_until(welcome, self.delivered)
        # Before anything of what it missed: a newcomer that is lost now has read nothing of it.
        seq = self.delivered if join_state.begin is None else join_state.begin
        self.deliver_to(member, welcome, seq)
        self._add(member, join_state)

    def subscribe(self, stream: Subscriber, last_seen: int | None) -> None:
        """Deliver to a subscriber that is not a member, once what was appended before is kept."""
        self._streams[id(stream)] = stream
        join_state = JoinState.read(
            self._journal, self._space, last_seen, can_resume=stream.form.numbered
        )
        self._journal.call_when_kept(partial(self._begin_stream, stream, join_state))

    def unsubscribe(self, stream: Subscriber) -> None:
        """Deliver nothing more to a subscriber that is not a member."""
        self._streams.pop(id(stream), None)
        self.remove(stream)

    def remove(self, subscriber: Subscriber) -> None:
        """Deliver nothing more to a subscriber; one that is not here changes nothing."""
        self.frames.remove(subscriber)
        resuming = self._resuming.pop(id(subscriber), None)
        if resuming is not None:
            resuming.stopped = True
        group = self._by_form.get(subscriber.form)
        if group is not None and group.pop(id(subscriber), None) is not None:
            if not group:
                del self._by_form[subscriber.form]
            name = _name(subscriber)
            if name is not None:
                rest = tuple(each for each in self._by_name[name] if each is not subscriber)
                if rest:
                    self._by_name[name] = rest
                else:
                    del self._by_name[name]

    def clear(self) -> tuple[Subscriber, ...]:
        """Remove all subscribers; those that are not members."""
        streams = tuple(self._streams.values())
        for resuming in self._resuming.values():
            resuming.stopped = True
        self._resuming.clear()
        self._streams.clear()
        self._by_form.clear()
        self._by_name.clear()
        return streams

    def _begin_stream(self, stream: Subscriber, join_state: JoinState) -> None:
        if id(stream) in self._streams:
            self._add(stream, join_state)

    def _add(self, subscriber: Subscriber, join_state: JoinState) -> None:
        if join_state.begin is None:
            self._add_current(subscriber)
        else:
            resuming = ResumeProgress(subscriber, join_state.begin, join_state.gap)
            self._resuming[id(subscriber)] = resuming
            self._read_next_page(resuming)

    def _add_current(self, subscriber: Subscriber) -> None:
        self._by_form.setdefault(subscriber.form, {})[id(subscriber)] = subscriber
        name = _name(subscriber)
        if name is not None:
            self._by_name[name] = (*self._by_name.get(name, ()), subscriber)

    # --- what is delivered ----------------------------------------------------------------

    def deliver(self, entry: Entry, sender: Subscriber | None = None) -> None:
        """Deliver an entry to all in one order, first to those that it names: they wait for it.

        A sender that is given gets its acknowledgement instead; one that still reads what it
        missed finds the entry there.
        """
        self.delivered = entry.seq
        # By position, since hashing a form takes as long as handing over a frame.
        packs: list[tuple[FrameFormat, dict[int, Subscriber], Any]] = []
        envelope = entry.envelope
        for form, group in self._by_form.items():
            packed = self.pack(entry, form)
            if packed is not None:
                packs.append((form, group, packed))
        ack = None
        if sender is not None:
            ack = sender.form.pack(encode_ack(AckFrame(envelope.id, entry.seq)))
        first = self._find_named(envelope.to)
        for subscriber in first:
            if subscriber is sender:
                continue
            named_form = subscriber.form
            for form, _, packed in packs:
                if form == named_form:
                    subscriber.deliver(packed)
                    break
        delivered = 0
        for _, group, packed in packs:
            delivered += len(group)
            if first or ack is not None:
                for subscriber in group.values():
                    if subscriber is sender:
                        subscriber.deliver(ack)
                    elif subscriber not in first:
                        subscriber.deliver(packed)
            else:
                for subscriber in group.values():
                    subscriber.deliver(packed)
        self._counters.delivered += delivered
        if self._recorder is not None:
            for name, subscribers in self._by_name.items():
                self._record(name, subscribers[0], envelope)

    def _record(self, name: str, subscriber: Subscriber, envelope: Envelope) -> None:
        frame = self._encode(envelope, subscriber.form.dialect)
        if self._recorder is not None and frame is not None:
            self._recorder.delivered(self._space, name, envelope, frame)

    def deliver_to(self, member: Subscriber, envelope: Envelope, seq: int | None = None) -> None:
        """Deliver an envelope to one member alone, at this place in the order.

        It has no number of its own: a reader that resumes from ``seq`` has seen all before it.
        """
        entry = Entry(self.delivered if seq is None else seq, self._space, 0, envelope)
        self.deliver_again(member, entry)
        self._counters.delivered += 1
        name = _name(member) if self._recorder is not None else None
        if name is not None:
            self._record(name, member, envelope)

    def deliver_again(self, member: Subscriber, entry: Entry) -> None:
        """Deliver an entry to one member that all got before."""
        self._queue(member, self.pack(entry, member.form))

    def pack(self, entry: Entry, form: FrameFormat) -> Any:
        """An entry in a form; ``None`` if it takes no such, or its dialect cannot express it."""
        if form.pack_entry is not None:
            return form.pack_entry(entry)
        frame = self._encode(entry.envelope, form.dialect)
        if frame is None:
            return None
        return form.pack(numbered(frame, entry.seq) if form.numbered else frame)

    def _encode(self, envelope: Envelope, dialect: str) -> bytes | None:
        """The envelope's frame in a dialect; ``None``, logged, if the dialect cannot express it."""
        if envelope.frame and envelope.protocol == dialect:
            return envelope.frame
        if envelope is not self._encoded:
            self._encoded, self._frames = envelope, {}
        if dialect not in self._frames:
            try:
                self._frames[dialect] = encode(envelope, dialect)
            except NotExpressible as error:
                self._frames[dialect] = None
                self._counters.not_expressible += 1
                log.warning("left out for those who speak %s: %s", dialect, error)
        return self._frames[dialect]

    def _queue(self, subscriber: Subscriber, packed: Any) -> None:
        """Queue a frame for one subscriber, behind what it still has to read."""
        if packed is None:
            return
        resuming = self._resuming.get(id(subscriber))
        if resuming is None:
            subscriber.deliver(packed)
            return
        resuming.held.append(packed)
        resuming.held_bytes += len(packed)
        if len(resuming.held) > MAX_HELD or resuming.held_bytes > MAX_HELD_BYTES:
            subscriber.close(TOO_SLOW, _TOO_SLOW_REASON)

    def _find_named(self, names: tuple[str, ...]) -> Collection[Subscriber]:
        here = self._by_name
        # Most envelopes name one, and looking into a tuple of one takes no hash.
        if len(names) == 1:
            return here.get(names[0], ())
        return dict.fromkeys(each for name in names for each in here.get(name, ()))

    # --- what was missed ------------------------------------------------------------------

    def _read_next_page(self, resuming: ResumeProgress) -> None:
        """Read the next page of what a subscriber missed; after the last one it is current."""
        if resuming.stopped:
            return
        if resuming.gap:
            resuming.seen = max(resuming.seen, self._journal.floor(self._space))
        # All that others got by now: what is delivered while the page is read is on a later one.
        resuming.until = until = self.delivered
        if resuming.seen >= until:
            self._end_resuming(resuming)
        elif not self._is_too_late(resuming):
            self._journal.read(
                self._space,
                after=resuming.seen,
                until=until,
                limit=PAGE,
                then=partial(self._deliver_page, resuming),
            )

    def _deliver_page(self, resuming: ResumeProgress, entries: tuple[Entry, ...]) -> None:
        # Checked again: the journal may have dropped some before they were read.
        if resuming.stopped or self._is_too_late(resuming):
            return
        resuming.gap = False
        subscriber = resuming.subscriber
        for entry in entries:
            packed = self.pack(entry, subscriber.form)
            if packed is not None:
                subscriber.deliver(packed)
        # An empty page: the rest of the numbers are other spaces'.
        resuming.seen = entries[-1].seq if entries else resuming.until
        subscriber.ready(partial(self._read_next_page, resuming))

    def _end_resuming(self, resuming: ResumeProgress) -> None:
        resuming.stopped = True
        subscriber = resuming.subscriber
        self._resuming.pop(id(subscriber), None)
        self._add_current(subscriber)
        for packed in resuming.held:
            subscriber.deliver(packed)
        self.frames.catch_up(subscriber)

    def _is_too_late(self, resuming: ResumeProgress) -> bool:
        """Close a subscriber whose next entry is not kept any more: it is told of the gap then."""
        if resuming.gap or resuming.seen >= self._journal.floor(self._space):
            return False
        resuming.subscriber.close(TOO_SLOW, _TOO_SLOW_REASON)
        return True


def _name(subscriber: Subscriber) -> str | None:
    # An observer has its participant's name, and is not the participant.
    if getattr(subscriber, "place", None) is Place.OBSERVING:
        return None
    return getattr(subscriber, "participant", None)


# --- delivery ---

CROWDED_CODE: Final = 1013
"""Close code for a connection of a participant that has as many in that place as it may."""


class Member(Subscriber, Protocol):
    """A participant's connection at the gateway."""

    @property
    def participant(self) -> str:
        """The participant whose connection it is."""
        ...

    @property
    def last_seen(self) -> int | None:
        """The number of the last envelope that it got before; ``None``: it does not resume."""
        ...

    @property
    def place(self) -> Place:
        """Its part in the space."""
        ...


class SpaceDelivery:
    """The connections in a space."""

    def __init__(
        self,
        space: str,
        journal: Journal,
        counters: SpaceCounters,
        allowance: Allowance,
        stamp: Callable[[Envelope], Envelope],
        recorder: Recorder | None = None,
    ) -> None:
        self.fanout: Final = Fanout(space, journal, counters, allowance, stamp, recorder)
        """Hands on to subscribers, which are not all members."""
        self._limits = {
            Place.BESIDE: (allowance.max_beside, "connections beside", "max_beside"),
            Place.OBSERVING: (allowance.max_observers, "observers", "max_observers"),
        }
        self._numbers = count(1)
        self._members: dict[int, Member] = {}
        # By identity: several connections of a participant are equal in everything else.
        self._connections: dict[int, Connection] = {}
        self._answering: dict[str, Member] = {}
        self._counts = Counter[tuple[str, Place]]()

    @property
    def members(self) -> tuple[Member, ...]:
        """Every connection that takes part at this moment."""
        here = self._members.values()
        return tuple([each for each in here if each.place is not Place.OBSERVING])

    @property
    def observers(self) -> int:
        return len(self._members) - len(self.members)

    def member(self, participant: str) -> Member | None:
        return self._answering.get(participant)

    def crowding(self, participant: str, place: Place) -> str:
        """The reason for which a participant gets no more connections in a place; empty: none."""
        most, what, name = self._limits.get(place, (None, "", ""))
        if most is None or self._counts[participant, place] < most:
            return ""
        return f"the participant has {most} {what}, as many as it may have ({name})"

    # --- coming and going -----------------------------------------------------------------

    def add(self, member: Member) -> Connection | None:
        """Take in a connection, or close it: its participant has as many as it may.

        An edge refuses it before; this is for those that pass the edge at one time.
        """
        participant, place, form = member.participant, member.place, member.form
        if crowding := self.crowding(participant, place):
            member.close(CROWDED_CODE, crowding)
            return None
        connection = Connection(
            next(self._numbers),
            participant,
            place,
            form.dialect,
            form.numbered,
            form.acked,
            form.pack_frame is not None,
            member.last_seen,
            is_local=form.pack_entry is not None,
        )
        self._members[connection.number] = member
        self._connections[id(member)] = connection
        self._counts[participant, place] += 1
        if place is Place.ANSWERING:
            self._answering[participant] = member
        return connection

    def find(self, member: Member) -> Connection | None:
        """The connection of a member; ``None``: it is not here."""
        return self._connections.get(id(member))

    def remove(self, member: Member) -> Connection | None:
        """Deliver nothing more to a member; its connection, ``None`` if it was not here."""
        connection = self._connections.pop(id(member), None)
        if connection is None:
            return None
        key = participant, _ = connection.participant, connection.place
        del self._members[connection.number]
        self._counts[key] -= 1
        if not self._counts[key]:
            del self._counts[key]
        if self._answering.get(participant) is member:
            del self._answering[participant]
        self.fanout.remove(member)
        return connection

    def close(self, code: int, reason: str) -> None:
        """Close every connection."""
        everything = (*self._members.values(), *self.fanout.clear())
        for group in (self._members, self._connections, self._answering, self._counts):
            group.clear()
        for subscriber in everything:
            subscriber.close(code, reason)

    # --- what the owner hands on ----------------------------------------------------------

    def take(self, message: LinkMessage) -> None:
        """Carry out a message of the space's owner."""
        if isinstance(message, Entry):  # most are
            self.fanout.deliver(message)
            return
        match message:
            case AcceptedMessage(number, entry):
                self.fanout.deliver(entry, self._members.get(number))
            case FrameMessage():
                self.fanout.frames.deliver(message)
            case StreamEndMessage(stream):
                self.fanout.frames.close(stream)
            case DirectMessage(connections, envelope):
                for number in connections:
                    if (member := self._members.get(number)) is not None:
                        self.fanout.deliver_to(member, envelope)
            case WelcomeMessage(number, welcome, join_state):
                if (member := self._members.get(number)) is not None:
                    self.fanout.welcome(member, welcome, join_state)
            case EchoMessage(number, entry):
                if (member := self._members.get(number)) is not None:
                    self.fanout.deliver_again(member, entry)
            case CloseMessage(number, code, reason):
                if (member := self._members.get(number)) is not None:
                    self.remove(member)
                    member.close(code, reason)
