"""The table of journal engines. A new engine is a module of this folder, and one row here."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Final, NamedTuple

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.config import Config, JournalConfig
from meup_agent.gateway.journal.sqlite import SqliteJournal
from meup_agent.protocol.space.journal import Journal, ignore

log = logging.getLogger("meup_agent.gateway")

Clock = Callable[[], int]


async def _at_once(journal: Journal, config: Config, lead: Callable[[str], object]) -> None:
    """A journal that is one gateway's alone."""


class Engine(NamedTuple):
    """An engine of the journal."""

    serves: Callable[[JournalConfig], bool]
    open: Callable[[JournalConfig, Clock], Journal]
    # Looks without changing anything if it can be opened and takes frames of so many bytes, and
    # returns the place of the entries, for people; raises ConfigurationError.
    check: Callable[[JournalConfig, int], str]
    # Waits until the gateway of a configuration may use it: there may be others with the same.
    # Meanwhile the other is told at which address one of them takes connections; empty: at none.
    ready: Callable[[Journal, Config, Callable[[str], object]], Awaitable[None]] = _at_once


def _has_file(config: JournalConfig) -> bool:
    return config.path is not None


def _has_no_file(config: JournalConfig) -> bool:
    return config.path is None


def _has_nats(config: JournalConfig) -> bool:
    return config.nats is not None


def _open_nats(config: JournalConfig, now: Clock) -> Journal:
    from meup_agent.gateway.journal.nats.journal import NatsJournal  # which not all have installed

    return NatsJournal(config, now)


async def _wait_for_nats(journal: Journal, config: Config, lead: Callable[[str], object]) -> None:
    from meup_agent.gateway.cluster.seat import Seat, config_parts
    from meup_agent.gateway.journal.nats.journal import NatsJournal

    nats = config.journal.nats
    assert isinstance(journal, NatsJournal), "the table says so"
    assert nats is not None, "the table asked before"
    if nats.advertise is not None and nats.replicas == 1:
        log.warning(
            "journal.nats.replicas is 1: several gateways share one server's disk, and stop with it"
        )
    if nats.advertise is not None:
        for (_, name), entry in config.entries():
            if entry.output_log is not None:
                raise ConfigurationError(
                    f"output_log: {entry.output_log} of {name!r} is on one machine, and there are"
                    " several gateways (journal.nats.advertise); remove one of them"
                )
    node = nats.node or socket.gethostname()
    seat = Seat(
        journal.link,
        nats.prefix,
        node,
        config_parts(config),
        nats.advertise or "",
        lambda owner: lead("" if owner is None else owner.advertise),
    )
    await journal.take_over(seat, [space.id for space in config.spaces])


def _check_nats(config: JournalConfig, max_message_bytes: int) -> str:
    from meup_agent.gateway.journal.nats.journal import check

    place, takes = check(config)
    check_size(takes, max_message_bytes)
    return place


def check_size(takes: int | None, sent: int) -> None:
    """Refuse a journal that does not take what members may send, both in bytes.

    Raises:
        ConfigurationError: It does not.
    """
    if takes is not None and takes < sent:
        raise ConfigurationError(
            f"gateway.max_message_bytes: members may send {sent} bytes, and the journal takes"
            f" {max(0, takes)} (max_payload of NATS, less 64 KiB); set max_message_bytes to that or"
            " less, or raise max_payload on each server of NATS"
        )


def _in_memory(_: JournalConfig, max_message_bytes: int) -> str:
    return "memory"


def _check_file(config: JournalConfig, max_message_bytes: int) -> str:
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
    "nats": Engine(_has_nats, _open_nats, _check_nats, _wait_for_nats),
    "sqlite": Engine(_has_file, SqliteJournal, _check_file),
    "memory": Engine(_has_no_file, JournalConfig.open_memory, _in_memory),
}
"""The engines by name; the first that serves a configuration is opened.

``sqlite`` serves each that has a path: put one that needs more before it, or narrow ``_has_file``.
"""


def engine_of(config: JournalConfig) -> Engine:
    return next(engine for engine in ENGINES.values() if engine.serves(config))


@asynccontextmanager
async def open_journal(
    config: Config, now: Clock, lead: Callable[[str], object] = ignore
) -> AsyncGenerator[Journal]:
    """Open the journal of a gateway for the length of a block; it waits until the gateway may.

    Its clock tells microseconds since 1970. While it waits, ``lead`` is told the address of the one
    that has it.

    Raises:
        ConfigurationError: It cannot be opened, or does not take what members may send.
    """
    engine = engine_of(config.journal)
    journal = engine.open(config.journal, now)
    try:
        check_size(journal.max_frame_bytes, config.limits.max_message_bytes)
        await engine.ready(journal, config, lead)
        yield journal
    finally:
        await journal.aclose()
