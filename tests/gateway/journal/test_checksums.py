"""A journal's rows that are not what was written: refused by number, or left out and told."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    change,
    chat,
    handed_over,
    ids,
    kept,
    opened,
    read,
)
from tests.gateways import Archive, Database
from tests.spaces import Entry, Fact, NumberRange

DAY = 86_400_000_000
EVERYTHING = 2**62


async def write(path: Path, clock: Clock) -> list[Entry]:
    """Five entries, with numbers from one more than the time on."""
    facts = (Fact("grant/1", {"to": "bob"}), Fact("kicked/carol", {}))
    async with opened(path, clock) as journal:
        entries = await kept(journal, *map(chat, range(3)), facts=facts)
        entries += await kept(journal, chat(3), chat(4), facts=(Fact("grant/1", {"to": "dan"}),))
    clock.now += DAY
    return entries


def content(path: Path) -> bytes:
    return path.read_bytes()


def replace_content(path: Path, new: bytes) -> None:
    path.write_bytes(new)


def refusal(path: Path) -> str:
    with pytest.raises(ConfigurationError) as refused:
        Database(path, "normal")
    said = str(refused.value)
    assert "--accept-damage" in said
    assert "\n" not in said
    return said


CHANGES: dict[str, str] = {
    "space": "UPDATE entry SET space = 'other' WHERE seq = ?",
    "time": "UPDATE entry SET at = at + 1 WHERE seq = ?",
    "kind": "UPDATE entry SET kind = 'chats' WHERE seq = ?",
    "correlation": """UPDATE entry SET correlation = '["x"]' WHERE seq = ?""",
    "facts": """UPDATE entry SET facts = '[["kicked/carol",null]]' WHERE seq = ?""",
    "frame": "UPDATE entry SET frame = CAST(replace(frame, 'hi', 'ho') AS BLOB) WHERE seq = ?",
    "no UTF-8": "UPDATE entry SET frame = CAST(replace(frame, 'hi', x'ff') AS BLOB) WHERE seq = ?",
    "no JSON": "UPDATE entry SET frame = x'00' WHERE seq = ?",
    "checksum": "UPDATE entry SET checksum = checksum + 1 WHERE seq = ?",
    "not there": "DELETE FROM entry WHERE seq = ?",
    "number": "UPDATE entry SET seq = seq + 1000 WHERE seq = ?",
}


@pytest.mark.rule("9.checksum", "9.damage.named", "9.damage.accepted")
@pytest.mark.parametrize("what", CHANGES)
async def test_entry_that_is_not_what_was_written_is_refused_by_its_number(
    path: Path, clock: Clock, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    entries = await write(path, clock)
    lost = entries[1].seq
    change(path, CHANGES[what], lost)
    before = content(path)
    said = refusal(path)
    assert f"the journal {path} is damaged: number {lost} cannot be read" in said
    assert refusal(path) == said
    assert content(path) == before

    async with opened(path, clock, accept_damage=True) as journal:
        left = [entry for entry in entries if entry.seq != lost]
        assert list(await read(journal)) == left
        assert await read(journal, "other") == ()
        recovered = journal.recover("demo", since=0, limit=100)
        assert list(recovered.entries) == left
        assert recovered.facts == {"grant/1": {"to": "dan"}, "kicked/carol": {}}
        assert journal.damaged("demo", after=0, until=EVERYTHING) == (NumberRange(lost, lost),)
        for seen in (NOW, entries[0].seq):  # who has not read what is lost is told
            assert journal.resume_from("demo", seen) == lost
        for entry in entries[1:]:
            assert journal.resume_from("demo", entry.seq) == entry.seq
    (told,) = caplog.messages
    (aside,) = path.parent.glob("journal.db.damaged-*")
    assert f"number {lost} cannot be read" in told
    assert str(aside) in told
    assert content(aside) == before
    assert aside.stat().st_mode & 0o077 == 0

    # The file is whole now, and still says what is missing.
    async with opened(path, clock) as journal:
        assert journal.damaged("demo", after=0, until=EVERYTHING) == (NumberRange(lost, lost),)
        assert journal.resume_from("demo", entries[0].seq) == lost
        assert list(await read(journal)) == left
    assert len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize("what", ["no UTF-8", "not there"])
async def test_audit_names_what_it_cannot_read(path: Path, clock: Clock, what: str) -> None:
    entries = await write(path, clock)
    change(path, CHANGES[what], entries[1].seq)
    with pytest.raises(ConfigurationError, match=f"number {entries[1].seq} cannot be read"):
        with closing(Archive(path)) as archive:
            archive.read("demo", after=0, until=EVERYTHING, limit=100)
    with closing(Archive(path, accept_damage=True)) as archive:
        assert archive.damaged == [NumberRange(entries[1].seq, entries[1].seq)]
        left = archive.read("demo", after=0, until=EVERYTHING, limit=100)
    assert list(left) == [entries[0], *entries[2:]]


@pytest.mark.rule("9.damage.named")
async def test_damaged_numbers_are_told_as_some_ranges(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, *map(chat, range(100)))
    change(path, "DELETE FROM entry WHERE seq % 10 IN (1, 2) AND seq > ?", NOW + 2)
    first = f"numbers {NOW + 11} to {NOW + 12}, {NOW + 21} to {NOW + 22}, "
    said = refusal(path)
    assert first in said
    assert f"{NOW + 81} to {NOW + 82} and 1 more cannot be read" in said


@pytest.mark.rule("9.damage.named")
async def test_beginning_that_is_missing_is_damage(path: Path, clock: Clock) -> None:
    entries = await write(path, clock)
    change(path, "DELETE FROM entry WHERE seq <= ?", entries[1].seq)
    assert f"numbers {entries[0].seq} to {entries[1].seq} cannot be read" in refusal(path)


@pytest.mark.rule("9.damage.facts")
async def test_fact_that_is_damaged_is_known_again_from_the_entries(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await write(path, clock)
    change(path, "UPDATE fact SET value = '{}' WHERE key = 'grant/1'")
    change(path, "UPDATE fact SET key = 'kicked/eve' WHERE key = 'kicked/carol'")
    assert "2 of the facts that hold (grants, removals, pauses) cannot be read" in refusal(path)
    async with opened(path, clock, accept_damage=True) as journal:
        facts = journal.recover("demo", since=0, limit=100).facts
        assert facts == {"grant/1": {"to": "dan"}, "kicked/carol": {}}
        assert journal.damaged("demo", after=0, until=EVERYTHING) == ()
    assert "2 of the facts that hold" in caplog.text


@pytest.mark.rule("9.damage.facts")
async def test_fact_that_a_lost_entry_may_have_ended_is_gone(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/1", {}), Fact("grant/2", {})))
        (ending,) = await kept(journal, chat(2), facts=(Fact("grant/1", None),))
        await kept(journal, chat(3), facts=(Fact("grant/3", {}),))
    clock.now += DAY
    change(path, CHANGES["no JSON"], ending.seq)
    change(path, "UPDATE fact SET value = '[]'")
    async with opened(path, clock, accept_damage=True) as journal:
        # What the first one said is not known to hold; what was said behind the damage is.
        assert journal.recover("demo", since=0, limit=100).facts == {"grant/3": {}}


@pytest.mark.parametrize(
    ("sql", "told"),
    [
        ("UPDATE space SET floor = floor - 1", "of 1 spaces it cannot be read where they begin"),
        ("UPDATE missing SET until = until - 1", f"numbers 1 to {NOW} cannot be read"),
        ("DELETE FROM missing", f"numbers 1 to {NOW} cannot be read"),
    ],
    ids=["floor", "range", "no-range"],
)
async def test_ranges_of_the_file_are_checked(
    path: Path, clock: Clock, sql: str, told: str
) -> None:
    entries = await write(path, clock)
    change(path, sql)
    assert told in refusal(path)
    async with opened(path, clock, accept_damage=True) as journal:
        assert list(await read(journal)) == entries
        assert journal.floor("demo") == NOW
        assert journal.resume_from("demo", entries[0].seq) == entries[0].seq


def break_index(path: Path, entries: int) -> None:
    """Let the index of a small file leave out two entries."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name = 'entry_of_space'"
        ).fetchone()
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    changed = bytearray(content(path))
    cells = (page - 1) * size + 3
    assert int.from_bytes(changed[cells : cells + 2]) == entries
    changed[cells : cells + 2] = (entries - 2).to_bytes(2)
    replace_content(path, bytes(changed))


