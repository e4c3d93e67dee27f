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
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final
from zlib import crc32

import msgspec

from meup_agent.gateway.journal.rows import checked_row, checksum, entry_of, rows_query
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.space.journal import Entry

SEGMENT_ENTRIES: Final = 1_024
"""Entries of a segment, whose names are sorted in half a millisecond."""

MAX_CHAINED: Final = 20_000
"""Entries that are read by their names; more are folded with all the others, as fast."""

MAX_CHAINED_BYTES: Final = 64 * 1024 * 1024
"""Bytes of their frames, since they are held at once; of more, one entry at a time is."""

MAX_ROUNDS: Final = 500
"""Searches, each for the entries that name those of the search before; a long discussion has a
hundred. More of them would take longer than to read every entry."""

_PLACE_BITS: Final = 10
_PLACE: Final = (1 << _PLACE_BITS) - 1
# The place of an entry in its segment, beside a hash.

FEW_NAMES: Final = 64
"""Names up to which each is searched for by itself in a segment."""

NAMES_TABLE: Final = """CREATE TABLE names (
    last INTEGER PRIMARY KEY,
    packed BLOB NOT NULL,
    checksum INTEGER NOT NULL
)"""
# "last" is the number of the last entry of the segment.

WRITE_NAMES: Final = "INSERT INTO names VALUES (?, ?, ?)"

_OF_AN_EXCHANGE: Final = frozenset(
    {
        kinds.MCP_RESPONSE,
        kinds.MCP_WITHDRAW,
        kinds.MCP_REJECT,
        kinds.MCP_RENEW,
        kinds.CHAT,
    }
)


class _NamedParams(msgspec.Struct, frozen=True, gc=False):
    request_id: Any = msgspec.field(default=None, name="requestId")
    token: Any = msgspec.field(default=None, name=payloads.PROGRESS_TOKEN)


class _NamedCall(msgspec.Struct, gc=False):
    """A request as far as it has names, without the rest of its payload."""

    method: str = ""
    id: Any = None
    params: _NamedParams = _NamedParams()


_decode_call = msgspec.json.Decoder(_NamedCall).decode


def hashed_names(entry: Entry) -> tuple[int, ...]:
    """The hashes of the names by which an entry may belong to a proposal, others in each space.

    They are its own, and those that it mentions.
    """
    envelope = entry.envelope
    correlation, kind = envelope.correlation, envelope.kind
    if kind == kinds.MCP_REQUEST:
        names = _names_of_request(envelope)
    elif kind == kinds.MCP_PROPOSAL or (correlation and kind in _OF_AN_EXCHANGE):
        names = (envelope.id, *correlation)
    else:
        return ()
    seed = _seed_of(entry.space)
    return tuple([crc32(name.encode(), seed) for name in names])


@lru_cache
def _seed_of(space: str) -> int:
    return crc32(space.encode())


def _names_of_request(envelope: Envelope) -> tuple[str, ...]:
    correlation, raw = envelope.correlation, envelope.raw_payload
    if not correlation and b"notifications" not in raw and b"\\" not in raw:
        return ()
    try:
        call = _decode_call(raw)
    except msgspec.DecodeError:
        # Something is of another type than in a message of MCP.
        said = payloads.read_call(envelope.payload)
        params = _NamedParams(
            said.params.get("requestId"), said.params.get(payloads.PROGRESS_TOKEN)
        )
        call = _NamedCall(said.method, said.rpc_id, params)
    if call.method.startswith(payloads.NOTIFICATION):
        mentioned = (call.params.request_id, call.params.token)
        # Most of ours name the request twice.
        more = (str(each) for each in mentioned if each is not None and each not in correlation)
        return (*correlation, *more)
    if not correlation:
        return ()
    name = payloads.rpc_name(call.id)
    own = (envelope.id,) if name is None or name == envelope.id else (envelope.id, name)
    return (*own, *correlation)


