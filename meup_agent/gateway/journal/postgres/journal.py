"""The engine on PostgreSQL, as the spaces of a gateway see it: on the gateway's loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import psycopg

from meup_agent.gateway.journal.archive import ServerArchive
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.log import (
    DatabaseSession,
    Ended,
    OwnedLog,
    look,
    postgres_of,
    reason_of,
    refusing,
)
from meup_agent.gateway.journal.postgres.tables import entries_of, facts_of, name_bytes, name_of
from meup_agent.gateway.journal.waiting import (
    JournalReader,
    Lost,
    NumberedJournal,
    Replaced,
    latest_entries,
)
from meup_agent.protocol.proposals import ProposalState, first_moment
from meup_agent.protocol.space.journal import (
    MAX_SEQ,
    DecisionFollower,
    DecisionTable,
    Entry,
    HistoryPage,
    HistoryQuery,
    Recovered,
)
from meup_agent.protocol.wire.envelope import encode_leniently

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, PostgresConfig


log = logging.getLogger("meup_agent.gateway")

OPEN_PAGE: Final = 1_000
"""Entries that are read at a time, of those about what is open."""


class PostgresJournal(NumberedJournal):
    """A :class:`~meup_agent.protocol.space.journal.Journal` on PostgreSQL, of all spaces.

    Given a log that is owned, it is at work at once. Without one it opens its own, which blocks,
    and is refused while another gateway has it. After a failure nothing is called any more, since
    nothing is kept.

    Args:
        config: The journal's configuration.
        now: A clock in microseconds since 1970.
        owned: The log.
        is_copy: True to make spaces that no gateway opens before the copy is complete.
    """

    def __init__(
        self,
        config: JournalConfig,
        now: Callable[[], int],
        owned: OwnedLog | None = None,
        *,
        is_copy: bool = False,
    ) -> None:
        super().__init__()
        self.max_bytes = config.max_bytes
        self.is_replaced = False
        """True if it has failed because another gateway owns the log."""
        if owned is None:
            owned = OwnedLog(config, now, {}, is_copy=is_copy)
            try:
                owned.open()
            except BaseException:
                owned.let_go()
                raise
        self.log: Final = owned
        """The log."""
        self._postgres = postgres_of(config)
        self._pages = DatabaseSession(self._postgres)  # so that a long page holds up no writing
        self._floors, self._latest, self._seen = owned.floors, owned.latest, owned.seen
        self._proposals = DecisionFollower(owned.waiting)
        self._decisions = DecisionTable(owned.decisions)
        self._begin(owned.begin, owned, JournalReader(self._pages))

    # --- the contract -----------------------------------------------------------------------

    @property
    def problem(self) -> str:
        return self.log.problem

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
            values = name_bytes(space), after, min(until, MAX_SEQ), limit
            self._reader.ask(
                lambda session: entries_of(space, session.insist(tables.PAGE, values)), then
            )

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        then(self._decisions.find(space, query))

    def size(self) -> int | None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.size`; of the entries alone."""
        return self.log.size

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        name = name_bytes(space)
        with closing(DatabaseSession(self._postgres)) as session, refusing(session):

            def read_back(until: int, count: int) -> tuple[Entry, ...]:
                return entries_of(space, session.ask(tables.PAGE_BACK, (name, 0, until, count)))

            facts = facts_of(session.ask(tables.FACTS, (name,)))
            latest = latest_entries(read_back, since, limit)
        before = latest[0].seq if latest else MAX_SEQ
        older = () if open_at is None else self._read_open(space, open_at, before)
        return Recovered(facts, latest, older)

    def _read_open(self, space: str, at: int, before: int) -> Iterator[Entry]:
        """The entries about what is open, and what else was decided among them."""
        from meup_agent.protocol.space.state.inflight import TRACKED_KINDS

        opened = (
            row.seq
            for row in self.log.waiting
            if row.space == space
            and row.state == ProposalState.PENDING
            and (row.ends_at is None or row.ends_at >= first_moment(at))
        )
        after = min(opened, default=before) - 1
        with closing(DatabaseSession(self._postgres)) as session, refusing(session):
            while after < before - 1:
                values = name_bytes(space), after, before - 1, OPEN_PAGE
                rows = session.ask(tables.PAGE, values)
                if not rows:
                    break
                after = rows[-1][0]
                yield from (
                    each for each in entries_of(space, rows) if each.envelope.kind in TRACKED_KINDS
                )

    def replace_facts(self, space: str, facts: dict[str, Any], seen: dict[str, int]) -> None:
        """Let a space hold these facts and marks, and not those that its entries made; blocks."""
        name, floor = name_bytes(space), self._floors.setdefault(space, self._start)
        keys = [name_bytes(key) for key in facts]
        values = [encode_leniently(value).decode() for value in facts.values()]
        with closing(DatabaseSession(self._postgres)) as session, refusing(session):
            session.ask(tables.PART, (name, floor))
            session.ask("DELETE FROM fact WHERE space = %s", (name,))
            session.ask(tables.HOLD, (name, keys, values))
        for participant, at in seen.items():
            self.mark_seen(space, participant, at)

    # --- the threads ------------------------------------------------------------------------

    @property
    def _place(self) -> str:
        return self.log.place

    def _hand_over(self) -> None:
        for each in self._work:
            self._decisions.put(each.proposals)
        super()._hand_over()

    def _note_seen(self, space: str, participant: str, at: int) -> None:
        values = name_bytes(space), name_bytes(participant), at
        self.log.note((space, participant), tables.SEEN, *values)

    def _on_failed(self, error: Exception) -> None:
        if isinstance(error, Ended):
            return
        self.is_replaced = isinstance(error, Replaced)
        said = str(error)
        if not isinstance(error, Lost):
            if not isinstance(error, psycopg.Error):  # whose words say it all
                log.error("the journal fails", exc_info=error)
            said = f"{self._place} takes nothing more: {reason_of(error)}"
        self._let_go()
        self._fail(said)

    def abandon(self) -> None:
        super().abandon()
        self._let_go()

    def _close(self) -> bool:
        if self.problem and not self._pending:
            self._let_go()
        closed = super()._close()
        self._let_go()
        return closed

    def _close_store(self) -> None:
        self.log.close()

    def _let_go(self) -> None:
        self.log.let_go()
        self._pages.close()


