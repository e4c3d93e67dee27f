"""Bits that flip on a disk, sectors that are lost, files that are cut: never another state.

    make flips

After each, a gateway and an audit either refuse the file and say that it is damaged, or show
exactly what was written less the numbers that they name.
"""

import os
import random
import shutil
from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import anyio
import pytest

from meup_agent.errors import ConfigurationError
from tests.effort import scaled
from tests.gateway.journal.conftest import NOW, Clock, chat, kept, opened, read
from tests.gateways import Archive, SqliteJournal
from tests.spaces import Entry, Fact, NumberRange

T = TypeVar("T")

BEGIN: Final = int(os.environ.get("MEUP_SEED") or 0)
SEEDS: Final = int(os.environ.get("MEUP_EXAMPLES") or scaled(240))

MENDED: Final = (113, 563, 1419, 2350)
"""Seeds of the damage that was not named, or not survived, before."""

SPACES: Final = ("demo", "other", "später")
SECTOR: Final = 512
DAY: Final = 86_400_000_000
EVERYTHING: Final = 2**62
SEE_IT_ALL: Final = 100_000


class Written(NamedTuple):
    """A journal as its gateway left it, and what was written into it."""

    path: Path
    entries: dict[str, list[Entry]]
    facts: dict[str, dict[str, dict[str, Any]]]


async def write(folder: Path, end: str) -> Written:
    """Two starts of a gateway, the first of which forgets its oldest; the files of the second."""
    running, path, clock = folder / "running.db", folder / "journal.db", Clock()
    entries: dict[str, list[Entry]] = {space: [] for space in SPACES}

    async def say(journal: SqliteJournal, first: int, last: int) -> None:
        for number in range(first, last):
            space = SPACES[number % len(SPACES)]
            facts = (Fact(f"grant/{number % 7}", {"n": number} if number % 5 else None),)
            message = "ä" * (4_000 if number % 40 == 7 else 100)
            entries[space] += await kept(
                journal,
                chat(number, message=message),
                space=space,
                at=clock.now,
                facts=facts if number % 3 == 0 or number % 10 == 0 else (),
            )

    async with opened(running, clock, max_age=60) as journal:
        await say(journal, 0, 40)
        clock.now += 120_000_000
        await say(journal, 40, 120)  # in turns with forgetting
    clock.now += DAY
    async with opened(running, clock) as journal:
        await say(journal, 120, 200)
        if end == "killed":
            copy(running, path)
        shown = await see(journal)
    if end == "stopped":
        copy(running, path)
    begin = {space: found[0].seq for space, found in shown.entries.items()}
    assert begin["demo"] > entries["demo"][0].seq
    for space, found in entries.items():
        entries[space] = [entry for entry in found if entry.seq >= begin[space]]
    assert shown.entries == entries
    return Written(path, entries, shown.facts)


def copy(source: Path, target: Path) -> None:
    for ending in ("", "-wal", "-shm"):
        if source.with_name(source.name + ending).exists():
            shutil.copy(source.with_name(source.name + ending), f"{target}{ending}")


class Shown(NamedTuple):
    """What a journal shows, of each space."""

    entries: dict[str, list[Entry]]
    facts: dict[str, dict[str, dict[str, Any]]]
    damaged: tuple[NumberRange, ...]


async def see(journal: SqliteJournal) -> Shown:
    entries: dict[str, list[Entry]] = {}
    facts: dict[str, dict[str, dict[str, Any]]] = {}
    for space in SPACES:
        found: list[Entry] = []
        while page := await read(journal, space, after=found[-1].seq if found else 0):
            found += page
        recovered = journal.recover(space, since=0, limit=SEE_IT_ALL)
        assert list(recovered.entries) == found
        entries[space], facts[space] = found, recovered.facts
    damaged = journal.damaged(SPACES[0], after=0, until=EVERYTHING)
    for low, _ in damaged:  # whoever resumes is told
        assert all(journal.resume_from(space, low - 1) != low - 1 for space in SPACES)
    return Shown(entries, facts, damaged)


def less(written: Written, damaged: Iterable[NumberRange]) -> dict[str, list[Entry]]:
    """The entries that are not damaged."""
    lost = list(damaged)
    return {
        space: [each for each in found if not any(low <= each.seq <= high for low, high in lost)]
        for space, found in written.entries.items()
    }


def flip_bits(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 4, 8))):
        content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)