class NameSegment:
    """The hashes of many entries' names, in order, each with the number of its entry."""

    def __init__(self, hashes: Sequence[int], numbers: Sequence[int]) -> None:
        self._hashes = hashes
        self._numbers = numbers

    def find(self, wanted: frozenset[int]) -> Iterator[int]:
        """The numbers of the entries that have one of some names."""
        hashes, numbers = self._hashes, self._numbers
        for each in wanted if len(wanted) <= FEW_NAMES else wanted.intersection(hashes):
            at = bisect_left(hashes, each)
            while at < len(hashes) and hashes[at] == each:
                yield numbers[at]
                at += 1


class SegmentBuilder:
    """Gathers the names of entries until they are a segment."""

    def __init__(self) -> None:
        self._named: list[int] = []  # a hash, and the place of its entry among the numbers
        self._numbers: list[int] = []

    def add(self, number: int, hashes: Iterable[int]) -> tuple[object, ...] | None:
        """Add the names of the next entry; the values of the row that it completes, if it does."""
        place = len(self._numbers)
        self._numbers.append(number)
        for each in hashes:
            self._named.append(each << _PLACE_BITS | place)
        if place + 1 < SEGMENT_ENTRIES:
            return None
        packed = self._pack()
        self._named, self._numbers = [], []
        return number, packed, checksum((number,), packed)

    def segment(self) -> NameSegment:
        """The segment of the names so far, though it is not complete."""
        return _unpack(self._pack())

    def _pack(self) -> bytes:
        named = sorted(self._named)
        hashes = array("I", [each >> _PLACE_BITS for each in named])
        numbers = array("Q", [self._numbers[each & _PLACE] for each in named])
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


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Read a file as it is at one moment: what a gateway writes meanwhile is not seen.

    Of entries that came between the reading of the segments and that of what follows them, names
    would be missing.
    """
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def read_chains(
    connection: sqlite3.Connection, space: str, begun: Iterable[int]
) -> list[Entry] | None:
    """The entries with some numbers, and all that belong together with them, in order.

    ``None``: they are too many. All that have a name in common are there: of two that bear one name
    the fold decides which is meant.

    Raises:
        DamagedIndex: One cannot be read.
    """
    known_until, segments = 0, list[NameSegment]()
    for last, segment in read_names(connection):
        known_until = last
        segments.append(segment)
    segments.append(resume_segment(connection, known_until).segment())
    found, known, size = dict[int, Entry](), set[int](), 0
    wanted = set(begun)
    for _ in range(MAX_ROUNDS):
        if len(found) + len(wanted) > MAX_CHAINED:
            return None
        where = "WHERE seq IN (SELECT value FROM json_each(?)) AND space = ?"
        names = set[int]()
        for entry in read_entries(connection, where, encode_json(list(wanted)).decode(), space):
            found[entry.seq] = entry
            names.update(hashed_names(entry))
            size += len(entry.envelope.frame)
            if size > MAX_CHAINED_BYTES:
                return None
        fresh = frozenset(names - known)
        known |= names
        numbers = {number for segment in segments for number in segment.find(fresh)}
        wanted = numbers - found.keys()
        if not wanted:
            return [found[number] for number in sorted(found)]
    return None


def read_names(connection: sqlite3.Connection) -> Iterator[tuple[int, NameSegment]]:
    """The segments of a file, each with the number of its last entry.

    Raises:
        DamagedIndex: One is not what was written.
    """
    query = "SELECT last, packed, checksum FROM names ORDER BY last"
    for last, packed, checked in connection.execute(query):
        if checked != checksum((last,), packed):
            raise DamagedIndex
        yield last, _unpack(packed)


def resume_segment(connection: sqlite3.Connection, last: int) -> SegmentBuilder:
    """A builder with the entries after a number, the last of a complete segment.

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
    for found in connection.execute(rows_query(where), values):
        row = checked_row(found)
        if row is None:
            raise DamagedIndex
        entry = entry_of(row)
        if entry is not None:
            yield entry
