"""The fold of a space's log, at a gateway that owns it or is the next to.

A log is read once, each message when it is there, and taken into a :class:`KeptSpace` and into the
fold of the space. So a gateway that follows a log has little left to read when it takes the space
over, and decides from what it would have read then. Each reading begins with the last message of
the one before it: where that is not there any more as it was, all is read from the beginning.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import anyio

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.nats.link import Link, NoAnswer
from meup_agent.gateway.journal.nats.log import Batches, LogPlace, LogTail, OtherLog, SpaceLog
from meup_agent.gateway.journal.nats.records import Checkpoint, ForeignMessage, read_batch
from meup_agent.protocol.space.journal import (
    DecisionFollower,
    DecisionTable,
    Entry,
    Fact,
    ProposalChange,
    without_marks,
)

log = logging.getLogger("meup_agent.gateway")

QUIET_SECONDS: Final = 1.0
"""Interval at which a log is read that NATS does not hand over by itself."""

TAIL_SECONDS: Final = 2.0
"""Pause from one attempt to have it handed over to the next."""

REFUSED_SECONDS: Final = 60.0
"""The same, after one that failed."""

A_TURN: Final = 100
"""Entries that are taken in one turn of the gateway's loop: some milliseconds."""


class EntryFold(Protocol):
    """Takes the entries of a log, in their order."""

    def apply(self, entry: Entry) -> None:
        """Take the next entry."""


F = TypeVar("F", bound=EntryFold)


class NoFold:
    """Takes nothing."""

    def apply(self, entry: Entry) -> None:
        """Leave an entry out."""


@dataclass(eq=False)
class KeptSpace:
    """The facts that hold in a space after the entries of its log that were taken in."""

    log: SpaceLog
    facts: dict[str, dict[str, Any]]
    seen: dict[str, int]

    def __post_init__(self) -> None:
        self.unwritten = 0  # entries with facts since the last checkpoint
        # The numbers of those that are kept, of entries that have not been delivered.
        self.kept = deque[int]()
        self.reported = 0  # the sequence of the last message that is known here to be kept
        self.decisions = DecisionTable()
        self.timer: asyncio.TimerHandle | None = None
        self.is_folded = False  # its space recovers from its fold
        self._proposals = DecisionFollower()

    def hold(self, facts: tuple[Fact, ...]) -> bool:
        """Take in what holds from now on; true if that is anything."""
        held = without_marks(facts)
        for key, value in held:
            if value is None:
                self.facts.pop(key, None)
            else:
                self.facts[key] = value
        return bool(held)

    def decide(self, seq: int, changes: tuple[ProposalChange, ...]) -> None:
        """Take the changes that an entry makes into the table of decisions."""
        self.decisions.put(self._proposals.follow(seq, self.log.space, changes))

    def mark(self, seen: dict[str, int]) -> None:
        """Take in times up to which participants have seen what expired; none goes back."""
        for name, at in seen.items():
            self.seen[name] = max(at, self.seen.get(name, 0))


class _Page(NamedTuple):
    """A part of a log."""

    batches: Batches
    place: LogPlace
    checkpoint: Checkpoint | None = None  # of the first part


