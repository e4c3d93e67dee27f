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
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
import psycopg

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.decisions import MAX_FOLLOWED
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.session import (
    AWAY,
    RETRY_SECONDS,
    SILENT_SECONDS,
    DatabaseSession,
    Ended,
    node_name,
    postgres_of,
    reason_of,
    refusing,
)
from meup_agent.gateway.journal.postgres.tables import name_bytes, name_of
from meup_agent.gateway.journal.threads import INTERVAL, WriterThread
from meup_agent.gateway.journal.waiting import Lost, Replaced
from meup_agent.protocol.space.journal import MAX_DECISIONS

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig
    from meup_agent.gateway.journal.threads import WriteJob
    from meup_agent.protocol.space.decisions import DecisionRow

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
            ((self.epoch, self._last, self.size),) = ask(
                tables.OWN, (name_bytes(self._node), parts)
            )
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
        ((epoch, found, self.size, node, _),) = self._insist(tables.STATE)
        if epoch != self.epoch:
            raise self._replaced(node)
        if found not in (self._last, last):
            raise Lost(
                f"{self.place} ends with number {found}, and {self._last} was kept: its server has"
                " lost the end, or something else wrote there"
            )
        return bool(found == last)

    def _replaced(self, node: bytes) -> Replaced:
        return Replaced(f"the gateway {name_of(node)} has taken over {self.place}")

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
                if not self._away:
                    log.warning("%s cannot be reached; it is tried again", self.place)
                self._away = f"{self.place} cannot be reached: {reason_of(error)}"
                self._session.rest()

    def _lock_again(self) -> None:
        # The server may not know yet that the connection before it has gone.
        while not self._lock():
            ((epoch, _, _, node, _),) = self._session.ask(tables.STATE)
            if epoch != self.epoch:
                raise self._replaced(node)
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
        for name, _, is_part, _ in session.ask(tables.SPACES) if is_there else ():
            if is_part:
                raise _incomplete(name_of(name), session.place)
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
