"""A connection to PostgreSQL, made anew where it is gone; one thread at a time asks.

A server, or a network, that is gone is noticed by TCP: there is no limit for an answer, since a
question may wait for a lock, and a server that stood still goes on.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

from meup_agent.errors import ConfigurationError

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # also where it has no library of PostgreSQL
    raise ConfigurationError(
        f"journal.postgres needs psycopg, not usable here ({str(error).splitlines()[0]}); run: pip"
        " install 'meup-agent[postgres]'"
    ) from None

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, PostgresConfig

ANSWER_SECONDS: Final = 3.0
"""Time without an answer after which people are told."""

SILENT_SECONDS: Final = 5.0
"""Silence after which the server ends an owner's connection, and with that its lock: a gateway that
is stopped, or cut off, is replaced then."""

RETRY_SECONDS: Final = 0.25
"""Between two attempts to reach the server, or to have a lock."""

OLDEST_SERVER: Final = 140_000
"""The first that ends a connection which is silent."""

MAX_REASON: Final = 300
"""Characters of an error of the server that are shown."""

AWAY: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,  # it has become a replica
)
"""The server cannot be reached, or takes nothing for now: whether it did it is not known."""

_PARAMETERS: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "target_session_attrs": "read-write",
    "client_encoding": "utf8",
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5_000,
}

_SETTINGS: Final = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "standard_conforming_strings": "on",  # else psycopg says bytes wrongly
    # So that the server ends the connection of a machine that is gone.
    "tcp_keepalives_idle": "2",
    "tcp_keepalives_interval": "1",
    "tcp_keepalives_count": "3",
}

_SET_UP: Final = (
    "SELECT pg_backend_pid(), set_config('search_path', quote_ident(%s), false),"
    " set_config('idle_session_timeout', %s, false), set_config('application_name', %s, false), "
    + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in _SETTINGS.items())
)


_ONE_AT: Final = re.compile(r"\w+://([^@/]*@)?[^@?]*(\?.*)?")
"""A URL in which nothing of a password is taken for the host or the database, which are shown."""


class Ended(Exception):
    """The session was ended on this side."""


class NotReached(ConfigurationError):
    """The server cannot be reached, or no longer."""

    def __init__(self, sentence: str, *, was_reached: bool) -> None:
        super().__init__(sentence)
        self.was_reached = was_reached


class DatabaseSession:
    """A connection, which is made when something is asked.

    Args:
        config: The server.
        owns: True to be ended by the server where nothing is asked for a while.
    """

    def __init__(self, config: PostgresConfig, *, owns: bool = False) -> None:
        self.place = place_of(config)
        self._config = config
        self._name = owner_name(config) + node_name(config) if owns else "meup"
        self._silence = f"{round(SILENT_SECONDS * 1000)}ms" if owns else "0"
        self._connection: psycopg.Connection[Any] | None = None
        self._changing = threading.RLock()
        self._ended = threading.Event()
        self._asked = inf
        self.was_reached = False

    @property
    def version(self) -> int:
        """The server's, as it counts it, once something was asked."""
        return 0 if self._connection is None else self._connection.info.server_version

    @property
    def is_answered(self) -> bool:
        """False if an answer has not come for some seconds; on any thread."""
        return monotonic() - self._asked < ANSWER_SECONDS

    def ask(
        self, sql: str, values: tuple[Any, ...] | Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of an answer; without values it may be several statements.

        Raises:
            psycopg.Error: One of :data:`AWAY`: none came; else the server says no.
            ConfigurationError: The server is not one that we can use.
            Ended: The session was ended.
        """
        with self._changing:
            if self._ended.is_set():
                raise Ended
            self._asked = monotonic()
        try:
            cursor = (self._connection or self._open()).execute(sql.encode(), values)
            return [] if cursor.description is None else cursor.fetchall()
        except AWAY:
            self._drop()
            if self._ended.is_set():
                raise Ended from None
            raise
        finally:
            with self._changing:
                self._asked = inf
                if self._ended.is_set():
                    self._drop()

    def insist(self, sql: str, values: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The rows of an answer, however long it takes to reach the server."""
        while True:
            try:
                return self.ask(sql, values)
            except AWAY:
                self.rest()

    def rest(self) -> None:
        """Let some time pass before the next attempt.

        Raises:
            Ended: The session was ended.
        """
        if self._ended.wait(RETRY_SECONDS):
            raise Ended

    def close(self) -> None:
        """End it at once, on any thread: what is asked gets no answer."""
        with self._changing, suppress(OSError, psycopg.Error):
            self._ended.set()
            if self._asked == inf:
                self._drop()
            elif self._connection is not None:
                # The library itself is for one thread.
                with socket.socket(fileno=os.dup(self._connection.fileno())) as way:
                    way.shutdown(socket.SHUT_RDWR)

    def _drop(self) -> None:
        with self._changing:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _open(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(**_PARAMETERS | _parameters(self._config), autocommit=True)
        with self._changing:
            self._connection = connection  # from here on it is ended with the session
        try:
            if self._ended.is_set():
                raise Ended
            self._set_up(connection)
        except BaseException:
            self._drop()
            raise
        return connection

    def _set_up(self, connection: psycopg.Connection[Any]) -> None:
        version = connection.info.server_version
        if version < OLDEST_SERVER:
            raise ConfigurationError(
                f"journal.postgres: {self.place} is version {version // 10_000}; the journal"
                f" needs {OLDEST_SERVER // 10_000} or later"
            )
        encoding = connection.info.parameter_status("server_encoding")
        if encoding != "UTF8":  # members say what no other can hold
            raise ConfigurationError(
                f"journal.postgres.url: {self.place} is a database in {encoding}; give one that"
                " was made with ENCODING 'UTF8'"
            )
        rows = connection.execute(
            _SET_UP.encode(), (self._config.schema, self._silence, self._name)
        ).fetchall()
        if rows[0][0] != connection.info.backend_pid:
            raise ConfigurationError(
                f"journal.postgres.url: {self.place} is a pool of connections, such as"
                " PgBouncer, and the lock of the gateway that is at work is held by one"
                " connection; give the server's own address"
            )
        self.was_reached = True


@contextmanager
def refusing(session: DatabaseSession) -> Generator[None]:
    """Raise what a server says in a block as :exc:`~meup_agent.errors.ConfigurationError`."""
    place = session.place
    try:
        yield
    except AWAY as error:
        raise NotReached(
            f"journal.postgres: {place} cannot be reached ({reason_of(error)}); start it, or"
            " correct the address, the user or the password",
            was_reached=session.was_reached,
        ) from None
    except psycopg.Error as error:
        raise ConfigurationError(
            f"journal.postgres: {place} refuses: {reason_of(error)}; let its user make and change"
            " the tables of that schema"
        ) from None


def postgres_of(config: JournalConfig) -> PostgresConfig:
    """The journal's PostgreSQL, of a configuration that has one."""
    assert config.postgres is not None, "the table of engines asked before"
    return config.postgres


def node_name(postgres: PostgresConfig) -> str:
    """The gateway's name, for people."""
    return postgres.node or socket.gethostname()


def owner_name(config: PostgresConfig) -> str:
    """The beginning of what connections are named that own, or want to, before the node's name."""
    return f"meup {config.schema}: "


def place_of(config: PostgresConfig) -> str:
    """The server and the schema, for people; without a password."""
    parts = _read_address(config)
    where = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "this machine"
    port = f":{parts['port']}" if "port" in parts else ""
    name = f"/{parts['dbname']}" if "dbname" in parts else ""
    return f"PostgreSQL at {where}{port}{name} (schema {config.schema})"


def reason_of(error: BaseException) -> str:
    """The first line of what went wrong, without what the library says of itself."""
    said = str(error).strip().splitlines() or [type(error).__name__]
    return said[0].removeprefix("connection failed: ")[:MAX_REASON]


def _read_address(config: PostgresConfig) -> dict[str, Any]:
    if "://" in config.url and not _ONE_AT.fullmatch(config.url):
        raise ConfigurationError(
            "journal.postgres.url: a '@' or '/' within its password is written %40 or %2F; or use"
            " journal.postgres.password_file"
        )
    try:
        return dict(conninfo_to_dict(config.url))
    except psycopg.Error:  # which quotes it, with the password
        raise ConfigurationError(
            "journal.postgres.url: expected the address of a database, as in"
            " postgresql://user@host/name"
        ) from None


def _parameters(config: PostgresConfig) -> dict[str, Any]:
    parts = _read_address(config)
    if config.user is not None:
        parts["user"] = config.user
    if config.known_password:
        parts["password"] = config.known_password
    return parts
