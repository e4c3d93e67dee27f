"""The bases of engines that keep an envelope later than they are given it.

All have what waits for that. Those that number the entries themselves have two threads, too, so
that the gateway's loop never waits for a disk or a server.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import anyio
import anyio.to_thread
import msgspec

from meup_agent.gateway.journal.rows import Row, row_of
from meup_agent.protocol.space.journal import (
    MAX_SEQ,
    DecisionFollower,
    DecisionRow,
    Entry,
    Fact,
    FoldBegin,
    NumberRange,
    ProposalChange,
    ignore,
    without_marks,
)

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, NatsConfig, PostgresConfig
    from meup_agent.protocol.wire.envelope import Envelope


MAX_PENDING: Final = 10_000
"""Envelopes, and calls that wait for them; with more, members are not read from until it is
half."""

MAX_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the same."""

A_TURN: Final = 256
"""Envelopes that are delivered in one turn of the loop, so that what else is due is not late."""


def node_name(config: NatsConfig | PostgresConfig) -> str:
    """The gateway's name, for people."""
    return config.node or socket.gethostname()


class Lost(Exception):
    """The log is not this gateway's any more, or cannot be written; says why in a sentence."""


class Replaced(Lost):
    """Another gateway owns the log."""


class WaitingRoom:
    """Bounds what waits to be kept, over all journals that share it."""

    def __init__(self) -> None:
        self.on_full: Callable[[bool], None] = ignore
        self._count = self._bytes = 0
        self._is_full = False

    def enter(self, size: int, count: int = 1) -> None:
        """Count so many in, of so many bytes in all."""
        self._count += count
        self._bytes += size
        part = 2 if self._is_full else 1
        is_full = self._count > MAX_PENDING // part or self._bytes > MAX_PENDING_BYTES // part
        if is_full != self._is_full:
            self._is_full = is_full
            self.on_full(is_full)

    def leave(self, count: int, size: int) -> None:
        """Count so many out, of so many bytes in all."""
        self.enter(-size, -count)


class PendingCall(msgspec.Struct):
    """A call that waits for all before it."""

    then: Callable[[], None]


class PendingEntry(msgspec.Struct):
    """An entry that waits to be kept; an engine adds what it has to know of it."""

    then: Callable[[Entry], None]
    size: int


W = TypeVar("W", bound=PendingEntry)


