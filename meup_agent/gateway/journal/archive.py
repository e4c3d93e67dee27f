"""The archive: a journal as other programs read it, while its gateway runs or long after."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.damage import (
    BUSY_SECONDS,
    check_structure,
    error_text,
    find_damage,
    is_damage,
    is_write_failure,
    survey,
    wal_of,
    write_readable,
)
from meup_agent.gateway.journal.decisions import (
    INDEX_TABLES,
    Chains,
    DamagedIndex,
    DecisionQuery,
    find_chains,
    has_index,
    read_seen,
    snapshot,
)
from meup_agent.gateway.journal.rows import (
    checked_row,
    entry_of,
    has_tables,
    held_facts,
    rows_query,
)
from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, MAX_SEQ, Entry, NumberRange

# --- the archive ---

PAGES_AT_ONCE: Final = 2_000
"""Pages that are copied before a signal can end it: some megabytes."""

READINGS: Final = 5
"""Readings of what SQLite has not moved into a journal's file yet, until one is of a file that
stood still meanwhile: what a gateway overwrites while it is read looks damaged."""


_SPACES: Final = """
WITH RECURSIVE each(name) AS (
    SELECT min(space) FROM entry
    UNION ALL
    SELECT (SELECT min(space) FROM entry WHERE space > name) FROM each WHERE name IS NOT NULL
)
SELECT name FROM each WHERE name IS NOT NULL
"""
# One look into the index for each space, where DISTINCT goes through all entries.


class JournalArchive(Protocol):
    """A journal as other programs read it."""

    @property
    def damaged(self) -> list[NumberRange]:
        """The numbers of entries that damage took, as far as they are known by now."""
        ...

    @property
    def spaces(self) -> list[str]:
        """Those that have entries, or facts."""
        ...

    def latest(self, space: str) -> int:
        """The number of a space's last entry; 0 where there is none."""
        ...

    def before(self, space: str, at: int) -> int:
        """The number of the last entry before a time in microseconds; 0 where there is none."""
        ...

    def read(
        self, space: str, *, after: int, until: int, limit: int, kinds: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        """The entries with ``after < seq <= until``, oldest first; see :meth:`Journal.read`.

        Of some ``kinds`` alone, if any are named. None: there are none behind ``after``.

        Raises:
            ConfigurationError: One is damaged, and that is not accepted.
        """
        ...

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        """The facts that hold in a space."""
        ...

    def seen(self, space: str) -> dict[str, int]:
        """The time up to which each participant has seen what expired."""
        ...

    def find_chains(self, space: str, query: DecisionQuery) -> Chains | None:
        """The entries about the proposals that a query may mean.

        ``None``: the journal does not tell them from the others, or they are most of it.
        """
        ...

    def close(self) -> None:
        """Let go of it."""


class ServerArchive(JournalArchive, Protocol):
    """A journal on a server, which is copied from there, or to there.

    It is a base, too: engines say how a page is read.
    """

    @property
    def damaged(self) -> list[NumberRange]:
        return []

    def find_chains(self, space: str, query: DecisionQuery) -> Chains | None:
        return None

    def read(
        self, space: str, *, after: int, until: int, limit: int, kinds: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        while after < until and (page := self.page(space, after, until, limit)):
            found = tuple(each for each in page if not kinds or each.envelope.kind in kinds)
            if found:
                return found
            after = page[-1].seq
        return ()

    def page(self, space: str, after: int, until: int, limit: int) -> tuple[Entry, ...]:
        """A page of entries with ``after < seq <= until``, oldest first."""
        ...

    def find_owner(self) -> str | None:
        """The name of a gateway that uses it; ``None``: none does; empty: it does not answer."""
        ...

    def has_grown(self, space: str) -> bool:
        """True if something was written to a space since the archive was opened."""
        ...

    def is_part(self, space: str) -> bool:
        """True if a space is a copy that is not complete."""
        ...

    def end_copy(self, space: str) -> None:
        """Say that a space holds all that was to be copied into it."""


class Archive:
    """The file, opened so that nothing in it can change by it; close it in the end.

    Damage is refused, unless ``accept_damage``: then the archive is what can be read. What does not
    look through the file at once finds the damage of what it reads alone.

    Attributes:
        damaged: The numbers of entries that damage took, also those without which a gateway went on
            before.
    """

    def __init__(
        self, path: Path, *, accept_damage: bool = False, looks_through: bool = True
    ) -> None:
        self._path = path
        self._opened = ExitStack()
        try:
            if not path.is_file():
                raise ConfigurationError(f"there is no journal {path}; give a journal's file")
            lost_pages = self._find_lost_pages()
            connection = self._open()
            if not has_tables(connection, path):
                raise ConfigurationError(f"the journal {path} is empty; give a journal's file")
            self.damaged = list[NumberRange]()
            if not looks_through:
                return
            # Each row is checked when it is read, or here, where damage is not to end the reading.
            found = survey(connection, contents=accept_damage)
            self.damaged += sorted([*found.accepted, *found.lost])
            if lost_pages:
                if not accept_damage:
                    raise self._is_damaged(f"its last {lost_pages} pages cannot be read")
                self.damaged.append(NumberRange(found.last + 1, MAX_SEQ))
            if found.is_damaged:
                if not accept_damage:
                    raise self._is_damaged(str(found))
                # From a copy of what can be read, as an index that is damaged leaves out entries.
                # Without a name it is in a file of SQLite's own, which goes with the connection.
                write_readable(self._connect("", isolation_level=None), connection, found)
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            raise self._unreadable(error) from None
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        self._opened.close()

    def check(self) -> None:
        """Check each row now, and not when it is read.

        Raises:
            ConfigurationError: One is damaged.
        """
        self.check_copy(self._connection)

    def copy_to(self, copy: sqlite3.Connection) -> None:
        """Copy all of the file, as it is at this moment, into another database."""
        source = self._connection
        # Otherwise the copy would begin again each time something is written.
        with snapshot(source):
            source.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            # After each step Python handles signals, as of Ctrl-C, where it calls something.
            source.backup(copy, pages=PAGES_AT_ONCE, progress=lambda _1, _2, _3: None)

    def check_copy(self, copy: sqlite3.Connection) -> int:
        """Check each row of a copy; how many there are.

        Raises:
            ConfigurationError: One is damaged, and so it is in this file.
        """
        found = survey(copy)
        if found.is_damaged:
            raise self._is_damaged(str(found))
        ((count,),) = copy.execute("SELECT count(*) FROM entry")
        return int(count)

    @property
    def spaces(self) -> list[str]:
        holding = self._ask("SELECT DISTINCT space FROM fact ORDER BY space")
        return list(dict.fromkeys(name for (name,) in [*self._ask(_SPACES), *holding]))

    def latest(self, space: str) -> int:
        ((found,),) = self._ask("SELECT max(seq) FROM entry WHERE space = ?", space)
        return found or 0

    def before(self, space: str, at: int) -> int:
        ((found,),) = self._ask("SELECT max(seq) FROM entry WHERE space = ? AND at < ?", space, at)
        return found or 0

    def read(
        self, space: str, *, after: int, until: int, limit: int, kinds: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        where = "WHERE space = ? AND seq > ? AND seq <= ? ORDER BY seq"
        query, size = rows_query(where), 0
        found: list[Entry] = []
        try:
            for values in self._connection.execute(query, (space, after, until)):
                row = checked_row(values)
                if row is None:
                    raise self._is_damaged(f"number {values[0]} cannot be read")
                if kinds and row.kind not in kinds:
                    continue
                size += len(row.frame)
                if found and size > MAX_PAGE_BYTES:
                    break
                entry = entry_of(row)
                if entry is not None:
                    found.append(entry)
                if len(found) == limit:
                    break
        except sqlite3.Error as error:
            raise self._unreadable(error) from None
        return tuple(found)

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        try:
            return dict(held_facts(self._connection, space))
        except (sqlite3.Error, ValueError) as error:
            raise self._is_damaged(str(error)) from None

    def seen(self, space: str) -> dict[str, int]:
        found = read_seen(self._connection)
        return {name: at for (of, name), at in found.items() if of == space}

    def find_chains(self, space: str, query: DecisionQuery) -> Chains | None:
        connection = self._connection
        try:
            with snapshot(connection):
                is_whole = has_index(connection) and not any(
                    check_structure(connection, table) for table in INDEX_TABLES
                )
                return find_chains(connection, space, query) if is_whole else None
        except (sqlite3.Error, DamagedIndex, UnicodeDecodeError):
            return None  # who reads all of it says what is damaged

    def _open(self) -> sqlite3.Connection:
        address = f"file:{quote(str(self._path.absolute()))}"
        connection = self._connect(f"{address}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("SELECT count(*) FROM sqlite_schema")
        except sqlite3.Error as error:
            self.close()
            is_database = isinstance(error, sqlite3.OperationalError)
            if not is_database or wal_of(self._path).exists():
                raise
            # In a directory that cannot be written nothing writes, so the file is all there is.
            return self._connect(f"{address}?immutable=1", uri=True)
        return connection

    def _connect(self, address: str, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = sqlite3.connect(address, **options)
        self._connection = self._opened.enter_context(closing(connection))
        return connection

    def _find_lost_pages(self) -> int:
        """The pages that SQLite would leave out without a word."""
        path = Path(os.path.realpath(self._path))
        wal = wal_of(path)
        for _ in range(READINGS):
            stamp = _stamp(wal)
            damage = find_damage(wal, 0) and find_damage(wal, 0)
            if damage is None or damage.torn:
                return 0
            if _stamp(wal) == stamp:
                return damage.lost
        return 0  # a gateway writes it all the time; it has checked what it goes on from

    def _ask(self, question: str, *values: str | int) -> list[Any]:
        try:
            return self._connection.execute(question, values).fetchall()
        except sqlite3.Error as error:
            raise self._unreadable(error) from None

    def _is_damaged(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"the journal {self._path} is damaged: {what}; read a backup, or what is left"
            " (--accept-damage)"
        )

    def _unreadable(self, error: Exception) -> ConfigurationError:
        if is_damage(error):
            return ConfigurationError(
                f"the journal {self._path} is damaged, or no journal: {error_text(error)}; read a"
                " backup"
            )
        advice = "; make room on its disk, and try again" if is_write_failure(error) else ""
        return ConfigurationError(
            f"the journal {self._path} cannot be read: {error_text(error)}{advice}"
        )


def _stamp(file: Path) -> tuple[int, int] | None:
    """Size and time of a file, which change where it is written; ``None``: there is none."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


# --- a backup ---
# A consistent copy of a journal's file, while its gateway writes it.


def back_up(journal: Path, target: Path) -> int:
    """Copy a journal into a new file, readable for its owner alone; the number of its entries.

    The copy is whole when it has its name: it is made beside, looked through, and only then named.

    Raises:
        ConfigurationError: The journal is damaged or cannot be read, or the copy cannot be made
            there.
    """
    with closing(Archive(journal)) as archive:
        try:
            if os.path.lexists(target):
                raise FileExistsError
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
            os.close(descriptor)
            try:
                with closing(sqlite3.connect(name, isolation_level=None)) as copy:
                    archive.copy_to(copy)
                    # Without a WAL, so that a reader need not write a second file beside it.
                    copy.execute("PRAGMA journal_mode = DELETE")
                    count = archive.check_copy(copy)
                name_for_good(Path(name), target)
            finally:
                for ending in ("", "-journal"):
                    with suppress(FileNotFoundError):
                        os.unlink(f"{name}{ending}")
        except FileExistsError:
            raise ConfigurationError(f"{target} is there already; give a new name") from None
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"the journal {journal} cannot be copied to {target}: {error_text(error)}"
            ) from None
    return count


def name_for_good(whole: Path, target: Path) -> None:
    """Give a file its name, for good.

    Raises:
        FileExistsError: Another file has it.
    """
    try:
        os.link(whole, target)
    except FileExistsError:
        raise
    except OSError:
        # A file system without links.
        if os.path.lexists(target):
            raise FileExistsError from None
        os.rename(whole, target)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
