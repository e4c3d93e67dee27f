"""The file: its form, who may use it, and what is wrong with it.

The file is in WAL mode: who reads does not stop who writes, and what was committed is there for the
next process, however this one ends. With ``synchronous=NORMAL`` a power cut may take back the last
commits; with ``FULL`` it does not, at the price of an fsync for each.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

from meup_agent.errors import ConfigurationError

APPLICATION: Final = 0x4D455550
"""Tells a journal from another database: "MEUP", where SQLite keeps such a mark."""

VERSION: Final = 1
"""Of the tables; a gateway reads the files of older ones, and refuses those of newer ones."""

BUSY_SECONDS: Final = 30.0
"""How long somebody else may hold the file, say to copy it, before the gateway gives up."""

MAX_WAL_BYTES: Final = 16 * 1024 * 1024
"""Bytes to which the file beside the journal, where commits come first, is cut when it can be."""

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

    Args:
        path: The file; made if it is not there.
        synchronous: When a commit is on the disk.

    Attributes:
        path: The file.
        writer: For the one thread that writes.
        reader: For the one thread that reads.

    Raises:
        ConfigurationError: The file cannot be used; the message says which and why.
    """

    def __init__(self, path: Path, synchronous: Synchronous) -> None:
        self.path = path = path.absolute()
        self._connections: list[sqlite3.Connection] = []
        try:
            self._make(path)
            self._lock(path)
            self.writer = self._connect(path)
            self._check_form(self.writer)
            self.writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            self.writer.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
            self.reader = self._connect(path)
            self.reader.execute("PRAGMA query_only = TRUE")
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise ConfigurationError(
                f"the journal {path} cannot be used: {why(error)}; give a file that this process"
                " may write, in a directory that is there"
            ) from None
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the file; what is in the file beside it goes into it first, if it can."""
        for connection in reversed(self._connections):
            with suppress(sqlite3.Error):
                connection.close()
        self._connections.clear()

    @contextmanager
    def connected(self) -> Generator[sqlite3.Connection]:
        """One more connection, for the length of a block."""
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS)) as connection:
            yield connection

    def _make(self, path: Path) -> None:
        """Make the file, readable for nobody else: it holds everything that was said."""
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))

    def _lock(self, path: Path) -> None:
        """Keep other gateways out for as long as this process lives, and no longer."""
        beside = path.with_name(path.name + "-lock")
        lock = sqlite3.connect(beside, timeout=0, isolation_level=None, check_same_thread=False)
        self._connections.append(lock)
        try:
            lock.execute("PRAGMA journal_mode = MEMORY")
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            if not _is_busy(error):
                raise
            raise ConfigurationError(
                f"the journal {path} is another gateway's, which is running; stop that one, or"
                " give this one a file of its own"
            ) from None

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


def why(error: Exception) -> str:
    """What the system or SQLite says of a file, in lower case."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


def _is_busy(error: sqlite3.Error) -> bool:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF == sqlite3.SQLITE_BUSY