async def test_index_that_leaves_out_an_entry_is_made_anew(path: Path, clock: Clock) -> None:
    entries = await write(path, clock)
    break_index(path, len(entries))
    assert "its pages do not fit together" in refusal(path)
    async with opened(path, clock, accept_damage=True) as journal:
        assert list(await read(journal)) == entries
        # The table is whole, but nobody knows that nothing followed.
        start = journal.floor("a space of now")
        assert journal.damaged("demo", after=0, until=EVERYTHING) == (
            NumberRange(entries[-1].seq + 1, start),
        )


async def test_file_that_was_cut_to_nothing_is_refused_where_that_can_be_known(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
        wal = content(path.with_name("journal.db-wal"))
    replace_content(path, b"")
    replace_content(path.with_name("journal.db-wal"), wal)
    assert "is damaged: it is empty, though" in refusal(path)
    assert content(path.with_name("journal.db-wal")) == wal
    async with opened(path, clock, accept_damage=True) as journal:
        assert await read(journal) == ()
    (aside,) = path.parent.glob("*.damaged-*")
    assert content(aside) == wal
    caplog.clear()
    # One that was stopped in order has nothing beside it.
    replace_content(path, b"")
    async with opened(path, clock) as journal:
        assert await read(journal) == ()
    assert caplog.messages == [f"the journal {path} is an empty file, so a new one begins"]


async def test_new_file_of_a_killed_process_is_replaced(path: Path, clock: Clock) -> None:
    entries = await write(path, clock)
    change(path, CHANGES["no JSON"], entries[0].seq)
    replace_content(path.with_name("journal.db.new"), content(path))
    async with opened(path, clock, accept_damage=True) as journal:
        assert list(await read(journal)) == entries[1:]
    assert not path.with_name("journal.db.new").exists()


@pytest.mark.rule("9.damage.named")
@pytest.mark.parametrize("what", ["no UTF-8", "frame"])
async def test_damage_that_is_found_later_names_its_number(
    path: Path, clock: Clock, what: str
) -> None:
    async with opened(path, clock) as journal:
        entries = await kept(journal, *map(chat, range(3)))
        change(path, CHANGES[what], entries[1].seq)

        def ask(failed: Callable[[str], None]) -> None:
            journal.on_failed = failed
            journal.read("demo", after=0, until=EVERYTHING, limit=100, then=lambda _: None)

        said = await handed_over(ask)
    assert said.startswith(
        f"the journal {path} is damaged: number {entries[1].seq} is damaged; nothing more is"
    )


async def test_entries_before_the_damage_are_still_read_from_the_beginning_on(
    path: Path, clock: Clock
) -> None:
    entries = await write(path, clock)
    change(path, CHANGES["no JSON"], entries[3].seq)
    async with opened(path, clock, accept_damage=True) as journal:
        begin = journal.resume_from("demo", 0)
        assert begin == NOW
        assert ids(await read(journal, after=begin)) == ["0", "1", "2", "4"]
