"""The tables of a journal's file, and an entry as a row of them.

The frame is kept as it came. What a space found out about it, that is to which request a response
belongs where the dialect does not say, stands beside it, and so do the facts that it made hold. A
checksum goes over everything that a row says, so that bits that flip on a disk are found.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import ConfigurationError, InvalidEnvelope
from meup_agent.protocol.dialects import DEFAULT_DIALECT, decode, encode
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, Entry, Fact
from meup_agent.protocol.wire.envelope import encode_json

# --- tables ---
# The tables of a journal's file.
#
# Every entry has the number after that of the one before, over all spaces. So each number up to
# the last one is that of an entry, or in the table `missing`, which says why it is in no other;
# what is neither is damage.

APPLICATION: Final = 0x4D455550
"""Tells a journal from another database: "MEUP", where SQLite keeps such a mark."""

VERSION: Final = 2
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
        ConfigurationError: It is not a journal, or one that this version cannot read.
    """
    application: int = connection.execute("PRAGMA application_id").fetchone()[0]
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    # As bytes: damage may have left some that are not text.
    query = "SELECT CAST(sql AS BLOB) FROM sqlite_schema WHERE sql IS NOT NULL"
    found = {sql for (sql,) in connection.execute(query)}
    if not found:
        return False
    complete = {each.strip().encode() for each in _TABLES.split(";")} <= found
    if application != APPLICATION and not complete:
        raise ConfigurationError(
            f"{path} is a database, but no journal of a gateway; give another file"
        )
    if version != VERSION:
        raise ConfigurationError(
            f"the journal {path} is of another version of this package ({version}, not"
            f" {VERSION}), or damaged; run that one, or give another file"
        )
    if application != APPLICATION or not complete:
        raise ConfigurationError(
            f"the journal {path} is damaged: its head and its tables are not those of a journal;"
            " restore a backup, or give another file"
        )
    return True


# --- rows ---

log = logging.getLogger("meup_agent.gateway")

_names = msgspec.json.Decoder(tuple[str, ...]).decode
read_facts = msgspec.json.Decoder(tuple[Fact, ...]).decode
_encode = msgspec.json.Encoder().encode


class Row(NamedTuple):
    """The columns of the table ``entry``, in its order."""

    seq: int
    space: str
    at: int
    kind: str
    correlation: str  # a JSON list
    facts: str | None  # a JSON list of keys and values; ``None``: there are none
    checksum: int
    frame: bytes


class DamagedEntry(Exception):
    """An entry that is not what was written."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"number {seq} is damaged")
        self.seq = seq


_read_all = msgspec.json.Decoder(list[tuple[int, int, str, str, str | None, int, str]]).decode
# The columns of each row as READ has them; the space is known.

# One row with everything, since Python takes its lock again for each row that SQLite hands over:
# beside a busy loop that takes milliseconds for each.
READ: Final = f"""
SELECT json_group_array(json_array(
    seq, at, kind, correlation, facts, checksum, CAST(frame AS TEXT)
)) FROM entry
WHERE seq IN (
    SELECT seq FROM (
        SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
            SELECT seq, length(frame) AS size FROM entry
            WHERE space = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
        )
    ) WHERE before < {MAX_PAGE_BYTES}
)
"""
"""Takes space, after, until and limit."""

READ_BACK: Final = READ.replace("ORDER BY seq", "ORDER BY seq DESC")
"""The same from the newest on."""


def rows_query(which: str) -> str:
    """The query for all columns of rows, one by one.

    It is for where nothing else runs in Python, and where each row is to be judged by itself: to
    make one text of them, as :data:`READ` does, takes longer than all the rest of reading.
    """
    # Texts are read as bytes, since one that is not UTF-8 would end the reading of all of them.
    return (
        "SELECT seq, CAST(space AS BLOB), at, CAST(kind AS BLOB), CAST(correlation AS BLOB),"
        f" CAST(facts AS BLOB), checksum, CAST(frame AS BLOB) FROM entry {which}"
    )


def row_of(entry: Entry) -> Row:
    """An entry as it is kept; one of our own is kept in the default dialect."""
    envelope = entry.envelope
    frame = envelope.frame or encode(envelope, DEFAULT_DIALECT)
    correlation = _listed(envelope.correlation)
    facts = encode_json(entry.facts).decode() if entry.facts else None
    said = (entry.seq, entry.space, entry.at, envelope.kind, correlation, facts)
    return Row._make((*said, checksum(said, frame), frame))


def checksum(values: tuple[object, ...], frame: bytes = b"") -> int:
    """The checksum of a row: CRC-32, which finds any three flipped bits of a usual envelope.

    It does not protect against a program that can write the file.
    """
    return zlib.crc32(frame, zlib.crc32(_encode(values)))


def sealed(values: tuple[object, ...]) -> tuple[object, ...]:
    """The values of another table's row, with their checksum."""
    return (*values, checksum(values))


