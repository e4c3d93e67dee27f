"""A connection to PostgreSQL, with a time limit for each answer."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.loop_thread import LoopThread

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # also where it has no library of PostgreSQL
    raise ConfigurationError(
        f"journal.postgres needs psycopg, not usable here ({str(error).splitlines()[0]}); run: pip"
        " install 'meup-agent[postgres]'"
    ) from None

if TYPE_CHECKING:
    from meup_agent.gateway.config import PostgresConfig

log = logging.getLogger("meup_agent.gateway")

CONNECT_SECONDS: Final = 10
"""For a server to take a connection."""

ANSWER_SECONDS: Final = 3.0
"""For a server to answer; then what became of a question is looked up on another connection."""

SILENT_SECONDS: Final = 5.0
"""Silence after which the server ends an owner's connection, and with that its lock: a gateway that
is stopped, or cut off, is replaced then."""

END_SECONDS: Final = 1.0
"""For a question to be over when its connection is."""

OLDEST_SERVER: Final = 140_000
"""The first that ends a connection which is silent."""

MAX_REASON: Final = 300
"""Characters of an error of the server that are shown."""

ONLY_READS: Final = "25006"  # it has become a replica

_SET_UP: Final = """
SELECT pg_backend_pid(), current_setting('fsync'),
    set_config('search_path', quote_ident(%s), false),
    set_config('idle_session_timeout', %s, false), set_config('statement_timeout', '0', false),
    set_config('synchronous_commit', 'on', false),
    set_config('default_transaction_isolation', 'read committed', false)
"""


class Away(Exception):
    """The server cannot be reached, or does not answer: whether it did it is not known."""


class StatementRefused(Exception):
    """The server says no, and would again."""


class DatabaseSession:
    """A connection; on the loop that it is opened on."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection
        self._asked: asyncio.Future[Any] | None = None
        self.is_dropped = False

    @classmethod
    async def open(cls, config: PostgresConfig, *, owns: bool = False) -> DatabaseSession:
        """Connect; an owner's connection ends when nothing is asked for a while.

        Raises:
            Away: The server cannot be reached.
            ConfigurationError: It is not one that we can use.
        """
        try:
            connection = await psycopg.AsyncConnection.connect(
                **_parameters(config), autocommit=True
            )
        except (psycopg.Error, OSError) as error:
            raise Away(reason_of(error)) from None
        session = cls(connection)
        try:
            version = connection.info.server_version
            if version < OLDEST_SERVER:
                raise ConfigurationError(
                    f"journal.postgres: {place_of(config)} is version {version // 10_000}; the"
                    f" journal needs {OLDEST_SERVER // 10_000} or later"
                )
            silence = f"{round(SILENT_SECONDS * 1000)}ms" if owns else "0"
            ((pid, fsync, *_),) = await session.ask(_SET_UP, config.schema, silence)
            if fsync == "off" and not owns:  # which is told once, of the other one
                log.warning("%s has fsync off: a power cut can lose it all", place_of(config))
            if pid != connection.info.backend_pid:
                raise ConfigurationError(
                    f"journal.postgres.url: {place_of(config)} is a pool of connections, such as"
                    " PgBouncer, and the lock of the gateway that is at work is held by one"
                    " connection; give the server's own address"
                )
        except BaseException:
            session.drop()
            raise
        return session

    async def ask(
        self, sql: str, *values: object, seconds: float = ANSWER_SECONDS
    ) -> list[tuple[Any, ...]]:
        """The rows of an answer; values are those of the statement in order, or one dict of them.

        Raises:
            Away: None came in time.
            StatementRefused: The server says no.
        """
        asked = self._asked = asyncio.ensure_future(self._ask(sql, values))
        asked.add_done_callback(self._on_answered)
        try:
            await asyncio.wait([asked], timeout=seconds)
            if asked.done():
                rows: list[tuple[Any, ...]] = asked.result()
                return rows
        except psycopg.Error as error:
            passes = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
            kind = Away if passes or error.sqlstate == ONLY_READS else StatementRefused
            raise kind(reason_of(error)) from None
        finally:
            if not asked.done():
                self.drop()
        raise Away("no answer")

    async def _ask(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        # By name, or in order; without any it may be several statements.
        said: Any = values or None
        if values and isinstance(values[0], Mapping):
            (said,) = values
        cursor = await self._connection.execute(sql.encode(), said)
        return [] if cursor.description is None else await cursor.fetchall()

    def drop(self) -> None:
        """End it at once: a question that is out gets no answer; harmless the second time."""
        if self.is_dropped:
            return
        self.is_dropped = True
        with suppress(OSError, psycopg.Error):
            # The library itself would wait for the server once more.
            with socket.socket(fileno=os.dup(self._connection.fileno())) as way:
                way.shutdown(socket.SHUT_RDWR)
        if self._asked is None or self._asked.done():
            self._connection.pgconn.finish()

    async def settle(self) -> None:
        """Wait until the question that is out is over, after the end."""
        if self._asked is not None:
            await asyncio.wait([self._asked], timeout=END_SECONDS)

    def _on_answered(self, asked: asyncio.Future[Any]) -> None:
        if not asked.cancelled():
            asked.exception()  # also where nobody waits for it any more
        if self.is_dropped:
            self._connection.pgconn.finish()


class SessionThread(LoopThread):
    """The thread of a journal's connections."""

    def __init__(self, config: PostgresConfig) -> None:
        super().__init__("postgres")
        self._config = config
        self._sessions: list[DatabaseSession] = []
        self.start()

    @property
    def place(self) -> str:
        return place_of(self._config)

    async def open(self, *, owns: bool = False) -> DatabaseSession:
        """A connection, which is ended with the thread; see :meth:`DatabaseSession.open`."""
        session = await DatabaseSession.open(self._config, owns=owns)
        self._sessions = [*(each for each in self._sessions if not each.is_dropped), session]
        return session

    async def _disconnect(self) -> None:
        for session in self._sessions:
            session.drop()
            await session.settle()


def place_of(config: PostgresConfig) -> str:
    """The server and the schema, for people; without a password."""
    parts = _read_address(config)
    where = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "this machine"
    port = f":{parts['port']}" if "port" in parts else ""
    name = f"/{parts['dbname']}" if "dbname" in parts else ""
    return f"PostgreSQL at {where}{port}{name} (schema {config.schema})"


def unreachable(config: PostgresConfig, error: Away) -> ConfigurationError:
    """The refusal to start without the server."""
    return ConfigurationError(
        f"journal.postgres: {place_of(config)} cannot be reached ({error}); start it, or correct"
        " the address, the user or the password"
    )


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong, without what the library says of itself."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    text = said[0].removeprefix("connection failed: ")
    return text[:MAX_REASON]


def _read_address(config: PostgresConfig) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(config.url))
    except psycopg.Error:  # which quotes it, with the password
        raise ConfigurationError(
            "journal.postgres.url: expected the address of a database, as in"
            " postgresql://user@host/name"
        ) from None


def _parameters(config: PostgresConfig) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "application_name": "meup",
        "connect_timeout": CONNECT_SECONDS,
        "target_session_attrs": "read-write",
        **_read_address(config),
    }
    if config.user is not None:
        parts["user"] = config.user
    if config.known_password:
        parts["password"] = config.known_password
    return parts
