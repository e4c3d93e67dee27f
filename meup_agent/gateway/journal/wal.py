"""Finds damage in the file that SQLite writes first (WAL), before SQLite reads it.

SQLite reads that file up to the first frame that is not right, and takes the rest for what a power
cut left; so one wrong byte in its middle makes everything behind it disappear without a word.
Behind a torn end nothing is right. Where whole transactions are right behind a frame that is not,
what was there is lost.

https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

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
