"""The engine in an SQLite file, as its spaces see it: on the gateway's loop."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import sqlite3
import struct
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.damage import (
    BUSY_SECONDS,
    error_text,
    find_damage,
    is_damage,
    is_write_failure,
    rebuild,
    survey,
    wal_of,
)
from meup_agent.gateway.journal.decisions import (
    PROPOSAL_PLACES,
    WRITE_NAMES,
    WRITE_PROPOSAL,
    WRITE_SEEN,
    DamagedIndex,
    SegmentBuilder,
    ensure_index,
    find_begin,
    find_chain,
    find_decisions,
    hashed_names,
    open_rows,
    read_open,
    read_seen,
    resume_segment,
    snapshot,
)
from meup_agent.gateway.journal.rows import (
    DAMAGE,
    READ_BACK,
    REMOVED,
    START,
    WRITE_FACT,
    WRITE_FLOOR,
    WRITE_MISSING,
    DamagedEntry,
    Missing,
    Row,
    has_tables,
    held_facts,
    make_tables,
    read_page,
    sealed,
)
from meup_agent.gateway.journal.waiting import (
    JournalReader,
    NumberedJournal,
    WriteJob,
    WriterThread,
    latest_entries,
)
from meup_agent.protocol.space.journal import (
    MAX_SEQ,
    DecisionFollower,
    Entry,
    FoldBegin,
    HistoryPage,
    HistoryQuery,
    NumberRange,
    Recovered,
)
from meup_agent.protocol.wire.envelope import encode_json

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig


# --- the file: its form, its damage, and the lock against a second gateway ---
# The file is in WAL mode: who reads does not stop who writes, and what was committed is there for
# the next process, however this one ends. With ``synchronous=NORMAL`` a power cut may take back
# the last commits; with ``FULL`` it does not, at the price of an fsync for each.

log = logging.getLogger("meup_agent.gateway")

MAX_WAL_BYTES: Final = 16 * 1024 * 1024
"""Bytes to which the file beside the journal, where commits come first, is cut when it can be."""

PAGE_SIZE_AT: Final = 16
"""The offset in the file of the size of its pages."""

OR_ACCEPT: Final = (
    "look after the disk, and restore a backup, or start without what is lost"
    " (journal.accept_damage, or --accept-damage)"
)

OR_MAKE_ROOM: Final = "make room or repair the disk, and start the gateway again"

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
        self._opened = ExitStack()
        is_old = path.exists()
        try:
            lock = self._opened.enter_context(closing(FileLock(path)))
            if os.fstat(lock.descriptor).st_size:
                self._check_wal(lock, refuse=synchronous == "full" and not accept_damage)
            elif is_old:
                self._check_empty()
            self.writer = self._connect(path)
            self._check_form(self.writer, lock)
            self.writer.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            self.writer.execute(f"PRAGMA journal_size_limit = {MAX_WAL_BYTES}")
            self.reader = self._connect(path)
            self.reader.execute("PRAGMA query_only = TRUE")
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            self.close()
            said = "cannot be used"
            advice = "give a file that this process may write, in a directory that is there"
            if is_damage(error):
                said = "is damaged, or no journal"
                advice = "restore a backup, or give another file"
            elif is_write_failure(error):
                said, advice = "cannot be written", OR_MAKE_ROOM
            raise ConfigurationError(
                f"the journal {path} {said}: {error_text(error)}; {advice}"
            ) from None
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; what is in the file beside it goes into it first, if it can."""
        with suppress(sqlite3.Error):
            self._opened.close()

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
        try:
            with open(to, "wb") as copy:
                damaged.seek(0)
                shutil.copyfileobj(damaged, copy)
                copy.flush()
                os.fsync(copy.fileno())
        except OSError:
            aside.unlink()  # a part, which would take the room that is to be made
            raise
        log.error("%s; it is kept as %s, and members that come back are told of a gap", what, aside)

    def _connect(self, path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        return self._opened.enter_context(closing(connection))


def checkpoint(connection: sqlite3.Connection) -> None:
    """Move what is in the file beside the journal into that, and cut the file to nothing."""
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise sqlite3.OperationalError("another program reads it; end that one")


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
        # Two threads that open one file at once would each close a descriptor of the other's file.
        with _changing, ExitStack() as opened:
            with suppress(FileNotFoundError):
                if _key_of(path.stat()) in _held:
                    raise _anothers(path)
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            opened.callback(os.close, self.descriptor)
            self._lock(path, opened)
            key = _key_of(os.fstat(self.descriptor))
            _held.add(key)
            opened.callback(_held.discard, key)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Close the file; after SQLite has."""
        with _changing:
            self._opened.close()

    def _lock(self, path: Path, opened: ExitStack) -> None:
        if not HAS_DESCRIPTOR_LOCKS:
            beside = _lock_beside(path, os.fstat(self.descriptor).st_nlink)
            opened.callback(beside.close)
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


# --- the writer, which also removes old rows ---

SPARE_PAGES: Final = 256
"""Empty pages of the file that are kept for what comes, a mebibyte of the usual size."""

ROW_BYTES: Final = 300
"""Bytes of an envelope in the file besides its frame, rather too many than too few: what is
too much after a step is found in the next one."""

_TOO_OLD: Final = (
    "SELECT max(seq) FROM (SELECT seq, at FROM entry ORDER BY seq LIMIT ?) WHERE at < ?"
)
_TOO_MUCH: Final = f"""
SELECT max(seq) FROM (
    SELECT seq, sum(size) OVER (ORDER BY seq) - size AS before FROM (
        SELECT seq, length(frame) + {ROW_BYTES} AS size FROM entry ORDER BY seq LIMIT ?
    )
) WHERE before < ?
"""
_FLOORS: Final = """
SELECT entry.space, max(max(seq), coalesce(floor, 0)) FROM entry
LEFT JOIN space ON space.name = entry.space
WHERE seq <= ? GROUP BY entry.space
"""
# A floor is never lowered.


AT_ONCE: Final = (512, 128, 32, 8, 1)
"""Rows that one statement writes: Python takes its lock again after each statement."""

_PLACES: Final = f"({','.join('?' * len(Row._fields))})"
_INSERT: Final = {
    count: f"INSERT INTO entry VALUES {','.join([_PLACES] * count)}" for count in AT_ONCE
}
_WRITE_PROPOSALS: Final = {
    count: f"{WRITE_PROPOSAL}{f', {PROPOSAL_PLACES}' * (count - 1)}" for count in AT_ONCE
}


class FileWriter(WriterThread):
    """Writes a journal's file; the connection is the thread's alone, once it has started.

    ``raised`` takes a space and its new floor, before anything up to there is forgotten.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        config: JournalConfig,
        now: Callable[[], int],
        names: SegmentBuilder,
        *,
        raised: Callable[[str, int], None],
    ) -> None:
        super().__init__(config, now)
        self._connection = connection
        self._names = names
        self._raised = raised
        self._removed = 0  # the last number that was removed

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        self._connection.execute(statement, values)

    def _write(self, work: Sequence[WriteJob]) -> None:
        if not work:
            return
        execute = self._connection.execute
        besides = any(each.facts or each.floor is not None for each in work)
        statements = _statements([each.row for each in work], _INSERT)
        # One that was proposed and decided in the batch is written once.
        rows = {row.seq: row for each in work for row in each.proposals}
        removed = self._removed
        kept = [sealed(row) for row in rows.values() if row.seq > removed]
        statements += _statements(kept, _WRITE_PROPOSALS)
        for each in work:
            segment = self._names.add(each.row.seq, each.names)
            if segment is not None:
                statements.append((WRITE_NAMES, segment))
        if len(statements) == 1 and not besides:
            # A statement by itself is a transaction, and takes Python's lock once, not thrice.
            execute(*statements[0])
            return
        execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            execute(sql, values)
        if besides:
            self._write_besides(work)
        execute("COMMIT")

    def _write_besides(self, work: Sequence[WriteJob]) -> None:
        execute = self._connection.execute
        for row, facts, floor, _, _ in work:
            if floor is not None:
                execute("INSERT OR IGNORE INTO space VALUES (?, ?, ?)", sealed((row.space, floor)))
            for key, value in facts:
                if value is None:
                    execute("DELETE FROM fact WHERE space = ? AND key = ?", (row.space, key))
                else:
                    execute(WRITE_FACT, sealed((row.space, key, encode_json(value).decode())))

    # --- retention ---

    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> int | None:
        excess = 0 if max_bytes is None else self._used() - max_bytes
        for question, bound in ((_TOO_MUCH, excess), (_TOO_OLD, oldest)):
            if bound > 0:
                (found,) = self._connection.execute(question, (limit, bound)).fetchone()
                if found is not None:
                    return int(found)
        return None

    def _forget(self, until: int) -> None:
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        floors: list[tuple[str, int]] = execute(_FLOORS, (until,)).fetchall()
        for floor in floors:
            self._raised(*floor)
            execute(WRITE_FLOOR, sealed(floor))
        execute("DELETE FROM entry WHERE seq <= ?", (until,))
        execute("DELETE FROM proposal WHERE seq <= ?", (until,))
        execute("DELETE FROM names WHERE last <= ?", (until,))
        execute("DELETE FROM missing WHERE until <= ?", (until,))
        execute(WRITE_MISSING, sealed(Missing(0, until, REMOVED)))
        execute("COMMIT")
        self._removed = until

    def _shrink(self) -> bool:
        """Give empty pages back to the disk; true if there are more of them."""
        spare = self._pragma("freelist_count") - SPARE_PAGES
        if spare <= 0:
            return False
        count = min(spare, SPARE_PAGES)
        self._connection.execute(f"PRAGMA incremental_vacuum({count})").fetchall()
        left = self._pragma("freelist_count") - SPARE_PAGES
        # Another program may have made the file anew as one that gives nothing back.
        return 0 < left < spare

    def _used(self) -> int:
        pages = self._pragma("page_count") - self._pragma("freelist_count")
        return pages * self._pragma("page_size")

    def _pragma(self, name: str) -> int:
        number: int = self._connection.execute(f"PRAGMA {name}").fetchone()[0]
        return number


