"""The two threads of a journal's file: one writes and removes old rows, one reads."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.gateway.journal.decisions import (
    PROPOSAL_PLACES,
    WRITE_NAMES,
    WRITE_PROPOSAL,
    WRITE_SEEN,
    SegmentBuilder,
)
from meup_agent.gateway.journal.rows import (
    REMOVED,
    WRITE_FACT,
    WRITE_FLOOR,
    WRITE_MISSING,
    Missing,
    Row,
    sealed,
)
from meup_agent.protocol.space.decisions import DecisionRow
from meup_agent.protocol.wire.envelope import encode_json

if TYPE_CHECKING:
    from meup_agent.protocol.space.journal import Fact


# --- retention ---
# Removes entries that are too old, or too much for the file, a little at a time.

STEP: Final = 500
"""Envelopes that are forgotten at a time at least, so that writing waits for no more than that."""

INTERVAL: Final = 1.0
"""Seconds between two looks at the age of the oldest, while nothing is written."""

SPARE_PAGES: Final = 256
"""Empty pages of the file that are kept for what comes, a mebibyte of the usual size."""

ROW_BYTES: Final = 300
"""Bytes of an envelope in the file besides its frame, rather too many than too few: what is
too much after a step is found in the next one."""

_TOO_OLD: Final = (
    "SELECT max(seq) FROM (SELECT seq, at FROM entry ORDER BY seq LIMIT ?) WHERE at < ?"
)
_TOO_MUCH: Final = f"""
SELECT max(seq) FROM (
    SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, length(frame) + {ROW_BYTES} AS size FROM entry ORDER BY seq LIMIT ?
    )
) WHERE before < ?
"""
_FLOORS: Final = """
SELECT entry.space, max(max(seq), coalesce(floor, 0)) FROM entry
LEFT JOIN space ON space.name = entry.space
WHERE seq <= ? GROUP BY entry.space
"""
# A floor is never lowered.


@dataclass
class Retention:
    """The retention of a journal's file, by age in microseconds and by size; used by its writer.

    ``raised`` takes a space and its new floor, before anything up to there is forgotten.
    """

    connection: sqlite3.Connection
    _: KW_ONLY
    max_age: int | None
    max_bytes: int | None
    now: Callable[[], int]
    raised: Callable[[str, int], None]
    removed: int = field(default=0, init=False)  # the last number that was removed
    _written: int = field(default=STEP, init=False)
    _looked: int = field(default=0, init=False)
    _more: bool = field(default=False, init=False)

    @property
    def interval(self) -> float | None:
        """Seconds after which to look again though nothing was written; ``None``: never."""
        return None if self.max_age is None and self.max_bytes is None else INTERVAL

    def step(self, written: int = 0) -> bool:
        """Forget some of the oldest, more than were written since; true if there may be more."""
        self._written += written
        passed = self.now() - self._looked
        is_time = self._written >= STEP or not 0 <= passed < INTERVAL * 1_000_000
        if self.interval is None or not (self._more or is_time):
            return False
        limit = max(STEP, 2 * self._written)
        self._written = 0
        self._looked = self.now()
        until = self._too_much(limit) or self._too_old(limit)
        if until is None:
            self._more = self._shrink()
        else:
            self._forget(until)
            self._more = True
        return self._more

    def _too_old(self, limit: int) -> int | None:
        """The last number of those that are too old, of so many."""
        if self.max_age is None:
            return None
        oldest = self.now() - self.max_age
        found: int | None = self.connection.execute(_TOO_OLD, (limit, oldest)).fetchone()[0]
        return found

    def _too_much(self, limit: int) -> int | None:
        """The last number of the oldest, of so many, if the file is too large."""
        if self.max_bytes is None:
            return None
        excess = self._used() - self.max_bytes
        if excess <= 0:
            return None
        found: int | None = self.connection.execute(_TOO_MUCH, (limit, excess)).fetchone()[0]
        return found

    def _forget(self, until: int) -> None:
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        floors: list[tuple[str, int]] = execute(_FLOORS, (until,)).fetchall()
        for floor in floors:
            self.raised(*floor)
            execute(WRITE_FLOOR, sealed(floor))
        execute("DELETE FROM entry WHERE seq <= ?", (until,))
        execute("DELETE FROM proposal WHERE seq <= ?", (until,))
        execute("DELETE FROM names WHERE last <= ?", (until,))
        execute("DELETE FROM missing WHERE until <= ?", (until,))
        execute(WRITE_MISSING, sealed(Missing(0, until, REMOVED)))
        execute("COMMIT")
        self.removed = until

    def _shrink(self) -> bool:
        """Give empty pages back to the disk; true if there are more of them."""
        spare = self._pragma("freelist_count") - SPARE_PAGES
        if spare <= 0:
            return False
        count = min(spare, SPARE_PAGES)
        self.connection.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
        left = self._pragma("freelist_count") - SPARE_PAGES
        # Another program may have made the file anew as one that gives nothing back.
        return 0 < left < spare

    def _used(self) -> int:
        pages = self._pragma("page_count") - self._pragma("freelist_count")
        return pages * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        number: int = self.connection.execute(f"PRAGMA {name}").fetchone()[0]
        return number


# --- the two threads of a journal's file ---

MAX_BATCH: Final = 2_048
"""Envelopes that are committed together."""

AT_ONCE: Final = (512, 128, 32, 8, 1)
"""Rows that one statement writes: Python takes its lock again after each statement."""

_PLACES: Final = f"({','.join('?' * len(Row._fields))})"
_INSERT: Final = {
    count: f"INSERT INTO entry VALUES {','.join([_PLACES] * count)}" for count in AT_ONCE
}
_WRITE_PROPOSALS: Final = {
    count: f"{WRITE_PROPOSAL}{f', {PROPOSAL_PLACES}' * (count - 1)}" for count in AT_ONCE
}


Query = Callable[[sqlite3.Connection], Any]
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


class _JournalThread(threading.Thread):
    """A thread of the journal, which tells its failure and ends.

    A daemon, so that a process that is ending does not wait for a disk that hangs.
    """

    def __init__(
        self, name: str, work: Callable[[], None], failed: Callable[[Exception], None]
    ) -> None:
        super().__init__(target=work, name=name, daemon=True)
        self._failed = failed

    def run(self) -> None:
        """Work until the end."""
        try:
            super().run()
        except Exception as error:
            self._failed(error)


class BatchWriter(_JournalThread):
    """Writes what is handed to it, in batches, in order, and applies the retention in between.

    In its thread it tells the last number that was committed, or the failure after which nothing is
    written. The connection is the thread's alone, once it has started.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        retention: Retention,
        names: SegmentBuilder,
        *,
        written: Callable[[int], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__("meup-journal-writer", self._work, failed)
        self._connection = connection
        self._retention = retention
        self._names = names
        self._written = written
        self._waiting: list[WriteJob] = []
        self._seen: dict[tuple[str, str], int] = {}  # by space and participant
        self._stopping = False
        self._changed = threading.Condition()

    def put(self, work: Sequence[WriteJob]) -> None:
        """Hand over what is to be written next."""
        with self._changed:
            self._waiting += work
            self._changed.notify()

    def note_seen(self, space: str, participant: str, at: int) -> None:
        """Write next what a participant has seen."""
        with self._changed:
            self._seen[space, participant] = at
            self._changed.notify()

    def stop(self, *, discard: bool = False) -> None:
        """End when everything is written, or at once."""
        with self._changed:
            self._stopping = True
            if discard:
                self._waiting.clear()
            self._changed.notify()

    def _work(self) -> None:
        more = self._retention.step()
        while (work := self._next(wait=not more)) is not None:
            if work:
                self._write(work)
                self._written(work[-1].row.seq)
            more = self._retention.step(written=len(work))

    def _next(self, *, wait: bool) -> list[WriteJob] | None:
        """The next batch, empty if it is time to forget something; ``None`` at the end."""
        with self._changed:
            if wait and not (self._waiting or self._seen or self._stopping):
                self._changed.wait(self._retention.interval)
            seen, self._seen = self._seen, {}
            is_over = self._stopping and not self._waiting
            work = self._waiting[:MAX_BATCH]
            del self._waiting[:MAX_BATCH]
        for (space, participant), at in seen.items():
            self._connection.execute(WRITE_SEEN, (space, participant, at))
        return None if is_over else work

    def _write(self, work: Sequence[WriteJob]) -> None:
        """Commit a batch, all or nothing."""
        execute = self._connection.execute
        besides = any(each.facts or each.floor is not None for each in work)
        statements = _statements([each.row for each in work], _INSERT)
        # One that was proposed and decided in the batch is written once.
        rows = {row.seq: row for each in work for row in each.proposals}
        removed = self._retention.removed
        kept = [sealed(row) for row in rows.values() if row.seq > removed]
        statements += _statements(kept, _WRITE_PROPOSALS)
        for each in work:
            segment = self._names.add(each.row.seq, each.names)
            if segment is not None:
                statements.append((WRITE_NAMES, segment))
        if len(statements) == 1 and not besides:
            # A statement by itself is a transaction, and takes Python's lock once, not thrice.
            execute(*statements[0])
            return
        execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            execute(sql, values)
        if besides:
            self._write_besides(work)
        execute("COMMIT")

    def _write_besides(self, work: Sequence[WriteJob]) -> None:
        execute = self._connection.execute
        for row, facts, floor, _, _ in work:
            if floor is not None:
                execute("INSERT OR IGNORE INTO space VALUES (?, ?, ?)", sealed((row.space, floor)))
            for key, value in facts:
                if value is None:
                    execute("DELETE FROM fact WHERE space = ? AND key = ?", (row.space, key))
                else:
                    execute(WRITE_FACT, sealed((row.space, key, encode_json(value).decode())))


def _statements(
    rows: Sequence[tuple[object, ...]], inserts: Mapping[int, str]
) -> list[tuple[str, Sequence[object]]]:
    """As few statements as write all rows."""
    statements: list[tuple[str, Sequence[object]]] = []
    done = 0
    for count in AT_ONCE:
        while len(rows) - done >= count:
            values = [value for row in rows[done : done + count] for value in row]
            statements.append((inserts[count], values))
            done += count
    return statements


class JournalReader(_JournalThread):
    """Runs queries, one after the other.

    A reader asks for a page when its last one has come, so what waits here is bounded by the number
    of the readers. Results and failures are told in this thread, which alone has the connection.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        read: Callable[[Then, Any], None],
        failed: Callable[[Exception], None],
    ) -> None:
        super().__init__("meup-journal-reader", self._work, failed)
        self._connection = connection
        self._read = read
        self._jobs: SimpleQueue[tuple[Query, Then] | None] = SimpleQueue()

    def ask(self, query: Query, then: Then) -> None:
        """Queue a query, whose result the other takes in the loop."""
        self._jobs.put((query, then))

    def stop(self) -> None:
        """End after what has been asked for."""
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            query, then = job
            self._read(then, query(self._connection))
