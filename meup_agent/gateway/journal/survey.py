"""A survey of a journal's file: what can be read of it, and which numbers damage took.

SQLite notices little of what becomes of a file on a disk: it has no checksums, and leaves out what
a page does not name any more. So three things are looked at. SQLite checks that its pages and its
index fit together. Each row has a checksum. And each number is that of a row, or the file says why
it is not (:mod:`~meup_agent.gateway.journal.tables`).
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from meup_agent.gateway.journal.rows import (
    Row,
    checked_row,
    checked_values,
    read_facts,
    rows_query,
)
from meup_agent.gateway.journal.tables import DAMAGE, READ_SMALL, Missing
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.space.journal import MAX_SEQ, NumberRange

MAX_NAMED: Final = 8
"""Ranges of damaged numbers that a sentence names."""

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB)
"""Errors of SQLite that a damaged file has; others, such as a lock, pass."""


class KeptFact(NamedTuple):
    """A fact that holds in a space, as the file has it."""

    space: str
    key: str
    value: str  # a JSON object


@dataclass(slots=True, kw_only=True)
class Survey:
    """A journal's file as it was found.

    Attributes:
        structure: The first thing that SQLite finds wrong with its pages; empty: none.
        damaged: The numbers whose entries cannot be read, or are not there.
        last: The last number that is accounted for. Where the structure is wrong, there may have
            been more.
        facts: What holds, as far as it can be read.
        lost_facts: How many facts cannot be read.
        lost_floors: Of how many spaces it cannot be read where they begin.
        floors: The floor of each space.
        missing: The numbers of which the file says that no entry has them, and why.
    """

    structure: str
    damaged: list[NumberRange]
    last: int
    facts: list[KeptFact]
    lost_facts: int
    lost_floors: int
    floors: dict[str, int]
    missing: list[Missing]

    @property
    def is_damaged(self) -> bool:
        """True if something of it is not what was written."""
        return bool(self.structure or self.damaged or self.lost_facts or self.lost_floors)

    @property
    def lost(self) -> list[NumberRange]:
        """The damaged numbers; where the structure is wrong, also all that may have followed."""
        tail = [NumberRange(self.last + 1, MAX_SEQ)] if self.structure else []
        return [*self.damaged, *tail]

    @property
    def accepted(self) -> list[NumberRange]:
        """The numbers that damage took before, and that a gateway has accepted as lost."""
        return [NumberRange(it.after + 1, it.until) for it in self.missing if it.why == DAMAGE]

    def __str__(self) -> str:
        """The damage, in words."""
        said: list[str] = []
        if self.lost:
            said.append(f"{name_numbers(self.lost)} cannot be read")
        if self.structure:
            said.append(f"its pages do not fit together ({self.structure})")
        if self.lost_facts:
            said.append(
                f"{self.lost_facts} of the facts that hold (grants, removals, pauses) cannot be"
                " read"
            )
        if self.lost_floors:
            said.append(f"of {self.lost_floors} spaces it cannot be read where they begin")
        return "; ".join(said)


def name_numbers(ranges: Iterable[NumberRange]) -> str:
    """Numbers in words: ``numbers 7, 9 to 12``."""
    found = list(ranges)
    named = [_name_range(*each) for each in found]
    more = len(named) - MAX_NAMED
    said = ", ".join(named[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
    one = len(found) == 1 and found[0].first == found[0].last
    return f"number {said}" if one else f"numbers {said}"


def _name_range(first: int, last: int) -> str:
    if last == MAX_SEQ:
        return f"from {first} on"
    return str(first) if first == last else f"{first} to {last}"


def survey(connection: sqlite3.Connection, *, contents: bool = True) -> Survey:
    """Survey a file; without its ``contents``, entries are counted and their rows not read."""
    structure = check_structure(connection)
    facts, lost_facts = _read_small(connection, "fact")
    floors, lost_floors = _read_small(connection, "space")
    known, _ = _read_small(connection, "missing")  # what is lost of it is a number in none
    missing = [Missing(*values) for values in known]

    numbers: Iterable[int]
    if contents or structure:
        numbers = (row.seq for row in good_rows(connection))
    else:
        numbers = (seq for (seq,) in connection.execute("SELECT seq FROM entry ORDER BY seq"))
    damaged, last = _sweep(numbers, missing)
    return Survey(
        structure=structure,
        damaged=damaged,
        last=last,
        facts=[KeptFact(*values) for values in facts],
        lost_facts=lost_facts,
        lost_floors=lost_floors,
        floors=dict(floors),
        missing=missing,
    )


def fold_facts(connection: sqlite3.Connection, found: Survey) -> list[KeptFact]:
    """The facts that hold, where some of them are lost: those that entries tell are known again.

    Only entries behind the damage count: what is lost may have ended what was said before it.
    """
    held = {(it.space, it.key): it.value for it in found.facts}
    behind = found.damaged[-1].last if found.damaged else 0
    for row in good_rows(connection) if not found.structure else ():
        for key, value in read_facts(row.facts) if row.facts and row.seq > behind else ():
            if value is None:
                held.pop((row.space, key), None)
            else:
                held[row.space, key] = encode_json(value).decode()
    return [KeptFact(*key, value) for key, value in held.items()]


def good_rows(connection: sqlite3.Connection) -> Iterator[Row]:
    """The rows that are what was written, by number; what cannot be read is passed over."""
    last = 0
    for values in _each_row(connection):
        row = checked_row(values)
        if row is not None and row.seq > last:
            last = row.seq
            yield row


def is_damage(error: sqlite3.Error) -> bool:
    """True if an error of SQLite says that the file is damaged."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _each_row(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    query = rows_query("NOT INDEXED WHERE seq > ? ORDER BY seq")
    after: int | None = 0
    while after is not None:
        try:
            for values in connection.execute(query, (after,)):
                after = max(after, values[0])
                yield values
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            after = _pass_over(connection, f"{query} LIMIT 1", after)
        else:
            return


