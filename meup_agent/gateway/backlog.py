"""Bounds what waits for readers: for one connection, for all of a participant, for all together.

A queue tells its :class:`Backlog` what it holds while its reader is behind, and is dropped when
that is too much. Every listener gets the same packed frame, so a frame that waits in several queues
counts in the share of each participant, and once in the sum of the gateway, as it is in memory.

While a backlog is filling, loud senders wait for it (see :meth:`SpaceBacklogs.wait`): until it has
drained, or until its reader had ``slow_reader_seconds`` to do so and is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log, quote
from meup_agent.protocol.space.counters import SpaceCounters
from meup_agent.protocol.space.rate_limits import NoticeThrottle

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


class Backlog:
    """Counts the frames that wait for one reader; made by :meth:`Backlogs.open`.

    Senders wait only for a reader that is ``awaited``, which no observer is.
    """

    __slots__ = (
        "_all",
        "_drop",
        "_own_since",
        "awaited",
        "bytes",
        "dropped",
        "frames",
        "share",
        "waited_since",
    )

    def __init__(
        self,
        all_of_them: Backlogs,
        share: _Share,
        drop: Callable[[str], None],
        *,
        awaited: bool = True,
    ) -> None:
        self.awaited = awaited
        self._all = all_of_them
        self._drop = drop
        self.share = share
        self.bytes = self.frames = 0
        self.dropped = False
        self.waited_since: float | None = None
        self._own_since: float | None = None

    def add(self, *waits: bytes, behind: bool = True) -> None:
        """Count frames, which stay alive until they are removed; may drop this queue or others.

        It is ``behind`` where its reader has not taken what came before.
        """
        for packed in waits:
            self.bytes += len(packed)
            self.frames += 1
            self._all.added(self, packed)
        self._all.check(self, behind=behind)

    def remove(self, taken: Iterable[bytes]) -> None:
        """Count what waits no longer."""
        for packed in taken:
            self.bytes -= len(packed)
            self.frames -= 1
            self._all.removed(self, packed)

    def drop(self, limit: str, why: str) -> None:
        """Drop the queue: its reader is too slow, and is told why in a sentence."""
        if not self.dropped:
            self.dropped = True
            self._all.dropping(self, limit, why)
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

    def close(self) -> None:
        """Forget the queue, which holds nothing any more."""
        self._all.closed(self)


class _Share:
    """The queues of a participant in a space, and their bytes together."""

    __slots__ = ("backlogs", "bytes", "impatient_until", "participant", "space", "streams")

    def __init__(self, space: str, participant: str) -> None:
        self.space = space
        self.participant = participant
        self.bytes = self.streams = 0
        self.backlogs: set[Backlog] = set()
        self.impatient_until = 0.0


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
        self.patience = limits.slow_reader_seconds
        self._limits = limits
        self._counters = counters
        self._now = now
        self._shares: dict[tuple[str, str], _Share] = {}
        self._held: dict[int, int] = {}
        self._filling: dict[str, set[Backlog]] = {}
        self._told = NoticeThrottle()
        self._full = limits.max_queued_bytes // 2, limits.max_queued_frames // 2
        self._drained = limits.max_queued_bytes // 4, limits.max_queued_frames // 4

    def open(
        self, space: str, participant: str, drop: Callable[[str], None], *, awaited: bool = True
    ) -> Backlog:
        """Open a queue of a participant.

        What drops it never raises, and calls nothing of this object but :meth:`Backlog.remove` and
        :meth:`Backlog.close`.
        """
        share = self._share(space, participant)
        backlog = Backlog(self, share, drop, awaited=awaited)
        share.backlogs.add(backlog)
        return backlog

    def add_stream(self, space: str, participant: str) -> bool:
        """Count a further event stream of a participant in; true if it may have one."""
        share = self._share(space, participant)
        if share.streams >= self._limits.max_streams:
            self._counters.streams_refused += 1
            self._forget(share)
            return False
        share.streams += 1
        return True

    def remove_stream(self, space: str, participant: str) -> None:
        """Count an event stream out."""
        share = self._share(space, participant)
        share.streams -= 1
        self._forget(share)

    def reserve(self, identity: Identity, size: int) -> bool:
        """Count bytes that a participant sent and are not taken yet; true if there is room."""
        share, limits = self._share(*identity), self._limits
        if (
            share.bytes + size > limits.max_participant_queued_bytes
            or self.bytes + size > limits.max_gateway_queued_bytes
        ):
            self._forget(share)
            return False
        share.bytes += size
        self.bytes += size
        return True

    def release(self, identity: Identity, size: int) -> None:
        """Count it out: it was taken, or comes no more."""
        share = self._share(*identity)
        share.bytes -= size
        self.bytes -= size
        self._forget(share)

    def in_space(self, space: str) -> SpaceBacklogs:
        """The backlogs of one space."""
        return SpaceBacklogs(self, space)

    @property
    def participants(self) -> int:
        """Participants that have queues, or were too slow lately."""
        return len(self._shares)

    def waiting_in(self, space: str) -> int:
        """Bytes that wait for the participants of a space, counted for each of them."""
        return sum(share.bytes for share in self._shares.values() if share.space == space)

    def waiting_for(self, space: str, participant: str) -> int:
        """Bytes that wait for a participant."""
        share = self._shares.get((space, participant))
        return 0 if share is None else share.bytes

    # --- what a backlog calls ---

    def added(self, backlog: Backlog, packed: bytes) -> None:
        """Count a frame in."""
        share, size, name = backlog.share, len(packed), id(packed)
        share.bytes += size
        holders = self._held.get(name, 0)
        self._held[name] = holders + 1
        if not holders:
            self.bytes += size

    def check(self, backlog: Backlog, *, behind: bool) -> None:
        """See whether a queue fills, and drop what is too much."""
        share = backlog.share
        if (
            behind
            and backlog.awaited
            and backlog.waited_since is None
            and self._is_full(backlog)
            and share.impatient_until <= self._now()
        ):
            self._filling.setdefault(share.space, set()).add(backlog)
        limits = self._limits
        if share.bytes > limits.max_participant_queued_bytes:
            self._drop_fullest(share.backlogs)
        if self.bytes > limits.max_gateway_queued_bytes:
            self._drop_who_has_most()

    def removed(self, backlog: Backlog, packed: bytes) -> None:
        """Count a frame out."""
        backlog.share.bytes -= len(packed)
        name = id(packed)
        holders = self._held[name] - 1
        if holders:
            self._held[name] = holders
        else:
            del self._held[name]
            self.bytes -= len(packed)
        most_bytes, most_frames = self._drained
        if backlog.bytes <= most_bytes and backlog.frames <= most_frames:
            self._fills_no_more(backlog)

    def dropping(self, backlog: Backlog, limit: str, why: str) -> None:
        """Count and log that a reader is too slow."""
        share = backlog.share
        self._fills_no_more(backlog)
        self._counters.too_slow[limit] += 1
        now = self._now()
        if backlog.awaited:
            share.impatient_until = now + IMPATIENT_SECONDS
        name = f"{share.space}/{share.participant}"
        if self._told.due(name, limit, round(now * _MICROSECONDS)):
            said = "%s in %s reads too slowly, and is closed: %s"
            log.warning(said, quote(share.participant), quote(share.space), why)

    def closed(self, backlog: Backlog) -> None:
        """Forget a queue."""
        self._fills_no_more(backlog)
        backlog.share.backlogs.discard(backlog)
        self._forget(backlog.share)

    # --- who waits ---

    def is_filling(self, space: str) -> bool:
        """True if a reader in a space does not keep up, and is worth waiting for."""
        return space in self._filling

    def wait(self, space: str, sender: str) -> float:
        """Seconds for which a loud sender in a space waits now; 0: no reader is worth it.

        Readers for whom a sender waited long enough are dropped. Only a sender's own queue is not,
        and the sender goes on: there are clients that read nothing while they are not read.
        """
        now, wait = self._now(), 0.0
        for backlog in tuple(self._filling.get(space, ())):
            if backlog.share.impatient_until > now:
                # Another queue of its was dropped meanwhile: this one is when it is full.
                self._fills_no_more(backlog)
                continue
            if backlog.share.participant == sender:
                wait = max(wait, backlog.wait_for_own(now, self.patience))
                continue
            if backlog.waited_since is None:
                backlog.waited_since = now
            if now - backlog.waited_since < self.patience:
                wait = LOOK_AGAIN_SECONDS
            else:
                why = f"a sender waited {self.patience:g} s for you (slow_reader_seconds)"
                backlog.drop("slow_reader_seconds", why)
        return wait

    def _is_full(self, backlog: Backlog) -> bool:
        most_bytes, most_frames = self._full
        return backlog.bytes > most_bytes or backlog.frames > most_frames

    def _fills_no_more(self, backlog: Backlog) -> None:
        backlog.waited_since = None
        filling = self._filling.get(backlog.share.space)
        if filling is not None:
            filling.discard(backlog)
            if not filling:
                del self._filling[backlog.share.space]

    # --- who has too much ---

    def _drop_fullest(self, backlogs: Iterable[Backlog]) -> None:
        """Drop the queue of a participant in which most waits; an observer's before others."""
        found = max(
            (each for each in backlogs if each.bytes and not each.dropped),
            key=lambda each: (not each.awaited, each.bytes),
            default=None,
        )
        if found is not None:
            most = self._limits.max_participant_queued_bytes
            why = f"more than {most} bytes wait for you (max_participant_queued_bytes)"
            found.drop("max_participant_queued_bytes", why)

    def _drop_who_has_most(self) -> None:
        """Drop the queues of the participant for whom most waits, until there is room again."""
        most = self._limits.max_gateway_queued_bytes
        why = f"more than {most} bytes wait for all readers (max_gateway_queued_bytes)"
        while self.bytes > most:
            live = [
                share
                for share in self._shares.values()
                if any(each.bytes and not each.dropped for each in share.backlogs)
            ]
            if not live:
                return
            for backlog in tuple(max(live, key=lambda share: share.bytes).backlogs):
                if backlog.bytes:
                    backlog.drop("max_gateway_queued_bytes", why)

    def _share(self, space: str, participant: str) -> _Share:
        share = self._shares.get((space, participant))
        if share is None:
            share = self._shares[space, participant] = _Share(space, participant)
        return share

    def _forget(self, share: _Share) -> None:
        """Forget a participant without queues, unless it was too slow lately."""
        idle = not (share.bytes or share.backlogs or share.streams)
        if idle and share.impatient_until <= self._now():
            self._shares.pop((share.space, share.participant), None)


class SpaceBacklogs:
    """The backlogs of one space, as its server asks for them."""

    def __init__(self, backlogs: Backlogs, space: str) -> None:
        self._backlogs = backlogs
        self._space = space

    @property
    def filling(self) -> bool:
        """True if a reader does not keep up, and is worth waiting for."""
        return self._backlogs.is_filling(self._space)

    @property
    def patience(self) -> float:
        """Seconds for which senders wait for one reader at most."""
        return self._backlogs.patience

    def wait(self, sender: str) -> float:
        """Seconds for which a loud sender waits before it looks again; 0: it need not."""
        return self._backlogs.wait(self._space, sender)
