"""The lock that keeps a journal's file from a second gateway, whatever name that one gives it.

What is locked is the file itself and not a name: a link, symbolic or hard, leads to the same lock.
The file is SQLite's, which locks it by record locks (POSIX): those of a process end as soon as the
process closes *any* descriptor of the file. So ours is opened before SQLite's and closed after
them, it is never opened where this process has the file already, and its lock is of the kind that
belongs to a descriptor and not to the process (F_OFD_SETLK), on a byte that SQLite does not use.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import sys
import threading
from pathlib import Path
from typing import Final

from meup_agent.errors import ConfigurationError

LOCKED_BYTE: Final = 2**62
"""Far behind what a file can have, and behind the bytes at 1 GiB that SQLite locks."""

_held: Final = set[tuple[int, int]]()
"""Device and inode of the files that this process has locked."""

_changing: Final = threading.Lock()


class FileLock:
    """A file, locked for as long as this process lives, and no longer.

    Args:
        path: The file; made, readable for nobody else, if it is not there.

    Attributes:
        descriptor: Of the file, open for reading and writing.

    Raises:
        ConfigurationError: Another gateway has it.
        OSError: It cannot be opened or locked.
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
        """Let go of the file; after SQLite has."""
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
"""Whether the system has locks that belong to a descriptor; the others' record locks would end with
any descriptor of SQLite's, and their locks of whole files keep SQLite's own away."""


def _lock_beside(path: Path, names: int) -> sqlite3.Connection:
    """Lock a file beside, by SQLite, where the file itself cannot be locked.

    Raises:
        ConfigurationError: Another gateway has it, or could have it by another name.
    """
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
