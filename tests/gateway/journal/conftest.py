"""Journals to test: in memory and in a file, with a clock that stands still."""

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.journal import Entry, Fact, MemoryJournal

PATIENCE = 20.0

NOW = 1_750_000_000_000_000


class Clock:
    """Microseconds since 1970, as a test says."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> int:
        return self.now


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The gateway's loops."""
    return request.param


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
    journal = SqliteJournal(path, JournalConfig(path, **config), clock)
    try:
        yield journal
    finally:
        await journal.aclose()


def chat(number: int, sender: str = "alice", message: str = "hi") -> Envelope:
    return decode(
        b'{"protocol":"meup/v0.1","id":"%d","from":"%s","kind":"chat","payload":{"message":"%s"}}'
        % (number, sender.encode(), message.encode())
    )


AnyJournal = MemoryJournal | SqliteJournal

MakeJournal = Callable[[], AbstractAsyncContextManager[AnyJournal]]


@pytest.fixture(params=["memory", "sqlite"])
def make_journal(request: pytest.FixtureRequest, path: Path, clock: Clock) -> MakeJournal:
    @asynccontextmanager
    async def make() -> AsyncGenerator[AnyJournal]:
        if request.param == "memory":
            yield MemoryJournal(clock)
        else:
            async with opened(path, clock) as journal:
                yield journal

    return make


async def kept(
    journal: AnyJournal, *envelopes: Envelope, space: str = "demo", facts: tuple[Fact, ...] = ()
) -> list[Entry]:
    """Append, and wait until it is kept."""
    entries: list[Entry] = []
    for envelope in envelopes:
        journal.append(space, envelope, facts, entries.append)
    await settled(journal)
    assert len(entries) == len(envelopes)
    return entries


async def settled(journal: AnyJournal) -> None:
    """Wait until everything that was appended before is kept."""
    done = anyio.Event()
    journal.call_when_kept(done.set)
    with anyio.fail_after(PATIENCE):
        await done.wait()


async def read(
    journal: AnyJournal,
    space: str = "demo",
    *,
    after: int = 0,
    until: int = 2**62,
    limit: int = 100_000,
) -> tuple[Entry, ...]:
    found: list[tuple[Entry, ...]] = []
    done = anyio.Event()

    def take(entries: tuple[Entry, ...]) -> None:
        found.append(entries)
        done.set()

    journal.read(space, after=after, until=until, limit=limit, then=take)
    with anyio.fail_after(PATIENCE):
        await done.wait()
    (entries,) = found
    return entries


def ids(entries: tuple[Entry, ...]) -> list[str]:
    return [entry.envelope.id for entry in entries]
