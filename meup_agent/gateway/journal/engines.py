"""The table of journal engines. A new engine is a module of this folder, and one row here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.errors import ConfigurationError, system_reason
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
    # Where the entries are, for people.
    place: Callable[[JournalConfig], str]
    # Looks without changing anything whether it can be opened; raises ConfigurationError.
    check: Callable[[JournalConfig], None]


def _has_file(config: JournalConfig) -> bool:
    return config.path is not None


def _place_of_file(config: JournalConfig) -> str:
    return str(config.path)


def _check_file(config: JournalConfig) -> None:
    """Look at a journal's file; a gateway that runs may have it open."""
    from meup_agent.gateway.journal.archive import Archive  # no gateway that runs needs it

    path = config.path
    assert path is not None
    try:
        if not path.parent.is_dir():
            raise ConfigurationError(f"journal.path: there is no folder {path.parent}")
        if path.is_dir():
            raise ConfigurationError(f"journal.path: {path} is a folder; give a file")
        if path.exists() and path.stat().st_size:
            with closing(Archive(path)) as archive:
                archive.check()
    except OSError as error:
        why = system_reason(error)
        raise ConfigurationError(f"journal.path: {path} cannot be looked at ({why})") from None


def _has_no_file(config: JournalConfig) -> bool:
    return config.path is None


def _in_memory(_: JournalConfig) -> str:
    return "memory"


def _needs_nothing(_: JournalConfig) -> None:
    pass


def _open_memory(config: JournalConfig, now: Clock) -> Journal:
    return MemoryJournal(now, max_entries=config.memory_entries, max_bytes=config.memory_bytes)


ENGINES: Final[dict[str, Engine]] = {
    "sqlite": Engine(
        _has_file,
        open_sqlite,
        durable=True,
        place=_place_of_file,
        check=_check_file,
    ),
    "memory": Engine(
        _has_no_file,
        _open_memory,
        durable=False,
        place=_in_memory,
        check=_needs_nothing,
    ),
}
"""The engines by name; the first that serves a configuration is opened."""


def engine_of(config: JournalConfig) -> Engine:
    """The engine that serves a configuration."""
    return next(engine for engine in ENGINES.values() if engine.serves(config))


@asynccontextmanager
async def open_journal(config: JournalConfig, now: Clock) -> AsyncGenerator[Journal]:
    """Open a journal, whose clock tells microseconds since 1970, for the length of a block."""
    journal = engine_of(config).open(config, now)
    try:
        yield journal
    finally:
        await journal.aclose()
