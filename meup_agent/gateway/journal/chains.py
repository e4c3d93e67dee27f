"""The index of names: finds the entries that belong together without folding all the others.

An entry about a proposal names it, or another entry that does: a request by its correlation, an
answer by the request's id, a cancel by the request's JSON-RPC id. For each thousand entries the
file has a segment: the hashes of the names that they bear and mention, in order, each with the
number of its entry. Where one fits by chance, an entry is read in vain, and folded without effect.
Segments are made of the entries alone and never changed, so that they cost an append almost
nothing; what came after the last one is looked through.
"""

from __future__ import annotations

import sqlite3
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final
from zlib import crc32

from meup_agent.gateway.journal.rows import checked_row, checksum, entry_of, rows_query
from meup_agent.gateway.journal.tables import VERSION
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.space.journal import Entry

SEGMENT_ENTRIES: Final = 1_024
"""Entries of a segment, whose names are sorted in half a millisecond."""

MAX_CHAINED: Final = 20_000
"""Entries that are read by their names; more are folded with all the others, as fast."""

FEW_NAMES: Final = 64
"""Names up to which each is searched for by itself in a segment."""

NAMES_TABLE: Final = """CREATE TABLE names (
    last INTEGER PRIMARY KEY,
    packed BLOB NOT NULL,
    checksum INTEGER NOT NULL
)"""
# "last" is the number of the last entry of the segment.

WRITE_NAMES: Final = "INSERT INTO names VALUES (?, ?, ?)"
_READ_NAMES: Final = "SELECT last, packed, checksum FROM names ORDER BY last"

_OF_AN_EXCHANGE: Final = frozenset(
    {
        kinds.MCP_RESPONSE,
        kinds.MCP_WITHDRAW,
        kinds.MCP_REJECT,
        kinds.MCP_RENEW,
        kinds.CHAT,
    }
)


def names_of(entry: Entry) -> tuple[str, ...]:
    """The names by which an entry may belong to a proposal: its own, and those it mentions."""
    envelope = entry.envelope
    correlation = envelope.correlation
    if envelope.kind == kinds.MCP_PROPOSAL:
        return (envelope.id, *correlation)
    if envelope.kind == kinds.MCP_REQUEST:
        raw = envelope.raw_payload
        if not correlation and b"notifications" not in raw and b"\\" not in raw:
            return ()
        call = payloads.read_call(envelope.payload)
        if call.is_notification:
            said = (call.params.get("requestId"), call.params.get(payloads.PROGRESS_TOKEN))
            return (*correlation, *(str(each) for each in said if each is not None))
        if not correlation:
            return ()
        name = call.rpc_name
        return (envelope.id, *correlation) if name is None else (envelope.id, name, *correlation)
    if correlation and envelope.kind in _OF_AN_EXCHANGE:
        return (envelope.id, *correlation)
    return ()


def hashed_names(entry: Entry) -> tuple[int, ...]:
    """The hashes of an entry's names, which are others in each space."""
    names = names_of(entry)
    if not names:
        return ()
    seed = crc32(entry.space.encode())
    return tuple({crc32(name.encode(), seed) for name in names})


class NameSegment:
    """The hashes of many entries' names, in order, each with the number of its entry."""

    def __init__(self, hashes: Sequence[int], numbers: Sequence[int]) -> None:
        self._hashes = hashes
        self._numbers = numbers
        self.searched = 0  # of the names that are searched for, how many were

    def find(self, wanted: Sequence[int]) -> Iterator[int]:
        """The numbers of the entries that have one of some names."""
        hashes, numbers = self._hashes, self._numbers
        if len(wanted) > FEW_NAMES:
            among = frozenset(wanted)
            for each, number in zip(hashes, numbers, strict=True):
                if each in among:
                    yield number
            return
        for each in wanted:
            at = bisect_left(hashes, each)
            while at < len(hashes) and hashes[at] == each:
                yield numbers[at]
                at += 1


