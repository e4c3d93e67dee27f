"""The file of a journal: its form, its damage, and the lock against a second gateway.

The file is in WAL mode: who reads does not stop who writes, and what was committed is there for the
next process, however this one ends. With ``synchronous=NORMAL`` a power cut may take back the last
commits; with ``FULL`` it does not, at the price of an fsync for each.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import struct
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Literal

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.damage import find_damage, is_damage, rebuild, survey, wal_of
from meup_agent.gateway.journal.decisions import ensure_index
from meup_agent.gateway.journal.rows import has_tables, make_tables

log = logging.getLogger("meup_agent.gateway")

BUSY_SECONDS: Final = 30.0
"""Time for which another program may hold the file, say to copy it, before the gateway gives up."""

MAX_WAL_BYTES: Final = 16 * 1024 * 1024
"""Bytes to which the file beside the journal, where commits come first, is cut when it can be."""

PAGE_SIZE_AT: Final = 16
"""The offset in the file of the size of its pages."""

OR_ACCEPT: Final = (
    "look after the disk, and restore a backup, or start without what is lost"
    " (journal.accept_damage, or --accept-damage)"
)

Synchronous = Literal["normal", "full"]


class Database:
    """A journal's file, locked against other gateways, and whole as far as can be known.

    One thread has the ``writer``, another the ``reader``. Where damage was found and accepted, the
    file was made anew from what can be read, and the damaged one is kept; with ``tail_lost`` what
    came last may be among what is lost.
    """

    def __init__(
        self, path: Path, synchronous: Synchronous, *, accept_damage: bool = False
    ) -> None:
        # As SQLite, which names the file beside it by the path without symbolic links.
        self.path = path = Path(os.path.realpath(path))
        self.tail_lost = False
        self._accept_damage = accept_damage
        self._lock: FileLock | None = None
        self._connections: list[sqlite3.Connection] = []
        is_old = path.exists()
        try:
            self._lock = FileLock(path)
            if os.fstat(self._lock.descriptor).st_size:
                self._check_wal(self._lock, refuse=synchronous == "full" and not accept_damage)
            elif is_old:
                self._check_empty()
            self.writer = self._connect(path)
            self._check_form(self.writer, self._lock)
            self.writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            self.writer.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
            self.reader = self._connect(path)
            self.reader.execute("PRAGMA query_only = TRUE")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            if is_damage(error):
                raise ConfigurationError(
                    f"the journal {path} is damaged, or no journal: {error_text(error)}; restore a"
                    " backup, or give another file"
                ) from None
            raise ConfigurationError(
                f"the journal {path} cannot be used: {error_text(error)}; give a file that this"
                " process may write, in a directory that is there"
            ) from None
        except ConfigurationError:
            self.close()
            raise

    def file_size(self) -> int:
        """Bytes of the file and of the one beside it."""
        files = (self.path, wal_of(self.path))
        return sum(each.stat().st_size for each in files if each.exists())

    def close(self) -> None:
        """Close the file; what is in the file beside it goes into it first, if it can."""
        for connection in reversed(self._connections):
            with suppress(sqlite3.Error):
                connection.close()
        self._connections.clear()
        if self._lock is not None:
            self._lock.close()

    def _check_wal(self, lock: FileLock, *, refuse: bool) -> None:
        """Find damage that SQLite would pass over without a word, and keep what it would drop."""
        wal = wal_of(self.path)
        page_size = int.from_bytes(os.pread(lock.descriptor, 2, PAGE_SIZE_AT))
        damage = find_damage(wal, page_size)
        if damage is None:
            return
        what = (
            f"the file {wal} is damaged: {damage.lost} of its {damage.kept + damage.lost} pages"
            " cannot be read, and what they held is lost"
        )
        if damage.torn:
            log.warning("%s, as a power cut in the middle of a commit leaves it", what)
            return
        if refuse and damage.certain:
            raise ConfigurationError(
                f"{what}; with synchronous: full no power cut does that, so {OR_ACCEPT}"
            )
        self._keep_wal(what)
        self.tail_lost = True

    def _check_empty(self) -> None:
        """Look at a file that is there and empty: one that was cut is not begun anew."""
        wal = wal_of(self.path)
        if not wal.exists() or not wal.stat().st_size:
            log.warning("the journal %s is an empty file, so a new one begins", self.path)
            return
        what = f"the journal {self.path} is damaged: it is empty, though {wal} is not"
        if not self._accept_damage:
            raise ConfigurationError(f"{what}; {OR_ACCEPT}")
        self._keep_wal(what)

    def _keep_wal(self, what: str) -> None:
        wal = wal_of(self.path)
        if wal.exists():
            with wal.open("rb") as damaged:
                self._keep_aside(what, wal, damaged)
        else:
            log.error("%s; members that come back are told of a gap", what)

    def _check_form(self, writer: sqlite3.Connection, lock: FileLock) -> None:
        """Make the tables in an empty file; look through another one.

        It is made anew where it is damaged and that is accepted.
        """
        is_new = not has_tables(writer, self.path)
        if is_new:
            # Before the first table: a file cannot be made smaller later without it.
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        mode: str = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise ConfigurationError(
                f"the journal {self.path} cannot be written by one and read by another at once"
                " there; give a file on a disk of this machine"
            )
        if is_new:
            make_tables(writer)
            ensure_index(writer, self.path)
            return
        # A file that cannot be written is found out now, and not by the first envelope.
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("ROLLBACK")
        found = survey(writer)
        if found.is_damaged:
            what = f"the journal {self.path} is damaged: {found}"
            if not self._accept_damage:
                raise ConfigurationError(f"{what}; {OR_ACCEPT}")
            checkpoint(writer)
            # By the descriptor of the lock: to close another one of this file would take away the
            # locks that SQLite has on it.
            with open(lock.descriptor, "rb", closefd=False) as damaged:
                self._keep_aside(what, self.path, damaged)
            self.tail_lost = self.tail_lost or bool(found.structure)
            rebuild(writer, found, self.path)
        ensure_index(writer, self.path)

    def _keep_aside(self, what: str, path: Path, damaged: BinaryIO) -> None:
        """Copy a damaged file, readable for its owner alone, and say so."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = path.with_name(f"{path.name}.damaged-{stamp}")
        to = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(to, "wb") as copy:
            damaged.seek(0)
            shutil.copyfileobj(damaged, copy)
            copy.flush()
            os.fsync(copy.fileno())
        log.error("%s; it is kept as %s, and members that come back are told of a gap", what, aside)

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        return connection


