"""Fanout: hands accepted envelopes to all subscribers of a space, in one order.

An envelope is encoded once per dialect and framed once per form, however many subscribers there
are. A subscriber that resumes reads what it missed from the journal, page by page, before anything
new (PROTOCOL 6). Subscribers have queues of their own; nothing waits here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Final

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.limits import MAX_FRAME_BYTES
from meup_agent.protocol.resume import add_until, numbered
from meup_agent.protocol.space.frame_relay import FrameRelay
from meup_agent.protocol.space.journal import Entry, Journal
from meup_agent.protocol.space.presence import JoinState
from meup_agent.protocol.space.subscriber import Place, ResumeProgress

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.space.allowance import Allowance
    from meup_agent.protocol.space.counters import SpaceCounters
    from meup_agent.protocol.space.decisions import Recorder
    from meup_agent.protocol.space.subscriber import FrameFormat, Subscriber

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
        self._delivered = journal.latest(space)
        # By identity: two connections of a participant can be here for a moment.
        self._by_form: dict[FrameFormat, dict[int, Subscriber]] = {}
        self._by_name: dict[str, tuple[Subscriber, ...]] = {}
        self._resuming: dict[int, ResumeProgress] = {}
        # Event streams, which are no members: ended here when the space is closed.
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

    @property
    def delivered(self) -> int:
        """The number of the last envelope that was delivered."""
        return self._delivered

    # --- coming and going -----------------------------------------------------------------

    def welcome(self, member: Subscriber, welcome: Envelope, join_state: JoinState) -> None:
        """Hand a newcomer its welcome, and then all that comes."""
        if join_state.can_resume:
            welcome = add_until(welcome, self._delivered)
        # Before anything of what it missed: a newcomer that is lost now has read nothing of it.
        seq = self._delivered if join_state.begin is None else join_state.begin
        self._deliver_to(member, welcome, seq)
        self._add(member, join_state)

    def subscribe(self, stream: Subscriber, last_seen: int | None) -> None:
        """Deliver to a subscriber that is no member, once all that was appended before is kept."""
        self._streams[id(stream)] = stream
        join_state = JoinState.read(
            self._journal, self._space, last_seen, can_resume=stream.form.numbered
        )
        self._journal.call_when_kept(partial(self._begin_stream, stream, join_state))

    def unsubscribe(self, stream: Subscriber) -> None:
        """Deliver nothing more to a subscriber that is no member."""
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
        """Remove all subscribers; those that are no members."""
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

    def deliver(self, entry: Entry) -> None:
        """Deliver an entry to all in one order, first to those that it names: they wait for it."""
        self._delivered = entry.seq
        # By position, since hashing a form takes as long as handing over a frame.
        packs: list[tuple[FrameFormat, dict[int, Subscriber], bytes]] = []
        envelope = entry.envelope
        for form, group in self._by_form.items():
            if form.takes is not None and not form.takes(envelope):
                continue
            packed = self._pack(entry, form)
            if packed is not None:
                packs.append((form, group, packed))
        first = self._find_named(envelope.to)
        for subscriber in first:
            named_form = subscriber.form
            for form, _, packed in packs:
                if form == named_form:
                    subscriber.deliver(packed)
                    break
        delivered = 0
        for _, group, packed in packs:
            delivered += len(group)
            if first:
                for subscriber in group.values():
                    if subscriber not in first:
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

    def deliver_to(self, member: Subscriber, envelope: Envelope) -> None:
        """Deliver an envelope to one member alone, at this place in the order."""
        self._deliver_to(member, envelope, self._delivered)

    def deliver_again(self, member: Subscriber, entry: Entry) -> None:
        """Deliver an entry to one member that all got before."""
        self._queue(member, self.pack(entry, member.form))

    def pack(self, entry: Entry, form: FrameFormat) -> bytes | None:
        """An entry in a form; ``None`` if it takes no such, or its dialect cannot express it."""
        if form.takes is not None and not form.takes(entry.envelope):
            return None
        return self._pack(entry, form)

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

    def _pack(self, entry: Entry, form: FrameFormat) -> bytes | None:
        frame = self._encode(entry.envelope, form.dialect)
        if frame is None:
            return None
        return form.pack(numbered(frame, entry.seq) if form.numbered else frame)

    def _deliver_to(self, member: Subscriber, envelope: Envelope, seq: int) -> None:
        # It has no number of its own: a reader that resumes from this one has seen all before it.
        self._queue(member, self.pack(Entry(seq, self._space, 0, envelope), member.form))
        self._counters.delivered += 1
        name = _name(member) if self._recorder is not None else None
        if name is not None:
            self._record(name, member, envelope)

    def _queue(self, subscriber: Subscriber, packed: bytes | None) -> None:
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
        resuming.until = until = self._delivered
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
