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
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.wal import WalDamage, find_damage

log = logging.getLogger("meup_agent.gateway")

APPLICATION: Final = 0x4D455550
"""Tells a journal from another database: "MEUP", where SQLite keeps such a mark."""

VERSION: Final = 1
"""Of the tables; a gateway reads the files of older ones, and refuses those of newer ones."""

BUSY_SECONDS: Final = 30.0
"""Time for which another program may hold the file, say to copy it, before the gateway gives up."""

MAX_WAL_BYTES: Final = 16 * 1024 * 1024
"""Bytes to which the file beside the journal, where commits come first, is cut when it can be."""

PAGE_SIZE_AT: Final = 16
"""The offset in the file of the size of its pages."""

_TABLES: Final = """
CREATE TABLE envelope (
    seq INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    at INTEGER NOT NULL,
    sender TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    "to" TEXT NOT NULL,
    correlation TEXT NOT NULL,
    context TEXT,
    dialect TEXT NOT NULL,
    frame BLOB NOT NULL
);
CREATE INDEX envelope_of_space ON envelope (space, seq);
CREATE TABLE fact (
    said INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (space, key)
);
CREATE TABLE space (
    name TEXT PRIMARY KEY,
    floor INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE unknown (
    after INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
);
"""
# "to" and "correlation" are JSON lists; "at" is in microseconds since 1970 (UTC). What is missing
# of a space is what has a number up to its floor. Numbers that are unknown lie between the last of
# the file and the first after a start: who has seen one saw what a power cut took back.

Synchronous = Literal["normal", "full"]


class Database:
    """A journal's file, locked against other gateways.

    One thread has the ``writer``, another the ``reader``. ``damage`` was found before SQLite opened
    the file; what came last is lost then. ``accept_damage`` goes on although no power cut can have
    done it.
    """

    def __init__(
        self, path: Path, synchronous: Synchronous, *, accept_damage: bool = False
    ) -> None:
        # As SQLite, which names the file beside it by the path without symbolic links.
        self.path = path = Path(os.path.realpath(path))
        self.damage: WalDamage | None = None
        self._lock: FileLock | None = None
        self._connections: list[sqlite3.Connection] = []
        try:
            self._lock = FileLock(path)
            self._look_for_damage(self._lock, refuse=synchronous == "full" and not accept_damage)
            self.writer = self._connect(path)
            self._check_form(self.writer)
            self.writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            self.writer.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
            self.reader = self._connect(path)
            self.reader.execute("PRAGMA query_only = TRUE")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise ConfigurationError(
                f"the journal {path} cannot be used: {error_text(error)}; give a file that this"
                " process may write, in a directory that is there"
            ) from None
        except ConfigurationError:
            self.close()
            raise

    def file_size(self) -> int:
        """Bytes of the file and of the one beside it."""
        files = (self.path, self.path.with_name(f"{self.path.name}-wal"))
        return sum(each.stat().st_size for each in files if each.exists())

    def close(self) -> None:
        """Close the file; what is in the file beside it goes into it first, if it can."""
        for connection in reversed(self._connections):
            with suppress(sqlite3.Error):
                connection.close()
        self._connections.clear()
        if self._lock is not None:
            self._lock.close()

    def _look_for_damage(self, lock: FileLock, *, refuse: bool) -> None:
        """Find damage that SQLite would pass over without a word, and keep what it would drop."""
        wal = self.path.with_name(f"{self.path.name}-wal")
        os.lseek(lock.descriptor, PAGE_SIZE_AT, os.SEEK_SET)
        damage = find_damage(wal, int.from_bytes(os.read(lock.descriptor, 2)))
        if damage is None:
            return
        what = (
            f"the file {wal} is damaged in its middle: {damage.lost} of its"
            f" {damage.kept + damage.lost} pages cannot be read, and what they held is lost"
        )
        if refuse and damage.certain:
            raise ConfigurationError(
                f"{what}; with synchronous: full no power cut does that, so look after the disk,"
                " and restore a copy, or start with what is left (journal.accept_damage, or"
                " --accept-damage)"
            )
        aside = _copy_aside(wal)
        log.error("%s; it is kept as %s, and members that come back are told of a gap", what, aside)
        self.damage = damage

    @contextmanager
    def connected(self) -> Generator[sqlite3.Connection]:
        """One more connection, for the length of a block."""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as connection:
            yield connection

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._connections.append(connection)
        return connection

    def _check_form(self, writer: sqlite3.Connection) -> None:
        """Make the tables in an empty file, and look at what another one is."""
        path = self.path
        application: int = writer.execute("PRAGMA application_id").fetchone()[0]
        version: int = writer.execute("PRAGMA user_version").fetchone()[0]
        tables: int = writer.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if not tables:
            # Before the first table: a file cannot be made smaller later without it.
            writer.execute("PRAGMA auto_vacuum = INCREMENTAL")
        elif application != APPLICATION:
            raise ConfigurationError(
                f"{path} is a database, but no journal of a gateway; give another file"
            )
        elif version > VERSION:
            raise ConfigurationError(
                f"the journal {path} is of a newer version of this package ({version}, not"
                f" {VERSION}); run that one, or give another file"
            )
        mode: str = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise ConfigurationError(
                f"the journal {path} cannot be written by one and read by another at once there;"
                " give a file on a disk of this machine"
            )
        if not tables:
            writer.executescript(
                f"BEGIN; {_TABLES} PRAGMA application_id = {APPLICATION};"
                f" PRAGMA user_version = {VERSION}; COMMIT;"
            )
        else:
            # A file that cannot be written is found out now, and not by the first envelope.
            writer.execute("BEGIN IMMEDIATE")
            writer.execute("ROLLBACK")


def error_text(error: Exception) -> str:
    """The reason that the system or SQLite gives, in lower case."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _copy_aside(wal: Path) -> Path:
    """Copy a damaged file, readable for its owner alone, before SQLite writes over it."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    aside = wal.with_name(f"{wal.name}.damaged-{stamp}")
    to = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(to, "wb") as copy, wal.open("rb") as damaged:
        shutil.copyfileobj(damaged, copy)
        copy.flush()
        os.fsync(copy.fileno())
    return aside


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
        self.descriptor = -1
        self._key: tuple[int, int] | None = None
        self._beside: sqlite3.Connection | None = None
        # Two threads that open one file at once would each close a descriptor of the other's file.
        with _changing:
            if _is_held(path):
                raise _anothers(path)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                self._lock(path)
            except BaseException:
                os.close(self.descriptor)
                raise
            found = os.fstat(self.descriptor)
            self._key = (found.st_dev, found.st_ino)
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


def _is_held(path: Path) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) in _held


def _anothers(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"the journal {path} is another gateway's, which is running; stop that one, or give this"
        " one a file of its own"
    )
