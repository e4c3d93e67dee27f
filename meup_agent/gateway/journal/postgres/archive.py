"""The journal in PostgreSQL as other programs read it: nothing in it changes by it."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.log import READ_SECONDS, incomplete, look
from meup_agent.gateway.journal.postgres.session import (
    Away,
    SessionThread,
    StatementRefused,
    place_of,
    unreachable,
)
from meup_agent.gateway.journal.postgres.tables import entries_of, facts_of, name_bytes, name_of
from meup_agent.protocol.space.journal import MAX_SEQ, Entry, NumberRange

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, PostgresConfig
    from meup_agent.gateway.journal.decisions import Chains, DecisionQuery


class PostgresArchive:
    """The tables of a journal, opened to be read; close it in the end.

    It is a :class:`~meup_agent.gateway.journal.archive.ServerArchive`, and so are its methods.
    """

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        self._thread = SessionThread(config)
        try:
            self._session = self._thread.wait(self._thread.open())
            self.is_there = self._thread.wait(look(self._session, self._thread.place))
            rows = self.ask(tables.SPACES) if self.is_there else []
            self._latest = {name_of(name): latest or 0 for name, _, _, latest in rows}
            self._parts = {name_of(name) for name, _, is_part, _ in rows if is_part}
        except BaseException as error:
            self._thread.close()
            if isinstance(error, Away):
                raise unreachable(config, error) from None
            raise

    @property
    def spaces(self) -> list[str]:
        return list(self._latest)

    @property
    def damaged(self) -> list[NumberRange]:
        return []

    def latest(self, space: str) -> int:
        return self._latest[space]

    def before(self, space: str, at: int) -> int:
        query = "SELECT max(seq) FROM entry WHERE space = %s AND at < %s"
        ((found,),) = self.ask(query, name_bytes(space), at)
        return found or 0

    def read(
        self, space: str, *, after: int, until: int, limit: int, kinds: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        while after < until:
            rows = self.ask(tables.PAGE, name_bytes(space), after, min(until, MAX_SEQ), limit)
            if not rows:
                break
            page = entries_of(space, rows)
            found = tuple(each for each in page if not kinds or each.envelope.kind in kinds)
            if found:
                return found
            after = rows[-1][0]
        return ()

    def facts(self, space: str) -> dict[str, dict[str, Any]]:
        return facts_of(self.ask(tables.FACTS, name_bytes(space)))

    def seen(self, space: str) -> dict[str, int]:
        rows = self.ask("SELECT participant, at FROM seen WHERE space = %s", name_bytes(space))
        return {name_of(name): at for name, at in rows}

    def find_chains(self, space: str, query: DecisionQuery) -> Chains | None:
        return None

    def close(self) -> None:
        self._thread.close()

    # --- a copy -----------------------------------------------------------------------------

    def is_part(self, space: str) -> bool:
        return space in self._parts

    def end_copy(self, space: str) -> None:
        self.ask("UPDATE space SET is_part = false WHERE name = %s RETURNING 1", name_bytes(space))

    def find_owner(self) -> str | None:
        if not self.is_there:
            return None
        ((is_free,),) = self.ask(f"SELECT pg_try_advisory_lock_shared({tables.LOCK_KEY})")
        if is_free:
            self.ask(f"SELECT pg_advisory_unlock_shared({tables.LOCK_KEY})")
            return None
        ((node,),) = self.ask("SELECT node FROM owner")
        return name_of(node)

    def has_grown(self, space: str) -> bool:
        query = "SELECT coalesce(max(seq), 0) FROM entry WHERE space = %s"
        return self.ask(query, name_bytes(space)) != [(self._latest[space],)]

    def ask(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of an answer."""
        try:
            return self._thread.wait(self._session.ask(sql, *values, seconds=READ_SECONDS))
        except (Away, StatementRefused) as error:
            raise ConfigurationError(f"{self._thread.place} cannot be read: {error}") from None


_MAY: Final = {
    "make the schema": "SELECT to_regnamespace(current_setting('search_path')) IS NOT NULL OR"
    " has_database_privilege(current_database(), 'CREATE')",
    "make tables in the schema": "SELECT CASE WHEN current_schema() IS NULL OR"
    " to_regclass('owner') IS NOT NULL THEN true ELSE has_schema_privilege(current_schema(),"
    " 'CREATE') END",
    "use the schema": "SELECT to_regnamespace(current_setting('search_path')) IS NULL OR"
    " current_schema() IS NOT NULL",
    "change the tables": "SELECT bool_and(has_table_privilege(c.oid,"
    " 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')"
    " AND has_table_privilege(c.oid, 'DELETE')) FROM pg_class AS c"
    " WHERE relkind = 'r' AND relnamespace = to_regnamespace(current_setting('search_path'))",
}


def check(config: JournalConfig) -> str:
    """Look whether the server takes a journal, and change nothing: its place, for people.

    Raises:
        ConfigurationError: It does not.
    """
    postgres = config.postgres
    assert postgres is not None, "the table of engines asked before"
    with closing(PostgresArchive(postgres)) as archive:
        for what, question in _MAY.items():
            ((may,),) = archive.ask(question)
            if may is False:
                raise ConfigurationError(
                    f"journal.postgres: at {place_of(postgres)} the user may not {what}; grant"
                    " that, or let its owner make the schema for that user"
                )
        for space in archive.spaces:
            if archive.is_part(space):
                raise incomplete(space, place_of(postgres))
    return place_of(postgres)
