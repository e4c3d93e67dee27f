"""The archive: a journal's file as other programs read it, while its gateway runs or long after."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any
from urllib.parse import quote

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.database import APPLICATION, BUSY_SECONDS, VERSION, error_text
from meup_agent.gateway.journal.rows import READ_ROWS, envelope_of
from meup_agent.gateway.journal.wal import find_damage
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, Entry

log = logging.getLogger("meup_agent.gateway")


class Archive:
    """The file, opened so that nothing in it can change by it; close it in the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        try:
            if not path.is_file():
                raise ConfigurationError(f"there is no journal {path}; give a journal's file")
            self._warn_of_damage()
            self._connection = self._open()
            self._check_form()
        except (sqlite3.Error, OSError) as error:
            self.close()
            raise self._unreadable(error) from None
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def spaces(self) -> list[str]:
        """The spaces that it has entries of, by name."""
        return [name for (name,) in self._ask("SELECT DISTINCT space FROM envelope ORDER BY space")]

    def latest(self, space: str) -> int:
        """The number of a space's last entry; 0 where there is none."""
        ((found,),) = self._ask("SELECT max(seq) FROM envelope WHERE space = ?", space)
        return found or 0

    def before(self, space: str, at: int) -> int:
        """The number of the last entry before a time in microseconds; 0 where there is none."""
        ((found,),) = self._ask(
            "SELECT max(seq) FROM envelope WHERE space = ? AND at < ?", space, at
        )
        return found or 0

    def read(
        self, space: str, *, after: int, until: int, limit: int, kinds: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        """The entries with ``after < seq <= until``, oldest first; see :meth:`Journal.read`.

        Of some ``kinds`` alone, if any are named.
        """
        assert self._connection is not None, "it was closed"
        of_kinds = f"AND kind IN ({', '.join('?' * len(kinds))})" if kinds else ""
        question, size = READ_ROWS.format(of_kinds=of_kinds), 0
        found: list[Entry] = []
        try:
            rows = self._connection.execute(question, (space, after, until, *kinds, limit))
            for seq, at, correlation, frame in rows:
                size += len(frame)
                if found and size > MAX_PAGE_BYTES:
                    break
                envelope = envelope_of(seq, correlation, bytes(frame))
                if envelope is not None:
                    found.append(Entry(seq, space, at, envelope))
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        return tuple(found)

    def _open(self) -> sqlite3.Connection:
        address = f"file:{quote(str(self._path.absolute()))}"
        connection = sqlite3.connect(f"{address}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.Error as error:
            connection.close()
            is_database = isinstance(error, sqlite3.OperationalError)
            if not is_database or self._path.with_name(f"{self._path.name}-wal").exists():
                raise
            # In a directory that cannot be written nothing writes, so the file is all there is.
            connection = sqlite3.connect(f"{address}?immutable=1", uri=True)
        return connection

    def _warn_of_damage(self) -> None:
        """Warn of what SQLite would leave out without a word."""
        path = Path(os.path.realpath(self._path))
        damage = find_damage(path.with_name(f"{path.name}-wal"), 0)
        if damage is not None:
            log.warning(
                "the journal %s was damaged: what %d pages held that came last cannot be read",
                self._path,
                damage.lost,
            )

    def _check_form(self) -> None:
        ((application,),) = self._ask("PRAGMA application_id")
        ((version,),) = self._ask("PRAGMA user_version")
        if application != APPLICATION:
            raise ConfigurationError(
                f"{self._path} is a database, but no journal of a gateway; give a journal's file"
            )
        if version > VERSION:
            raise ConfigurationError(
                f"the journal {self._path} is of a newer version of this package ({version}, not"
                f" {VERSION}); read it with that one"
            )

    def _ask(self, question: str, *values: str | int) -> list[Any]:
        assert self._connection is not None, "it was closed"
        try:
            return self._connection.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: Exception) -> ConfigurationError:
        return ConfigurationError(f"the journal {self._path} cannot be read: {error_text(error)}")
