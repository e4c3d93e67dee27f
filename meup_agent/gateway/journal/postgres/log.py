"""The log of all spaces, for as long as one gateway owns it.

The fence: there is one row that says who owns the log, by a number that each takeover raises (the
epoch), and where the log ends. What is appended changes that row in the same statement, and only
where it says what its writer last knew. So of a gateway that was stopped nothing takes effect after
another has taken over, and nothing is appended twice: what is not answered is asked again.

The lock only says when to try: whoever owns the log holds it by its connection, so that the server
gives it to the next one as soon as that is gone, or is silent for some seconds.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.decisions import MAX_FOLLOWED
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.tables import name_bytes, name_of
from meup_agent.gateway.journal.waiting import INTERVAL, Lost, Replaced, WriterThread, node_name
from meup_agent.protocol.space.journal import MAX_DECISIONS

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig, PostgresConfig
    from meup_agent.gateway.journal.waiting import WriteJob
    from meup_agent.protocol.space.journal import DecisionRow

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:  # also where it has no library of PostgreSQL
    raise ConfigurationError(
        f"journal.postgres needs psycopg, not usable here ({str(error).splitlines()[0]}); run: pip"
        " install 'meup-agent[postgres]'"
    ) from None

# --- a connection, made anew where it is gone ---
# A server, or a network, that is gone is noticed by TCP: there is no limit for an answer, since a
# question may wait for a lock, and a server that stood still goes on.

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


def owner_name(config: PostgresConfig) -> str:
    """The beginning of what connections are named that own, or want to, before the node's name."""
    return f"meup {config.schema}: "


def place_of(config: PostgresConfig) -> str:
    """The server and the schema, for people; without a password."""
    parts = _read_address(config)
    where = parts.get("host") or parts.get("hostaddr") or parts.get("service") or "this machine"
    hosts, ports = where.split(","), str(parts.get("port", "")).split(",")
    # One port is that of all.
    each_port = ports if len(ports) == len(hosts) else ports[:1] * len(hosts)
    at = ",".join(
        f"{host}:{port}" if port else host for host, port in zip(hosts, each_port, strict=True)
    )
    name = f"/{parts['dbname']}" if "dbname" in parts else ""
    return f"PostgreSQL at {at}{name} (schema {config.schema})"


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


log = logging.getLogger("meup_agent.gateway")

GONE_SECONDS: Final = SILENT_SECONDS + 2
"""For a server to notice that a gateway is gone, which it may do only by its silence."""

_encode_parts: Final = msgspec.msgpack.Encoder().encode
read_parts: Final = msgspec.msgpack.Decoder(dict[str, str]).decode