# --- the journal as other programs read it: nothing in it changes by it ---


class PostgresArchive(ServerArchive):
    """The tables of a journal, opened to be read; close it in the end."""

    def __init__(self, config: PostgresConfig) -> None:
        self._session = DatabaseSession(config)
        try:
            with refusing(self._session):
                self._is_there = look(self._session)
            rows = self._ask(tables.SPACES) if self._is_there else []
        except BaseException:
            self.close()
            raise
        self._latest = {name_of(name): latest or 0 for name, _, _, latest in rows}
        self._parts = {name_of(name) for name, _, is_part, _ in rows if is_part}

    @property
    def spaces(self) -> list[str]:
        return list(self._latest)

    def latest(self, space: str) -> int:
        return self._latest[space]

    def before(self, space: str, at: int) -> int:
        query = "SELECT coalesce(max(seq), 0) FROM entry WHERE space = %s AND at < %s"
        ((found,),) = self._ask(query, name_bytes(space), at)
        return int(found)

    def page(self, space: str, after: int, until: int, limit: int) -> tuple[Entry, ...]:
        values = name_bytes(space), after, min(until, MAX_SEQ), limit
        return entries_of(space, self._ask(tables.PAGE, *values))

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        return facts_of(self._ask(tables.FACTS, name_bytes(space)))

    def seen(self, space: str) -> dict[str, int]:
        rows = self._ask("SELECT participant, at FROM seen WHERE space = %s", name_bytes(space))
        return {name_of(name): at for name, at in rows}

    def close(self) -> None:
        self._session.close()

    # --- a copy -----------------------------------------------------------------------------

    def is_part(self, space: str) -> bool:
        return space in self._parts

    def end_copy(self, space: str) -> None:
        self._ask("UPDATE space SET is_part = false WHERE name = %s", name_bytes(space))

    def find_owner(self) -> str | None:
        if not self._is_there:
            return None
        ((is_free,),) = self._ask(f"SELECT pg_try_advisory_lock_shared({tables.LOCK_KEY})")
        if is_free:
            self._ask(f"SELECT pg_advisory_unlock_shared({tables.LOCK_KEY})")
            return None
        ((node,),) = self._ask("SELECT node FROM owner")
        return name_of(node)

    def has_grown(self, space: str) -> bool:
        query = "SELECT coalesce(max(seq), 0) FROM entry WHERE space = %s"
        return self._ask(query, name_bytes(space)) != [(self._latest[space],)]

    def _ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        with refusing(self._session):
            return self._session.ask(sql, values or None)