def checked_row(values: tuple[Any, ...]) -> Row | None:
    """A row of :func:`rows_query`, if it is what was written."""
    try:
        seq, *texts, checked, frame = values
        said = (seq, *map(_text, texts))
        if checked != checksum(said, frame):
            return None
    except (ValueError, TypeError, msgspec.MsgspecError):
        return None
    return Row._make((*said, checked, frame))


def held_facts(connection: sqlite3.Connection, space: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The facts that hold in a space, in the order in which they began to.

    Raises:
        sqlite3.DatabaseError: One is not what was written.
    """
    query = "SELECT key, value, checksum FROM fact WHERE space = ? ORDER BY said"
    for key, value, checked in connection.execute(query, (space,)):
        if checked != checksum((space, key, value)):
            raise sqlite3.DatabaseError(f"the fact {key} is damaged")
        yield key, json.loads(value)


def checked_values(values: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The values of another table's row, whose last one is its checksum, if they are right."""
    try:
        *said, checked = (_text(each) for each in values)
    except ValueError:
        return None
    found = tuple(said)
    return found if checked == checksum(found) else None


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def read_page(
    connection: sqlite3.Connection,
    space: str,
    *,
    after: int,
    until: int,
    limit: int,
    query: str = READ,
) -> tuple[Entry, ...]:
    """A page of entries, oldest first.

    Raises:
        DamagedEntry: One is not what was written.
    """
    try:
        found: str = connection.execute(query, (space, after, until, limit)).fetchone()[0]
        rows = _read_all(found)
    except (sqlite3.OperationalError, msgspec.DecodeError, UnicodeDecodeError):
        # A text that is not UTF-8, or something else: what is read one by one has a number.
        _find_damaged(connection, space, after, until)
        raise
    entries: list[Entry] = []
    for seq, at, kind, correlation, facts, checked, text in sorted(rows):
        frame = text.encode()
        if checksum((seq, space, at, kind, correlation, facts), frame) != checked:
            raise DamagedEntry(seq)
        entry = read_entry(seq, space, at, correlation, facts, frame)
        if entry is not None:
            entries.append(entry)
    return tuple(entries)


def _find_damaged(connection: sqlite3.Connection, space: str, after: int, until: int) -> None:
    """Raise of the first entry that is damaged, if one is."""
    query = rows_query("WHERE space = ? AND seq > ? AND seq <= ? ORDER BY seq")
    for values in connection.execute(query, (space, after, until)):
        if checked_row(values) is None:
            raise DamagedEntry(values[0])


def entry_of(row: Row) -> Entry | None:
    """The entry of a row; ``None`` where its envelope cannot be read, which is logged."""
    return read_entry(row.seq, row.space, row.at, row.correlation, row.facts, row.frame)


def read_entry(
    seq: int, space: str, at: int, correlation: str, facts: str | None, frame: bytes
) -> Entry | None:
    try:
        envelope = decode(frame)
    except InvalidEnvelope as error:
        # An older version took what this one does not; the others must not miss the rest.
        log.error("journal: number %d is left out, it cannot be read: %s", seq, error)
        return None
    if _listed(envelope.correlation) != correlation:
        envelope = msgspec.structs.replace(envelope, correlation=_names(correlation))
    return Entry(seq, space, at, envelope, () if facts is None else read_facts(facts))


def _listed(names: tuple[str, ...]) -> str:
    return _encode(names).decode() if names else "[]"
