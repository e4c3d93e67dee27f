"""The places of journals, as commands name them: a file, or a server by the file of its spaces."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.archive import Archive, JournalArchive, ServerArchive
from meup_agent.protocol.space.journal import Journal

if TYPE_CHECKING:
    from meup_agent.gateway.config import NatsConfig, PostgresConfig

SPACE_FILES: Final = frozenset({".yaml", ".yml", ".json"})
"""Endings of the name of a space's file; any other file is a journal."""


_ADDRESSES: Final = {
    "journal.nats": ("nats:", "tls:"),
    "journal.postgres": ("postgres:", "postgresql:"),
}


class JournalPlace(NamedTuple):
    """A journal's place: a file, or a server with the spaces that are meant there."""

    name: str  # for people
    path: Path | None = None
    nats: NatsConfig | None = None
    spaces: tuple[str, ...] = ()
    postgres: PostgresConfig | None = None


def place_of(file: Path) -> JournalPlace:
    """The place of a journal: of its file, or as a space's file says.

    Raises:
        ConfigurationError: It is in memory, or the file cannot be read.
    """
    for key, beginnings in _ADDRESSES.items():
        if str(file).startswith(beginnings):
            raise ConfigurationError(
                f"this is an address; give the space's file, whose {key} says it and the rest"
            )
    if file.suffix not in SPACE_FILES:
        return JournalPlace(str(file), path=file.absolute())
    from meup_agent.gateway.config_file import load_config

    settings = load_config(file, needs_tokens=False)
    nats, path = settings.journal.nats, settings.journal.path
    if nats is not None:
        spaces = tuple(space.id for space in settings.spaces)
        return JournalPlace(f"{nats.place} (prefix {nats.prefix})", None, nats, spaces)
    if (postgres := settings.journal.postgres) is not None:
        from meup_agent.gateway.journal.postgres.log import place_of as name_of_place

        return JournalPlace(name_of_place(postgres), postgres=postgres)
    if path is None:
        raise ConfigurationError(
            f"{file}: its journal is in memory; set journal.path, journal.nats or journal.postgres"
        )
    return JournalPlace(str(path), path=path.absolute())


def open_archive(
    place: JournalPlace, *, accept_damage: bool = False, looks_through: bool = True
) -> AbstractContextManager[JournalArchive]:
    """Open a journal to read it in a block; for a file as :class:`~.archive.Archive` has it.

    Raises:
        ConfigurationError: It cannot be read.
    """
    if place.path is None:
        return open_server(place)
    return closing(Archive(place.path, accept_damage=accept_damage, looks_through=looks_through))


def open_server(place: JournalPlace) -> AbstractContextManager[ServerArchive]:
    """Open a journal on a server to read it in a block.

    Raises:
        ConfigurationError: It cannot be read.
    """
    if place.postgres is not None:
        from meup_agent.gateway.journal.postgres.journal import PostgresArchive

        return closing(PostgresArchive(place.postgres))
    from meup_agent.gateway.journal.nats.journal import NatsArchive

    assert place.nats is not None, "a place is one of the three"
    return closing(NatsArchive(place.nats, place.spaces))


class CopyJournal(Journal, Protocol):
    """A journal on a server into which another is copied."""

    failure: str  # the sentence with which it failed; empty: it did not

    def replace_facts(self, space: str, facts: dict[str, Any], seen: dict[str, int]) -> None:
        """Let a space hold these facts and marks, and not those that its entries made; blocks."""


def open_copy(place: JournalPlace, now: Callable[[], int]) -> CopyJournal:
    """A journal on a server, whose new spaces no gateway opens before the copy is complete.

    Raises:
        ConfigurationError: It cannot be used.
    """
    # Here, since whoever reads a journal's file needs no configuration.
    from meup_agent.gateway.config import JournalConfig

    node = "meup journal copy"
    if place.postgres is not None:
        from meup_agent.gateway.journal.postgres.journal import PostgresJournal

        config = JournalConfig(postgres=replace(place.postgres, node=node))
        return PostgresJournal(config, now, is_copy=True)
    from meup_agent.gateway.journal.nats.journal import NatsJournal

    assert place.nats is not None, "a place is one of the three"
    return NatsJournal(JournalConfig(nats=replace(place.nats, node=node)), now, is_copy=True)
