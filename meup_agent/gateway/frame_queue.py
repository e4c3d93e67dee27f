"""The queue of frames for one reader, and the bounds of what waits for readers.

A :class:`FrameQueue` is a :class:`Backlog`: it counts what it holds while its reader is behind, and
is dropped when that is too much, for it, for its participant or for all. Every listener gets the
same packed frame, so a frame that waits in several queues counts in the share of each participant,
and once in the sum of the gateway, as it is in memory.

While a backlog is filling, loud senders wait for it (see :meth:`SpaceBacklogs.wait`): until it has
drained, or until its reader had ``slow_reader_seconds`` to do so and is dropped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.space.allowance import NoticeThrottle, SpaceCounters
from meup_agent.protocol.space.link import FrameFormat, Place

if TYPE_CHECKING:
    import asyncio

TOO_SLOW: Final = 1013
"""Close code for a member that does not read as fast as its space speaks (PROTOCOL 3)."""

WRITE_BYTES: Final = 256 * 1024
"""Bytes that are handed to a socket at a time, or one frame if that is larger: what waits is kept
here, where it is counted, and shared with other queues."""

LOOK_AGAIN_SECONDS: Final = 0.02
"""After which a sender that waits for a reader looks whether it still has to."""

IMPATIENT_SECONDS: Final = 60.0
"""For how long no sender waits for a participant again whose queue was dropped as too slow. Without
it a participant could come back, and stop the others for another second, without end."""

_MICROSECONDS: Final = 1_000_000


class _Share:
    """The queues of a participant in a space, and their bytes together."""

    __slots__ = ("backlogs", "bytes", "identity", "impatient_until", "space", "streams")

    def __init__(self, space: SpaceBacklogs, identity: Identity) -> None:
        self.space = space
        self.identity = identity
        self.bytes = self.streams = 0
        self.backlogs: set[Backlog] = set()
        self.impatient_until = 0.0


class Backlog(ABC):
    """A queue for one reader, whose waiting frames are counted.

    Senders wait only for a reader that is ``awaited``, which no observer is.
    """

    def __init__(self, backlogs: Backlogs, identity: Identity, *, awaited: bool = True) -> None:
        self.awaited = awaited
        self.share = backlogs.share_of(identity)
        self.share.backlogs.add(self)
        self.waiting_bytes = self.waiting_frames = 0
        self.waited_since: float | None = None
        self._all = backlogs
        self._dropped = False
        self._own_since: float | None = None

    @abstractmethod
    def _drop(self, reason: str) -> None:
        """End the queue. Never raises, and calls nothing of a backlog but to count frames out."""

    def count_in(self, *waits: bytes) -> None:
        """Count frames, which stay alive until they are counted out; may drop this or others."""
        for packed in waits:
            self.waiting_bytes += len(packed)
            self.waiting_frames += 1
            self.share.bytes += len(packed)
            self._all.hold(packed)
        self.share.space.look_at(self)
        self._all.drop_excess(self.share)

    def count_out(self, taken: Iterable[bytes]) -> None:
        """Count what waits no longer."""
        for packed in taken:
            self.waiting_bytes -= len(packed)
            self.waiting_frames -= 1
            self.share.bytes -= len(packed)
            self._all.let_go(packed)
        # At a quarter, and not at the half at which it fills: else senders would stop and go.
        if self.is_below(4):
            self.share.space.fills_no_more(self)

    @property
    def live(self) -> bool:
        """True if something waits in the queue, and it is not dropped."""
        return self.waiting_bytes > 0 and not self._dropped

    def is_below(self, part: int) -> bool:
        """True if the queue holds no more than such a part of what it may."""
        limits = self._all.limits
        return (
            self.waiting_bytes <= limits.max_queued_bytes // part
            and self.waiting_frames <= limits.max_queued_frames // part
        )

    def drop_slow(self, limit: str, why: str) -> None:
        """Drop the queue: its reader is too slow, and is told why in a sentence."""
        if not self._dropped:
            self._dropped = True
            self.share.space.fills_no_more(self)
            self._all.note_dropped(self, limit, why)
            self._drop(f"you read too slowly: {why}; connect again")

    def wait_for_own(self, now: float, patience: float) -> float:
        """Seconds for which its reader's own messages are not read now.

        After so much patience one more is read, and nothing is dropped for it. This time is not
        that for which others waited, or a reader that speaks could have them wait without end.
        """
        if self._own_since is None:
            self._own_since = now
        if now - self._own_since < patience:
            return LOOK_AGAIN_SECONDS
        self._own_since = None
        return 0.0

    def forget(self) -> None:
        """Forget the queue, which holds nothing any more."""
        self.share.space.fills_no_more(self)
        self.share.backlogs.discard(self)
        self._all.forget(self.share)


class Backlogs:
    """Counts the frames that wait for the readers of a gateway, and bounds them.

    What waits for several readers counts once in :attr:`bytes`.
    """

    def __init__(
        self,
        limits: GatewayLimits,
        counters: SpaceCounters,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.bytes = 0
        self.now = now
        self.limits = limits
        self._counters = counters
        self._spaces: dict[str, SpaceBacklogs] = {}
        self._shares: dict[Identity, _Share] = {}
        # By the identity of its bytes: all queues hold the same object, which so stays alive.
        self._held = Counter[int]()
        self._told = NoticeThrottle()

    def add_stream(self, identity: Identity) -> bool:
        """Count a further event stream of a participant in; true if it may have one."""
        share = self.share_of(identity)
        if share.streams >= self.limits.max_streams:
            self._counters.streams_refused += 1
            self.forget(share)  # the look-up may have made it
            return False
        share.streams += 1
        return True

    def remove_stream(self, identity: Identity) -> None:
        """Count an event stream out."""
        share = self.share_of(identity)
        share.streams -= 1
        self.forget(share)

    def reserve(self, identity: Identity, size: int) -> bool:
        """Count bytes that a participant sent and are not taken yet; true if there is room."""
        share, limits = self.share_of(identity), self.limits
        if (
            share.bytes + size > limits.max_participant_queued_bytes
            or self.bytes + size > limits.max_gateway_queued_bytes
        ):
            self.forget(share)
            return False
        share.bytes += size
        self.bytes += size
        return True

    def release(self, identity: Identity, size: int) -> None:
        """Count it out: it was taken, or comes no more."""
        share = self.share_of(identity)
        share.bytes -= size
        self.bytes -= size
        self.forget(share)

    def in_space(self, space: str) -> SpaceBacklogs:
        """The backlogs of one space."""
        return self._spaces.setdefault(space, SpaceBacklogs(self))

    def waiting_in(self, space: str) -> int:
        """Bytes that wait for the participants of a space, counted for each of them."""
        return sum(share.bytes for who, share in self._shares.items() if who.space == space)

    # --- what a backlog calls ---

    def hold(self, packed: bytes) -> None:
        """Count a frame in, once for all that hold it."""
        if not self._held[id(packed)]:
            self.bytes += len(packed)
        self._held[id(packed)] += 1

    def let_go(self, packed: bytes) -> None:
        """Count a frame out."""
        self._held[id(packed)] -= 1
        if not self._held[id(packed)]:
            del self._held[id(packed)]
            self.bytes -= len(packed)

    def note_dropped(self, backlog: Backlog, limit: str, why: str) -> None:
        """Count and log that a reader is too slow."""
        share = backlog.share
        self._counters.too_slow[limit] += 1
        now = self.now()
        if backlog.awaited:  # nobody waits for an observer, so it needs no pause
            share.impatient_until = now + IMPATIENT_SECONDS
        space, participant = share.identity
        if self._told.due(f"{space}/{participant}", limit, round(now * _MICROSECONDS)):
            said = "%s in %s reads too slowly, and is closed: %s"
            log.warning(said, quote(participant), quote(space), why)

    def drop_excess(self, share: _Share) -> None:
        """Drop what is too much for a participant, and for the gateway.

        Of a participant it is the queue in which most waits, an observer's before others; of all,
        the queues of the participant for whom most waits, until there is room again.
        """
        most = self.limits.max_participant_queued_bytes
        if share.bytes > most and (live := [each for each in share.backlogs if each.live]):
            why = f"more than {most} bytes wait for you (max_participant_queued_bytes)"
            fullest = max(live, key=lambda each: (not each.awaited, each.waiting_bytes))
            fullest.drop_slow("max_participant_queued_bytes", why)
        most = self.limits.max_gateway_queued_bytes
        while self.bytes > most:
            shares = [
                each for each in self._shares.values() if any(one.live for one in each.backlogs)
            ]
            if not shares:
                return
            why = f"more than {most} bytes wait for all readers (max_gateway_queued_bytes)"
            # A copy: the set loses each that is dropped.
            for backlog in tuple(max(shares, key=lambda each: each.bytes).backlogs):
                if backlog.waiting_bytes:
                    backlog.drop_slow("max_gateway_queued_bytes", why)

    def forget(self, share: _Share) -> None:
        """Forget a participant without queues, unless it was too slow lately."""
        idle = not (share.bytes or share.backlogs or share.streams)
        if idle and share.impatient_until <= self.now():
            self._shares.pop(share.identity, None)

    def share_of(self, identity: Identity) -> _Share:
        """The queues of a participant."""
        share = self._shares.get(identity)
        if share is None:
            share = self._shares[identity] = _Share(self.in_space(identity.space), identity)
        return share


class SpaceBacklogs:
    """The backlogs of one space that fill, for which its loud senders wait."""

    def __init__(self, backlogs: Backlogs) -> None:
        self.patience = backlogs.limits.slow_reader_seconds
        """Seconds for which senders wait for one reader at most."""
        self._backlogs = backlogs
        self._filling: set[Backlog] = set()

    @property
    def filling(self) -> bool:
        """True if a reader does not keep up, and is worth waiting for."""
        return bool(self._filling)

    def look_at(self, backlog: Backlog) -> None:
        """See whether a queue fills."""
        if (
            backlog.awaited
            and backlog.waited_since is None
            and not backlog.is_below(2)
            and backlog.share.impatient_until <= self._backlogs.now()
        ):
            self._filling.add(backlog)

    def fills_no_more(self, backlog: Backlog) -> None:
        """Wait for a queue no longer."""
        backlog.waited_since = None
        self._filling.discard(backlog)

    def wait(self, sender: str) -> float:
        """Seconds for which a loud sender waits now, before it looks again; 0: it need not.

        Readers for whom a sender waited long enough are dropped. Only a sender's own queue is not,
        and the sender goes on: there are clients that read nothing while they are not read.
        """
        now, wait = self._backlogs.now(), 0.0
        for backlog in tuple(self._filling):
            if backlog.share.impatient_until > now:
                # Another queue of its was dropped meanwhile: this one is when it is full.
                self.fills_no_more(backlog)
                continue
            if backlog.share.identity.participant == sender:
                wait = max(wait, backlog.wait_for_own(now, self.patience))
                continue
            if backlog.waited_since is None:
                backlog.waited_since = now
            if now - backlog.waited_since < self.patience:
                wait = LOOK_AGAIN_SECONDS
            else:
                why = f"a sender waited {self.patience:g} s for you (slow_reader_seconds)"
                backlog.drop_slow("slow_reader_seconds", why)
        return wait


# --- the queue of frames ---


class WriteBatcher:
    """Writes what became due in a turn of the loop at its end, in one write for each connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Have a queue's function write it at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(flush)

    def call(self, then: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._loop.call_soon(then)

    def _flush(self) -> None:
        # Replaced first: what is delivered by a flush is written in the next turn.
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            flush()


class QueueOwner(Protocol):
    """The gateway of a queue."""

    backlogs: Backlogs
    batcher: WriteBatcher
    limits: GatewayLimits


def describe_overflow(limits: GatewayLimits, frames: int) -> tuple[str, str]:
    """The limit that a queue is over, by name, and a sentence that says so."""
    if frames > limits.max_queued_frames:
        name, most, what = "max_queued_frames", limits.max_queued_frames, "messages"
    else:
        name, most, what = "max_queued_bytes", limits.max_queued_bytes, "bytes"
    return name, f"more than {most} {what} wait for you ({name})"


class FrameWriter(Protocol):
    """The connection below a queue. When it can take no more it calls :meth:`FrameQueue.pause`."""

    @property
    def joins_frames(self) -> bool:
        """True if frames that leave together may be one piece: packed, they mark their ends."""
        ...

    def write(self, packed: bytes) -> None:
        """Write frames; what is not taken at once waits in the buffer of the connection."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the connection after what was written, and soon."""
        ...


class FrameQueue(Backlog):
    """Frames for one subscriber of a space.

    Everything that becomes due for it in one turn of the loop leaves in one write. While its
    connection takes no more, frames wait here, bounded; one too many closes the connection. Senders
    wait while it is behind, if it is ``awaited``.
    """

    def __init__(
        self,
        owner: QueueOwner,
        identity: Identity,
        form: FrameFormat,
        writer: FrameWriter,
        *,
        awaited: bool = True,
    ) -> None:
        super().__init__(owner.backlogs, identity, awaited=awaited)
        self.form = form
        self.closed = False
        self._writer = writer
        self._batcher = owner.batcher
        self._limits = owner.limits
        self._queue: list[bytes] = []
        self.queued_bytes = 0
        """Bytes that wait for the connection; the console shows them."""
        self.paused = False
        """The connection takes no more for now."""
        # While the reader is behind, the queue and what was written last are counted.
        self._behind = False
        self._written: list[bytes] = []
        self._then: Callable[[], None] | None = None

    def deliver(self, packed: bytes) -> None:
        """Queue a frame for the end of this turn."""
        if self.closed:
            return
        queue, limits = self._queue, self._limits
        # The first frame of a turn asks for the write of all.
        if not queue and not self.paused:
            self._batcher.add(self.flush)
        queue.append(packed)
        self.queued_bytes = size = self.queued_bytes + len(packed)
        if self._behind:
            self.count_in(packed)
        if len(queue) > limits.max_queued_frames or size > limits.max_queued_bytes:
            self._overflow()

    def flush(self) -> None:
        """Write what is queued, as far as the connection takes it."""
        if not self._queue:
            return
        while self._queue and not self.paused:
            self._write(self._next())
        if not self.paused:
            self._behind, self._written = False, []
            self._continue()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when the connection has taken what was delivered."""
        self._then = then
        if not self._queue and not self.paused:
            self._batcher.call(self._continue)

    def pause(self) -> None:
        """Hold frames back: the connection takes no more for now."""
        if self.paused:
            return
        self.paused = True
        # What was queued before it fell behind is not counted yet.
        waits = () if self._behind else tuple(self._queue)
        self._behind = True
        self.count_in(*self._written, *waits)

    def resume(self) -> None:
        """Write again."""
        self._uncount_written()
        if not self._queue:
            self._behind = False
        self.flush()
        if not self._queue:
            self._continue()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued; what its reader is too slow for is lost."""
        if not self.closed:
            self.flush()
        if not self.closed:
            self._end(code, reason)

    def lost(self) -> None:
        """Take no more frames: the connection has gone, with what it had not taken."""
        self.closed = True
        self._clear()
        self._uncount_written()
        self.forget()

    def _end(self, code: int, reason: str) -> None:
        self.closed = True
        self._clear()
        self._writer.close(code, reason)

    def _drop(self, reason: str) -> None:
        if not self.closed:
            self._end(TOO_SLOW, reason)

    def _clear(self) -> None:
        queue, self._queue, self.queued_bytes = self._queue, [], 0
        if self._behind:
            self.count_out(queue)

    def _uncount_written(self) -> None:
        if self.paused:
            self.paused = False
            self.count_out(self._written)
            self._written = []

    def _next(self) -> list[bytes]:
        """The frames of the next write: those of a turn, or the first part of them."""
        queue = self._queue
        if self.queued_bytes <= WRITE_BYTES:
            self._queue, self.queued_bytes = [], 0
            return queue
        size, number = len(queue[0]), 1
        while number < len(queue) and size + len(queue[number]) <= WRITE_BYTES:
            size += len(queue[number])
            number += 1
        first = queue[:number]
        del queue[:number]
        self.queued_bytes -= size
        return first

    def _write(self, queue: list[bytes]) -> None:
        # Kept, since it is not known before the connection says so whether it took all of it.
        # Joined, it is memory of its own, and counted as such.
        joins = len(queue) > 1 and self._writer.joins_frames
        self._written = [b"".join(queue)] if joins else queue
        if self._behind:
            self.count_out(queue)
        for packed in self._written:
            self._writer.write(packed)

    def _continue(self) -> None:
        then, self._then = self._then, None
        if then is not None and not self.closed:
            then()

    def _overflow(self) -> None:
        """Tell a lively turn, which one more write copes with, from a reader that is too slow."""
        if self.closed:
            return
        if self.paused:
            self.drop_slow(*describe_overflow(self._limits, len(self._queue)))
        else:
            queue, self._queue, self.queued_bytes = self._queue, [], 0
            self._write(queue)
            if not self.paused:
                self._written = []
                self._continue()


class GatewayMember(FrameQueue):
    """A participant's connection, seen from its space."""

    def __init__(
        self,
        owner: QueueOwner,
        identity: Identity,
        form: FrameFormat,
        writer: FrameWriter,
        *,
        last_seen: int | None = None,
        place: Place = Place.ANSWERING,
    ) -> None:
        super().__init__(owner, identity, form, writer, awaited=place is not Place.OBSERVING)
        self.participant = identity.participant
        self.last_seen = last_seen
        self.place = place
