"""The tables of a journal's file.

Every entry has the number after that of the one before, over all spaces. So each number up to the
last one is that of an entry, or in the table ``missing``, which says why it is in no other; what is
neither is damage.
"""

from __future__ import annotations

import sqlite3
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError

APPLICATION: Final = 0x4D455550
"""Tells a journal from another database: "MEUP", where SQLite keeps such a mark."""

VERSION: Final = 1
"""The version of the tables; a gateway refuses those of newer ones."""

_TABLES: Final = """
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    correlation TEXT NOT NULL,
    facts TEXT,
    checksum INTEGER NOT NULL,
    frame BLOB NOT NULL
);
CREATE INDEX entry_of_space ON entry (space, seq);
CREATE TABLE fact (
    said INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    checksum INTEGER NOT NULL,
    UNIQUE (space, key)
);
CREATE TABLE space (
    name TEXT PRIMARY KEY,
    floor INTEGER NOT NULL,
    checksum INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE missing (
    after INTEGER PRIMARY KEY,
    until INTEGER NOT NULL,
    why TEXT NOT NULL,
    checksum INTEGER NOT NULL
)
"""
# "at" is in microseconds since 1970 (UTC), "correlation" a JSON list. "fact" has what holds now:
# the facts of all entries, folded. Of a space, what has a number up to its floor is not kept.


class Missing(NamedTuple):
    """Numbers that no entry of the file has: ``after < seq <= until``."""

    after: int
    until: int
    why: str


START: Final = "start"
"""They lie between the last of the file and the first after a start. Some may have been given to
what a power cut took back."""

REMOVED: Final = "removed"
"""The retention removed them: always all up to a number."""

DAMAGE: Final = "damage"
"""Damage took them, and a start with ``--accept-damage`` accepted that."""

READ_SMALL: Final = {
    "fact": "SELECT CAST(space AS BLOB), CAST(key AS BLOB), CAST(value AS BLOB), checksum"
    " FROM fact ORDER BY said",
    "space": "SELECT CAST(name AS BLOB), floor, checksum FROM space",
    "missing": "SELECT after, until, CAST(why AS BLOB), checksum FROM missing ORDER BY after",
}
"""Queries for the tables other than that of the entries; the checksum comes last."""

WRITE_FACT: Final = (
    "INSERT INTO fact (space, key, value, checksum) VALUES (?, ?, ?, ?)"
    " ON CONFLICT (space, key) DO UPDATE SET value = excluded.value, checksum = excluded.checksum"
)
WRITE_FLOOR: Final = (
    "INSERT INTO space VALUES (?, ?, ?)"
    " ON CONFLICT (name) DO UPDATE SET floor = excluded.floor, checksum = excluded.checksum"
)
WRITE_MISSING: Final = "INSERT OR REPLACE INTO missing VALUES (?, ?, ?, ?)"


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in an empty file."""
    connection.executescript(
        f"BEGIN; {_TABLES}; PRAGMA application_id = {APPLICATION};"
        f" PRAGMA user_version = {VERSION}; COMMIT;"
    )


def has_tables(connection: sqlite3.Connection, path: object) -> bool:
    """True if a file has the tables of a journal, false if it is empty.

    Raises:
        ConfigurationError: It is no journal, or one that this version cannot read.
    """
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    query = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL"
    found = {sql for (sql,) in connection.execute(query)}
    if not found:
        return False
    complete = {each.strip() for each in _TABLES.split(";")} <= found
    if application != APPLICATION and not complete:
        raise ConfigurationError(
            f"{path} is a database, but no journal of a gateway; give another file"
        )
    if version > VERSION:
        raise ConfigurationError(
            f"the journal {path} is of a newer version of this package ({version}, not"
            f" {VERSION}), or damaged; run that one, or give another file"
        )
    if application != APPLICATION or version != VERSION or not complete:
        raise ConfigurationError(
            f"the journal {path} is damaged: its head and its tables are not those of a journal;"
            " restore a backup, or give another file"
        )
    return True
