"""Journals to test: in memory and in a file, with a clock that stands still."""

import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from meup_agent import Envelope
from meup_agent.gateway import JournalConfig
from meup_agent.gateway.config import NatsConfig, PostgresConfig
from meup_agent.gateway.journal import engines
from meup_agent.gateway.runtime import GatewayRuntime
from tests.gateway.journal.elsewhere import ELSEWHERE
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateways import ENGINES, SqliteJournal
from tests.nats_servers import NatsServer, shared_server
from tests.patience import PATIENCE
from tests.postgres_servers import PostgresServer, shared_postgres
from tests.spaces import Entry, Fact, Journal
from tests.wire import decode

NOW = 1_750_000_000_000_000


class Clock:
    """Microseconds since 1970, as a test says."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@asynccontextmanager
async def opened(
    path: Path, clock: Callable[[], int], **config: Any
) -> AsyncGenerator[SqliteJournal]:
    """A journal in a file."""
    journal = SqliteJournal(JournalConfig(path, **config), clock)
    try:
        yield journal
    finally:
        await journal.aclose()


def chat(number: int, sender: str = "alice", message: str = "hi") -> Envelope:
    return decode(
        b'{"protocol":"meup/v0.1","id":"%d","from":"%s","kind":"chat","payload":{"message":"%s"}}'
        % (number, sender.encode(), message.encode())
    )


def change(path: Path, sql: str, *values: Any) -> None:
    """Change the file as no gateway does."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, values)


def fill_disk(journal: Journal, pages: int = 20) -> None:
    """Let the disk of a journal in a file have no room beyond so many pages."""
    assert isinstance(journal, SqliteJournal)
    journal._database.writer.execute(f"PRAGMA max_page_count = {pages}")


def nats_config(path: Path, server: NatsServer | None = None, **more: Any) -> NatsConfig:
    """The journal's place on a server: the same again for the same path."""
    url = (server or shared_server()).url
    prefix = sha256(str(path).encode()).hexdigest()[:24]
    return NatsConfig(servers=(url,), prefix=prefix, replicas=1, **more)


def _at_nats(config: JournalConfig) -> JournalConfig:
    assert config.path is not None
    return replace(config, path=None, nats=nats_config(config.path))


def _open_at_nats(config: JournalConfig, clock: Callable[[], int]) -> Journal:
    return ENGINES["nats"].open(_at_nats(config), clock)


def _keep_at_nats(
    runtime: GatewayRuntime, config: JournalConfig, now: Callable[[], int]
) -> AbstractAsyncContextManager[engines.Keeper]:
    keep = ENGINES["nats"].keep
    assert keep is not None
    return keep(runtime, _at_nats(config), now)


def postgres_config(
    path: Path, server: PostgresServer | None = None, **more: Any
) -> PostgresConfig:
    """The journal's place on a server: the same again for the same path."""
    schema = sha256(str(path).encode()).hexdigest()[:24]
    return PostgresConfig(url=(server or shared_postgres()).url, schema=schema, **more)


def _in_postgres(config: JournalConfig) -> JournalConfig:
    assert config.path is not None
    return replace(config, path=None, postgres=postgres_config(config.path))


def _open_in_postgres(config: JournalConfig, clock: Callable[[], int]) -> Journal:
    return ENGINES["postgres"].open(_in_postgres(config), clock)


def _keep_in_postgres(
    runtime: GatewayRuntime, config: JournalConfig, now: Callable[[], int]
) -> AbstractAsyncContextManager[engines.Keeper]:
    keep = ENGINES["postgres"].keep
    assert keep is not None
    return keep(runtime, _in_postgres(config), now)


ALL_ENGINES = {
    **ENGINES,
    "nats": ENGINES["nats"]._replace(open=_open_at_nats, keep=_keep_at_nats),
    "postgres": ENGINES["postgres"]._replace(open=_open_in_postgres, keep=_keep_in_postgres),
    "elsewhere": ELSEWHERE,
}
"""Every engine of the gateway, and one whose store is on another machine."""

DURABLE_ENGINES = [name for name in ALL_ENGINES if name != "memory"]
"""Those whose entries outlive the gateway's process."""

MakeJournal = Callable[[], AbstractAsyncContextManager[Journal]]


def _maker(name: str, path: Path, clock: Clock) -> MakeJournal:
    @asynccontextmanager
    async def make() -> AsyncGenerator[Journal]:
        journal = ALL_ENGINES[name].open(JournalConfig(path), clock)
        try:
            yield journal
        finally:
            await journal.aclose()

    return make


@pytest.fixture(params=ALL_ENGINES)
def make_journal(request: pytest.FixtureRequest, path: Path, clock: Clock) -> MakeJournal:
    """Opens a journal, with each engine."""
    return _maker(request.param, path, clock)


@pytest.fixture(params=DURABLE_ENGINES)
def make_durable(request: pytest.FixtureRequest, path: Path, clock: Clock) -> MakeJournal:
    """Opens a journal that is the same again, with each engine that outlives its process."""
    return _maker(request.param, path, clock)


@pytest.fixture(params=ALL_ENGINES)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Has gateways keep what they accept in each engine; its name."""
    name: str = request.param
    opened = {name: ALL_ENGINES[name]._replace(serves=lambda _: True)}
    monkeypatch.setattr(engines, "ENGINES", opened)
    return name


async def kept(
    journal: Journal,
    *envelopes: Envelope,
    space: str = "demo",
    at: int = NOW,
    facts: tuple[Fact, ...] = (),
) -> list[Entry]:
    """Append, and wait until it is kept."""
    entries: list[Entry] = []
    for envelope in envelopes:
        journal.append(space, at, envelope, facts, entries.append)
    await settled(journal)
    assert len(entries) == len(envelopes)
    return entries


async def settled(journal: Journal) -> None:
    """Wait until everything that was appended before is kept."""
    done = anyio.Event()
    journal.call_when_kept(done.set)
    with anyio.fail_after(PATIENCE):
        await done.wait()


async def read(
    journal: Journal,
    space: str = "demo",
    *,
    after: int = 0,
    until: int = 2**62,
    limit: int = 100_000,
) -> tuple[Entry, ...]:
    page = partial(journal.read, space, after=after, until=until, limit=limit)
    return await handed_over(lambda then: page(then=then))


T = TypeVar("T")


async def handed_over(ask: Callable[[Callable[[T], None]], None]) -> T:
    """What a journal hands over, sooner or later, when it is asked."""
    found, done = list[T](), anyio.Event()

    def take(answer: T) -> None:
        found.append(answer)
        done.set()

    ask(take)
    with anyio.fail_after(PATIENCE):
        await done.wait()
    return found[0]


def ids(entries: tuple[Entry, ...]) -> list[str]:
    return [entry.envelope.id for entry in entries]