class WaitingJournal(ABC, Generic[W]):
    """A part of a :class:`~meup_agent.protocol.space.journal.Journal`: its callbacks, in order.

    An engine puts what it is to keep into ``_pending`` and the room, says what of that is kept
    (:meth:`_kept_entry`), and calls :meth:`_deliver` when it has learned of more, unless
    ``_is_delivering``: then a later turn of the loop does.

    Args:
        room: The room that it shares; without it, it has its own.
    """

    def __init__(self, room: WaitingRoom | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.on_full: Callable[[bool], None] = ignore
        """See :attr:`~meup_agent.protocol.space.journal.Journal.on_full`; a room that is shared
        tells it by itself."""
        self.on_failed: Callable[[str], None] = ignore
        self.failure = ""  # the sentence with which it failed
        if room is None:
            room = WaitingRoom()
            room.on_full = lambda is_full: self.on_full(is_full)
        self._room = room
        self._pending: deque[PendingCall | W] = deque()
        self._is_delivering = self._ended = False
        self._flushing: list[anyio.Event] = []

    @abstractmethod
    def _kept_entry(self, waiting: W) -> Entry | None:
        """The entry, from now on delivered; ``None``: it is not kept yet."""

    def call_when_kept(self, then: Callable[[], None]) -> None:
        if self._ended:
            return
        if self._pending:
            self._pending.append(PendingCall(then))
            self._room.enter(0)
        else:
            then()

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_begin`; without an index."""
        then(FoldBegin())

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_chain`; without an index."""
        then(())

    async def flush(self, timeout: float) -> None:
        if self._ended:
            return
        done = anyio.Event()
        self._flushing.append(done)
        self.call_when_kept(done.set)
        with anyio.move_on_after(timeout, shield=True):
            await done.wait()
        self._flushing.remove(done)

    def _deliver(self) -> None:
        """Call back, in order, as far as all is kept, as much as fits into a turn."""
        pending, count, size = self._pending, 0, 0
        # Also where one of them raises: the others have been promised, too.
        self._is_delivering = True
        try:
            while count < A_TURN:
                if self._ended or not pending:
                    self._is_delivering = False
                    break
                first = pending.popleft()
                if isinstance(first, PendingCall):
                    count += 1
                    first.then()
                elif (entry := self._kept_entry(first)) is not None:
                    count, size = count + 1, size + first.size
                    first.then(entry)
                else:
                    pending.appendleft(first)
                    self._is_delivering = False
                    break
        finally:
            if self._is_delivering:
                self._loop.call_soon(self._deliver)
            self._room.leave(count, size)

    def _fail(self, sentence: str) -> None:
        if self._ended:
            return
        try:
            while self._is_delivering:  # it is kept, and was to be done in a later turn
                self._deliver()
        finally:
            self._end()
            self.failure = sentence
            self.on_failed(sentence)

    def _end(self) -> None:
        """Call nothing any more, and end every wait for it."""
        self._ended = True
        self.on_full = ignore
        sizes = [each.size if isinstance(each, PendingEntry) else 0 for each in self._pending]
        self._pending.clear()
        self._room.leave(len(sizes), sum(sizes))
        for waiting in self._flushing:
            waiting.set()

    def _to_loop(self, then: Callable[..., object], *told: object) -> None:
        """Call on the gateway's loop, unless it has ended by then; from any thread."""
        with suppress(RuntimeError):  # the loop is closed, so nothing waits for this
            self._loop.call_soon_threadsafe(self._unless_ended, then, *told)

    def _soon(self, then: Callable[..., object], *told: object) -> None:
        """Call in the next turn of the gateway's loop, unless it has ended by then."""
        self._loop.call_soon(self._unless_ended, then, *told)

    def _unless_ended(self, then: Callable[..., object], *told: object) -> None:
        if not self._ended:
            then(*told)


# --- two threads: one writes, the other reads pages ---
# So the gateway's loop never waits for a disk or a server.

STEP: Final = 500
"""Envelopes that are forgotten at a time at least, so that writing waits for no more than that."""

INTERVAL: Final = 1.0
"""Seconds between two looks at the age of the oldest, while nothing is written."""

MAX_BATCH: Final = 2_048
"""Envelopes that are committed together."""

C = TypeVar("C")

Then = Callable[[Any], None]


class WriteJob(NamedTuple):
    """An envelope to write, with facts that hold from then on.

    It has the floor of its space, where it is the first envelope of that.
    """

    row: Row
    facts: tuple[Fact, ...] = ()
    floor: int | None = None
    names: tuple[int, ...] = ()  # hashed
    proposals: Sequence[DecisionRow] = ()  # as they are from then on


class _JournalThread(threading.Thread, ABC):
    """A thread of the journal, which tells its failure and ends.

    A daemon, so that a process that is ending does not wait for a disk that hangs.
    """

    on_failed: Callable[[Exception], object]

    def __init__(self, name: str) -> None:
        super().__init__(name=f"meup-journal-{name}", daemon=True)

    @abstractmethod
    def _work(self) -> None:
        """Work until the end."""

    def run(self) -> None:
        """Work, and tell a failure."""
        try:
            self._work()
        except Exception as error:
            self.on_failed(error)


class WriterThread(_JournalThread):
    """Writes what is handed to it, in batches, in order, and applies the retention in between.

    In its thread it tells the last number that was committed, or the failure after which nothing is
    written. An engine says how a batch is written, and which of the oldest are forgotten.

    Attributes:
        on_written: Told the number up to which all is kept.
        on_failed: Told why nothing more is.
    """

    on_written: Callable[[int], object]

    def __init__(self, config: JournalConfig, now: Callable[[], int]) -> None:
        super().__init__("writer")
        self._max_age = None if config.max_age is None else round(config.max_age * 1_000_000)
        self._max_bytes = config.max_bytes
        self._forgets = config.max_age is not None or config.max_bytes is not None
        self._now = now
        self._waiting: list[WriteJob] = []
        self._notes: dict[object, tuple[str, tuple[Any, ...]]] = {}
        self._stopping = False
        self._mutex = threading.Lock()
        # Released to wake the thread: a condition costs several times as much for each batch.
        self._bell = threading.Lock()
        self._bell.acquire()
        self._since = STEP  # written since the oldest were looked at
        self._looked = 0
        self._more = False

    # --- called on other threads --------------------------------------------------------------

    def put(self, work: Sequence[WriteJob]) -> None:
        """Hand over what is to be written next."""
        with self._mutex:
            self._waiting += work
            self._ring()

    def note(self, key: object, statement: str, *values: Any) -> None:
        """Execute a statement next, in place of an earlier one with that key."""
        with self._mutex:
            self._notes[key] = statement, values
            self._ring()

    def stop(self, *, discard: bool = False) -> None:
        """End when everything is written, or at once."""
        with self._mutex:
            self._stopping = True
            if discard:
                self._waiting.clear()
            self._ring()

    def _ring(self) -> None:
        """Wake the thread, which is behind by one ring at most; the lock is held."""
        if self._bell.locked():
            self._bell.release()

    # --- an engine ----------------------------------------------------------------------------

    @property
    def interval(self) -> float | None:
        """Seconds after which to look again though nothing was written; ``None``: never."""
        return INTERVAL if self._forgets else None

    @abstractmethod
    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        """Execute a statement."""

    @abstractmethod
    def _write(self, work: Sequence[WriteJob]) -> None:
        """Commit a batch, all or nothing; an empty one where nothing came for a while."""

    @abstractmethod
    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> int | None:
        """The last number of those before a time, or too much for so many bytes, of so many."""

    @abstractmethod
    def _forget(self, until: int) -> None:
        """Forget all up to a number."""

    def _shrink(self) -> bool:
        """Give back what is empty; true if there is more of it."""
        return False

    # --- the thread ---------------------------------------------------------------------------

    def _work(self) -> None:
        more = self.step()
        while (work := self._next(wait=not more)) is not None:
            self._write(work)
            if work:
                self.on_written(work[-1].row.seq)
            more = self.step(len(work))

    def _next(self, *, wait: bool) -> list[WriteJob] | None:
        """The next batch, empty if it is time to forget something; ``None`` at the end."""
        # Without the lock: who adds something rings afterwards.
        if wait and not (self._waiting or self._notes or self._stopping):
            interval = self.interval
            self._bell.acquire(timeout=-1 if interval is None else interval)
        with self._mutex:
            # What it rang for is taken: else the thread would be woken once more, for nothing.
            self._bell.acquire(blocking=False)
            notes, self._notes = self._notes, {}
            is_over = self._stopping and not self._waiting
            work = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
        for note in notes.values():
            self._execute(*note)
        return None if is_over else work

    def step(self, written: int = 0) -> bool:
        """Forget some of the oldest, more than were written since; true if there may be more."""
        self._since += written
        now = self._now()
        is_time = self._since >= STEP or not 0 <= now - self._looked < INTERVAL * 1_000_000
        if not (self._forgets and (self._more or is_time)):
            return False
        limit = max(STEP, 2 * self._since)
        self._since, self._looked = 0, now
        oldest = 0 if self._max_age is None else now - self._max_age
        until = self._find_old(limit, oldest, self._max_bytes)
        if until is None:
            self._more = self._shrink()
        else:
            self._forget(until)
            self._more = True
        return self._more


class JournalReader(_JournalThread, Generic[C]):
    """Runs queries on a connection, one after the other.

    A reader asks for a page when its last one has come, so what waits here is bounded by the number
    of the readers. Results and failures are told in this thread, which alone has the connection.
    """

    on_read: Callable[[Then, Any], object]

    def __init__(self, connection: C) -> None:
        super().__init__("reader")
        self._connection = connection
        self._jobs: SimpleQueue[tuple[Callable[[C], Any], Then] | None] = SimpleQueue()

    def ask(self, query: Callable[[C], Any], then: Then) -> None:
        """Queue a query, whose result the other takes in the loop."""
        self._jobs.put((query, then))

    def stop(self) -> None:
        """End after what has been asked for."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            query, then = job
            self.on_read(then, query(self._connection))


# --- engines that number the entries themselves, over all spaces of the one gateway ---

log = logging.getLogger("meup_agent.gateway")

CLOSE_SECONDS: Final = 5.0
"""For a thread to end; a store that hangs longer keeps its thread, and not the gateway."""

RECOVER_PAGE: Final = 1_000
"""Entries that are read at a time when a gateway starts."""

MAX_RECOVERED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of frames that are read when a gateway starts; of the latest entries."""


class NumberedEntry(PendingEntry):
    """An entry that waits to be kept; it has its number already."""

    entry: Entry


class NumberedJournal(WaitingJournal[NumberedEntry]):
    """A part of a :class:`~meup_agent.protocol.space.journal.Journal`: it numbers what it is given.

    An engine sets what its store has of the spaces, and begins with ``_start``, the number after
    which this start begins, and two threads: one writes what is handed to it, in order, and tells
    (:meth:`_on_written`); the other reads pages.
    """

    max_frame_bytes: int | None = None

    _writer: WriterThread
    _reader: JournalReader[Any]

    def __init__(self, room: WaitingRoom | None = None) -> None:
        super().__init__(room)
        # Of each space; floors are raised by who forgets.
        self._floors: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._seen: dict[tuple[str, str], int] = {}
        self._proposals = DecisionFollower()
        self._start = self._seq = self._committed = 0
        self._work: list[WriteJob] = []

    def _begin(self, start: int, writer: WriterThread, reader: JournalReader[Any]) -> None:
        self._start = self._seq = self._committed = start
        self._writer, self._reader = writer, reader
        writer.on_written = partial(self._to_loop, self._on_written)
        reader.on_read = self._to_loop
        for thread in (writer, reader):
            thread.on_failed = partial(self._to_loop, self._on_failed)
            thread.start()

    @property
    @abstractmethod
    def _place(self) -> str:
        """The store, for people."""

    @abstractmethod
    def _close_store(self) -> None:
        """Close the store, whose threads have ended."""

    @abstractmethod
    def _on_failed(self, error: Exception) -> None:
        """Fail, since one of the threads did."""

    @abstractmethod
    def _note_seen(self, space: str, participant: str, at: int) -> None:
        """Write what a participant has seen; called on the gateway's loop."""

    def _hash_names(self, entry: Entry) -> tuple[int, ...]:
        """The names in an entry for an index of them, of a store that has one."""
        return ()

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        if self._ended:
            return
        seq = self._seq + 1
        entry = Entry(seq, space, at, envelope, facts)
        row = row_of(entry)
        floor = None
        if space not in self._floors:
            floor = self._floors[space] = self._start
        self._seq = self._latest[space] = seq
        if not self._work:
            # Everything that comes in one turn of the loop is handed over together.
            self._loop.call_soon(self._hand_over)
        rows = self._proposals.follow(seq, space, changes) if changes else ()
        held = without_marks(facts) if facts else ()
        self._work.append(WriteJob(row, held, floor, self._hash_names(entry), rows))
        size = len(row.frame)
        self._pending.append(NumberedEntry(then, size, entry))
        self._room.enter(size)

    def seen(self, space: str, participant: str) -> int:
        return self._seen.get((space, participant), 0)

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        if at > self.seen(space, participant) and not self._ended:
            self._seen[space, participant] = at
            self._note_seen(space, participant, at)

    def floor(self, space: str) -> int:
        return self._floors.get(space, self._start)

    def latest(self, space: str) -> int:
        return self._latest.get(space) or self.floor(space)

    def resume_from(self, space: str, seen: int) -> int:
        floor = self.floor(space)
        return seen if floor <= seen <= self.latest(space) else floor

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.damaged`; the store finds it."""
        return ()

    # --- the end ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        self._hand_over()
        self._writer.stop()
        self._reader.stop()
        closed = False
        with anyio.CancelScope(shield=True):
            closed = await anyio.to_thread.run_sync(self._close)
        lost = sum(isinstance(each, NumberedEntry) for each in self._pending)
        self._end()
        if not closed:
            log.error("%s hangs; %d messages that waited for it are lost", self._place, lost)

    def abandon(self) -> None:
        self._end()
        self._work.clear()
        self._writer.stop(discard=True)
        self._reader.stop()

    def _close(self) -> bool:
        for thread in (self._writer, self._reader):
            thread.join(CLOSE_SECONDS)
            if thread.is_alive():
                return False
        self._close_store()
        return True

    # --- results of the threads -----------------------------------------------------------------

    def _hand_over(self) -> None:
        work, self._work = self._work, []
        if work:
            self._writer.put(work)

    def _on_written(self, seq: int) -> None:
        self._committed = seq
        if not self._is_delivering:
            self._deliver()

    def _kept_entry(self, waiting: NumberedEntry) -> Entry | None:
        entry = waiting.entry
        return entry if entry.seq <= self._committed else None


def latest_entries(
    read_back: Callable[[int, int], tuple[Entry, ...]], since: int, limit: int
) -> tuple[Entry, ...]:
    """The latest entries from a time on, oldest first.

    ``read_back`` takes a number and a count: the last entries up to there, so many, oldest first.
    """
    found: deque[Entry] = deque()
    until, size = MAX_SEQ, 0
    while len(found) < limit and size < MAX_RECOVERED_BYTES:
        page = read_back(until, min(RECOVER_PAGE, limit - len(found)))
        found.extendleft(entry for entry in reversed(page) if entry.at >= since)
        if not page or page[0].at < since:
            break
        until = page[0].seq - 1
        size += sum(len(entry.envelope.frame) for entry in page)
    return tuple(found)
