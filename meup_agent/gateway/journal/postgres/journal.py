"""The engine on PostgreSQL, as the spaces of a gateway see it: on the gateway's loop."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.numbered import NumberedEntry, NumberedJournal, latest_entries
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.log import OwnedLog
from meup_agent.gateway.journal.postgres.session import Away, SessionThread, unreachable
from meup_agent.gateway.journal.postgres.tables import entries_of, facts_of, name_bytes
from meup_agent.gateway.journal.waiting import DecisionTable
from meup_agent.protocol.proposals.lifecycle import ProposalState, first_moment
from meup_agent.protocol.space.decisions import DecisionFollower, HistoryPage, HistoryQuery
from meup_agent.protocol.space.journal import MAX_SEQ, Entry, NumberRange, Recovered

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, PostgresConfig
    from meup_agent.gateway.journal.threads import WriteJob

log = logging.getLogger("meup_agent.gateway")

START_SECONDS: Final = 60.0
"""For a gateway that starts to read a part of the log."""

CLOSE_SECONDS: Final = 5.0
"""For what waits to be kept before the end; what the server has not answered by then is lost."""

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
        owned: The log, and the thread of its connections, which outlives the journal.
        is_copy: True to make spaces that no gateway opens before the copy is complete.
    """

    def __init__(
        self,
        config: JournalConfig,
        now: Callable[[], int],
        owned: tuple[OwnedLog, SessionThread] | None = None,
        *,
        is_copy: bool = False,
    ) -> None:
        super().__init__()
        self.max_bytes = config.max_bytes
        """See :attr:`~meup_agent.protocol.space.journal.Journal.max_bytes`."""
        self.problem = ""
        """See :attr:`~meup_agent.protocol.space.journal.Journal.problem`."""
        self._shares_thread = owned is not None
        self._log, self._thread = owned or _open(config, now, is_copy=is_copy)
        self._begin(self._log.start)
        self._floors, self._latest = self._log.floors, self._log.latest
        self._seen = self._log.seen
        self._proposals = DecisionFollower(self._log.waiting)
        self._decisions = DecisionTable(self._log.decisions)
        self._log.on_written = partial(self._to_loop, self._on_written)
        self._log.on_problem = partial(self._to_loop, self._on_problem)
        self._log.on_lost = partial(self._to_loop, self._fail)
        self._thread.wait(self._log.run())

    @property
    def is_replaced(self) -> bool:
        """True if it has failed because another gateway owns the log."""
        return self._log.is_replaced

    @property
    def log(self) -> OwnedLog:
        """The log."""
        return self._log

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
        """See :meth:`~meup_agent.protocol.space.journal.Journal.read`."""

        async def read() -> None:
            values = name_bytes(space), after, min(until, MAX_SEQ), limit
            try:
                rows = await self._log.read(tables.PAGE, *values)
                self._to_loop(then, entries_of(space, rows))
            except Exception as error:
                self._to_loop(self._fail, f"the journal cannot be read: {error}")

        if not self._ended:
            self._thread.begin(read)

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.find_decisions`."""
        then(self._decisions.find(space, query))

    def size(self) -> int | None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.size`; of the entries alone."""
        return self._log.size

    def resume_from(self, space: str, seen: int) -> int:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.resume_from`."""
        floor = self.floor(space)
        return seen if floor <= seen <= self.latest(space) else floor

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.damaged`; the server finds it."""
        return ()

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.recover`."""

        def read_back(until: int, count: int) -> tuple[Entry, ...]:
            return entries_of(
                space, self._read_now(tables.PAGE_BACK, name_bytes(space), 0, until, count)
            )

        facts = facts_of(self._read_now(tables.FACTS, name_bytes(space)))
        latest = latest_entries(read_back, since, limit)
        before = latest[0].seq if latest else MAX_SEQ
        older = () if open_at is None else self._read_open(space, open_at, before)
        return Recovered(facts, latest, older)

    def _read_open(self, space: str, at: int, before: int) -> Iterator[Entry]:
        """The entries about what is open, and what else was decided among them."""
        from meup_agent.protocol.space.state.inflight import TRACKED_KINDS

        first = min(
            (
                row.seq
                for row in self._log.waiting
                if row.space == space
                and row.state == ProposalState.PENDING
                and (row.ends_at is None or row.ends_at >= first_moment(at))
            ),
            default=before,
        )
        after = first - 1
        while after < before - 1:
            rows = self._read_now(tables.PAGE, name_bytes(space), after, before - 1, OPEN_PAGE)
            if not rows:
                break
            after = rows[-1][0]
            yield from (
                each for each in entries_of(space, rows) if each.envelope.kind in TRACKED_KINDS
            )

    def _read_now(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        return self._thread.wait(self._log.read(sql, *values), START_SECONDS)

    # --- a copy -----------------------------------------------------------------------------

    def replace_facts(self, space: str, facts: dict[str, Any], seen: dict[str, int]) -> None:
        """Let a space hold these facts and marks, and not those that its entries made; blocks."""
        self._thread.wait(self._log.replace_facts(space, facts), START_SECONDS)
        for participant, at in seen.items():
            self.mark_seen(space, participant, at)

    # --- the end ----------------------------------------------------------------------------

    async def aclose(self) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.aclose`."""
        self._hand_over()
        await self.flush(CLOSE_SECONDS)
        lost = sum(isinstance(each, NumberedEntry) for each in self._pending)
        self._end()
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._close)
        if lost:
            log.error("%s hangs; %d messages that waited for it are lost", self._thread.place, lost)

    def _close(self) -> None:
        if not self._thread.loop.is_closed():
            with suppress(ConfigurationError):  # it hangs
                self._thread.wait(self._log.end(), CLOSE_SECONDS)
        if not self._shares_thread:
            self._thread.close()

    def abandon(self) -> None:
        """See :meth:`~meup_agent.protocol.space.journal.Journal.abandon`."""
        self._end()
        self._work.clear()
        self._thread.begin(self._log.let_go)

    # --- the thread -------------------------------------------------------------------------

    def _write(self, work: list[WriteJob]) -> None:
        for each in work:
            self._decisions.put(each.proposals)
        self._thread.call(self._log.put, work)

    def _note_seen(self, space: str, participant: str, at: int) -> None:
        self._thread.call(self._log.note_seen, space, participant, at)

    def _on_problem(self, problem: str) -> None:
        if problem and not self.problem:
            log.warning("%s; it is tried again", problem)
        elif self.problem and not problem:
            log.info("connected to %s again", self._thread.place)
        self.problem = problem


def _open(
    config: JournalConfig, now: Callable[[], int], *, is_copy: bool
) -> tuple[OwnedLog, SessionThread]:
    postgres = postgres_of(config)
    thread = SessionThread(postgres)
    owned = OwnedLog(thread, config, now, node_name(postgres), {}, is_copy=is_copy)
    try:
        thread.wait(owned.open(), START_SECONDS)
    except BaseException as error:
        thread.close()
        if isinstance(error, Away):
            raise unreachable(postgres, error) from None
        raise
    return owned, thread


def postgres_of(config: JournalConfig) -> PostgresConfig:
    """The journal's PostgreSQL, of a configuration that has one."""
    assert config.postgres is not None, "the table of engines asked before"
    return config.postgres


def node_name(postgres: PostgresConfig) -> str:
    """The gateway's name, for people."""
    return postgres.node or socket.gethostname()
