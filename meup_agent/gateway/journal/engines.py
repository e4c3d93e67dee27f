"""The journal that a configuration asks for, for the length of a block."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.space.journal import MemoryJournal

if TYPE_CHECKING:
    from meup_agent.gateway.config import JournalConfig


@asynccontextmanager
async def open_journal(
    config: JournalConfig, now: Callable[[], int]
) -> AsyncGenerator[MemoryJournal | SqliteJournal]:
    """A journal; leaving the block writes what waits, and lets go of the file.

    Args:
        config: Where it is, and what it keeps.
        now: Tells the time in microseconds since 1970 (UTC).

    Raises:
        ConfigurationError: Its file cannot be used; the message says which and why.
    """
    if config.path is None:
        yield MemoryJournal(now, max_entries=config.memory_entries, max_bytes=config.memory_bytes)
        return
    journal = SqliteJournal(config.path, config, now)
    try:
        yield journal
    finally:
        await journal.aclose()
