"""Retention: envelopes that are too old or too many are forgotten, and known to be missing."""

import sqlite3
from contextlib import closing
from pathlib import Path

from meup_agent.gateway import JournalConfig
from meup_agent.gateway.journal.decisions import SegmentBuilder
from meup_agent.gateway.journal.sqlite import SPARE_PAGES, FileWriter
from tests.gateway.journal.conftest import NOW, Clock, chat, ids, kept, opened, read
from tests.gateways import SqliteJournal
from tests.spaces import Fact, MemoryJournal

HOUR = 3600
MICROSECONDS = 1_000_000


async def until_forgotten(journal: SqliteJournal, clock: Clock) -> None:
    """Writing takes turns with forgetting: these are more turns than there is to forget."""
    for _ in range(8):
        await kept(journal, chat(0), space="unrelated", at=clock.now)


def forget_old(connection: sqlite3.Connection, clock: Clock) -> int:
    """Let the retention remove what is older than a second; in how many steps."""
    writer = FileWriter(
        connection,
        JournalConfig(max_age=1),
        clock,
        SegmentBuilder(),
        raised=lambda space, floor: None,
    )
    steps = 1
    while writer.step() and steps < 100:
        steps += 1
    return steps


def size(path: Path) -> int:
    return path.stat().st_size


async def test_what_is_too_old_is_forgotten(path: Path, clock: Clock) -> None:
    async with opened(path, clock, max_age=HOUR) as journal:
        facts = (Fact("grant/1", {"to": "bob"}),)
        old = await kept(journal, *map(chat, range(1_200)), facts=facts)
        await kept(journal, chat(1), space="other")
        clock.now += HOUR * MICROSECONDS // 2
        await kept(journal, chat(2_000), at=clock.now)
        clock.now += HOUR * MICROSECONDS // 2 + 1
        await until_forgotten(journal, clock)
        assert ids(await read(journal)) == ["2000"]
        assert journal.floor("demo") == old[-1].seq
        assert journal.floor("other") == journal.latest("other") == old[-1].seq + 1
        assert journal.recover("demo", since=0, limit=9).facts == {"grant/1": {"to": "bob"}}

    async with opened(path, clock) as journal:
        assert journal.floor("demo") == old[-1].seq
        assert journal.floor("other") == journal.latest("other") == old[-1].seq + 1


async def test_what_was_too_old_before_the_start_is_forgotten(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
    clock.now += HOUR * MICROSECONDS + 1
    async with opened(path, clock, max_age=HOUR) as journal:
        await until_forgotten(journal, clock)
        assert ids(await read(journal)) == []
        assert journal.floor("demo") == NOW + 1


async def test_numbers_go_on_where_everything_is_forgotten(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        (last,) = await kept(journal, chat(1))
    clock.now += HOUR * MICROSECONDS + 1
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        forget_old(connection, clock)
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (0,)
    clock.now -= 2 * HOUR * MICROSECONDS
    async with opened(path, clock) as journal:
        assert (await kept(journal, chat(2)))[0].seq == last.seq + 1


async def test_too_large_a_file_forgets_its_oldest(path: Path, clock: Clock) -> None:
    most = 1024 * 1024
    async with opened(path, clock, max_bytes=most) as journal:
        for start in range(0, 6_000, 100):
            batch = [chat(start + n, message="x" * 1_000) for n in range(100)]
            await kept(journal, *batch)
        clock.now += 2 * MICROSECONDS
        await until_forgotten(journal, clock)
        left = await read(journal)
        assert 100 < len(left) < 1_000
        assert ids(left) == [str(n) for n in range(6_000 - len(left), 6_000)]
        assert journal.floor("demo") == left[0].seq - 1
    # Five times as much went through it.
    assert size(path) < 2.5 * most


async def test_full_ring_in_memory_forgets_its_oldest_of_all_spaces(clock: Clock) -> None:
    journal = MemoryJournal(clock, max_entries=10)
    for number in range(10):
        await kept(journal, chat(number), space="other" if number < 3 else "demo")
    await kept(journal, *(chat(number) for number in range(10, 15)))
    assert ids(await read(journal, "other")) == []
    assert journal.floor("other") == journal.latest("other") == NOW + 3
    assert ids(await read(journal)) == [str(number) for number in range(5, 15)]
    assert journal.floor("demo") == NOW + 5


async def test_ring_in_memory_is_bounded_by_bytes(clock: Clock) -> None:
    journal = MemoryJournal(clock, max_bytes=10_000)
    await kept(journal, *(chat(number, message="x" * 1_000) for number in range(100)))
    left = await read(journal)
    assert 2 < len(left) < 10
    assert ids(left) == [str(n) for n in range(100 - len(left), 100)]


async def test_file_that_gives_nothing_back_stays_as_large(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        for start in range(0, 3_000, 500):
            await kept(journal, *(chat(start + n, message="x" * 1_000) for n in range(500)))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        # As another program may have made it anew.
        connection.execute("PRAGMA auto_vacuum = NONE")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
        clock.now += HOUR * MICROSECONDS + 1
        steps = forget_old(connection, clock)
        assert connection.execute("SELECT count(*) FROM entry").fetchone() == (0,)
        assert connection.execute("PRAGMA freelist_count").fetchone()[0] > 2 * SPARE_PAGES
    assert steps < 100