class OwnedLog(WriterThread):
    """The tables of a schema, while this gateway owns them; as a thread, their writer.

    Attributes:
        begin: The number after which this ownership begins.
        floors: Of each space, the number behind which everything is kept.
        latest: Of each space that has entries, the number of the last one.
    """

    def __init__(
        self,
        config: JournalConfig,
        now: Callable[[], int],
        parts: Mapping[str, str],
        *,
        is_copy: bool = False,
    ) -> None:
        super().__init__(config, now)
        postgres = postgres_of(config)
        self._session = DatabaseSession(postgres, owns=True)
        self._node = node_name(postgres)
        self._parts = parts
        self._is_copy = is_copy
        self._away = ""
        self.epoch = self.begin = self.size = self._last = 0
        self.floors: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.decisions: list[DecisionRow] = []
        self.waiting: list[DecisionRow] = []

    @property
    def interval(self) -> float:
        """Always: the server ends a silent owner's connection."""
        return INTERVAL

    @property
    def place(self) -> str:
        """The server and the schema, for people."""
        return self._session.place

    @property
    def problem(self) -> str:
        """The reason why nothing can be kept at the moment; empty: there is none."""
        return self._away or ("" if self._session.is_answered else f"{self.place} does not answer")

    # --- the beginning ------------------------------------------------------------------------

    def open(self, seconds: float = GONE_SECONDS) -> None:
        """Own the log, and read what is known of it; blocks.

        Args:
            seconds: How long to wait while another gateway has it.

        Raises:
            ConfigurationError: It cannot be owned: by a gateway that has it, say.
            Ended: It was let go meanwhile.
        """
        ask = self._session.ask
        with refusing(self._session):
            # Again and again: a statement that waits would keep the server from cleaning up.
            while not self._lock():
                if seconds <= 0:
                    raise self._in_use()
                seconds -= RETRY_SECONDS
                self._session.rest()
            if not look(self._session):
                make_tables(self._session)
            _warn_of_fsync(self._session)
            parts = _encode_parts(self._parts)
            values = name_bytes(self._node), parts
            ((self.epoch, self._last, self.size),) = ask(tables.OWN, values)
            # Numbers do not go back, whatever the clock does (PROTOCOL 6).
            self.begin = max(self._now(), self._last)
            for name, floor, is_part, latest in ask(tables.SPACES):
                space = name_of(name)
                if is_part and not self._is_copy:
                    raise _incomplete(space, self.place)
                self.floors[space] = floor
                if latest is not None:
                    self.latest[space] = latest
            for name, participant, at in ask("SELECT * FROM seen"):
                self.seen[name_of(name), name_of(participant)] = at
            self.decisions = tables.decisions_of(ask(tables.DECISIONS, (MAX_DECISIONS,)))
            self.waiting = tables.decisions_of(ask(tables.WAITING, (MAX_FOLLOWED,)))

    def _lock(self) -> bool:
        """Take the lock, if it is free."""
        ((taken,),) = self._session.ask(f"SELECT pg_try_advisory_lock({tables.LOCK_KEY})")
        return bool(taken)

    def _in_use(self) -> InUse:
        with suppress(psycopg.ProgrammingError):  # the tables are being made
            ((_, _, _, node, parts),) = self._session.ask(tables.STATE)
            return InUse(name_of(node), read_parts(parts))
        return InUse("", {})

    # --- writing ------------------------------------------------------------------------------

    def reconfigure(self, parts: Mapping[str, str]) -> None:
        """Let others know of another configuration."""
        self.note("parts", tables.TELL, _encode_parts(parts))

    def _execute(self, statement: str, values: tuple[Any, ...]) -> None:
        self._insist(statement, (*values, self.epoch))

    def _write(self, work: Sequence[WriteJob]) -> None:
        if not work:
            self._judge(self._last)
            return
        values = tables.batch_values(work, self.epoch, self._last)
        values["is_part"], last = self._is_copy, values["last"]
        # Where none comes it was taken before, and not answered, or the log is another's.
        while not (taken := self._insist(tables.APPEND, values)) and not self._judge(last):
            pass
        self._last = last
        if taken:
            ((self.size,),) = taken

    def _judge(self, last: int) -> bool:
        """True if the log ends with that number, and not where this gateway knows it to.

        Raises:
            Lost: The log is another's, or ends elsewhere.
        """
        found = self._check_epoch(self._insist(tables.STATE))
        if found not in (self._last, last):
            raise Lost(
                f"{self.place} ends with number {found}, and {self._last} was kept: its server has"
                " lost the end, or something else wrote there"
            )
        return found == last

    def _check_epoch(self, state: list[tuple[Any, ...]]) -> int:
        """The number with which the log ends; raises :exc:`Replaced` if it is another's."""
        ((epoch, last, self.size, node, _),) = state
        if epoch != self.epoch:
            raise Replaced(f"the gateway {name_of(node)} has taken over {self.place}")
        return int(last)

    def _find_old(self, limit: int, oldest: int, max_bytes: int | None) -> int | None:
        excess = 0 if max_bytes is None else self.size - max_bytes
        ((until,),) = self._insist(tables.OLDEST, (limit, oldest, excess))
        return None if until is None else int(until)

    def _forget(self, until: int) -> None:
        # Before they are gone, so that nobody reads over the gap.
        for name, floor in self._insist(tables.FLOORS, {"until": until}):
            self.floors[name_of(name)] = floor
        left = self._insist(tables.FORGET, {"until": until, "epoch": self.epoch})
        if left:
            ((self.size,),) = left
        else:
            self._judge(self._last)

    def _insist(
        self, sql: str, values: tuple[Any, ...] | Mapping[str, Any] | None = None
    ) -> list[tuple[Any, ...]]:
        """The rows of an answer, however long it takes to have a connection that has the lock."""
        while True:
            try:
                if self._away:
                    self._lock_again()
                return self._session.ask(sql, values)
            except AWAY as error:
                said = f"{self.place} cannot be reached: {reason_of(error)}"
                if said != self._away:
                    log.warning("%s; it is tried again", said)
                self._away = said
                self._session.rest()

    def _lock_again(self) -> None:
        # The server may not know yet that the connection before it has gone.
        while not self._lock():
            self._check_epoch(self._session.ask(tables.STATE))
            self._session.rest()
        log.info("connected to %s again", self.place)
        self._away = ""

    # --- the end ------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Let the next gateway have the log, at once; on any thread."""
        self._session.close()

    def close(self) -> None:
        """Let the next gateway have the log, when the thread has ended."""
        with suppress(psycopg.Error, Ended):
            # By the time a connection has ended another one could ask in vain.
            self._session.ask(f"SELECT pg_advisory_unlock({tables.LOCK_KEY})")
        self._session.close()