def checkpoint(connection: sqlite3.Connection) -> None:
    """Move what is in the file beside the journal into that, and cut the file to nothing."""
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("another program reads it; end that one")


def error_text(error: Exception) -> str:
    """The reason that the system or SQLite gives, in lower case."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


LOCKED_BYTE: Final = 2**62
"""Far behind what a file can have, and behind the bytes at 1 GiB that SQLite locks."""

_held: Final = set[tuple[int, int]]()
"""Device and inode of the files that this process has locked."""

_changing: Final = threading.Lock()


class FileLock:
    """A file, locked for as long as this process lives, and no longer.

    It is made, readable for its owner alone, if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._key: tuple[int, int] | None = None
        self._beside: sqlite3.Connection | None = None
        # Two threads that open one file at once would each close a descriptor of the other's file.
        with _changing:
            with suppress(FileNotFoundError):
                if _key_of(path.stat()) in _held:
                    raise _anothers(path)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._lock(path)
            except BaseException:
                os.close(self.descriptor)
                raise
            self._key = _key_of(os.fstat(self.descriptor))
            _held.add(self._key)

    def close(self) -> None:
        """Close the file; after SQLite has."""
        with _changing:
            if self._key is None:
                return
            _held.discard(self._key)
            self._key = None
            if self._beside is not None:
                self._beside.close()
            os.close(self.descriptor)

    def _lock(self, path: Path) -> None:
        if not HAS_DESCRIPTOR_LOCKS:
            self._beside = _lock_beside(path, os.fstat(self.descriptor).st_nlink)
            return
        import fcntl

        asked = struct.pack("hhqqi0q", fcntl.F_WRLCK, os.SEEK_SET, LOCKED_BYTE, 1, 0)
        try:
            fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, asked)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                raise _anothers(path) from None
            raise


HAS_DESCRIPTOR_LOCKS = sys.platform == "linux"
"""True if the system has locks that belong to a descriptor; the others' record locks would end with
any descriptor of SQLite's, and their locks of whole files keep SQLite's own away."""


def _lock_beside(path: Path, names: int) -> sqlite3.Connection:
    """Lock a file beside, by SQLite, where the file itself cannot be locked."""
    if names > 1:
        raise ConfigurationError(
            f"the journal {path} has {names} names (hard links), and this system cannot lock it for"
            " all of them; remove the others, or give another file"
        )
    beside = path.with_name(path.name + "-lock")
    lock = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        lock.execute("PRAGMA journal_mode = MEMORY")
        lock.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        lock.close()
        code: int = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF != sqlite3.SQLITE_BUSY:
            raise
        raise _anothers(path) from None
    return lock


def _key_of(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _anothers(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"the journal {path} is another gateway's, which is running; stop that one, or give this"
        " one a file of its own"
    )
