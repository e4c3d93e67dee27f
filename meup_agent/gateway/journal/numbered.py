"""The base of engines that number the entries themselves, over all spaces of the one gateway."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from meup_agent.gateway.journal.rows import row_of
from meup_agent.gateway.journal.threads import JournalReader, WriteJob, WriterThread
from meup_agent.gateway.journal.waiting import PendingEntry, WaitingJournal, WaitingRoom
from meup_agent.protocol.space.decisions import DecisionFollower, ProposalChange
from meup_agent.protocol.space.journal import MAX_SEQ, Entry, Fact, NumberRange, without_marks

if TYPE_CHECKING:
    from meup_agent.protocol.wire.envelope import Envelope

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

    An engine sets ``_start``, the number after which this start begins, and what its store has of
    the spaces, and starts two threads: one writes what is handed to it, in order, and tells
    (:meth:`_on_written`); the other reads pages.
    """

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

    def _begin(self, start: int) -> None:
        self._start = self._seq = self._committed = start

    def _begin_threads(self, writer: WriterThread, reader: JournalReader[Any]) -> None:
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

    @property
    def max_frame_bytes(self) -> int | None:
        """See :attr:`~meup_agent.protocol.space.journal.Journal.max_frame_bytes`."""
        return None

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.append`."""
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
        """See :meth:`~meup_agent.protocol.space.journal.Journal.seen`."""
        return self._seen.get((space, participant), 0)

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.mark_seen`."""
        if at > self.seen(space, participant) and not self._ended:
            self._seen[space, participant] = at
            self._note_seen(space, participant, at)

    def floor(self, space: str) -> int:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.floor`."""
        return self._floors.get(space, self._start)

    def latest(self, space: str) -> int:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.latest`."""
        return self._latest.get(space) or self.floor(space)

    def resume_from(self, space: str, seen: int) -> int:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.resume_from`."""
        floor = self.floor(space)
        return seen if floor <= seen <= self.latest(space) else floor

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.damaged`; the store finds it."""
        return ()

    # --- the end ------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.aclose`."""
        self._hand_over()
        self._writer.stop()
        self._reader.stop()
        closed = False
        with anyio.CancelScope(shield=True):
            closed = await anyio.to_thread.run_sync(self._close)
        lost = sum(isinstance(each, NumberedEntry) for each in self._pending)
        self._end()
        if not closed:
            said = "%s hangs; %d messages that waited for it are lost"
            log.error(said, self._place, lost)

    def abandon(self) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.abandon`."""
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
