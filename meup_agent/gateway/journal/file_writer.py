"""The writer of a journal's file, which also removes old rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from meup_agent.gateway.journal.decisions import (
    PROPOSAL_PLACES,
    WRITE_NAMES,
    WRITE_PROPOSAL,
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
from meup_agent.gateway.journal.threads import WriteJob, WriterThread
from meup_agent.protocol.wire.envelope import encode_json

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig

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


AT_ONCE: Final = (512, 128, 32, 8, 1)
"""Rows that one statement writes: Python takes its lock again after each statement."""

_PLACES: Final = f"({','.join('?' * len(Row._fields))})"
_INSERT: Final = {
    count: f"INSERT INTO entry VALUES {','.join([_PLACES] * count)}" for count in AT_ONCE
}
_WRITE_PROPOSALS: Final = {
    count: f"{WRITE_PROPOSAL}{f', {PROPOSAL_PLACES}' * (count - 1)}" for count in AT_ONCE
}


class FileWriter(WriterThread):
    """Writes a journal's file; the connection is the thread's alone, once it has started.

    ``raised`` takes a space and its new floor, before anything up to there is forgotten.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        config: JournalConfig,
        now: Callable[[], int],
        names: SegmentBuilder,
        *,
        raised: Callable[[str, int], None],
    ) -> None:
        super().__init__(config, now)
        self._connection = connection
        self._names = names
        self._raised = raised
        self._removed = 0  # the last number that was removed

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        self._connection.execute(statement, values)

    def _write(self, work: Sequence[WriteJob]) -> None:
        if not work:
            return
        execute = self._connection.execute
        besides = any(each.facts or each.floor is not None for each in work)
        statements = _statements([each.row for each in work], _INSERT)
        # One that was proposed and decided in the batch is written once.
        rows = {row.seq: row for each in work for row in each.proposals}
        removed = self._removed
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

    # --- retention ---

    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> int | None:
        excess = 0 if max_bytes is None else self._used() - max_bytes
        for question, bound in ((_TOO_MUCH, excess), (_TOO_OLD, oldest)):
            if bound > 0:
                (found,) = self._connection.execute(question, (limit, bound)).fetchone()
                if found is not None:
                    return int(found)
        return None

    def _forget(self, until: int) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        floors: list[tuple[str, int]] = execute(_FLOORS, (until,)).fetchall()
        for floor in floors:
            self._raised(*floor)
            execute(WRITE_FLOOR, sealed(floor))
        execute("DELETE FROM entry WHERE seq <= ?", (until,))
        execute("DELETE FROM proposal WHERE seq <= ?", (until,))
        execute("DELETE FROM names WHERE last <= ?", (until,))
        execute("DELETE FROM missing WHERE until <= ?", (until,))
        execute(WRITE_MISSING, sealed(Missing(0, until, REMOVED)))
        execute("COMMIT")
        self._removed = until

    def _shrink(self) -> bool:
        """Give empty pages back to the disk; true if there are more of them."""
        spare = self._pragma("freelist_count") - SPARE_PAGES
        if spare <= 0:
            return False
        count = min(spare, SPARE_PAGES)
        self._connection.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
        left = self._pragma("freelist_count") - SPARE_PAGES
        # Another program may have made the file anew as one that gives nothing back.
        return 0 < left < spare

    def _used(self) -> int:
        pages = self._pragma("page_count") - self._pragma("freelist_count")
        return pages * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        number: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return number


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