def _pass_over(connection: sqlite3.Connection, query: str, after: int) -> int | None:
    """The least number behind a damaged page after which rows can be read; ``None``: none can."""

    def can_read(at: int) -> bool:
        try:
            connection.execute(query, (at,)).fetchone()
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            return False
        return True

    low, step = after, 1
    while not can_read(low + step):
        low, step = low + step, step * 2
        if low + step > MAX_SEQ:
            return None
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if can_read(middle) else (middle, high)
    return high


def _sweep(numbers: Iterable[int], missing: Iterable[Missing]) -> tuple[list[NumberRange], int]:
    """The numbers that no entry has, and of which it is not said why; and the last of the others.

    Both in order.
    """
    found: list[NumberRange] = []
    last = 0
    entries = ((seq - 1, seq) for seq in numbers)
    for after, until in heapq.merge(entries, ((it.after, it.until) for it in missing)):
        if after > last:
            found.append(NumberRange(last + 1, after))
        last = max(last, until)
    return found, last


def check_structure(connection: sqlite3.Connection, part: str = "1") -> str:
    """The first thing that SQLite finds wrong with a file's pages, or a table's; empty: none."""
    try:
        said = connection.execute(f"PRAGMA integrity_check({part})").fetchone()[0]
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        said = str(error)
    return "" if said == "ok" else " ".join(said.split())


def _read_small(connection: sqlite3.Connection, table: str) -> tuple[list[tuple[Any, ...]], int]:
    """The good rows of a table other than that of the entries, and the number of the others."""
    good: list[tuple[Any, ...]] = []
    bad = 0
    try:
        for values in connection.execute(READ_SMALL[table]):
            said = checked_values(values)
            if said is None:
                bad += 1
            else:
                good.append(said)
    except sqlite3.Error as error:
        if not is_damage(error):
            raise
        bad += 1
    return good, bad
