"""The journal in PostgreSQL as other programs read it: nothing in it changes by it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meup_agent.gateway.journal.archive import ServerArchive
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.log import look
from meup_agent.gateway.journal.postgres.session import DatabaseSession, refusing
from meup_agent.gateway.journal.postgres.tables import entries_of, facts_of, name_bytes, name_of
from meup_agent.protocol.space.journal import MAX_SEQ, Entry

if TYPE_CHECKING:
    from meup_agent.gateway.config import PostgresConfig


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
