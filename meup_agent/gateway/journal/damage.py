"""Damage of a journal's file: found in it and in its WAL, and the rest kept.

SQLite reads that file up to the first frame that is not right, and takes the rest for what a power
cut left; so one wrong byte in its middle makes everything behind it disappear without a word.
Behind a torn end nothing is right. Where whole transactions are right behind a frame that is not,
what was there is lost.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import errno
import heapq
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from meup_agent.errors import system_reason
from meup_agent.gateway.journal.rows import (
    DAMAGE,
    READ_SMALL,
    WRITE_FACT,
    WRITE_FLOOR,
    WRITE_MISSING,
    Missing,
    Row,
    checked_row,
    checked_values,
    make_tables,
    read_facts,
    rows_query,
    sealed,
)
from meup_agent.protocol.space.journal import MAX_SEQ, NumberRange
from meup_agent.protocol.wire.envelope import encode_json

# --- a survey of a journal's file ---
# What can be read of it, and which numbers damage took.
#
# SQLite notices little of what becomes of a file on a disk: it has no checksums, and leaves out
# what a page does not name any more. So three things are looked at. SQLite checks that its pages
# and its index fit together. Each row has a checksum. And each number is that of a row, or the
# file says why it is not (`tables`).

MAX_NAMED: Final = 8
"""Ranges of damaged numbers that a sentence names."""

BUSY_SECONDS: Final = 30.0
"""Time for which another program may hold the file, say to copy it, before the gateway gives up."""

_DAMAGED: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOTADB)
"""Errors of SQLite that a damaged file has; others, such as a lock, pass."""

_NOT_WRITTEN: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_SHMOPEN,  # of the file in -shm, which a reader makes, too
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_WRITE,
)
"""Errors of SQLite where the disk takes nothing, whatever the file holds."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The system's, for the same."""


KeptFact = tuple[str, str, str]
"""A fact that holds, as the file has it: its space, its key, and its value, a JSON object."""


@dataclass(slots=True)
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
    bad: list[int] = []
    if contents or structure:
        numbers = (row.seq for row in good_rows(connection, bad))
    else:
        numbers = (seq for (seq,) in connection.execute("SELECT seq FROM entry ORDER BY seq"))
    damaged, last = _sweep(numbers, missing)
    # The newest rows that are not what was written; a number that leaves out others is not one. In
    # the same reading: what a gateway writes meanwhile is not damaged.
    newest = last
    for seq in () if structure else bad:
        if seq == newest + 1:
            newest = seq
    if newest > last:
        damaged.append(NumberRange(last + 1, newest))
        last = newest
    return Survey(structure, damaged, last, facts, lost_facts, lost_floors, dict(floors), missing)


def fold_facts(connection: sqlite3.Connection, found: Survey) -> list[KeptFact]:
    """The facts that hold, where some of them are lost: those that entries tell are known again.

    Only entries behind the damage count: what is lost may have ended what was said before it.
    """
    held = {(space, key): value for space, key, value in found.facts}
    behind = found.damaged[-1].last if found.damaged else 0
    for row in good_rows(connection) if not found.structure else ():
        for key, value in read_facts(row.facts) if row.facts and row.seq > behind else ():
            if value is None:
                held.pop((row.space, key), None)
            else:
                held[row.space, key] = encode_json(value).decode()
    return [(*key, value) for key, value in held.items()]


def good_rows(connection: sqlite3.Connection, bad: list[int] | None = None) -> Iterator[Row]:
    """The rows that are what was written, by number; what cannot be read is passed over.

    ``bad`` gets the numbers of the other rows behind the last good one.
    """
    last = 0
    for values in _each_row(connection):
        row = checked_row(values)
        if row is not None and row.seq > last:
            last = row.seq
            if bad:
                bad.clear()
            yield row
        elif bad is not None:
            bad.append(values[0])


def error_text(error: Exception) -> str:
    """The reason that the system or SQLite gives, in lower case."""
    return system_reason(error) if isinstance(error, OSError) and error.strerror else str(error)


