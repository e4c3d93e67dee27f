"""The engine in an SQLite file, as its spaces see it: on the gateway's loop."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.database import BUSY_SECONDS, Database, checkpoint, error_text
from meup_agent.gateway.journal.decisions import (
    WRITE_SEEN,
    DamagedIndex,
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
from meup_agent.gateway.journal.file_writer import FileWriter
from meup_agent.gateway.journal.numbered import NumberedJournal, latest_entries
from meup_agent.gateway.journal.rows import (
    DAMAGE,
    READ_BACK,
    START,
    WRITE_MISSING,
    DamagedEntry,
    Missing,
    held_facts,
    read_page,
    sealed,
)
from meup_agent.gateway.journal.threads import JournalReader
from meup_agent.protocol.space.decisions import (
    DecisionFollower,
    HistoryPage,
    HistoryQuery,
)
from meup_agent.protocol.space.journal import (
    MAX_SEQ,
    Entry,
    FoldBegin,
    NumberRange,
    Recovered,
)

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig

SKIPPED_NUMBERS: Final = 1_000_000_000
"""Numbers skipped at a start where the journal's last ones may be lost, so that none is given
twice: the clock may be behind them."""


class SqliteJournal(NumberedJournal):
    """A :class:`~meup_agent.protocol.space.journal.Journal` in an SQLite file.

    Made on the loop that it is used on; :meth:`aclose` ends its threads. After a failure nothing is
    called any more, since nothing is kept.
    """

    def __init__(self, config: JournalConfig, now: Callable[[], int]) -> None:
        assert config.path is not None, "the table of engines asked before"
        super().__init__()
        self.max_bytes = config.max_bytes
        """See :attr:`~meup_agent.protocol.space.journal.Journal.max_bytes`."""
        self._database = Database(
            config.path, config.synchronous, accept_damage=config.accept_damage
        )
        self._missing: list[Missing] = []
        try:
            self._begin(self._find_spaces(now()))
            # The index of names and the table of decisions go on where they end.
            writer = self._database.writer
            query = "SELECT coalesce(max(last), 0) FROM names"
            names = resume_segment(writer, writer.execute(query).fetchone()[0])
            self._proposals = DecisionFollower(open_rows(writer))
            self._seen = read_seen(writer)
        except (sqlite3.Error, DamagedIndex) as error:
            self._database.close()
            raise self._unreadable(error) from None
        self._begin_threads(
            FileWriter(self._database.writer, config, now, names, raised=self._floors.__setitem__),
            JournalReader(self._database.reader),
        )

    # --- the contract -----------------------------------------------------------------------

    @property
    def problem(self) -> str:
        """See :attr:`~meup_agent.protocol.space.journal.Journal.problem`."""
        return ""

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.read`."""
        if not self._ended:
            page = partial(read_page, space=space, after=after, until=until, limit=limit)
            self._reader.ask(page, then)

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        if not self._ended:
            self._reader.ask(partial(find_begin, space=space, proposals=proposals), then)

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_decisions`."""
        if not self._ended:
            self._reader.ask(partial(find_decisions, space=space, query=query), then)

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_chain`."""
        if not self._ended:
            self._reader.ask(partial(find_chain, space=space, number=number), then)

    def size(self) -> int | None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.size`; of its files."""
        return self._database.file_size()

    def resume_from(self, space: str, seen: int) -> int:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.resume_from`."""
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
        """See :meth:`~meup_agent.protocol.space.journal.Journal.damaged`."""
        return tuple(
            NumberRange(max(each.after, after) + 1, min(each.until, until))
            for each in self._missing
            if each.why == DAMAGE and each.after < until and after < each.until
        )

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.recover`."""
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
        advice = "make room or repair the disk, and start the gateway again"
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
        return ConfigurationError(
            f"the journal {self._database.path} cannot be read: {error_text(error)}; repair it,"
            " or give another file"
        )
