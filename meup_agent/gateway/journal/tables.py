"""The tables of a journal's file, by its version.

Every entry has the number after that of the one before, over all spaces. So each number up to the
last one is that of an entry, or in the table ``missing``, which says why it is in no other; what is
neither is damage.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError

APPLICATION: Final = 0x4D455550
"""Tells a journal from another database: "MEUP", where SQLite keeps such a mark."""

VERSION: Final = 2
"""Of the tables; a gateway makes a file of version 1 one of this, and refuses those of newer ones.
Version 1 had no checksums."""

_TABLES: Final = """
CREATE TABLE entry (
    seq INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    at INTEGER NOT NULL,
    kind TEXT NOT NULL,
    correlation TEXT NOT NULL,
    facts TEXT,
    previous TEXT,
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

_NAMES_OF_1: Final = ("envelope", "envelope_of_space", "fact", "space", "unknown")

_SCHEMA_OF_1: Final = 0x5183936A
"""CRC-32 of their text, as SQLite has it."""


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
    1: {
        "fact": "SELECT CAST(space AS BLOB), CAST(key AS BLOB), CAST(value AS BLOB), NULL"
        " FROM fact ORDER BY said",
        "space": "SELECT CAST(name AS BLOB), floor, NULL FROM space",
        "missing": f"SELECT after, before, '{START}', NULL FROM unknown ORDER BY after",
    },
    2: {
        "fact": "SELECT CAST(space AS BLOB), CAST(key AS BLOB), CAST(value AS BLOB), checksum"
        " FROM fact ORDER BY said",
        "space": "SELECT CAST(name AS BLOB), floor, checksum FROM space",
        "missing": "SELECT after, until, CAST(why AS BLOB), checksum FROM missing ORDER BY after",
    },
}
"""Queries for the tables other than that of the entries, by version; the checksum comes last."""

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


def read_version(connection: sqlite3.Connection, path: object) -> int:
    """The version of a file's tables; 0 for an empty file.

    Raises:
        ConfigurationError: It is no journal, or one that this version cannot read.
    """
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    found: list[tuple[str, str]] = connection.execute(
        "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name"
    ).fetchall()
    if not found:
        return 0
    text = "\n".join(sql for name, sql in found if name in _NAMES_OF_1)
    if {each.strip() for each in _TABLES.split(";")} <= {sql for _, sql in found}:
        is_of = VERSION
    else:
        is_of = 1 if zlib.crc32(text.encode()) == _SCHEMA_OF_1 else 0
    if application != APPLICATION and not is_of:
        raise ConfigurationError(
            f"{path} is a database, but no journal of a gateway; give another file"
        )
    if version > VERSION:
        raise ConfigurationError(
            f"the journal {path} is of a newer version of this package ({version}, not"
            f" {VERSION}), or damaged; run that one, or give another file"
        )
    if application != APPLICATION or version != is_of:
        raise ConfigurationError(
            f"the journal {path} is damaged: its head and its tables are not those of a journal;"
            " restore a backup, or give another file"
        )
    return version
