"""Damage in the middle of what SQLite writes first: it is kept, told, and a gap."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal.damage import WalDamage, find_damage
from tests.gateway.journal.conftest import NOW, Clock, chat, ids, kept, opened, read
from tests.gateways import Archive, Database

COMMITS = 40
PAGE = 4_096
FRAME = 24 + PAGE
HEAD = 32


def wal_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def frames_of(path: Path) -> int:
    return (wal_of(path).stat().st_size - HEAD) // FRAME


async def killed(
    path: Path, clock: Clock, commits: int = COMMITS, *, index: bool = False, **config: Any
) -> None:
    """Leave the files of a gateway that was killed after so many commits."""
    running = path.with_name("running.db")
    async with opened(running, clock, **config) as journal:
        for number in range(1, commits + 1):
            await kept(journal, chat(number))
        for ending in ("", "-wal", *(["-shm"] if index else ())):
            shutil.copy(f"{running}{ending}", f"{path}{ending}")


def insert(connection: sqlite3.Connection, count: int) -> None:
    for number in range(count):
        row = (10**17 + number, "demo", 0, "chat", "[]", None, 0, b"x" * 3_000)
        connection.execute("INSERT INTO entry VALUES (?,?,?,?,?,?,?,?)", row)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 0x40
    file.write_bytes(bytes(content))


async def rows(path: Path, clock: Clock, **config: Any) -> list[str]:
    async with opened(path, clock, **config) as journal:
        return ids(await read(journal))


@pytest.mark.parametrize("cut", [0, 1, 100, FRAME, FRAME + 1, 10 * FRAME, 10 * FRAME + 77])
async def test_torn_end_is_what_a_power_cut_leaves(path: Path, clock: Clock, cut: int) -> None:
    await killed(path, clock)
    wal = wal_of(path)
    content = wal.read_bytes()
    wal.write_bytes(content[: len(content) - cut])
    assert find_damage(wal, PAGE) is None
    await rows(path, clock, synchronous="full")
    assert not list(path.parent.glob("*damaged*"))


async def test_wrong_last_frame_is_torn(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await killed(path, clock)
    frames = frames_of(path)
    flip(wal_of(path), HEAD + (frames - 1) * FRAME + 500)
    damage = find_damage(wal_of(path), PAGE)
    assert damage is not None
    assert damage.torn
    assert 0 < damage.kept < damage.kept + damage.lost == frames
    # Nothing tells it from a power cut, so it is not a reason not to start; but it is said.
    assert await rows(path, clock, synchronous="full") == [
        str(number) for number in range(1, COMMITS)
    ]
    (told,) = caplog.messages
    assert "as a power cut in the middle of a commit leaves it" in told
    assert not list(path.parent.glob("*damaged*"))


async def test_frames_of_an_older_turn_are_no_damage(path: Path, clock: Clock) -> None:
    running = path.with_name("running.db")
    async with opened(running, clock) as journal:
        for number in range(COMMITS):
            await kept(journal, chat(number))
        with sqlite3.connect(running) as connection:
            connection.execute("PRAGMA wal_checkpoint(RESTART)")
        connection.close()
        before = wal_of(running).stat().st_size
        await kept(journal, chat(1_000))
        assert wal_of(running).stat().st_size == before  # begun anew, with old frames behind
        assert find_damage(wal_of(running), PAGE) is None


def test_no_such_file_and_an_empty_one(path: Path) -> None:
    assert find_damage(path, PAGE) is None
    path.touch()
    assert find_damage(path, PAGE) is None
    path.write_bytes(bytes(31))
    assert find_damage(path, PAGE) is None
    path.write_bytes(b"nothing of SQLite's" * 10_000)
    assert find_damage(path, 0) == WalDamage(0, 46, certain=False, torn=True)


async def test_transaction_that_was_not_committed_is_no_damage(path: Path, clock: Clock) -> None:
    """Its frames stay behind what the next process writes over their beginning."""
    await killed(path, clock)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA cache_size = 1")  # so that pages are written before the commit
    connection.execute("PRAGMA cache_spill = 1")
    connection.execute("BEGIN")
    insert(connection, 200)
    aside = path.with_name("aside.db")
    shutil.copy(path, aside)
    shutil.copy(wal_of(path), wal_of(aside))
    connection.execute("ROLLBACK")
    connection.close()
    assert frames_of(aside) > COMMITS
    second = sqlite3.connect(aside, isolation_level=None)
    second.execute("INSERT INTO missing VALUES (1, 1, 'start', 0)")
    assert find_damage(wal_of(aside), PAGE) is None
    second.close()


PLACES: dict[str, Callable[[int], int]] = {
    "page": lambda frame: HEAD + frame * FRAME + 24 + 1_000,
    "salt": lambda frame: HEAD + frame * FRAME + 9,
    "checksum": lambda frame: HEAD + frame * FRAME + 17,
    "number-of-the-page": lambda frame: HEAD + frame * FRAME + 2,
}


async def harmed(path: Path, clock: Clock, **config: Any) -> None:
    """Leave the files of a killed gateway, with a wrong page in the middle."""
    await killed(path, clock, **config)
    flip(wal_of(path), PLACES["page"](frames_of(path) // 2))


@pytest.mark.rule("6.journal.damage")
@pytest.mark.parametrize("place", PLACES)
async def test_damage_in_the_middle_is_kept_told_and_a_gap(
    path: Path, clock: Clock, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(path.with_name("whole.db"), clock) as journal:
        entries = [entry for number in range(1, 4) for entry in await kept(journal, chat(number))]
    seen = entries[1].seq
    await killed(path, clock)
    wal = wal_of(path)
    flip(wal, PLACES[place](frames_of(path) // 2))
    damaged = wal.read_bytes()
    clock.now += 1_000_000
    async with opened(path, clock) as journal:
        left = ids(await read(journal))
        assert 0 < len(left) < COMMITS
        # Whoever saw what is there, what is lost, or nothing: nobody knows what is missing.
        first, left_last = (await read(journal))[0].seq, (await read(journal))[-1].seq
        for number in (0, first, seen, journal.latest("demo"), clock.now - 1):
            assert journal.resume_from("demo", number) != number
        start = journal.floor("a space of now")
        assert start >= clock.now
        assert journal.resume_from("demo", first) == journal.resume_from("demo", seen) == start
        assert journal.damaged("demo", after=0, until=start) == ((left_last + 1, start),)
        (now,) = await kept(journal, chat(1_000))
        assert journal.resume_from("demo", now.seq) == now.seq
    (aside,) = path.parent.glob("journal.db-wal.damaged-*")
    assert aside.read_bytes() == damaged
    assert aside.stat().st_mode & 0o077 == 0
    (told,) = [each for each in caplog.messages if "is damaged: " in each]
    assert str(aside) in told
    assert "told of a gap" in told
    # It is known again after the next start, and no new damage.
    caplog.clear()
    async with opened(path, clock) as journal:
        assert journal.resume_from("demo", first) != first
        assert journal.resume_from("demo", now.seq) == now.seq
        assert ids(await read(journal)) == [*left, "1000"]
    assert not caplog.messages
    assert len(list(path.parent.glob("*damaged*"))) == 1


@pytest.mark.rule("6.journal.damage")
async def test_what_no_power_cut_has_done_is_refused_with_full(path: Path, clock: Clock) -> None:
    await harmed(path, clock, synchronous="full")
    before = {each.name: each.read_bytes() for each in path.parent.glob("journal.db*")}
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="no power cut does that") as refused:
            Database(path, "full")
        assert "--accept-damage" in str(refused.value)
        # Nothing is changed, so that what is refused once is refused again.
        assert {each.name: each.read_bytes() for each in path.parent.glob("journal.db*")} == before
    left = await rows(path, clock, synchronous="full", accept_damage=True)
    assert 0 < len(left) < COMMITS
    assert list(path.parent.glob("*damaged*"))
    assert await rows(path, clock, synchronous="full") == left


async def test_last_transaction_is_not_refused_with_full(path: Path, clock: Clock) -> None:
    """Its frames reach the disk in any order, and no participant was told that they are there."""
    await killed(path, clock)
    connection = sqlite3.connect(path, isolation_level=None)
    before = frames_of(path)
    connection.execute("BEGIN")
    insert(connection, 20)
    connection.execute("COMMIT")
    after = path.with_name("after.db")
    shutil.copy(path, after)
    shutil.copy(wal_of(path), wal_of(after))
    connection.close()
    flip(wal_of(after), PLACES["page"](before))
    damage = find_damage(wal_of(after), PAGE)
    assert damage is not None
    assert not damage.certain
    assert damage.kept == before
    Database(after, "full").close()


@pytest.mark.parametrize(("at", "certain"), [*((at, True) for at in (24, 0, 4, 8)), (16, False)])
async def test_wrong_head_loses_everything(
    path: Path, clock: Clock, at: int, certain: bool
) -> None:
    await killed(path, clock)
    flip(wal_of(path), at)
    damage = find_damage(wal_of(path), PAGE)
    assert damage == WalDamage(0, frames_of(path), certain)


async def test_damage_of_which_no_copy_can_be_kept_starts_nothing(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await harmed(path, clock)
    before = wal_of(path).read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shutil, "copyfileobj", fail)
    with pytest.raises(ConfigurationError, match="no space left on device"):
        Database(path, "normal")
    assert wal_of(path).read_bytes() == before


async def test_who_reads_the_file_is_told(path: Path, clock: Clock) -> None:
    await killed(path, clock)
    with closing(Archive(path)) as archive:
        assert archive.damaged == []
    flip(wal_of(path), PLACES["page"](frames_of(path) // 2))
    with pytest.raises(ConfigurationError, match=r"is damaged: its last \d+ pages cannot be read"):
        Archive(path)
    with closing(Archive(path, accept_damage=True)) as archive:
        left = archive.read("demo", after=0, until=2**62, limit=1_000)
        assert 0 < len(left) < COMMITS
        (lost,) = archive.damaged
        assert lost.first == left[-1].seq + 1


async def test_gap_is_told_also_when_all_around_it_is_forgotten(path: Path, clock: Clock) -> None:
    await harmed(path, clock)
    with closing(Archive(path, accept_damage=True)) as archive:
        left = len(archive.read("demo", after=0, until=2**62, limit=1_000))
    clock.now += 3_600_000_000
    async with opened(path, clock, max_age=60) as journal:
        start = journal.floor("a space of now")
        for _ in range(8):  # in turns with forgetting
            (last,) = await kept(journal, chat(1), at=clock.now)
        assert journal.floor("demo") == NOW + left
        assert journal.resume_from("demo", NOW + left) == start
        assert len(await read(journal)) == 8
    async with opened(path, clock) as journal:
        assert journal.resume_from("demo", NOW + left) == start
        assert journal.resume_from("demo", last.seq) == last.seq


@pytest.mark.rule("6.journal.damage")
@pytest.mark.parametrize("frames", [0, 1, 10.5, "all-but-one", None])
async def test_file_that_was_cut_is_found_by_the_index_of_a_killed_process(
    path: Path, clock: Clock, frames: float | str | None
) -> None:
    await killed(path, clock, index=True, synchronous="full")
    wal = wal_of(path)
    count = frames_of(path)
    assert find_damage(wal, PAGE) is None
    if frames is None:
        wal.unlink()
    else:
        left = HEAD + round((count - 1 if isinstance(frames, str) else frames) * FRAME)
        wal.write_bytes(wal.read_bytes()[:left])
    damage = find_damage(wal, PAGE)
    assert damage is not None
    assert damage.certain
    assert damage.kept + damage.lost == count
    with pytest.raises(ConfigurationError, match="no power cut does that"):
        Database(path, "full")
    if frames == "all-but-one":
        assert len(await rows(path, clock, synchronous="full", accept_damage=True)) == COMMITS - 1


async def test_index_of_another_turn_tells_nothing(path: Path, clock: Clock) -> None:
    await killed(path, clock, index=True)
    other = path.with_name("other.db")
    await killed(other, clock, commits=3)
    shutil.copy(f"{path}-shm", f"{other}-shm")
    assert find_damage(wal_of(other), PAGE) is None
    running = path.with_name("moved.db")
    async with opened(running, clock) as journal:
        await kept(journal, chat(1))
        journal._database.writer.execute("PRAGMA wal_checkpoint(PASSIVE)")
        for ending in ("", "-shm"):
            shutil.copy(f"{running}{ending}", f"{path.with_name('gone.db')}{ending}")
    assert find_damage(wal_of(path.with_name("gone.db")), PAGE) is None
    assert len(await rows(path.with_name("gone.db"), clock)) == 1
