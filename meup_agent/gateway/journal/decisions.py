"""The table of decisions: each proposal of a file, with its state as the space decided it.

A row is written in the transaction of the entry that begins, moves or ends its proposal. It says
which proposals to look at; what was said of these is read by the index of names, further down, and
folded as everywhere. Both are derived: where they are missing, older or damaged, a start makes them
anew of the entries, by the fold of the space.
"""

from __future__ import annotations

import logging
import sqlite3
import sys
from array import array
from bisect import bisect_left
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zlib import crc32

import msgspec

from meup_agent.gateway.journal.damage import good_rows, is_damage
from meup_agent.gateway.journal.rows import checked_row, checksum, entry_of, rows_query, sealed
from meup_agent.protocol.proposals import ProposalState, first_moment
from meup_agent.protocol.space.journal import (
    MAX_PERMITS,
    MAX_SEARCHED,
    DecisionFollower,
    DecisionRow,
    Entry,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    ProposalChange,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json

if TYPE_CHECKING:
    from meup_agent.protocol.space.state.state import SpaceState


# --- the index of names ---
# Finds the entries that belong together without folding all the others.
#
# An entry about a proposal names it, or another entry that does: a request by its correlation, an
# answer by the request's id, a cancel by the request's JSON-RPC id. For each thousand entries the
# file has a segment: the hashes of the names that they bear and mention, in order, each with the
# number of its entry. Where one fits by chance, an entry is read in vain, and folded without
# effect. Segments are made of the entries alone and never changed, so that they cost an append
# almost nothing; what came after the last one is looked through.

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
        kinds.MCP_REPORT,
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
    whole = dict(read_names(connection))
    rest = resume_segment(connection, max(whole, default=0)).segment()
    segments = [*whole.values(), rest]
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
        if not isinstance(packed, bytes) or checked != checksum((last,), packed):
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


# --- the table of decisions ---

log = logging.getLogger("meup_agent.gateway")

MAX_FOLLOWED: Final = 100_000
"""Open proposals of a file that a start goes on to follow; the newest."""

MAX_BEGINNING: Final = 100
"""Proposals that are read whose ids begin alike: they are only named."""

MADE_AT_ONCE: Final = 100_000
"""Entries after which the log says how far the tables are."""

_PROPOSALS_TABLE: Final = """CREATE TABLE proposal (
    seq INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    proposer TEXT NOT NULL,
    id TEXT NOT NULL,
    tool TEXT NOT NULL,
    proposed_at INTEGER NOT NULL,
    ends_at INTEGER,
    state TEXT NOT NULL,
    decided INTEGER,
    by TEXT NOT NULL,
    reason TEXT NOT NULL,
    rule TEXT NOT NULL,
    failed INTEGER NOT NULL,
    checksum INTEGER NOT NULL
)"""
# "seq" is the number of the proposal, "decided" that of the entry that ended it.
_ENDS_INDEX: Final = "CREATE INDEX proposal_ends ON proposal (space, ends_at, state)"
# The newest of a million are found at once, and what is appended stays together in the file: what
# ends, ends about now.

INDEX_TABLES: Final = {"proposal": _PROPOSALS_TABLE, "names": NAMES_TABLE}
_INDEX_FORM: Final = {**INDEX_TABLES, "proposal_ends": _ENDS_INDEX}

SEEN_TABLE: Final = """CREATE TABLE IF NOT EXISTS seen (
    space TEXT NOT NULL,
    participant TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (space, participant)
) WITHOUT ROWID"""
# What each participant has seen of what expired. Where it is lost, it is shown once more.

WRITE_SEEN: Final = "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)"


# The last place is the checksum's.
PROPOSAL_PLACES: Final = f"({', '.join('?' * (len(DecisionRow._fields) + 1))})"
WRITE_PROPOSAL: Final = f"INSERT OR REPLACE INTO proposal VALUES {PROPOSAL_PLACES}"


class DecisionQuery(NamedTuple):
    """Selects proposals of a space."""

    id: str | None = None  # an id, or the beginning of one that no proposal has as a whole
    proposer: str | None = None
    states: frozenset[ProposalState] = frozenset()  # one of these; empty: any


class Chains(NamedTuple):
    """The entries about some proposals, and the time of the last entry of their space."""

    entries: list[Entry]
    until: int


def open_rows(connection: sqlite3.Connection) -> list[DecisionRow]:
    """The rows that say of no end, and those of permits without a report, oldest first."""
    where = "WHERE state = ? ORDER BY seq DESC LIMIT ?"
    waiting = [*_rows(connection, where, ProposalState.PERMITTED, MAX_PERMITS)]
    waiting += _rows(connection, where, ProposalState.PENDING, MAX_FOLLOWED)
    return waiting[::-1]


def _rows(connection: sqlite3.Connection, where: str, *values: object) -> Iterator[DecisionRow]:
    for *said, checked in connection.execute(f"SELECT * FROM proposal {where}", values):
        if checked != checksum(tuple(said)):
            raise DamagedIndex
        yield DecisionRow._make(said)


def has_index(connection: sqlite3.Connection) -> bool:
    """True if a file has the tables in this version's form."""
    query = (
        "SELECT name, sql FROM sqlite_schema WHERE name IN ('proposal', 'names', 'proposal_ends')"
    )
    return dict(connection.execute(query)) == _INDEX_FORM


def ensure_index(connection: sqlite3.Connection, path: object) -> None:
    """Make the tables anew of the entries, unless they are there and whole."""
    connection.execute(SEEN_TABLE)
    try:
        if has_index(connection):
            for _ in chain(_rows(connection, ""), read_names(connection)):
                pass
            return
    except (DamagedIndex, UnicodeDecodeError):
        pass
    except sqlite3.OperationalError as error:
        if is_damage(error) or "decode" not in str(error):
            raise
    make_index(connection, path)


def make_index(connection: sqlite3.Connection, path: object) -> None:
    """Make the tables of the entries of a file."""
    execute = connection.execute
    execute("BEGIN IMMEDIATE")
    for name, table in INDEX_TABLES.items():
        execute(f"DROP TABLE IF EXISTS {name}")
        execute(table)
    execute(_ENDS_INDEX)
    builder, follower = SegmentBuilder(), DecisionFollower()
    spaces: dict[str, SpaceState] = {}
    rows = good_rows(connection)
    for count, entry in enumerate(filter(None, map(entry_of, rows)), 1):
        segment = builder.add(entry.seq, hashed_names(entry))
        if segment is not None:
            execute(WRITE_NAMES, segment)
        for row in follower.follow(entry.seq, entry.space, changes_of(entry, spaces)):
            execute(WRITE_PROPOSAL, sealed(row))
        if count % MADE_AT_ONCE == 0:
            log.info("the journal %s: its proposals are listed, %d envelopes so far", path, count)
    execute("COMMIT")


def changes_of(entry: Entry, spaces: dict[str, SpaceState]) -> tuple[ProposalChange, ...]:
    """Changes that an entry makes to proposals; the entries of a space come in order."""
    from meup_agent.protocol.space.state.state import (
        SpaceState,  # a command that reads a file folds none
    )

    space = spaces.get(entry.space)
    if space is None:
        space = spaces[entry.space] = SpaceState(announce_withdrawals=True)
    for _ in space.open.expire(entry.at):
        pass  # their changes are those of this entry, if no announcement was kept
    space.apply(entry)
    return space.open.pop_changes()


def read_open(
    connection: sqlite3.Connection, space: str, *, at: int, before: int
) -> Iterator[Entry]:
    """The entries about the proposals before a number whose deadline is behind a time.

    Raises:
        DamagedIndex: The tables are not what was written.
    """
    where = "WHERE space = ? AND state = ? AND ends_at >= ? AND seq < ? ORDER BY seq LIMIT ?"
    values = (space, ProposalState.PENDING, first_moment(at), before, MAX_CHAINED + 1)
    numbers = [row.seq for row in _rows(connection, where, *values)]
    if not numbers:
        return
    found = read_chains(connection, space, numbers)
    if found is not None:
        yield from (entry for entry in found if entry.seq < before)
        return
    from meup_agent.protocol.space.state.inflight import TRACKED_KINDS

    # All that begins or ends something: as much as a space ever folds.
    where = "WHERE space = ? AND seq >= ? AND seq < ? ORDER BY seq"
    for entry in read_entries(connection, where, space, numbers[0], before):
        if entry.envelope.kind in TRACKED_KINDS:
            yield entry


def find_begin(connection: sqlite3.Connection, space: str, proposals: int) -> FoldBegin:
    nth = "SELECT seq FROM proposal WHERE space = ? ORDER BY seq DESC LIMIT 1 OFFSET ?"
    with snapshot(connection), suppress(DamagedIndex):
        if found := connection.execute(nth, (space, proposals)).fetchone():
            (after,) = found
            where = "WHERE space = ? AND state = ? AND seq <= ? ORDER BY seq DESC LIMIT ?"
            rows = _rows(connection, where, space, ProposalState.PENDING, after, MAX_CHAINED)
            older = read_chains(connection, space, [row.seq for row in rows])
            if older is not None:
                return FoldBegin(after, tuple(entry for entry in older if entry.seq <= after))
    return FoldBegin()


def find_chain(connection: sqlite3.Connection, space: str, number: int) -> tuple[Entry, ...]:
    with snapshot(connection), suppress(DamagedIndex):
        return tuple(read_chains(connection, space, [number]) or ())
    return ()


def read_seen(connection: sqlite3.Connection) -> dict[tuple[str, str], int]:
    """The time until which each participant of a space has seen expiries, without damaged rows."""
    found = dict[tuple[str, str], int]()
    with suppress(sqlite3.Error, UnicodeDecodeError):
        for space, participant, at in connection.execute("SELECT * FROM seen"):
            if isinstance(at, int):
                found[space, participant] = at
    return found


_SORTED_BY: Final = {
    "when": "ends_at",
    "waited": "max(ends_at - proposed_at, 0)",
    **{name: name for name in ("tool", "proposer", "state", "by", "rule")},
}

_ENDED: Final = (
    "FROM proposal INDEXED BY proposal_ends"
    " WHERE space = :space AND ends_at <= :until AND ends_at > :after"
)
_SEARCHED_TO: Final = f"SELECT ends_at {_ENDED} ORDER BY ends_at DESC LIMIT 1 OFFSET :searched"
_ENDED_ROWS: Final = (
    f"SELECT * {_ENDED} AND ends_at >= :searched_to"
    " AND NOT (state = 'pending' AND seq IN (SELECT value FROM json_each(:still_open)))"
)


def find_decisions(connection: sqlite3.Connection, space: str, query: HistoryQuery) -> HistoryPage:
    """See :meth:`~meup_agent.protocol.space.journal.Journal.find_decisions`.

    A row that is not what was written is left out: the next start makes the table anew.
    """
    try:
        return _find_decisions(connection, space, query)
    except (sqlite3.OperationalError, UnicodeDecodeError) as error:
        if is_damage(error) or "decode" not in str(error):
            raise
        log.error("the table of decisions is damaged, and made anew at the next start")
        return HistoryPage()


def _find_decisions(connection: sqlite3.Connection, space: str, query: HistoryQuery) -> HistoryPage:
    where, values = (
        [_ENDED_ROWS],
        dict[str, Any](
            space=space,
            until=query.until,
            after=query.after,
            searched=MAX_SEARCHED - 1,
            still_open=encode_json(sorted(query.still_open)).decode(),
            skip=query.skip,
            limit=query.limit + 1,
        ),
    )
    end = connection.execute(_SEARCHED_TO, values).fetchone()
    values["searched_to"] = query.after if end is None else end[0]
    for column in ("tool", "proposer", "by"):
        if wanted := getattr(query, column):
            where.append(f"AND {column} = :{column}")
            values[column] = wanted
    if query.states:
        states = {str(each) for each in query.states}
        if ProposalState.EXPIRED in states:
            states.add(ProposalState.PENDING)  # its time is over, and no entry said so yet
        where.append("AND state IN (SELECT value FROM json_each(:states))")
        values["states"] = encode_json(sorted(states)).decode()
    if query.text:
        searched = " || char(10) || ".join(("tool", "proposer", "by", "rule", "reason", "id"))
        where.append(f"AND instr(lower({searched}), lower(:text))")
        values["text"] = query.text
    direction = "ASC" if query.ascending else "DESC"
    by = _SORTED_BY[query.sort]
    where.append(f"ORDER BY {by} {direction}, ends_at DESC, seq DESC LIMIT :limit OFFSET :skip")
    found = list[DecisionRow]()
    count = 0
    for *said, checked in connection.execute(" ".join(where), values):
        count += 1
        if checked == checksum(tuple(said)):
            row = DecisionRow._make(said)
            is_over = row.state == ProposalState.PENDING
            found.append(row._replace(state=ProposalState.EXPIRED) if is_over else row)
    return HistoryPage(
        tuple(found[: query.limit]), count > query.limit, None if end is None else end[0]
    )


def find_chains(connection: sqlite3.Connection, space: str, query: DecisionQuery) -> Chains | None:
    """The entries about the proposals that a query may mean; ``None``: there are too many.

    Of one whose end the table does not know, the fold tells the state.

    Raises:
        DamagedIndex: The tables are not what was written.
    """
    where, values = "WHERE space = ?", list[Any]([space])
    if query.proposer is not None:
        where, values = f"{where} AND proposer = ?", [*values, query.proposer]
    if query.states:
        states = {*query.states, ProposalState.PENDING}
        where = f"{where} AND state IN ({', '.join('?' * len(states))})"
        values += states
    limit = MAX_CHAINED + 1
    if (name := query.id) is None:
        rows = [*_rows(connection, f"{where} LIMIT ?", *values, limit)]
    elif not (rows := [*_rows(connection, f"{where} AND id = ? LIMIT ?", *values, name, limit)]):
        begin = f"{where} AND substr(id, 1, ?) = ? LIMIT ?"
        rows = [*_rows(connection, begin, *values, len(name), name, MAX_BEGINNING)]
    if len(rows) > MAX_CHAINED:
        return None
    found = read_chains(connection, space, [row.seq for row in rows])
    last = "SELECT coalesce((SELECT at FROM entry WHERE space = ? ORDER BY seq DESC LIMIT 1), 0)"
    (until,) = connection.execute(last, (space,)).fetchone()
    return None if found is None else Chains(found, until)
