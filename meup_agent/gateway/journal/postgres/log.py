"""The log of all spaces, for as long as one gateway owns it.

The fence: there is one row that says who owns the log, by a number that each takeover raises (the
epoch), and where the log ends. What is appended changes that row in the same statement, and only
where it says what its writer last knew. So of a gateway that was stopped nothing takes effect after
another has taken over, and nothing is appended twice: what is not answered is asked again.

The lock only says when to try: whoever owns the log holds it by its connection, so that the server
gives it to the next one as soon as that is gone, or is silent for some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.decisions import MAX_FOLLOWED
from meup_agent.gateway.journal.postgres import tables
from meup_agent.gateway.journal.postgres.session import (
    ANSWER_SECONDS,
    SILENT_SECONDS,
    Away,
    DatabaseSession,
    SessionThread,
    StatementRefused,
)
from meup_agent.gateway.journal.postgres.tables import name_bytes, name_of
from meup_agent.gateway.journal.waiting import Lost, Replaced
from meup_agent.protocol.space.journal import MAX_DECISIONS
from meup_agent.protocol.wire.envelope import encode_leniently

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig
    from meup_agent.gateway.journal.threads import WriteJob
    from meup_agent.protocol.space.decisions import DecisionRow

log = logging.getLogger("meup_agent.gateway")

MAX_BATCH: Final = 256
"""Entries that are committed together."""

MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the same; one entry may have more."""

WATCH_SECONDS: Final = 1.0
"""Between two questions while nothing is written: the server ends a silent owner's connection."""

RETRY_SECONDS: Final = 0.25
"""Between two attempts to reach the server."""

GONE_SECONDS: Final = SILENT_SECONDS + 2
"""For a server to notice that a gateway is gone, which it may do only by its silence."""

READ_SECONDS: Final = 30.0
"""For a page of entries, some mebibytes."""

FORGET_ENTRIES: Final = 500
"""Entries that are forgotten at a time, so that writing waits for no more than that."""

_encode_parts: Final = msgspec.msgpack.Encoder().encode
_read_parts: Final = msgspec.msgpack.Decoder(dict[str, str]).decode