def is_write_failure(error: Exception) -> bool:
    """True if the disk takes nothing: it is full, say, and what it holds may be whole."""
    if isinstance(error, OSError):
        return error.errno in _NO_ROOM
    return getattr(error, "sqlite_errorcode", 0) in _NOT_WRITTEN


def is_damage(error: Exception) -> bool:
    if isinstance(error, UnicodeDecodeError):
        return True  # SQLite quotes a name that is not text
    if is_write_failure(error):
        return False
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED


def _each_row(connection: sqlite3.Connection) -> Iterator[tuple[Any, ...]]:
    query = rows_query("NOT INDEXED WHERE seq > ? ORDER BY seq")

    def rows(after: int, limit: int = -1) -> Iterator[tuple[Any, ...]]:
        """The rows behind a number. OutOfOrder, or an error: one cannot be read."""
        for values in connection.execute(f"{query} LIMIT ?", (after, limit)):
            if values[0] <= after:
                raise _OutOfOrder
            after = values[0]
            yield values

    def can_read(after: int) -> bool:
        try:
            list(rows(after, 1))
            return True
        except (sqlite3.Error, _OutOfOrder) as error:
            _check_damage(error)
            return False

    after = 0
    while True:
        try:
            for values in rows(after):
                after = values[0]
                yield values
            return
        except (sqlite3.Error, _OutOfOrder) as error:
            _check_damage(error)
        if can_read(after):
            # The cursor reads one ahead: it fails for the row before the damage, too.
            for values in rows(after, 1):
                after = values[0]
                yield values
        readable = _pass_over(can_read, after)
        if readable is None:
            return
        after = readable


class _OutOfOrder(Exception):
    """Pages that do not fit together lead back to a row, perhaps without end."""


def _check_damage(error: Exception) -> None:
    """Raise an error again that does not say that the file is damaged."""
    if not (isinstance(error, _OutOfOrder) or is_damage(error)):
        raise error


def _pass_over(can_read: Callable[[int], bool], after: int) -> int | None:
    """The least number behind a damaged page after which rows can be read; ``None``: none can."""
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


# --- repair ---
# Makes a journal's file anew, of what can be read of a damaged one.
#
# The new file is made beside, and copied over the old one in one transaction: whatever ends the
# process meanwhile, the file is the old one or the new one, and keeps its lock and all its names.

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


# --- wal ---

MAGIC: Final = 0x377F0682
"""The first word; one more where checksums are of big-endian words."""

USUAL_PAGE_SIZE: Final = 4_096
"""The page size where neither the file nor the database has another."""

_HEAD: Final = struct.Struct(">8I")
_FRAME_HEAD: Final = struct.Struct(">6I")
_INDEX: Final = struct.Struct("=16x I 12x 2I 56x I")
_INDEX_COPY: Final = 48  # bytes of a copy of its head, of which there are two
_FORMAT: Final = 3_007_000
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))
_WORD: Final = 0xFFFFFFFF


class WalDamage(NamedTuple):
    """Damage of such a file: the frames, each a page of the database, before it and lost by it.

    It is certain where a power cut cannot have done it, if each commit waits for the disk: the
    damage is followed by more than the one transaction that was being written. It is torn where
    nothing that is right follows: as a rule, a power cut has done it.
    """

    kept: int
    lost: int
    certain: bool
    torn: bool = False


class _Frame(NamedTuple):
    commits: bool
    salts: tuple[int, int]
    sums: tuple[int, int]
    data: bytes


def wal_of(database: Path) -> Path:
    """The write-ahead log of a database."""
    return database.with_name(f"{database.name}-wal")


def find_damage(wal: Path, page_size: int) -> WalDamage | None:
    """Find the damage of such a file; ``None``: there is none.

    The size of the database's pages counts where the file does not say it any more. Where the file
    was not read since the process that wrote it was killed, SQLite's index of it (``-shm``) is
    still there, and tells how many frames it had.
    """
    index = _read_index(wal.with_name(f"{wal.name.removesuffix('-wal')}-shm"))
    try:
        with wal.open("rb") as file:
            return _find_damage(file, page_size, index)
    except FileNotFoundError:
        return _missing(index, 0)