def flip_bits_of_a_head(content: bytearray, chance: random.Random) -> None:
    """Heads of pages have what matters most to SQLite."""
    for _ in range(chance.choice((1, 2))):
        page = chance.randrange(len(content) // 4_096) * 4_096
        content[page + chance.randrange(100)] ^= 1 << chance.randrange(8)


def lose_a_sector(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) // SECTOR) * SECTOR
    content[at : at + SECTOR] = bytes(SECTOR)


def lose_a_page(content: bytearray, chance: random.Random) -> None:
    at = chance.randrange(len(content) // 4_096) * 4_096
    other = chance.randrange(len(content) // 4_096) * 4_096
    content[at : at + 4_096] = content[other : other + 4_096]  # as a disk does that mixes up


def cut(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def break_utf_8(content: bytearray, chance: random.Random) -> None:
    content[chance.randrange(len(content))] = 0xFF


HARMS: Final[tuple[Callable[[bytearray, random.Random], None], ...]] = (
    flip_bits,
    flip_bits,
    flip_bits_of_a_head,
    lose_a_sector,
    lose_a_page,
    cut,
    break_utf_8,
)

ENDS: Final = ("stopped", "killed")


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Written]:
    return {end: anyio.run(write, tmp_path_factory.mktemp(end), end) for end in ENDS}


def harm(source: Path, target: Path, chance: random.Random) -> str:
    """A copy of a journal that is not what was written."""
    copy(source, target)
    files = [each for each in (target, Path(f"{target}-wal")) if each.exists()]
    file, how = chance.choice(files), chance.choice(HARMS)
    content = bytearray(file.read_bytes())
    how(content, chance)
    file.write_bytes(content)
    return f"{how.__name__} of {file.name}"


@pytest.mark.rule("9.damage.named")
@pytest.mark.rule("9.damage.accepted")
@pytest.mark.parametrize("seed", sorted({*range(BEGIN, BEGIN + SEEDS), *MENDED}))
def test_damaged_file_is_refused_or_shows_all_but_what_is_named(
    written: dict[str, Written], tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    chance = random.Random(seed)
    whole = written[chance.choice(ENDS)]
    source = tmp_path / "source.db"
    what = harm(whole.path, source, chance)
    for accept_damage in (False, True):
        caplog.clear()
        path = tmp_path / f"gateway-{accept_damage}.db"
        copy(source, path)
        shown = refusal_or(what, started, path, accept_damage)
        if shown is not None:
            check(whole, shown, caplog.messages, what)
            # It is known from now on, and no new damage.
            assert anyio.run(started, path, False) == shown, what
    for accept_damage in (False, True):
        caplog.clear()
        path = tmp_path / f"audit-{accept_damage}.db"
        copy(source, path)
        found = refusal_or(what, audited, path, accept_damage)
        if found is None:
            continue
        entries, damaged = found
        if any("was damaged" in each for each in caplog.messages):
            last = max(each[-1].seq for each in entries.values())
            assert entries == less(whole, [*damaged, NumberRange(last + 1, EVERYTHING)]), what
        else:
            assert accept_damage or not damaged, what
            assert entries == less(whole, damaged), what


def refusal_or(
    what: str, show: Callable[[Path, bool], Awaitable[T]], path: Path, accept_damage: bool
) -> T | None:
    """What is shown; ``None`` if the file is refused, since it is damaged."""
    try:
        return anyio.run(show, path, accept_damage)
    except ConfigurationError as error:
        refusal = str(error)
    assert "damaged" in refusal, (what, refusal)
    return None


async def started(path: Path, accept_damage: bool) -> Shown:
    clock = Clock()
    clock.now = NOW + 3 * DAY
    async with opened(path, clock, accept_damage=accept_damage) as journal:
        return await see(journal)


def check(whole: Written, shown: Shown, told: list[str], what: str) -> None:
    """Check that what is shown is what was written, less what is named."""
    damaged = list(shown.damaged)
    if any("as a power cut in the middle of a commit leaves it" in each for each in told):
        last = max(each[-1].seq for each in shown.entries.values())
        damaged.append(NumberRange(last + 1, EVERYTHING))
    assert shown.entries == less(whole, damaged), what
    assert not damaged or told, what
    if shown.facts != whole.facts:
        is_told = damaged or any("facts that hold" in each for each in told)
        assert is_told, what
        if not damaged:
            for space, facts in shown.facts.items():
                assert facts.items() <= whole.facts[space].items(), what


async def audited(
    path: Path, accept_damage: bool
) -> tuple[dict[str, list[Entry]], list[NumberRange]]:
    with closing(Archive(path, accept_damage=accept_damage)) as archive:
        entries: dict[str, list[Entry]] = {}
        for space in SPACES:
            found: list[Entry] = []
            while page := archive.read(
                space, after=found[-1].seq if found else 0, until=EVERYTHING, limit=100
            ):
                found += page
            entries[space] = found
        return entries, archive.damaged
