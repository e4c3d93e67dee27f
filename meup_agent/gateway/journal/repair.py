"""Makes a journal's file anew, of what can be read of a damaged one.

The new file is made beside, and copied over the old one in one transaction: whatever ends the
process meanwhile, the file is the old one or the new one, and keeps its lock and all its names.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from meup_agent.gateway.journal.rows import Row, sealed
from meup_agent.gateway.journal.survey import Survey, fold_facts, good_rows
from meup_agent.gateway.journal.tables import (
    DAMAGE,
    WRITE_FACT,
    WRITE_FLOOR,
    WRITE_MISSING,
    Missing,
    make_tables,
)

COPY_SECONDS: Final = 30.0
"""Seconds that another program may hold the file while it is to be copied over."""

_INSERT: Final = f"INSERT INTO entry VALUES ({', '.join('?' * len(Row._fields))})"


def rebuild(connection: sqlite3.Connection, found: Survey, path: Path) -> None:
    """Make a file anew, of which a survey says what can be read.

    The connection is one to the file, and the only one of this process.
    """
    beside = path.with_name(f"{path.name}.new")
    with suppress(FileNotFoundError):
        beside.unlink()  # of a process that was killed
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(beside, isolation_level=None)) as new:
            # A file that is thrown away whatever happens need not be safe on the disk.
            new.execute("PRAGMA journal_mode = OFF")
            new.execute("PRAGMA synchronous = OFF")
            (page_size,) = connection.execute("PRAGMA page_size").fetchone()
            new.execute(f"PRAGMA page_size = {page_size}")
            new.execute("PRAGMA auto_vacuum = INCREMENTAL")
            write_readable(new, connection, found)
            _copy_over(new, connection)
    finally:
        beside.unlink()


def write_readable(new: sqlite3.Connection, connection: sqlite3.Connection, found: Survey) -> None:
    """Write into an empty database what a survey says can be read of another one."""
    make_tables(new)
    new.execute("BEGIN")
    new.executemany(_INSERT, good_rows(connection))
    facts = fold_facts(connection, found) if found.lost_facts else found.facts
    new.executemany(WRITE_FACT, map(sealed, facts))
    # Of a space whose floor is lost nothing is known of what came before its first entry.
    begins = new.execute("SELECT space, min(seq) FROM entry GROUP BY space")
    floors = {space: first - 1 for space, first in begins} | found.floors
    new.executemany(WRITE_FLOOR, map(sealed, floors.items()))
    lost = (Missing(low - 1, high, DAMAGE) for low, high in found.damaged)
    new.executemany(WRITE_MISSING, map(sealed, (*found.missing, *lost)))
    new.execute("COMMIT")


def _copy_over(new: sqlite3.Connection, connection: sqlite3.Connection) -> None:
    deadline = time.monotonic() + COPY_SECONDS

    def check_deadline(status: int, remaining: int, total: int) -> None:
        # Called again and again where another program holds the file.
        if status == sqlite3.SQLITE_BUSY and time.monotonic() > deadline:
            raise sqlite3.OperationalError("another program holds it; end that one")

    new.backup(connection, progress=check_deadline)
