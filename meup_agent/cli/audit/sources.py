"""Sources of an audit: a journal's file, or a running gateway over HTTP."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, cast

from anyio.lowlevel import checkpoint

from meup_agent.cli.address import HttpAddress
from meup_agent.cli.render.escape import visible
from meup_agent.cli.render.formatting import MAX_NAME
from meup_agent.errors import ConfigurationError, InvalidEnvelope
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.space.journal import Entry

if TYPE_CHECKING:
    from meup_agent.cli.http_api import HttpApi
    from meup_agent.gateway.journal.archive import Archive

PAGE: Final = 500  # entries that are read at a time

DIALECT: Final = "mew/v0.4"
"""The dialect that has words for everything, so that nothing is left out on its way to us."""

_SHOWN_SPACES: Final = 8
_MICROSECONDS: Final = 1_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")


class JournalQuery(NamedTuple):
    """The space and the time to read from a source."""

    space: str | None = None  # None: the only one that there is
    since: int | None = None  # microseconds since 1970 (UTC); None: all


class JournalSource(Protocol):
    """The entries of a space, oldest first."""

    space: str

    def pages(self) -> AsyncGenerator[tuple[Entry, ...]]:
        """The entries, page by page, until there are no more."""
        ...


class _File:
    def __init__(self, archive: Archive, space: str, since: int | None) -> None:
        self._archive = archive
        self.space = space
        self._after = 0 if since is None else archive.before(space, since)

    async def pages(self) -> AsyncGenerator[tuple[Entry, ...]]:
        after, until = self._after, self._archive.latest(self.space)
        while after < until:
            page = self._archive.read(self.space, after=after, until=until, limit=PAGE)
            if not page:
                return
            yield page
            after = page[-1].seq
            await checkpoint()


class _Http:
    def __init__(self, api: HttpApi, since: int | None) -> None:
        self._http = api
        self._since = since
        self.space = api.space

    async def pages(self) -> AsyncGenerator[tuple[Entry, ...]]:
        since = None if self._since is None else _rfc3339(self._since)
        while True:
            page = await self._http.page(since, limit=PAGE, dialect=DIALECT)
            yield tuple(_entries(self.space, page))
            following = page.get("next")
            if not isinstance(following, int):
                return
            since = str(following)


@asynccontextmanager
async def from_file(path: Path, wanted: JournalQuery) -> AsyncGenerator[JournalSource]:
    """The entries in a journal's file, also while its gateway writes."""
    # Loaded here: SQLite is not needed where a gateway is asked.
    from meup_agent.gateway.journal.archive import Archive

    archive = Archive(path)
    try:
        space = _space_in(archive.spaces, path, wanted.space)
        yield _File(archive, space, wanted.since)
    finally:
        archive.close()


@asynccontextmanager
async def over_http(where: HttpAddress, wanted: JournalQuery) -> AsyncGenerator[JournalSource]:
    """The journal of a running gateway, for the space that a token is for."""
    from meup_agent.cli.http_api import open_http_api

    async with open_http_api(where) as api:
        yield _Http(api, wanted.since)


def _space_in(spaces: list[str], path: Path, wanted: str | None) -> str:
    if wanted is None and len(spaces) == 1:
        return spaces[0]
    if wanted is not None and wanted in spaces:
        return wanted
    shown = ", ".join(visible(each, MAX_NAME) for each in spaces[:_SHOWN_SPACES])
    if not spaces:
        raise ConfigurationError(f"the journal {path} is empty: nothing was said yet in any space")
    if wanted is None:
        raise ConfigurationError(f"the journal {path} has several spaces; give --space: {shown}")
    raise ConfigurationError(f"the journal {path} has no space {wanted!r}; it has {shown}")


def _entries(space: str, page: dict[str, Any]) -> Iterator[Entry]:
    """The entries of a page; what cannot be read is left out, as a gateway's own reading does."""
    messages, times = (_list(page.get(name)) for name in ("messages", "times"))
    for message, time in zip(messages, times, strict=False):
        try:
            seq = int(cast("dict[str, Any]", message)["seq"])
            yield Entry(seq, space, _microseconds(str(time)), decode(json.dumps(message)))
        except (InvalidEnvelope, ValueError, KeyError, TypeError):
            continue


def _list(value: object) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _microseconds(time: str) -> int:
    return round(datetime.fromisoformat(time).timestamp() * _MICROSECONDS)


def _rfc3339(at: int) -> str:
    return datetime.fromtimestamp(at / _MICROSECONDS, UTC).isoformat().replace("+00:00", "Z")


def moment(given: str, option: str, now: float) -> int:
    """A moment in microseconds since 1970 (UTC); ``now`` is in seconds.

    Given as ``2026-01-31``, ``2026-01-31T22:00`` (in the user's zone, unless it says which), or as
    how long ago it is: ``90s``, ``15m``, ``2h``, ``7d``, ``4w``.
    """
    ago = _AGO.fullmatch(given.strip())
    if ago is not None:
        return max(round((now - int(ago[1]) * _UNITS[ago[2]]) * _MICROSECONDS), 0)
    try:
        return max(round(datetime.fromisoformat(given.strip()).timestamp() * _MICROSECONDS), 0)
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} takes a time such as 2026-01-31T22:00, or how long ago, such as 2h;"
            f" {given!r} is neither"
        ) from None
