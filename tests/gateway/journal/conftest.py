"""Journals to test: in memory and in a file, with a clock that stands still."""

import asyncio
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


def postgres_config(
    path: Path, server: PostgresServer | None = None, **more: Any
) -> PostgresConfig:
    """The journal's place on a server: the same again for the same path."""
    schema = sha256(str(path).encode()).hexdigest()[:24]
    return PostgresConfig(url=(server or shared_postgres()).url, schema=schema, **more)


def _on_server(name: str, place: Callable[[Path], Any]) -> engines.Engine:
    """An engine that keeps on the server of the tests what others keep in a file."""
    engine = ENGINES[name]

    def there(config: JournalConfig) -> JournalConfig:
        assert config.path is not None
        places: dict[str, Any] = {"path": None, name: place(config.path)}
        return replace(config, **places)

    def keep(
        runtime: GatewayRuntime, config: JournalConfig, now: Callable[[], int]
    ) -> AbstractAsyncContextManager[engines.Keeper]:
        assert engine.keep is not None
        return engine.keep(runtime, there(config), now)

    return engine._replace(open=lambda config, clock: engine.open(there(config), clock), keep=keep)


ALL_ENGINES = {
    **ENGINES,
    "nats": _on_server("nats", nats_config),
    "postgres": _on_server("postgres", postgres_config),
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


async def failure_of(journal: Any) -> str:
    """Wait for the sentence with which a journal on a server fails."""
    if journal.failure:
        return str(journal.failure)
    failed = asyncio.get_running_loop().create_future()
    journal.on_failed = failed.set_result
    with anyio.fail_after(PATIENCE):
        sentence: str = await failed
    return sentence


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
