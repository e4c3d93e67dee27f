"""The table of decisions: each proposal of a file, with its state as the space decided it.

A row is written in the transaction of the entry that begins, moves or ends its proposal. It says
which proposals to look at; what was said of these is read by the index of names
(:mod:`~meup_agent.gateway.journal.name_index`) and folded as everywhere. Both are derived: where
they are missing, older or damaged, a start makes them anew of the entries, by the fold of the
space.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.gateway.journal.name_index import (
    MAX_CHAINED,
    NAMES_TABLE,
    WRITE_NAMES,
    DamagedIndex,
    SegmentBuilder,
    hashed_names,
    read_chains,
    read_entries,
    read_names,
    snapshot,
)
from meup_agent.gateway.journal.rows import checksum, entry_of, sealed
from meup_agent.gateway.journal.survey import good_rows, is_damage
from meup_agent.protocol.proposals.lifecycle import ProposalState, first_moment
from meup_agent.protocol.space.journal import Entry, FoldBegin, ProposalChange

if TYPE_CHECKING:
    from meup_agent.protocol.space.state import SpaceState

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
    expires_at INTEGER,
    state TEXT NOT NULL,
    decided INTEGER,
    checksum INTEGER NOT NULL
)"""
# "seq" is the number of the proposal, "decided" that of the entry that ended it. Neither table has
# an index: what is appended stays together in the file, and a million rows are searched in less
# time than a command takes to start.

INDEX_TABLES: Final = {"proposal": _PROPOSALS_TABLE, "names": NAMES_TABLE}


class ProposalRow(NamedTuple):
    """A proposal, as the table has it."""

    seq: int
    space: str
    proposer: str
    id: str
    tool: str
    expires_at: int | None
    # ``pending`` also where a request is out, or its time is over: what tells that is the time.
    state: str
    decided: int | None = None


# The last place is the checksum's.
PROPOSAL_PLACES: Final = f"({', '.join('?' * (len(ProposalRow._fields) + 1))})"
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


class ProposalFollower:
    """Makes the rows of what entries change; follows what is open."""

    def __init__(self, rows: Iterable[ProposalRow] = ()) -> None:
        self._open = {(row.space, row.proposer, row.id): row for row in rows}

    def follow(
        self, number: int, space: str, changes: Iterable[ProposalChange]
    ) -> list[ProposalRow]:
        """The rows that the entry with a number changes."""
        rows, opened = list[ProposalRow](), self._open
        for proposer, name, tool, expires_at, state, begins, ended in changes:
            key = (space, proposer, name)
            if begins:
                row = ProposalRow(number, space, proposer, name, tool, expires_at, state)
                opened[key] = row
                rows.append(row)
                continue
            known = opened.get(key)
            if known is None:
                continue
            if not ended:
                row = opened[key] = known._replace(expires_at=expires_at)
                rows.append(row)
                continue
            del opened[key]
            if not state.is_pending:  # else it was forgotten, or its id is used again
                decided = None if state is ProposalState.EXPIRED else number
                rows.append(known._replace(state=state, decided=decided))
        return rows


def open_rows(connection: sqlite3.Connection) -> list[ProposalRow]:
    """The rows that say of no end, of all spaces, oldest first."""
    where = "WHERE state = ? ORDER BY seq DESC LIMIT ?"
    return [*_rows(connection, where, ProposalState.PENDING, MAX_FOLLOWED)][::-1]


def _rows(connection: sqlite3.Connection, where: str, *values: object) -> Iterator[ProposalRow]:
    for *said, checked in connection.execute(f"SELECT * FROM proposal {where}", values):
        if checked != checksum(tuple(said)):
            raise DamagedIndex
        yield ProposalRow._make(said)


def has_index(connection: sqlite3.Connection) -> bool:
    """True if a file has the tables in this version's form."""
    query = "SELECT name, sql FROM sqlite_schema WHERE name IN ('proposal', 'names')"
    return dict(connection.execute(query)) == INDEX_TABLES


def ensure_index(connection: sqlite3.Connection, path: object) -> None:
    """Make the tables anew of the entries, unless they are there and whole."""
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
    builder, follower = SegmentBuilder(), ProposalFollower()
    spaces: dict[str, SpaceState] = {}
    rows = good_rows(connection)
    for count, entry in enumerate(filter(None, map(entry_of, rows)), 1):
        segment = builder.add(entry.seq, hashed_names(entry))
        if segment is not None:
            execute(WRITE_NAMES, segment)
        for row in follower.follow(entry.seq, entry.space, _changes(entry, spaces)):
            execute(WRITE_PROPOSAL, sealed(row))
        if count % MADE_AT_ONCE == 0:
            log.info("the journal %s: its proposals are listed, %d envelopes so far", path, count)
    execute("COMMIT")


def _changes(entry: Entry, spaces: dict[str, SpaceState]) -> tuple[ProposalChange, ...]:
    from meup_agent.protocol.space.state import SpaceState  # a command that reads a file folds none

    space = spaces.get(entry.space)
    if space is None:
        space = spaces[entry.space] = SpaceState(announce_withdrawals=True)
    space.expire(entry.at)
    space.apply(entry)
    return space.open.pop_changes()


def read_open(
    connection: sqlite3.Connection, space: str, *, at: int, before: int
) -> Iterator[Entry]:
    """The entries about the proposals before a number whose deadline is behind a time.

    Raises:
        DamagedIndex: The tables are not what was written.
    """
    where = "WHERE space = ? AND state = ? AND expires_at >= ? AND seq < ? ORDER BY seq LIMIT ?"
    values = (space, ProposalState.PENDING, first_moment(at), before, MAX_CHAINED + 1)
    numbers = [row.seq for row in _rows(connection, where, *values)]
    if not numbers:
        return
    found = read_chains(connection, space, numbers)
    if found is not None:
        yield from (entry for entry in found if entry.seq < before)
        return
    from meup_agent.protocol.space.inflight import TRACKED_KINDS

    # All that begins or ends something: as much as a space ever folds.
    where = "WHERE space = ? AND seq >= ? AND seq < ? ORDER BY seq"
    for entry in read_entries(connection, where, space, numbers[0], before):
        if entry.envelope.kind in TRACKED_KINDS:
            yield entry


def find_begin(connection: sqlite3.Connection, space: str, proposals: int) -> FoldBegin:
    """See :meth:`~meup_agent.protocol.space.journal.Journal.find_begin`."""
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
    limit, name = MAX_CHAINED + 1, query.id
    if name is None:
        rows = [*_rows(connection, f"{where} LIMIT ?", *values, limit)]
    else:
        rows = [*_rows(connection, f"{where} AND id = ? LIMIT ?", *values, name, limit)]
    if name is not None and not rows:
        begin = f"{where} AND substr(id, 1, ?) = ? LIMIT ?"
        rows += _rows(connection, begin, *values, len(name), name, MAX_BEGINNING)
    if len(rows) > MAX_CHAINED:
        return None
    found = read_chains(connection, space, [row.seq for row in rows])
    last = "SELECT coalesce((SELECT at FROM entry WHERE space = ? ORDER BY seq DESC LIMIT 1), 0)"
    (until,) = connection.execute(last, (space,)).fetchone()
    return None if found is None else Chains(found, until)