class _Index(NamedTuple):
    """The head of the index: how many frames it has, and of which the database has the pages."""

    frames: int
    in_database: int
    salts: tuple[int, int]


def _read_index(shm: Path) -> _Index | None:
    try:
        with shm.open("rb") as file:
            head = file.read(_INDEX.size)
    except FileNotFoundError:
        return None
    if len(head) < _INDEX.size or head[:_INDEX_COPY] != head[_INDEX_COPY : 2 * _INDEX_COPY]:
        return None
    frames, salt1, salt2, in_database = _INDEX.unpack(head)
    # The salts are copied from the file, whatever order of bytes this machine has.
    salts = struct.pack("=2I", salt1, salt2)
    return _Index(frames, in_database, struct.unpack(">2I", salts))


def _missing(index: _Index | None, kept: int) -> WalDamage | None:
    """The damage of a file that ends before its index does."""
    if index is None or index.frames <= max(kept, index.in_database):
        return None
    return WalDamage(kept, index.frames - kept, certain=True)


def _find_damage(file: BinaryIO, page_size: int, index: _Index | None) -> WalDamage | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return _missing(index, 0)
    magic, version, said_size, _, salt1, salt2, sum1, sum2 = _HEAD.unpack(head)
    words, salts = ">" if magic & 1 else "<", (salt1, salt2)
    usable = (
        magic & ~1 == MAGIC
        and version == _FORMAT
        and said_size in _PAGE_SIZES
        and _checksum(words, head[:24], (0, 0)) == (sum1, sum2)
    )
    sizes = (size for size in (said_size, page_size) if size in _PAGE_SIZES)
    if index is not None and index.salts != salts:
        index = None  # of another turn
    # Each frame can be judged by itself, from the checksum that the one before it says. The salts
    # are the same in all frames of a file; without a usable head they are not known.
    number = kept = commits = 0
    whole, is_ours, goes_on = usable, True, False
    last, before = salts, (sum1, sum2) if usable else None
    for number, frame in enumerate(_frames(file, next(sizes, USUAL_PAGE_SIZE)), 1):
        same = frame.salts == (salts if usable else last)
        right = before is not None and same and _checksum(words, frame.data, before) == frame.sums
        if not whole and right:
            # A transaction that is right although what comes before it is not.
            goes_on = goes_on or commits > 0
            commits += frame.commits
        elif whole and not right:
            whole = False
            # Frames of an older turn have neither of the salts of this one.
            is_ours = any(map(int.__eq__, frame.salts, salts))
        elif whole and frame.commits:
            kept = number
        before, last = frame.sums, frame.salts
    if commits:
        # Nothing behind a wrong head will be read. Torn while it was begun anew, it has frames that
        # are in the database since; their salts are older than the head's.
        return WalDamage(kept, number - kept, certain=goes_on if usable else last == salts)
    missing = _missing(index, kept) if usable else None
    if missing or whole or not (is_ours and number):
        return missing
    return WalDamage(kept, number - kept, certain=False, torn=True)


def _frames(file: BinaryIO, page_size: int) -> Iterator[_Frame]:
    size = _FRAME_HEAD.size + page_size
    while len(frame := file.read(size)) == size:
        _, pages, salt1, salt2, sum1, sum2 = _FRAME_HEAD.unpack_from(frame)
        data = frame[:8] + frame[_FRAME_HEAD.size :]
        yield _Frame(pages != 0, (salt1, salt2), (sum1, sum2), data)


def _checksum(words: str, data: bytes, before: tuple[int, int]) -> tuple[int, int]:
    """Of all before and these, whose size must be a multiple of 8."""
    sum1, sum2 = before
    for word1, word2 in struct.iter_unpack(f"{words}2I", data):
        sum1 = (sum1 + word1 + sum2) & _WORD
        sum2 = (sum2 + word2 + sum1) & _WORD
    return sum1, sum2
