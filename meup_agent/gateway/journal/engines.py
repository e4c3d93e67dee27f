"""The table of journal engines. A new engine is a module of this folder, and one row here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.gateway.journal.sqlite import open_sqlite
from meup_agent.protocol.space.journal import Journal, MemoryJournal

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig

Clock = Callable[[], int]


class Engine(NamedTuple):
    """An engine of the journal; the entries of a durable one outlive the gateway's process."""

    serves: Callable[[JournalConfig], bool]
    open: Callable[[JournalConfig, Clock], Journal]
    durable: bool


def _has_file(config: JournalConfig) -> bool:
    return config.path is not None


def _has_no_file(config: JournalConfig) -> bool:
    return config.path is None


def _open_memory(config: JournalConfig, now: Clock) -> Journal:
    return MemoryJournal(now, max_entries=config.memory_entries, max_bytes=config.memory_bytes)


ENGINES: Final[dict[str, Engine]] = {
    "sqlite": Engine(_has_file, open_sqlite, durable=True),
    "memory": Engine(_has_no_file, _open_memory, durable=False),
}
"""The engines by name; the first that serves a configuration is opened."""


@asynccontextmanager
async def open_journal(config: JournalConfig, now: Clock) -> AsyncGenerator[Journal]:
    """Open a journal, whose clock tells microseconds since 1970, for the length of a block."""
    engine = next(engine for engine in ENGINES.values() if engine.serves(config))
    journal = engine.open(config, now)
    try:
        yield journal
    finally:
        await journal.aclose()
