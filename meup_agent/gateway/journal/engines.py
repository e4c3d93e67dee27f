"""The table of journal engines. A new engine is a module of this folder, and one row here."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from meup_agent.errors import ConfigurationError, explain_os_error
from meup_agent.gateway.config import Config, JournalConfig
from meup_agent.gateway.journal.archive import Archive
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.gateway.limits import check_message_size
from meup_agent.protocol.space.journal import Journal

if TYPE_CHECKING:
    from meup_agent.gateway.cluster.membership import ClusterMembership
    from meup_agent.gateway.runtime import GatewayRuntime


Clock = Callable[[], int]


class Keeper(Protocol):
    """Begins and ends the spaces of a gateway, of which others may have some, or all."""

    @property
    def membership(self) -> ClusterMembership | None:
        """Its place among gateways that pass connections on; ``None``: they do not."""
        ...

    async def begin(self) -> None:
        """Begin the spaces that are to be here now, and go on as gateways come and go."""

    async def leave(self) -> None:
        """Hand all spaces over: the gateway ends in order; harmless the second time."""


Keep = Callable[["GatewayRuntime", JournalConfig, Clock], AbstractAsyncContextManager[Keeper]]
"""The block for whose length a gateway has spaces, each with a journal of its own."""


class Engine(NamedTuple):
    """An engine of the journal."""

    serves: Callable[[JournalConfig], bool]
    open: Callable[[JournalConfig, Clock], Journal]
    # Looks without changing anything if it can be opened and takes frames of so many bytes, and
    # returns the place of the entries, for people; raises ConfigurationError.
    check: Callable[[JournalConfig, int], str]
    # ``None``: all spaces of a gateway share the one journal that is opened.
    keep: Keep | None = None


def _open_nats(config: JournalConfig, now: Clock) -> Journal:
    from meup_agent.gateway.journal.nats.journal import NatsJournal  # which not all have installed

    return NatsJournal(config, now)


def _keep_at_nats(
    runtime: GatewayRuntime, config: JournalConfig, now: Clock
) -> AbstractAsyncContextManager[Keeper]:
    from meup_agent.gateway.cluster.keeper import keep_spaces

    return keep_spaces(runtime, config, now)


def _check_nats(config: JournalConfig, max_message_bytes: int) -> str:
    from meup_agent.gateway.journal.nats.journal import check

    place, takes = check(config)
    check_message_size(takes, max_message_bytes)
    return place


def _open_postgres(config: JournalConfig, now: Clock) -> Journal:
    from meup_agent.gateway.journal.postgres.journal import PostgresJournal  # as above

    return PostgresJournal(config, now)


def _keep_in_postgres(
    runtime: GatewayRuntime, config: JournalConfig, now: Clock
) -> AbstractAsyncContextManager[Keeper]:
    from meup_agent.gateway.cluster.standby import keep_or_wait

    return keep_or_wait(runtime, config, now)


def _check_postgres(config: JournalConfig, _: int) -> str:
    from meup_agent.gateway.journal.postgres.log import check

    return check(config)


def _check_file(config: JournalConfig, max_message_bytes: int) -> str:
    """Look at a journal's file; a gateway that runs may have it open."""
    path = config.path
    assert path is not None
    with explain_os_error(f"journal.path: {path} cannot be looked at"):
        if not path.parent.is_dir():
            raise ConfigurationError(f"journal.path: there is no folder {path.parent}")
        if path.is_dir():
            raise ConfigurationError(f"journal.path: {path} is a folder; give a file")
        if path.exists() and path.stat().st_size:
            with closing(Archive(path)) as archive:
                archive.check()
    return str(path)


def _has(key: str) -> Callable[[JournalConfig], bool]:
    def has(config: JournalConfig) -> bool:
        return getattr(config, key) is not None

    return has


def _serves_any(_: JournalConfig) -> bool:
    return True


def _in_memory(_: JournalConfig, max_message_bytes: int) -> str:
    return "memory"


ENGINES: Final[dict[str, Engine]] = {
    "nats": Engine(_has("nats"), _open_nats, _check_nats, _keep_at_nats),
    "postgres": Engine(_has("postgres"), _open_postgres, _check_postgres, _keep_in_postgres),
    "sqlite": Engine(_has("path"), SqliteJournal, _check_file),
    "memory": Engine(_serves_any, JournalConfig.open_memory, _in_memory),
}
"""The engines by name; the first that serves a configuration is opened.

``sqlite`` serves each that has a path: put one that needs more before it. The last one serves any.
"""


def engine_of(config: JournalConfig) -> Engine:
    return next(engine for engine in ENGINES.values() if engine.serves(config))


@asynccontextmanager
async def open_journal(config: Config, now: Clock) -> AsyncGenerator[Journal]:
    """Open the journal that all spaces of a gateway share, for the length of a block.

    Its clock tells microseconds since 1970.

    Raises:
        ConfigurationError: It cannot be opened, or does not take what members may send.
    """
    journal = engine_of(config.journal).open(config.journal, now)
    try:
        check_message_size(journal.max_frame_bytes, config.limits.max_message_bytes)
        yield journal
    finally:
        await journal.aclose()
