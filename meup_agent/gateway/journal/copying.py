"""A journal copied into another place: from a file to a server, back, or from like to like.

Entries keep their times, frames and facts, and get new numbers, all above those of the journal that
they come from: whoever resumes by an old number is told of a gap, and never passes over anything.
A copy that was interrupted goes on where it stopped. Until it is complete no gateway opens it: a
file has another name, and a server says so of the space. Then it is read back, and what was read
has the same SHA-256 as what was copied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from heapq import merge
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import anyio

from meup_agent.errors import ConfigurationError, system_reason
from meup_agent.gateway.config import JournalConfig
from meup_agent.gateway.journal.archive import JournalArchive, name_for_good
from meup_agent.gateway.journal.damage import error_text
from meup_agent.gateway.journal.decisions import changes_of
from meup_agent.gateway.journal.places import JournalPlace, open_archive, open_copy, open_server
from meup_agent.gateway.journal.rows import WRITE_FACT, sealed
from meup_agent.gateway.journal.sqlite import FileLock, SqliteJournal
from meup_agent.protocol.space.journal import Entry, ignore
from meup_agent.protocol.wire.envelope import encode_leniently

if TYPE_CHECKING:
    from meup_agent.gateway.journal.archive import ServerArchive
    from meup_agent.gateway.journal.places import CopyJournal
    from meup_agent.protocol.space.state.state import SpaceState

PAGE: Final = 200
"""Entries that are read at a time, of each space."""

AT_ONCE: Final = 1_000
"""Entries that are appended before the copy waits until they are kept."""

AT_ONCE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of the same."""


class Copied(NamedTuple):
    """The result of a copy."""

    envelopes: int
    spaces: int
    digest: str  # the SHA-256 of all of it, in hexadecimal
    went_on: int = 0  # so many of the envelopes were there before
    was_there: bool = False  # all of it was, so nothing was written


@dataclass
class _Content:
    """A journal's content of a space, as far as it was read: told from another by its digest."""

    count: int = 0
    entries: Any = field(default_factory=sha256)  # of all entries, in order

    def add(self, seal: bytes) -> None:
        self.count += 1
        self.entries.update(seal)


def _count(contents: dict[str, _Content]) -> int:
    return sum(each.count for each in contents.values())


def _seal(entry: Entry) -> bytes:
    """The digest of an entry, whatever its number."""
    frame = entry.envelope.frame
    said = (entry.at, entry.envelope.correlation, entry.facts, len(frame))
    return sha256(encode_leniently(said) + b"\n" + frame).digest()


def _digest(contents: dict[str, _Content], held: dict[str, Any]) -> str:
    """The content of a whole journal."""
    all_of_it = sha256()
    for space in sorted(contents):
        content = contents[space]
        facts = [[key, held[space][0][key]] for key in sorted(held[space][0])]
        seen = sorted(held[space][1].items())
        said = (space, content.count, content.entries.hexdigest(), facts, seen)
        all_of_it.update(encode_leniently(said) + b"\n")
    return all_of_it.hexdigest()


def _entries(archive: JournalArchive, space: str) -> Iterator[Entry]:
    after, until = 0, archive.latest(space)
    while after < until and (page := archive.read(space, after=after, until=until, limit=PAGE)):
        yield from page
        after = page[-1].seq


def _held(archive: JournalArchive, spaces: list[str]) -> dict[str, Any]:
    """The facts and the marks of what was seen, of each space."""
    return {space: (archive.facts(space), archive.seen(space)) for space in spaces}


# --- the journal that is copied ---


@contextmanager
def _source(place: JournalPlace) -> Generator[JournalArchive]:
    """The journal that is copied, which no gateway uses meanwhile."""
    if place.path is not None:
        if not place.path.is_file():
            raise ConfigurationError(f"there is no journal {place.path}; give a journal's file")
        try:
            lock = FileLock(place.path)
        except (ConfigurationError, OSError, sqlite3.Error) as error:
            why = str(error).partition("; ")[0]
            if isinstance(error, OSError):
                why = f"the journal {place.path} cannot be locked: {system_reason(error)}"
            raise ConfigurationError(
                f"{why}; stop its gateway, or copy what 'meup journal backup' makes of it"
            ) from None
        with closing(lock), open_archive(place) as archive:
            yield archive
        return
    with open_server(place) as server:
        _refuse_running(server, place)
        yield server


def _refuse_changed(archive: JournalArchive, place: JournalPlace) -> None:
    """Refuse a journal that somebody wrote to while it was copied; a file was locked."""
    if place.path is not None:
        return
    # A gateway that was started meanwhile, or was only paused.
    server = cast("ServerArchive", archive)
    _refuse_running(server, place)
    for space in archive.spaces:
        if server.has_grown(space):
            raise ConfigurationError(
                f"{place.name}: a gateway wrote to space {space!r} while it was copied; stop"
                " it, and run the same again"
            )