class InUse(ConfigurationError):
    """A gateway owns the log, whose name and configuration are said."""

    def __init__(self, node: str, parts: Mapping[str, str]) -> None:
        super().__init__(
            f"the gateway {node or 'that has it'} uses the journal in PostgreSQL; stop it, or give"
            " another journal.postgres.schema"
        )
        self.node = node
        self.parts = parts


def look(session: DatabaseSession) -> bool:
    """True if the tables of a journal are there, false if none are.

    Raises:
        ConfigurationError: They are another program's, or of another version.
    """
    columns = session.ask(tables.COLUMNS)
    found = {table for table, _ in columns}
    if not found & tables.NAMES:
        return False
    if tables.NAMES - found or ("owner", "format") not in columns:
        raise ConfigurationError(
            f"journal.postgres.schema: {session.place} has tables that are not a journal's; give"
            " another schema"
        )
    ((version,),) = session.ask("SELECT format FROM owner")
    if version != tables.FORMAT:
        raise ConfigurationError(
            f"journal.postgres: the tables of {session.place} are of another version of this"
            f" package ({version}, not {tables.FORMAT}); run that one, or give another schema"
        )
    return True


def parts_of(session: DatabaseSession) -> list[str]:
    """The spaces that are copies which are not complete."""
    return [name_of(name) for name, _, is_part, _ in session.ask(tables.SPACES) if is_part]


def make_tables(session: DatabaseSession) -> None:
    """Make the tables, and their schema if it is not there."""
    ((schema, is_there),) = session.ask(tables.SCHEMA)
    session.ask(("" if is_there else f"CREATE SCHEMA {schema}; ") + tables.MAKE)


def check(config: JournalConfig) -> str:
    """Look whether the server takes a journal, and change nothing: its place, for people.

    Raises:
        ConfigurationError: It does not.
    """
    session = DatabaseSession(postgres_of(config))
    with closing(session), refusing(session):
        is_there = look(session)
        for name in parts_of(session) if is_there else ():
            raise _incomplete(name, session.place)
        _warn_of_fsync(session)
        try_rights(session, is_there=is_there)
    return session.place


def try_rights(session: DatabaseSession, *, is_there: bool) -> None:
    """Do all that a gateway does, as none that owns the log, and take it back."""
    session.ask("BEGIN")
    try:
        if not is_there:
            make_tables(session)
        for sql, values in tables.of_no_owner():
            session.ask(sql, values)
    finally:
        session.ask("ROLLBACK")


def _warn_of_fsync(session: DatabaseSession) -> None:
    if session.ask("SHOW fsync") == [("off",)]:
        log.warning("%s has fsync off: a power cut can lose it all", session.place)


def _incomplete(space: str, place: str) -> ConfigurationError:
    return ConfigurationError(
        f"space {space!r} of {place} is a copy that is not complete; run 'meup journal copy' again,"
        " or remove that schema"
    )