class OwnedLog:
    """The tables of a schema, while this gateway owns them; used in the thread of its connections.

    Attributes:
        start: The number after which this ownership begins.
        floors: Of each space, the number behind which everything is kept.
        latest: Of each space that has entries, the number of the last one.
        on_written: Told the number up to which all is kept.
        on_problem: Told why nothing can be kept at the moment; empty: it can again.
        on_lost: Told once, with a sentence, that nothing more is kept.
    """

    def __init__(
        self,
        thread: SessionThread,
        journal: JournalConfig,
        now: Callable[[], int],
        node: str,
        parts: Mapping[str, str],
        *,
        is_copy: bool = False,
    ) -> None:
        self._thread = thread
        self._journal = journal
        self._now = now
        self._node = node
        self._parts = self._told_parts = parts
        self._is_copy = is_copy
        self.on_written: Callable[[int], None]
        self.on_problem: Callable[[str], None]
        self.on_lost: Callable[[str], None]
        self.epoch = self.start = self.size = self._last = 0
        self.floors: dict[str, int] = {}
        self.latest: dict[str, int] = {}
        self.seen: dict[tuple[str, str], int] = {}
        self.decisions: list[DecisionRow] = []
        self.waiting: list[DecisionRow] = []
        self.is_replaced = False
        self._session: DatabaseSession | None = None
        self._pages: DatabaseSession | None = None  # so that a long page holds up no writing
        self._work: deque[WriteJob] = deque()
        self._unwritten: dict[tuple[str, str], int] = {}
        self._changed = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._more = self._ended = False
        self._looked = 0

    # --- the beginning ------------------------------------------------------------------------

    async def open(self, *, seconds: float = GONE_SECONDS) -> None:
        """Own the log, and read what is known of it.

        Args:
            seconds: How long to wait while another gateway has it.

        Raises:
            ConfigurationError: It cannot be owned: by a gateway that has it, say.
            Away: The server cannot be reached.
        """
        try:
            self._session = session = await self._thread.open(owns=True)
            while not await self._lock(session):
                if seconds <= 0:
                    await self._refuse(session)
                seconds -= RETRY_SECONDS
                await asyncio.sleep(RETRY_SECONDS)
            if not await look(session, self._thread.place):
                ((schema, is_there),) = await session.ask(tables.SCHEMA)
                begin = "" if is_there else f"CREATE SCHEMA {schema}; "
                await session.ask(begin + tables.MAKE)
            parts = _encode_parts(dict(self._parts))
            rows = await session.ask(tables.OWN, name_bytes(self._node), parts)
            ((self.epoch, self._last, self.size),) = rows
            # Numbers do not go back, whatever the clock does (PROTOCOL 6).
            self.start = max(self._now(), self._last)
            await self._read(session)
        except StatementRefused as error:
            raise ConfigurationError(
                f"journal.postgres: {self._thread.place} refuses: {error}; let its user make and"
                " change the tables of that schema"
            ) from None

    async def run(self) -> None:
        """Begin to write, once the callbacks are set."""
        self._running = asyncio.ensure_future(self._until_lost())

    async def _lock(self, session: DatabaseSession) -> bool:
        """Take the lock, if it is free."""
        ((taken,),) = await session.ask(f"SELECT pg_try_advisory_lock({tables.LOCK_KEY})")
        return bool(taken)

    async def _refuse(self, session: DatabaseSession) -> None:
        """Say who has the log."""
        with suppress(StatementRefused):  # the tables are being made
            ((_, _, _, node, parts),) = await session.ask(tables.STATE)
            raise InUse(name_of(node), _read_parts(parts))
        raise InUse("", {})

    async def _read(self, session: DatabaseSession) -> None:
        for name, floor, is_part, latest in await session.ask(tables.SPACES):
            space = name_of(name)
            if is_part and not self._is_copy:
                raise incomplete(space, self._thread.place)
            self.floors[space] = floor
            if latest is not None:
                self.latest[space] = latest
        for name, participant, at in await session.ask("SELECT * FROM seen"):
            self.seen[name_of(name), name_of(participant)] = at
        self.decisions = tables.decisions_of(await session.ask(tables.DECISIONS, MAX_DECISIONS))
        self.waiting = tables.decisions_of(await session.ask(tables.WAITING, MAX_FOLLOWED))

    # --- writing ------------------------------------------------------------------------------

    def put(self, work: list[WriteJob]) -> None:
        """Append entries behind those that wait."""
        self._work.extend(work)
        self._changed.set()

    def note_seen(self, space: str, participant: str, at: int) -> None:
        """Write next what a participant has seen."""
        self._unwritten[space, participant] = at
        self._changed.set()

    def reconfigure(self, parts: Mapping[str, str]) -> None:
        """Let others know of another configuration."""
        self._parts = parts
        self._changed.set()

    async def _until_lost(self) -> None:
        try:
            while self._unwritten or not self._ended:
                try:
                    if not (self._work or self._unwritten or self._more):
                        with suppress(TimeoutError):
                            await asyncio.wait_for(self._changed.wait(), WATCH_SECONDS)
                    self._changed.clear()
                    await self._step(self._owned)
                except Away as error:
                    self.on_problem(f"{self._thread.place} cannot be reached: {error}")
                    await self._reconnect()
        except Lost as error:
            self.is_replaced = isinstance(error, Replaced)
            self._lose(str(error))
        except StatementRefused as error:
            self._lose(f"{self._thread.place} takes nothing more: {error}")
        except Exception as error:
            log.exception("the journal cannot be written")
            self._lose(f"{self._thread.place} cannot be written: {error!r}")

    def _lose(self, sentence: str) -> None:
        self._ended = True
        self._owned.drop()
        self.on_lost(sentence)

    @property
    def _owned(self) -> DatabaseSession:
        assert self._session is not None, "it was opened"
        return self._session

    async def _step(self, session: DatabaseSession) -> None:
        """Write what waits, or see whether the log is still this gateway's."""
        if self._work:
            await self._append(session)
        elif self._unwritten:
            await self._write_seen(session)
        else:
            await self._judge(session, self._last)
        if self._told_parts is not (parts := self._parts):
            await session.ask(tables.TELL, _encode_parts(dict(parts)), self.epoch)
            self._told_parts = parts
        await self._forget(session)

    async def _append(self, session: DatabaseSession) -> None:
        batch, size = list[Any](), 0
        for each in self._work:
            size += len(each.row.frame)
            if len(batch) == MAX_BATCH or (batch and size > MAX_BATCH_BYTES):
                break
            batch.append(each)
        values = tables.batch_values(batch)
        last = values["last"]
        values |= {"epoch": self.epoch, "before": self._last, "is_part": self._is_copy}
        if taken := await session.ask(tables.APPEND, values):
            ((self.size,),) = taken
        # It was taken before, when no answer came, or another gateway owns the log.
        elif await self._judge(session, self._last, last) != last:
            return
        self._last = last
        for _ in batch:
            self._work.popleft()
        self.on_written(last)

    async def _judge(self, session: DatabaseSession, *ends: int) -> int:
        """The number with which the log ends, which is to be one of these, if any are given.

        Raises:
            Lost: The log is another's, or ends elsewhere.
        """
        ((epoch, found, self.size, node, _),) = await session.ask(tables.STATE)
        if epoch != self.epoch:
            raise Replaced(f"the gateway {name_of(node)} has taken over {self._thread.place}")
        if ends and found not in ends:
            raise Lost(
                f"{self._thread.place} ends with number {found}, and {ends[0]} was kept: its"
                " server has lost the end, or something else wrote there"
            )
        return int(found)

    async def _write_seen(self, session: DatabaseSession) -> None:
        said = dict(self._unwritten)
        spaces, names = ([name_bytes(key[part]) for key in said] for part in (0, 1))
        await session.ask(tables.SEEN, spaces, names, list(said.values()), self.epoch)
        for key, at in said.items():
            if self._unwritten[key] == at:
                del self._unwritten[key]

    async def _forget(self, session: DatabaseSession) -> None:
        """Forget some of the oldest entries, where they are too old or too many."""
        age, most, now = self._journal.max_age, self._journal.max_bytes, self._now()
        is_time = self._more or not 0 <= now - self._looked < WATCH_SECONDS * 1_000_000
        if (age is None and most is None) or not is_time:
            return
        oldest = 0 if age is None else now - round(age * 1_000_000)
        until, freed, floors = 0, 0, dict[bytes, int]()
        rows = await session.ask(tables.OLDEST, FORGET_ENTRIES)
        for seq, space, at, size in rows:
            if at >= oldest and (most is None or self.size - freed <= most):
                break
            until, freed = seq, freed + size + tables.ROW_BYTES
            floors[space] = seq
        if until:
            # Before they are gone, so that nobody reads over the gap.
            self.floors |= {name_of(space): floor for space, floor in floors.items()}
            places = list(floors), list(floors.values())
            left = await session.ask(tables.FORGET, freed, self.epoch, until, until, *places)
            if not left:
                await self._judge(session)
            ((self.size,),) = left
        self._looked, self._more = now, bool(rows) and until == rows[-1][0]

    async def _reconnect(self) -> None:
        """Have a connection again, and the lock with it, however long it takes.

        Raises:
            Lost: Another gateway has taken over.
        """
        while True:
            self._owned.drop()
            try:
                session = await self._thread.open(owns=True)
                self._session = session
                # The server may not know yet that the connection before it has gone.
                while not await self._lock(session):
                    await self._judge(session)
                    await asyncio.sleep(RETRY_SECONDS)
                await self._judge(session)
            except (Away, ConfigurationError, StatementRefused) as error:
                self.on_problem(f"{self._thread.place} cannot be reached: {error}")
                await asyncio.sleep(RETRY_SECONDS)
            else:
                self.on_problem("")
                return

    # --- reading ------------------------------------------------------------------------------

    async def read(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Rows, however long it takes to reach the server."""
        while True:
            try:
                if self._pages is None or self._pages.is_dropped:
                    self._pages = await self._thread.open()
                return await self._pages.ask(sql, *values, seconds=READ_SECONDS)
            except Away:
                if self._pages is not None:
                    self._pages.drop()
                await asyncio.sleep(RETRY_SECONDS)

    async def replace_facts(self, space: str, facts: Mapping[str, Any]) -> None:
        """Let a space hold these facts alone."""
        name = name_bytes(space)
        floor = self.floors.setdefault(space, self.start)
        await self.read(
            "INSERT INTO space VALUES (%s, %s, true) ON CONFLICT DO NOTHING", name, floor
        )
        await self.read("DELETE FROM fact WHERE space = %s", name)
        for key, value in facts.items():
            said = encode_leniently(value).decode()
            await self.read(tables.HOLD, name, name_bytes(key), said)

    # --- the end ------------------------------------------------------------------------------

    async def end(self) -> None:
        """Write what was seen, and let the next gateway have the log."""
        self._ended = True
        if self._running is not None and self._unwritten:
            await asyncio.wait([self._running], timeout=ANSWER_SECONDS)
        await self.let_go()

    async def let_go(self) -> None:
        """Let the next gateway have the log, at once."""
        self._ended = True
        if self._running is not None:
            self._running.cancel()
        for session in (self._session, self._pages):
            if session is not None:
                session.drop()


class InUse(ConfigurationError):
    """A gateway owns the log, whose name and configuration are said."""

    def __init__(self, node: str, parts: Mapping[str, str]) -> None:
        super().__init__(
            f"the gateway {node or 'that has it'} uses the journal in PostgreSQL; stop it, or give"
            " another journal.postgres.schema"
        )
        self.node = node
        self.parts = parts


def incomplete(space: str, place: str) -> ConfigurationError:
    """The refusal to begin with a part of a copy."""
    return ConfigurationError(
        f"space {space!r} of {place} is a copy that is not complete; run 'meup journal copy' again,"
        " or remove that schema"
    )


async def look(session: DatabaseSession, place: str) -> bool:
    """True if the tables of a journal are there, false if none are.

    Raises:
        ConfigurationError: They are another program's, or of another version.
    """
    columns = await session.ask(tables.COLUMNS)
    found = {table for table, _ in columns}
    if not found & tables.NAMES:
        return False
    if tables.NAMES - found or ("owner", "format") not in columns:
        raise ConfigurationError(
            f"journal.postgres.schema: {place} has tables that are not a journal's; give another"
            " schema"
        )
    ((version,),) = await session.ask("SELECT format FROM owner")
    if version != tables.FORMAT:
        raise ConfigurationError(
            f"journal.postgres: the tables of {place} are of another version of this package"
            f" ({version}, not {tables.FORMAT}); run that one, or give another schema"
        )
    return True