def _refuse_running(archive: ServerArchive, place: JournalPlace) -> None:
    owner = archive.find_owner()
    if owner is not None:
        who = f"the gateway {owner}" if owner else "a gateway, which does not answer,"
        raise ConfigurationError(
            f"{place.name}: {who} uses it; stop all gateways of it, and run the same again"
        )


# --- the journal that it is copied to ---


class _FileTarget:
    """A file, which has another name until it is complete."""

    def __init__(self, place: JournalPlace, path: Path) -> None:
        self._place = place
        self._path = path
        self._part = path.with_name(f"{path.name}.part")
        if not path.parent.is_dir():
            raise ConfigurationError(f"there is no folder {path.parent}; make it")

    @contextmanager
    def opened(self, spaces: list[str]) -> Generator[JournalArchive | None]:
        """The content that is there already, if any is."""
        is_named = self._path.exists()
        path = self._path if is_named else self._part
        if is_named or (path.exists() and path.stat().st_size):
            with open_archive(self._place._replace(path=path)) as archive:
                yield archive
        else:
            yield None

    def is_whole(self, space: str) -> bool:
        """True if what is there of a space is more than a copy that has begun."""
        return self._path.exists()

    def journal(self, now: Callable[[], int], spaces: list[str]) -> SqliteJournal:
        return SqliteJournal(JournalConfig(self._part, "full"), now)

    def hold(self, journal: Any, held: dict[str, Any]) -> None:
        """Let the journal have these facts and marks, beside those that its entries made."""
        for space, (_, seen) in held.items():
            for participant, at in seen.items():
                journal.mark_seen(space, participant, at)

    @contextmanager
    def complete(self, held: dict[str, Any]) -> Generator[JournalArchive]:
        """The journal to be read back, when it is closed; after the block a gateway may open it."""
        with closing(sqlite3.connect(self._part, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("DELETE FROM fact")
            for space, (facts, _) in held.items():
                rows = [
                    sealed((space, key, encode_leniently(value).decode()))
                    for key, value in facts.items()
                ]
                connection.executemany(WRITE_FACT, rows)
            connection.execute("COMMIT")
            # Without a second file beside it, which would need another name, too.
            connection.execute("PRAGMA journal_mode = DELETE")
        with open_archive(self._place._replace(path=self._part)) as archive:
            yield archive
        try:
            name_for_good(self._part, self._path)
            self._part.unlink(missing_ok=True)
        except FileExistsError:
            raise ConfigurationError(
                f"{self._path} is there already; give a new name, or remove {self._part}"
            ) from None


class _ServerTarget:
    """A server, which says of spaces that they are not complete."""

    def __init__(self, place: JournalPlace) -> None:
        self._place = place
        self._whole = set[str]()

    @contextmanager
    def opened(self, spaces: list[str]) -> Generator[JournalArchive | None]:
        """The content that is there already, if any is."""
        self._place = self._place._replace(spaces=tuple(spaces))
        with open_server(self._place) as archive:
            self._whole = {space for space in archive.spaces if not archive.is_part(space)}
            _refuse_running(archive, self._place)
            yield archive

    def is_whole(self, space: str) -> bool:
        """True if what is there of a space is more than a copy that has begun."""
        return space in self._whole

    def journal(self, now: Callable[[], int], spaces: list[str]) -> CopyJournal:
        journal = open_copy(self._place, now)
        for space in spaces:
            if space not in self._whole:
                journal.floor(space)  # so that it is there also without entries
        return journal

    def hold(self, journal: Any, held: dict[str, Any]) -> None:
        """Let the journal have these facts and marks, beside those that its entries made."""
        for space, (facts, seen) in held.items():
            if space not in self._whole:
                journal.replace_facts(space, dict(facts), dict(seen))

    @contextmanager
    def complete(self, held: dict[str, Any]) -> Generator[JournalArchive]:
        """The journal to be read back, when it is closed; after the block a gateway may open it."""
        with open_server(self._place) as archive:
            yield archive
            for space in archive.spaces:
                if space not in self._whole:
                    archive.end_copy(space)


def _has_something_else(place: JournalPlace) -> ConfigurationError:
    return ConfigurationError(
        f"{place.name} has something else already; give a place where nothing is"
        + ("" if place.nats is None else ", such as another journal.nats.prefix")
        + ("" if place.postgres is None else ", such as another journal.postgres.schema")
    )


# --- the copy ---


async def copy_journal(
    source: JournalPlace,
    target: JournalPlace,
    now: Callable[[], int],
    told: Callable[[int], object] = ignore,
) -> Copied:
    """Copy a journal; ``told`` hears how many entries are there.

    Raises:
        ConfigurationError: One of them is in use, cannot be read or written, or the target has
            something else.
    """
    to: _FileTarget | _ServerTarget = _ServerTarget(target)
    if target.path is not None:
        to = _FileTarget(target, target.path)
    with _source(source) as origin:
        # Without those in which nothing was said: a server has them, and a file does not.
        found = _held(origin, origin.spaces)
        held = {space: it for space, it in found.items() if any(it) or origin.latest(space)}
        spaces = list(held)
        contents = {space: _Content() for space in spaces}
        streams = {space: _entries(origin, space) for space in spaces}
        fold: dict[str, SpaceState] = {}
        with to.opened(spaces) as there:
            if there is not None:
                _skip(there, target, to.is_whole, streams, contents, held, fold)
            went_on = _count(contents)
            if there is not None and all(map(to.is_whole, spaces)) and spaces:
                _refuse_changed(origin, source)
                return Copied(went_on, len(spaces), _digest(contents, held), was_there=True)
        latest = max((origin.latest(space) for space in spaces), default=0)
        try:
            journal = to.journal(lambda: max(now(), latest + 1), spaces)
            async with aclosing(journal):
                await _append(streams, journal, contents, fold, told)
                to.hold(journal, held)
            with to.complete(held) as copy:
                _compare(copy, target, contents, held)
                _refuse_changed(origin, source)
        except (sqlite3.Error, OSError) as error:
            raise ConfigurationError(
                f"{target.name} cannot be written: {error_text(error)}; make room, and run the same"
                " again, which goes on where it stopped"
            ) from None
        return Copied(_count(contents), len(spaces), _digest(contents, held), went_on)


def _skip(
    there: JournalArchive,
    target: JournalPlace,
    is_whole: Callable[[str], bool],
    streams: dict[str, Iterator[Entry]],
    contents: dict[str, _Content],
    held: dict[str, Any],
    fold: dict[str, SpaceState],
) -> None:
    """Pass over what is there already, if it is the beginning of what is copied, and that alone."""
    if set(there.spaces) - set(streams):
        raise _has_something_else(target)
    for space in streams:
        is_there = space in there.spaces
        for found in _entries(there, space) if is_there else ():
            entry = next(streams[space], None)
            if entry is None or _seal(entry) != _seal(found):
                raise _has_something_else(target)
            changes_of(entry, fold)
            contents[space].add(_seal(entry))
        if is_whole(space) and (
            next(streams[space], None) is not None
            or not is_there
            or (there.facts(space), there.seen(space)) != held[space]
        ):
            raise _has_something_else(target)


async def _append(
    streams: dict[str, Iterator[Entry]],
    journal: SqliteJournal | CopyJournal,
    contents: dict[str, _Content],
    fold: dict[str, SpaceState],
    told: Callable[[int], object],
) -> None:
    """Append what is left, in the order in which it was said, a part at a time."""
    count = size = 0
    for entry in merge(*streams.values(), key=lambda entry: entry.at):
        changes = changes_of(entry, fold)
        journal.append(entry.space, entry.at, entry.envelope, entry.facts, ignore, changes)
        contents[entry.space].add(_seal(entry))
        count += 1
        size += len(entry.envelope.frame)
        if count == AT_ONCE or size > AT_ONCE_BYTES:
            await _kept(journal)
            told(_count(contents))
            count = size = 0
    await _kept(journal)


async def _kept(journal: SqliteJournal | CopyJournal) -> None:
    """Wait until all is kept that was appended."""
    done = anyio.Event()
    journal.on_failed = lambda _: done.set()
    if not journal.failure:
        journal.call_when_kept(done.set)
        await done.wait()
    if journal.failure:
        raise ConfigurationError(journal.failure)


def _compare(
    copy: JournalArchive,
    target: JournalPlace,
    contents: dict[str, _Content],
    held: dict[str, Any],
) -> None:
    """Read a copy back, and refuse it where it is not what was copied."""
    for space, content in contents.items():
        found = _Content()
        for entry in _entries(copy, space):
            found.add(_seal(entry))
        there = (copy.facts(space), copy.seen(space))
        if (found.count, found.entries.digest(), there) != (
            content.count,
            content.entries.digest(),
            held[space],
        ):
            raise ConfigurationError(
                f"{target.name}: what is there of space {space!r} is not what was copied"
                f" ({found.count} of {content.count} envelopes were read back); remove it, look"
                " after its disk, and copy again"
            )