class SegmentBuilder:
    """Gathers the names of entries until they are a segment."""

    def __init__(self) -> None:
        self._named: list[tuple[int, int]] = []
        self._count = 0

    def add(self, number: int, hashes: Iterable[int]) -> tuple[object, ...] | None:
        """Add the names of the next entry; the values of the row that it completes, if it does."""
        self._named += [(each, number) for each in hashes]
        self._count += 1
        if self._count < SEGMENT_ENTRIES:
            return None
        packed = _pack(self._named)
        self._named, self._count = [], 0
        return number, packed, checksum((number,), packed)

    def segment(self) -> NameSegment:
        """What was gathered, as it is searched."""
        named = sorted(self._named)
        return NameSegment([each for each, _ in named], [number for _, number in named])


def _pack(named: list[tuple[int, int]]) -> bytes:
    named.sort()
    hashes = array("I", (each for each, _ in named))
    numbers = array("Q", (number for _, number in named))
    return b"".join(_little(each).tobytes() for each in (hashes, numbers))


def _little(values: array[int]) -> array[int]:
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _unpack(packed: bytes) -> NameSegment:
    hashes, numbers = array("I"), array("Q")
    count = len(packed) // (hashes.itemsize + numbers.itemsize)
    hashes.frombytes(packed[: count * hashes.itemsize])
    numbers.frombytes(packed[count * hashes.itemsize :])
    return NameSegment(_little(hashes), _little(numbers))


class DamagedIndex(Exception):
    """A segment is not what was written."""


def read_chains(
    connection: sqlite3.Connection, space: str, begun: Iterable[int]
) -> list[Entry] | None:
    """The entries that some belong together with, in order, they included.

    ``None``: they are too many. Of all that have a name in common each is there, since of two that
    bear one name the fold decides which is meant.

    Raises:
        DamagedIndex: One cannot be read.
    """
    segments, last = read_names(connection)
    segments.append(resume_segment(connection, last).segment())
    found, known, names = dict[int, Entry](), set[int](), list[int]()
    wanted = set(begun)
    while wanted:
        where = "WHERE seq IN (SELECT value FROM json_each(?)) AND space = ?"
        for entry in read_entries(connection, where, encode_json(list(wanted)).decode(), space):
            found[entry.seq] = entry
            names += (each for each in hashed_names(entry) if each not in known)
            known.update(names[len(known) :])
        if len(found) > MAX_CHAINED or len(names) > 4 * MAX_CHAINED:
            return None
        wanted = _find_more(segments, names, found)
    return [found[number] for number in sorted(found)]


def _find_more(
    segments: Iterable[NameSegment], names: Sequence[int], found: Mapping[int, Entry]
) -> set[int]:
    """The numbers in the first segment that has more entries with these names."""
    for segment in segments:
        if segment.searched == len(names):
            continue
        fresh = names[segment.searched :]
        segment.searched = len(names)
        numbers = {number for number in segment.find(fresh) if number not in found}
        if numbers:
            return numbers
    return set()


def read_names(connection: sqlite3.Connection) -> tuple[list[NameSegment], int]:
    """The segments of a file, and the number after which there is none.

    Raises:
        DamagedIndex: One is not what was written.
    """
    segments, last = list[NameSegment](), 0
    for last, packed, checked in connection.execute(_READ_NAMES):
        if checked != checksum((last,), packed):
            raise DamagedIndex
        segments.append(_unpack(packed))
    return segments, last


def resume_segment(connection: sqlite3.Connection, last: int) -> SegmentBuilder:
    """The segment that the entries after a number begin.

    Raises:
        DamagedIndex: One cannot be read.
    """
    builder = SegmentBuilder()
    for entry in read_entries(connection, "WHERE seq > ? ORDER BY seq", last):
        builder.add(entry.seq, hashed_names(entry))
    return builder


def read_entries(connection: sqlite3.Connection, where: str, *values: object) -> Iterator[Entry]:
    """The entries of the rows that a condition selects.

    Raises:
        DamagedIndex: One cannot be read.
    """
    for found in connection.execute(rows_query(VERSION, where), values):
        row = checked_row(found, VERSION)
        if row is None:
            raise DamagedIndex
        entry = entry_of(row)
        if entry is not None:
            yield entry
