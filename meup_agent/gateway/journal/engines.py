"""The table of journal engines. A new engine is a module of this folder, and one row here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.space.journal import Journal

Clock = Callable[[], int]


class Engine(NamedTuple):
    """An engine of the journal."""

    serves: Callable[[JournalConfig], bool]
    open: Callable[[JournalConfig, Clock], Journal]
    # Looks without changing anything if it can be opened, and returns the place of the entries, for
    # people; raises ConfigurationError.
    check: Callable[[JournalConfig], str]


def _has_file(config: JournalConfig) -> bool:
    return config.path is not None


def _has_no_file(config: JournalConfig) -> bool:
    return config.path is None


def _in_memory(_: JournalConfig) -> str:
    return "memory"


def _check_file(config: JournalConfig) -> str:
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
    return str(path)


ENGINES: Final[dict[str, Engine]] = {
    "sqlite": Engine(_has_file, SqliteJournal, _check_file),
    "memory": Engine(_has_no_file, JournalConfig.open_memory, _in_memory),
}
"""The engines by name; the first that serves a configuration is opened.

``sqlite`` serves each that has a path: put one that needs more before it, or narrow ``_has_file``.
"""


def engine_of(config: JournalConfig) -> Engine:
    return next(engine for engine in ENGINES.values() if engine.serves(config))


@asynccontextmanager
async def open_journal(config: JournalConfig, now: Clock) -> AsyncGenerator[Journal]:
    """Open a journal, whose clock tells microseconds since 1970, for the length of a block."""
    journal = engine_of(config).open(config, now)
    try:
        yield journal
    finally:
        await journal.aclose()
