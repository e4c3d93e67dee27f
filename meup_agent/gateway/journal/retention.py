"""Retention: removes entries that are too old, or too much for the file, a little at a time."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from typing import Final

from meup_agent.gateway.journal.rows import sealed
from meup_agent.gateway.journal.tables import REMOVED, WRITE_FLOOR, WRITE_MISSING, Missing

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
