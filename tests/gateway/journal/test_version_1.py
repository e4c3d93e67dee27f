"""A journal's file of version 1, which had no checksums: read, and made one of this version."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from meup_agent.errors import ConfigurationError
from tests.gateway.journal.conftest import NOW, Clock, chat, ids, kept, opened, read
from tests.gateways import Archive, Database
from tests.journal_files import kept_ids
from tests.spaces import NumberRange

pytestmark = pytest.mark.anyio

TABLES = """
CREATE TABLE envelope (
    seq INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    at INTEGER NOT NULL,
    sender TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    "to" TEXT NOT NULL,
    correlation TEXT NOT NULL,
    context TEXT,
    dialect TEXT NOT NULL,
    frame BLOB NOT NULL
);
CREATE INDEX envelope_of_space ON envelope (space, seq);
CREATE TABLE fact (
    said INTEGER PRIMARY KEY,
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    UNIQUE (space, key)
);
CREATE TABLE space (
    name TEXT PRIMARY KEY,
    floor INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE unknown (
    after INTEGER PRIMARY KEY,
    before INTEGER NOT NULL
);
"""
"""As version 1 made them."""

NUMBERS = (NOW + 1, NOW + 2, NOW + 3, NOW + 1_001, NOW + 1_002)
DAY = 86_400_000_000
EVERYTHING = 2**62


def write_version_1(path: Path) -> None:
    """Two starts, the second 1000 µs after the first."""
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            f"PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; {TABLES}"
            f" PRAGMA application_id = {0x4D455550}; PRAGMA user_version = 1;"
        )
        with connection:
            for number, seq in enumerate(NUMBERS):
                row = (seq, "demo", NOW + number, "alice", str(number), "chat", "[]", "[]")
                connection.execute(
                    "INSERT INTO envelope VALUES (?,?,?,?,?,?,?,?,NULL,'meup/v0.1',?)",
                    (*row, chat(number).frame),
                )
            fact = ("demo", "grant/1", json.dumps({"to": "bob"}))
            connection.execute("INSERT INTO fact (space, key, value) VALUES (?, ?, ?)", fact)
            connection.execute("INSERT INTO space VALUES ('demo', ?)", (NOW,))
            connection.execute("INSERT INTO unknown VALUES (?, ?)", (NUMBERS[2], NOW + 1_000))


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql)


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        found: int = connection.execute("PRAGMA user_version").fetchone()[0]
        return found


@pytest.mark.rule("9.version_1")
async def test_file_without_checksums_goes_on_as_one_with_them(
    path: Path, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    write_version_1(path)
    clock.now += DAY
    async with opened(path, clock) as journal:
        entries = await read(journal)
        assert ids(entries) == list("01234")
        assert [entry.seq for entry in entries] == list(NUMBERS)
        assert [entry.at for entry in entries] == [NOW + number for number in range(5)]
        assert [entry.envelope for entry in entries] == [*map(chat, range(5))]
        assert journal.recover("demo", since=0, limit=9) == ({"grant/1": {"to": "bob"}}, entries)
        assert journal.floor("demo") == NOW
        assert journal.damaged("demo", after=0, until=EVERYTHING) == ()
        # What a power cut took back is still no number of here.
        assert journal.resume_from("demo", NUMBERS[2] + 1) == NUMBERS[2]
        assert journal.resume_from("demo", NUMBERS[4]) == NUMBERS[4]
        (new,) = await kept(journal, chat(5))
        assert new.seq == clock.now + 1
    assert version_of(path) == 2
    assert not caplog.messages
    assert [each.name for each in path.parent.iterdir()] == ["journal.db"]
    change(path, f"DELETE FROM entry WHERE seq = {NUMBERS[1]}")
    with pytest.raises(ConfigurationError, match=f"number {NUMBERS[1]} cannot be read"):
        Database(path, "normal")


@pytest.mark.rule("9.version_1")
async def test_hole_in_a_file_without_checksums_is_no_damage(path: Path, clock: Clock) -> None:
    """It did not say of each number why it is missing."""
    write_version_1(path)
    change(path, f"DELETE FROM envelope WHERE seq = {NUMBERS[1]}")
    async with opened(path, clock) as journal:
        assert ids(await read(journal)) == list("0234")
        assert journal.damaged("demo", after=0, until=EVERYTHING) == ()


@pytest.mark.rule("9.version_1")
@pytest.mark.parametrize("frame", ["x'7b22ff227d'", "x'00'", "'no JSON'"])
async def test_frame_that_cannot_be_read_at_all_is_damage_of_a_file_without_checksums(
    path: Path, clock: Clock, frame: str
) -> None:
    write_version_1(path)
    change(path, f"UPDATE envelope SET frame = {frame} WHERE seq = {NUMBERS[1]}")
    with pytest.raises(ConfigurationError, match=f"number {NUMBERS[1]} cannot be read"):
        Database(path, "normal")
    assert version_of(path) == 1
    async with opened(path, clock, accept_damage=True) as journal:
        assert ids(await read(journal)) == list("0234")
        lost = NumberRange(NUMBERS[1], NUMBERS[1])
        assert journal.damaged("demo", after=0, until=EVERYTHING) == (lost,)
        assert journal.recover("demo", since=0, limit=0).facts == {"grant/1": {"to": "bob"}}
    assert version_of(path) == 2


@pytest.mark.rule("9.version_1")
def test_audit_reads_a_file_without_checksums_and_leaves_it_as_it_is(path: Path) -> None:
    write_version_1(path)
    before = path.read_bytes()
    assert kept_ids(path, "chat") == list("01234")
    with closing(Archive(path)) as archive:
        archive.check()
        assert archive.damaged == []
    assert path.read_bytes() == before