def _statements(
    rows: Sequence[tuple[object, ...]], inserts: Mapping[int, str]
) -> list[tuple[str, Sequence[object]]]:
    """As few statements as write all rows."""
    statements: list[tuple[str, Sequence[object]]] = []
    done = 0
    for count in AT_ONCE:
        while len(rows) - done >= count:
            values = [value for row in rows[done : done + count] for value in row]
            statements.append((inserts[count], values))
            done += count
    return statements


SKIPPED_NUMBERS: Final = 1_000_000_000
"""Numbers skipped at a start where the journal's last ones may be lost, so that none is given
twice: the clock may be behind them."""


class SqliteJournal(NumberedJournal):
    """A :class:`~meup_agent.protocol.space.journal.Journal` in an SQLite file.

    Made on the loop that it is used on; :meth:`aclose` ends its threads. After a failure nothing is
    called any more, since nothing is kept.
    """

    problem = ""

    def __init__(self, config: JournalConfig, now: Callable[[], int]) -> None:
        assert config.path is not None, "the table of engines asked before"
        super().__init__()
        self.max_bytes = config.max_bytes
        self._database = Database(
            config.path, config.synchronous, accept_damage=config.accept_damage
        )
        self._missing: list[Missing] = []
        try:
            start = self._find_spaces(now())
            # The index of names and the table of decisions go on where they end.
            writer = self._database.writer
            query = "SELECT coalesce(max(last), 0) FROM names"
            names = resume_segment(writer, writer.execute(query).fetchone()[0])
            self._proposals = DecisionFollower(open_rows(writer))
            self._seen = read_seen(writer)
        except (sqlite3.Error, DamagedIndex) as error:
            self._database.close()
            raise self._unreadable(error) from None
        self._begin(
            start,
            FileWriter(self._database.writer, config, now, names, raised=self._floors.__setitem__),
            JournalReader(self._database.reader),
        )

    # --- the contract -----------------------------------------------------------------------

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        if not self._ended:
            page = partial(read_page, space=space, after=after, until=until, limit=limit)
            self._reader.ask(page, then)

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        if not self._ended:
            self._reader.ask(partial(find_begin, space=space, proposals=proposals), then)

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        if not self._ended:
            self._reader.ask(partial(find_decisions, space=space, query=query), then)

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        if not self._ended:
            self._reader.ask(partial(find_chain, space=space, number=number), then)

    def size(self) -> int | None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.size`; of its files."""
        path = self._database.path
        return sum(each.stat().st_size for each in (path, wal_of(path)) if each.exists())

    def resume_from(self, space: str, seen: int) -> int:
        floor = self.floor(space)
        if not floor <= seen <= max(self.latest(space), self._start):
            return floor
        for missing in reversed(self._missing):
            if missing.why == DAMAGE and seen < missing.until:
                return max(floor, missing.until)
            if missing.why == START and missing.after < seen < missing.until:
                # A reader that has seen what is lost has seen all that came before it.
                return max(floor, missing.after)
        return seen

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        return tuple(
            NumberRange(max(each.after, after) + 1, min(each.until, until))
            for each in self._missing
            if each.why == DAMAGE and each.after < until and after < each.until
        )

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        with self._reading() as connection:
            facts = dict(held_facts(connection, space))

            def read_back(until: int, count: int) -> tuple[Entry, ...]:
                pages = {"after": 0, "until": until, "limit": count}
                return read_page(connection, space, **pages, query=READ_BACK)

            latest = latest_entries(read_back, since, limit)
        before = latest[0].seq if latest else MAX_SEQ
        older = () if open_at is None else self._read_open(space, open_at, before)
        return Recovered(facts, latest, older)

    def _read_open(self, space: str, at: int, before: int) -> Iterator[Entry]:
        with self._reading() as connection:
            yield from read_open(connection, space, at=at, before=before)

    @contextmanager
    def _reading(self) -> Generator[sqlite3.Connection]:
        """A connection for the length of a block, to the file as it is at one moment."""
        try:
            # Further to those of the threads: the file is read while they work.
            connection = sqlite3.connect(self._database.path, timeout=BUSY_SECONDS)
            with closing(connection), snapshot(connection):
                yield connection
        except (sqlite3.Error, DamagedEntry, DamagedIndex) as error:
            raise self._unreadable(error) from None

    # --- the threads ------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return f"the journal {self._database.path}"

    def _close_store(self) -> None:
        self._database.close()

    def _note_seen(self, space: str, participant: str, at: int) -> None:
        values = (space, participant, at)
        self._writer.note((space, participant), WRITE_SEEN, *values)

    def _hash_names(self, entry: Entry) -> tuple[int, ...]:
        return hashed_names(entry)

    def _on_failed(self, error: Exception) -> None:
        said = f"cannot be written: {error_text(error)}"
        advice = OR_MAKE_ROOM
        if isinstance(error, DamagedEntry):
            said = f"is damaged: {error}"
            advice = "look after the disk, and start the gateway again, which says more"
        path = self._database.path
        self._fail(f"the journal {path} {said}; nothing more is accepted; {advice}")

    def _find_spaces(self, now: int) -> int:
        """Learn from the file which spaces it knows; the number after which this start begins."""
        execute = self._database.writer.execute
        self._floors.update(execute("SELECT name, floor FROM space").fetchall())
        for name in self._floors:
            (last,) = execute("SELECT max(seq) FROM entry WHERE space = ?", (name,)).fetchone()
            if last is not None:
                self._latest[name] = last
        before = self._read_missing()
        ends = (each.until for each in before if each.why != START)
        kept = max([*self._latest.values(), *self._floors.values(), *ends], default=0)
        lost = self._database.tail_lost
        # Numbers do not go back, whatever the clock does (PROTOCOL 6).
        start = max(now, kept + SKIPPED_NUMBERS if lost else kept)
        if kept < start:
            missing = Missing(kept, start, DAMAGE if lost else START)
            execute(WRITE_MISSING, sealed(missing))
        if lost:
            # What is right behind the damage would be taken for lost again after the next kill.
            checkpoint(self._database.writer)
        self._missing = self._read_missing()
        return start

    def _read_missing(self) -> list[Missing]:
        query = "SELECT after, until, why FROM missing ORDER BY after"
        return [Missing(*each) for each in self._database.writer.execute(query)]

    def _unreadable(self, error: Exception) -> ConfigurationError:
        said, advice = "cannot be read", "repair it, or give another file"
        if is_write_failure(error):
            said, advice = "cannot be written", OR_MAKE_ROOM
        return ConfigurationError(
            f"the journal {self._database.path} {said}: {error_text(error)}; {advice}"
        )