class LogFollower(Generic[F]):
    """Reads a space's log on and on, one reading at a time.

    Args:
        link: The connection to NATS.
        space_log: The log.
        begin: Begins the fold of the space.
    """

    def __init__(self, link: Link, space_log: SpaceLog, begin: Callable[[], F]) -> None:
        self.log: Final = space_log
        self.turn: Final = asyncio.Lock()
        """Held by a reading, and by who makes the log the gateway's own."""
        self.known = KeptSpace(space_log, {}, {})
        """The facts that hold after all that was read."""
        self.fold = begin()
        """The fold of all that was read."""
        self.is_stopped = False
        """True: nothing more is read."""
        self._link = link
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        self._tail_at = 0.0  # the time at which NATS is asked again to hand the log over
        self._is_refused = False  # said that it does not
        self._place: LogPlace | None = None  # none: the next reading begins at the beginning
        self._written = 0  # the sequence of the message up to which a checkpoint had the facts

    async def look(self) -> bool:
        """Read what another gateway has written since; true: there was something.

        Raises:
            ConfigurationError: The log cannot be read.
        """
        async with self.turn:
            if self.log.epoch or not await self._link.insisted(self._find) or self.log.is_copied_to:
                return False
            before = self._place
            await self.read()
            has_read = self._place != before
        if not self._has_tail:
            await self._link.insisted(self._begin_tail)
        return has_read

    async def wait(self) -> None:
        """Wait until there may be more to read."""
        with anyio.move_on_after(None if self._has_tail else QUIET_SECONDS):
            await self._more.wait()
        self._more.clear()

    def stop(self) -> None:
        """Read nothing more."""
        self.is_stopped = True
        self._more.set()
        self.log.stop()

    @property
    def _has_tail(self) -> bool:
        tail = self.log.tail
        return tail is not None and not tail.has_ended

    async def read(self) -> None:
        """Read as far as the log is known to go.

        Raises:
            ConfigurationError: It cannot be read, or what held at its beginning is not known.
        """
        while (page := await self._link.insisted(self._next)) is not None:
            for _ in self._take(page):
                await asyncio.sleep(0)

    def read_now(self) -> None:
        """Read as :meth:`read` does; blocks."""
        while (page := self._link.insist(self._next)) is not None:
            for _ in self._take(page):
                pass

    async def finish(self) -> None:
        """Read the rest of a log that is the gateway's own from here on; see :meth:`read`."""
        if self._place is not None and self._place.until >= self.log.epoch:
            self._place = None  # the log has lost its end, and was written on from there
        await self.read()
        # Marks are in no entry, so those that were made meanwhile are in the last checkpoint alone.
        self.known.mark((await self._link.insisted(self.log.read_checkpoint)).seen)
        self.end()

    def end(self) -> None:
        """Know the end of a log that is read, and its gateway's own."""
        self.log.latest = max(self.log.latest, self.log.floor)
        self.known.reported = self.log.last

    # --- in the link's thread -------------------------------------------------------------------

    async def _find(self) -> bool:
        """Learn where the log ends; false if there is none."""
        tail = self.log.tail
        if tail is None or tail.has_ended:
            return await self.log.find()
        self.log.last = max(self.log.last, tail.listen())
        return True

    async def _begin_tail(self) -> None:
        """Have NATS hand over what is behind all that was read, and the last message of that."""
        place, now = self._place, asyncio.get_running_loop().time()
        if place is None or self.is_stopped or self.log.epoch or now < self._tail_at:
            return
        self._tail_at = now + TAIL_SECONDS
        first = place.sequence or place.until + 1
        tail = self.log.tail = LogTail(self._link, self.log.stream, first, self._tell)
        try:
            await tail.begin()
        except Exception as error:  # whatever the library makes of an answer
            self._tail_at = now + REFUSED_SECONDS
            if not self._is_refused:
                self._is_refused = True
                log.warning(
                    "NATS does not hand over what is new in the stream %s (%s), so it is asked each"
                    " second; look whether the gateway's user may create consumers",
                    *(self.log.stream, self._link.last_error or error),
                )

    def _tell(self) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._more.set)

    async def _next(self) -> _Page | None:
        """The next part, if there is any."""
        log, place = self.log, self._place
        if log.epoch and log.tail is not None:
            log.tail.end()  # who owns a log believes what is in it alone
        if self.is_stopped or (place and (place.base, place.until) == (log.base, log.last)):
            return None
        try:
            if place is not None:
                try:
                    return _Page(*await log.read_on(place))
                except OtherLog:
                    self._place = None
            checkpoint = await log.read_checkpoint()
            if log.first > checkpoint.until + 1 and not log.accepts_damage:
                raise ConfigurationError(
                    f"the log of space {log.space!r} begins with message {log.first}, and its facts"
                    f" were written down up to {checkpoint.until}: grants between them are not"
                    " known; give another journal.nats.prefix, or start without them: accept_damage"
                )
            return _Page(*await log.read_on(None), checkpoint)
        except OtherLog:
            raise NoAnswer(f"the stream {log.stream} forgets what is being read") from None
        except ForeignMessage as error:
            raise ConfigurationError(f"the stream {log.stream}: {error}") from None

    # --- on the gateway's loop ------------------------------------------------------------------

    def _take(self, page: _Page) -> Iterator[None]:
        """Take a part in, with pauses."""
        # Where this ends on the way, a part of it is taken: then all is read again.
        self._place = None
        log, known, count = self.log, self.known, 0
        if page.checkpoint is not None:
            known = self.known = KeptSpace(log, page.checkpoint.facts, page.checkpoint.seen)
            self._written = page.checkpoint.until
            self.fold = self._begin()
            log.latest = 0
        for number, batch in page.batches:
            for entry, kept in read_batch(log.space, number, batch):
                if log.sequence(number) > self._written:
                    known.unwritten += known.hold(entry.facts)
                if kept.changes:
                    known.decide(entry.seq, kept.changes)
                self.fold.apply(entry)
                count += 1
                if count % A_TURN == 0:
                    yield
            log.latest = number + len(batch.entries) - 1
        self._place = page.place
