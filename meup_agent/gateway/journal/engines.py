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
    """An engine of the journal.

    Attributes:
        serves: True for a configuration that asks for this engine.
        open: Opens a journal on the loop that runs; :exc:`ConfigurationError` if it cannot.
        durable: Its entries outlive the gateway's process.
    """

    serves: Callable[[JournalConfig], bool]
    open: Callable[[JournalConfig, Clock], Journal]
    durable: bool


def _open_memory(config: JournalConfig, now: Clock) -> Journal:
    return MemoryJournal(now, max_entries=config.memory_entries, max_bytes=config.memory_bytes)


def _has_file(config: JournalConfig) -> bool:
    return config.path is not None


def _has_none(config: JournalConfig) -> bool:
    return config.path is None


ENGINES: Final[dict[str, Engine]] = {
    "sqlite": Engine(_has_file, open_sqlite, durable=True),
    "memory": Engine(_has_none, _open_memory, durable=False),
}
"""The engines by name; the first that serves a configuration is opened."""


@asynccontextmanager
async def open_journal(config: JournalConfig, now: Clock) -> AsyncGenerator[Journal]:
    """Open a journal; leaving the block keeps what waits, and closes it.

    Args:
        config: The engine's configuration.
        now: The time in microseconds since 1970 (UTC).

    Raises:
        ConfigurationError: The store cannot be used; the message says which and why.
    """
    engine = next(engine for engine in ENGINES.values() if engine.serves(config))
    journal = engine.open(config, now)
    try:
        yield journal
    finally:
        await journal.aclose()
