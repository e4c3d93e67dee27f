"""Pages of a journal as the console reads them: in few turns, and the others' turns in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio.lowlevel import checkpoint
from msgspec.structs import replace

from meup_agent.gateway.console.timeline import PAGE_ROWS, ThreadIndex, learn_before, newest_before
from meup_agent.gateway.edge.http.context import read_journal
from tests.gateway.console.test_timeline import envelope
from tests.gateway.journal.conftest import Clock, chat, ids, kept, opened
from tests.patience import PATIENCE
from tests.spaces import Entry, Journal, MemoryJournal, SpaceServer

DAY = 24 * 3_600 * 1_000_000


class Space:
    """A space as far as its journal is read, which is read only so often."""

    name = "demo"

    def __init__(self, journal: Journal, most: int = 1_000) -> None:
        self._journal = journal
        self._left = most

    @property
    def journal(self) -> Any:
        return self

    def floor(self, space: str) -> int:
        return self._journal.floor(space)

    def read(self, space: str, *, then: Callable[[tuple[Entry, ...]], None], **page: int) -> None:
        assert self._left, "the journal is read without an end"
        self._left -= 1
        self._journal.read(space, then=then, **page)


class QuietSpace(Space):
    """One beside spaces that are so busy that few numbers are its own."""

    gap = 100_000

    def floor(self, space: str) -> int:
        return super().floor(space) * self.gap

    def read(self, space: str, *, then: Callable[[tuple[Entry, ...]], None], **page: int) -> None:
        page |= {end: page[end] // self.gap for end in ("after", "until")}
        super().read(space, then=lambda found: then(self.numbered(found)), **page)

    def numbered(self, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        return tuple(replace(each, seq=each.seq * self.gap) for each in entries)


def space_of(journal: Journal) -> SpaceServer:
    return cast("SpaceServer", Space(journal))


@pytest.mark.parametrize("days", [0, 1, 365])
async def test_older_rows_are_found_however_long_a_gateway_ran(tmp_path: Path, days: int) -> None:
    """At each start numbers go on from the clock: there are none for as long as it was since."""
    path, clock = tmp_path / "journal.db", Clock()
    async with opened(path, clock) as journal:
        await kept(journal, *map(chat, range(PAGE_ROWS)))
    clock.now += days * DAY
    async with opened(path, clock) as journal:
        await kept(journal, *map(chat, range(PAGE_ROWS, PAGE_ROWS + 3)))
        await kept(journal, chat(0), space="elsewhere")
        with anyio.fail_after(PATIENCE):
            found = await newest_before(space_of(journal), journal.latest("demo") + 1)
            first = await newest_before(space_of(journal), found[0].seq)
            none = await newest_before(space_of(journal), first[0].seq)
    assert ids(tuple(found)) == [str(number) for number in range(3, PAGE_ROWS + 3)]
    assert (ids(tuple(first)), none) == (["0", "1", "2"], [])


@pytest.mark.parametrize("gap", [1, 1_000, 100_000, 1_000_000])
async def test_a_page_of_a_quiet_space_takes_few_readings(gap: int) -> None:
    journal = MemoryJournal(Clock())
    await kept(journal, *map(chat, range(3 * PAGE_ROWS)))
    quiet = QuietSpace(journal, most=100)
    quiet.gap = gap
    page = await newest_before(cast("SpaceServer", quiet), (journal.latest("demo") + 1) * gap)
    assert ids(tuple(page)) == [str(number) for number in range(2 * PAGE_ROWS, 3 * PAGE_ROWS)]


async def test_thread_of_before_a_restart_is_known(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.db", Clock()
    said = {"method": "tools/call", "params": {"name": "write"}}
    async with opened(path, clock) as journal:
        await kept(journal, envelope("mcp/proposal", "p", said))
    clock.now += DAY
    async with opened(path, clock) as journal:
        page = await kept(journal, envelope("mcp/withdraw", "w", {}, correlation=("p",)))
        threads = ThreadIndex()
        await learn_before(space_of(journal), threads, page)
    assert threads.find("p") is not None


async def test_what_nobody_said_is_not_looked_for_without_an_end() -> None:
    """Anybody can name an id that is nowhere, and each page would read all of the journal."""
    journal, threads = MemoryJournal(Clock()), ThreadIndex()
    await kept(journal, *map(chat, range(1_000)))
    said = await kept(journal, envelope("mcp/withdraw", "w", {}, correlation=("nowhere",)))
    quiet = QuietSpace(journal)
    await learn_before(cast("SpaceServer", quiet), threads, list(quiet.numbered(tuple(said))))
    assert threads.find("nowhere") is None


async def test_reader_of_many_pages_lets_others_run() -> None:
    journal = MemoryJournal(Clock())
    await kept(journal, *map(chat, range(10)))
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await checkpoint()
            turns += 1

    space, after, until = space_of(journal), journal.floor("demo"), journal.latest("demo")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count_turns)
        for _ in range(10):
            (entry,) = await read_journal(space, after=after, until=until, limit=1)
            after = entry.seq
        tasks.cancel_scope.cancel()
    assert after == until
    assert turns >= 9
