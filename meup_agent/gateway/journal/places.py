"""The places of journals, as commands name them: a file, or NATS by the file of its spaces."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.archive import Archive, JournalArchive

if TYPE_CHECKING:
    from meup_agent.gateway.config import NatsConfig

SPACE_FILES: Final = frozenset({".yaml", ".yml", ".json"})
"""Endings of the name of a space's file; any other file is a journal."""


class JournalPlace(NamedTuple):
    """A journal's place: a file, or NATS with the spaces whose streams are meant."""

    name: str  # for people
    path: Path | None = None
    nats: NatsConfig | None = None
    spaces: tuple[str, ...] = ()


def place_of(file: Path) -> JournalPlace:
    """The place of a journal: of its file, or as a space's file says.

    Raises:
        ConfigurationError: It is in memory, or the file cannot be read.
    """
    if str(file).startswith(("nats:", "tls:")):
        raise ConfigurationError(
            f"{file} is an address; give the space's file, whose journal.nats says it and the rest"
        )
    if file.suffix not in SPACE_FILES:
        return JournalPlace(str(file), path=file.absolute())
    from meup_agent.gateway.config_file import load_config

    settings = load_config(file, needs_tokens=False)
    nats, path = settings.journal.nats, settings.journal.path
    if nats is not None:
        servers = ", ".join(each.rpartition("@")[2] for each in nats.servers)
        spaces = tuple(space.id for space in settings.spaces)
        return JournalPlace(f"NATS at {servers} (prefix {nats.prefix})", None, nats, spaces)
    if path is None:
        raise ConfigurationError(
            f"{file}: its journal is in memory; set journal.path or journal.nats"
        )
    return JournalPlace(str(path), path=path.absolute())


@contextmanager
def open_archive(
    place: JournalPlace, *, accept_damage: bool = False, looks_through: bool = True
) -> Generator[JournalArchive]:
    """Open a journal to read it; for a file as :class:`~.archive.Archive` has it.

    Raises:
        ConfigurationError: It cannot be read.
    """
    archive: JournalArchive
    if place.path is not None:
        archive = Archive(place.path, accept_damage=accept_damage, looks_through=looks_through)
    else:
        from meup_agent.gateway.journal.nats.archive import NatsArchive

        assert place.nats is not None, "a place is one of the two"
        archive = NatsArchive(place.nats, place.spaces)
    with closing(archive):
        yield archive
