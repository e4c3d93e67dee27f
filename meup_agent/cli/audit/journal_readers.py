"""Sources of an audit: a journal's file, or a running gateway over HTTP."""

from __future__ import annotations

import json
import re
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, cast

import typer
from anyio.lowlevel import checkpoint

from meup_agent.cli.address import HttpAddress, HttpOptions, find_http_url
from meup_agent.cli.failures import Failure
from meup_agent.cli.options import Since
from meup_agent.cli.render.console import Stderr
from meup_agent.cli.render.formatting import name_some
from meup_agent.errors import ConfigurationError, InvalidEnvelope
from meup_agent.protocol.dialects import decode
from meup_agent.protocol.payloads import as_list
from meup_agent.protocol.space.journal import Entry, NumberRange
from meup_agent.protocol.timestamps import TRANSIT_SECONDS

if TYPE_CHECKING:
    from meup_agent.gateway.journal.decisions import DecisionQuery

PAGE: Final = 500  # entries that are read at a time

DIALECT: Final = "meup/v0.1"
"""Our own dialect: in the published ones `to` of a proposal names its executor, not who decides."""

TRANSIT: Final = round(TRANSIT_SECONDS * 1_000_000)
"""For what the gateway has accepted, and is still about to keep."""

MAX_NOTED: Final = 1_000
"""Ranges of damaged numbers after which those of further pages are not noted."""

_SHOWN_SPACES: Final = 8
_MICROSECONDS: Final = 1_000_000
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")


JournalFile = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="FILE",
        help="Read this journal of a gateway, which may run; no token is needed.",
    ),
]


class Page(NamedTuple):
    """Entries of a space, oldest first."""

    entries: tuple[Entry, ...]
    # The gateway's time when there were no more, in microseconds since 1970; only in the last one.
    now: int | None = None
    # Numbers among them, or about them, whose entries damage took.
    damaged: tuple[NumberRange, ...] = ()


Pages = AsyncGenerator[Page]


class DamageNote:
    """Notes which numbers are missing from what was read, and says so once."""

    def __init__(self) -> None:
        self._found = dict[NumberRange, None]()

    def add(self, page: Page) -> None:
        """Note what a page says."""
        if len(self._found) < MAX_NOTED:
            self._found |= dict.fromkeys(page.damaged)

    def write(self, stderr: Stderr) -> None:
        """Say what is missing, if anything is."""
        if self._found:
            from meup_agent.gateway.journal.survey import name_numbers

            said = name_numbers(self._found)
            stderr.note(f"warning: damage took {said} of the journal")


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions(HttpOptions):
    """The options that name a journal, and the time from which it is read."""

    journal: JournalFile = None
    since: Since = None

    def open_pages(
        self,
        kinds: tuple[str, ...] = (),
        *,
        accept_damage: bool,
        query: DecisionQuery | None = None,
    ) -> Pages:
        """The entries that the options name, of some kinds at least; see :func:`read_file`.

        Raises:
            ConfigurationError: They name no journal, or two.
        """
        begin = None if self.since is None else moment(self.since, "--since", time.time())
        if self.journal is not None and self.http is not None:
            raise ConfigurationError("give --journal or --http, not both")
        if self.journal is not None:
            return read_file(
                self.journal, self.space, begin, kinds, accept_damage=accept_damage, query=query
            )
        if find_http_url(self.http) is None:
            raise ConfigurationError(
                "the journal is missing; give --journal with a gateway's journal, or --http (or"
                " MEUP_HTTP, or MEUP_URL) with the address of one that runs"
            )
        return read_over_http(self.address(), begin)


async def read_file(
    path: Path,
    wanted: str | None,
    since: int | None,
    kinds: tuple[str, ...] = (),
    *,
    accept_damage: bool = False,
    query: DecisionQuery | None = None,
) -> Pages:
    """The entries in a journal's file from a moment on, also while its gateway writes.

    ``wanted`` is the space; ``None``: the only one that there is. Of some ``kinds`` alone, if any
    are named. Of a damaged file what can be read, if that is accepted. Of the proposals that a
    query means alone, and what belongs to them, if it is given and the file can tell.
    """
    # Loaded here: SQLite is not needed where a gateway is asked.
    from meup_agent.gateway.journal.archive import Archive

    if query is not None and since is None and not accept_damage:
        with closing(Archive(path, looks_through=False)) as archive:
            space = _space_in(archive.spaces, path, wanted)
            chains = archive.find_chains(space, query)
        if chains is not None:
            yield Page(tuple(chains.entries), now=chains.until)
            return
    with closing(Archive(path, accept_damage=accept_damage)) as archive:
        space = _space_in(archive.spaces, path, wanted)
        after, until = 0 if since is None else archive.before(space, since), archive.latest(space)
        yield Page((), damaged=tuple(each for each in archive.damaged if each.last > after))
        read = partial(archive.read, space, until=until, limit=PAGE, kinds=kinds)
        while after < until and (page := read(after=after)):
            yield Page(page)
            after = page[-1].seq
            await checkpoint()


async def read_over_http(where: HttpAddress, since: int | None) -> Pages:
    """The journal of a running gateway from a moment on, for the space that a token is for.

    Raises:
        Failure: It has no end.
    """
    from meup_agent.cli.http_api import open_http_api

    async with open_http_api(where) as api:
        begin, read = None if since is None else _rfc3339(since), -1
        while True:
            page = await api.page(begin, limit=PAGE, dialect=DIALECT)
            following = page.get("next")
            now = None if isinstance(following, int) else page.get("now")
            yield Page(
                tuple(_entries(api.space, page)),
                _microseconds(now) - TRANSIT if isinstance(now, str) else None,
                tuple(_ranges(page.get("damaged"))),
            )
            if not isinstance(following, int):
                return
            if following <= read:
                raise Failure(
                    f"the gateway names {following} after {read} as the next message, so its"
                    " journal has no end; update the gateway, or check the address"
                )
            begin, read = str(following), following


def _space_in(spaces: list[str], path: Path, wanted: str | None) -> str:
    if wanted is None and len(spaces) == 1:
        return spaces[0]
    if wanted is not None and wanted in spaces:
        return wanted
    shown = name_some(spaces, _SHOWN_SPACES)
    if not spaces:
        raise ConfigurationError(f"the journal {path} is empty: nothing was said yet in any space")
    if wanted is None:
        raise ConfigurationError(f"the journal {path} has several spaces; give --space: {shown}")
    raise ConfigurationError(f"the journal {path} has no space {wanted!r}; it has {shown}")


def _entries(space: str, page: dict[str, Any]) -> Iterator[Entry]:
    """The entries of a page; what cannot be read is left out, as a gateway's own reading does."""
    messages, times = (as_list(page.get(name)) for name in ("messages", "times"))
    for message, at in zip(messages, times, strict=False):
        try:
            seq = int(cast("dict[str, Any]", message)["seq"])
            yield Entry(seq, space, _microseconds(str(at)), decode(json.dumps(message)))
        except (InvalidEnvelope, ValueError, KeyError, TypeError):
            continue


def _ranges(value: object) -> Iterator[NumberRange]:
    for each in as_list(value):
        match each:
            case [int(first), int(last)]:
                yield NumberRange(first, last)
            case _:
                continue


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
