"""The journal in a file: what is in it is there again, whatever becomes of its gateway."""

import asyncio
import sqlite3
import stat
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from meup_agent import Envelope
from meup_agent.errors import ConfigurationError
from meup_agent.gateway.journal import waiting
from tests.full_disk import full_disk
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    change,
    chat,
    fill_disk,
    handed_over,
    ids,
    kept,
    opened,
    read,
    settled,
)
from tests.journal_files import kept_ids
from tests.patience import PATIENCE
from tests.spaces import Entry, Fact
from tests.wire import DIALECTS, decode, draft, encode

BROKEN = "CREATE TRIGGER broken BEFORE INSERT ON fact BEGIN SELECT RAISE(ABORT, 'no room'); END"
"""Lets no fact be kept."""


def rows(path: Path, sql: str) -> list[Any]:
    """The envelopes that another process finds in the file at this moment."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


@pytest.mark.rule("6.journal.numbers")
async def test_numbers_do_not_go_back_with_the_clock(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        (before,) = await kept(journal, chat(1))
    clock.now -= 1_000_000
    async with opened(path, clock) as journal:
        (after,) = await kept(journal, chat(2))
        assert after.seq == before.seq + 1
        assert journal.floor("demo") == NOW
    clock.now = NOW + 1_000_000
    async with opened(path, clock) as journal:
        (later,) = await kept(journal, chat(3))
        assert later.seq == NOW + 1_000_001
        assert ids(await read(journal)) == ["1", "2", "3"]


@pytest.mark.rule("6.journal.gap")
async def test_number_that_the_file_has_lost_is_not_one_of_here(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        first, second, third = await kept(journal, *map(chat, range(3)))
    change(path, "DELETE FROM entry WHERE seq > ?", first.seq)  # as a power cut may
    for _ in range(2):
        clock.now += 1_000
        async with opened(path, clock) as journal:
            await kept(journal, chat(9))
            latest = journal.latest("demo")
            for seen in (first.seq, latest):
                assert journal.resume_from("demo", seen) == seen
            # Who saw what is lost has all that was said before, and is read nothing again.
            for seen in (second.seq, third.seq):
                assert journal.resume_from("demo", seen) == first.seq
            for seen in (NOW - 1, latest + 1):
                assert journal.resume_from("demo", seen) == journal.floor("demo") == NOW


async def test_nothing_follows_before_others_can_read_it(path: Path, clock: Clock) -> None:
    def look(then: Callable[[list[Any]], None]) -> None:
        query = "SELECT seq, space, at, kind, facts FROM entry"
        journal.append("demo", NOW, chat(7), (), lambda _: then(rows(path, query)))

    async with opened(path, clock) as journal:
        found = await handed_over(look)
    assert found == [(NOW + 1, "demo", NOW, "chat", None)]


async def test_envelope_and_facts_are_kept_together_or_not_at_all(path: Path, clock: Clock) -> None:
    failures: list[str] = []
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
        journal.on_failed = failures.append
        change(path, BROKEN)
        facts = (Fact("grant/1", {}),)
        journal.append("demo", NOW, chat(2), facts, lambda _: failures.append("said"))
    assert kept_ids(path) == ["1"]
    assert rows(path, "SELECT * FROM fact") == []
    (failure,) = failures
    assert f"the journal {path} cannot be written: no room" in failure


ENVELOPES = [
    decode(b'{"protocol":"mew/v0.4","id":"1","ts":"t","from":"a","to":["b","c"],"kind":"chat",'
           b'"correlation_id":["x","y"],"context":"\\u0000/c","payload":{"\xc3\xa4":1e400}}'),
    decode(b' {"protocol":"mcpx/v0.1" , "id":"2","from":"a","kind":"mcp",'
           b'"payload":{"id":7,"result":{}}, "strange":[1]}').replace(correlation=("request-7",)),
    decode(b' {"id":"6", "from":"a","kind":"chat","payload":{ "n": 1.0e0},"protocol":"meup/v0.1"}'),
    decode(b'{"protocol":"meup/v0.2","id":"3","from":"a","kind":"mcp/proposal","payload":{}}'),
    draft("system/error", {"error": "x"}, id="4", sender="system:gateway", to=("a",),
          correlation=("3",), ts="2025-01-01T00:00:00Z", context="c"),
    draft("system/presence", {"event": "join"}, id="5", sender="system:gateway",
          correlation=("1", "2")),
]  # fmt: skip


def said(envelope: Envelope) -> dict[str, Any]:
    fields = ("id", "sender", "kind", "to", "correlation", "raw_payload", "ts", "context")
    return {field: getattr(envelope, field) for field in fields}


@pytest.mark.parametrize("envelope", ENVELOPES, ids=lambda envelope: str(envelope.id))
async def test_envelope_is_the_same_again(envelope: Envelope, path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, envelope)
        (entry,) = await read(journal)
    assert said(entry.envelope) == said(envelope)
    assert entry.envelope.extra == envelope.extra
    assert entry.envelope.frame == envelope.frame or not envelope.frame
    for dialect in DIALECTS:
        assert encode(entry.envelope, dialect) == encode(envelope, dialect)


async def test_killed_process_leaves_what_was_committed(path: Path, clock: Clock) -> None:
    follows: list[Entry] = []
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
        journal.append("demo", NOW, chat(2), (), follows.append)
        journal.abandon()
    assert follows == []
    async with opened(path, clock) as journal:
        assert ids(await read(journal)) == ["1"]


async def test_one_failed_callback_keeps_nothing_from_the_others(path: Path, clock: Clock) -> None:
    follows: list[Entry] = []
    raised: list[BaseException] = []

    def fail(_: Entry) -> None:
        raise ValueError("broken")

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: raised.append(context["exception"]))
    async with opened(path, clock) as journal:
        journal.append("demo", NOW, chat(1), (), fail)
        journal.append("demo", NOW, chat(2), (), follows.append)
        await settled(journal)
    assert ids(tuple(follows)) == ["2"]
    assert [str(each) for each in raised] == ["broken"]


async def test_full_by_bytes(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_PENDING_BYTES", 10_000)
    told: list[bool] = []
    async with opened(path, clock) as journal:
        journal.on_full = told.append
        await kept(journal, *(chat(number, message="x" * 4_000) for number in range(4)))
    assert told == [True, False]


async def test_kept_before_a_failure(
    path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "A_TURN", 1)
    count, told, failed = 2_000, list[str](), anyio.Event()
    async with opened(path, clock) as journal:
        await kept(journal, chat(0))
        journal.on_failed = lambda _: failed.set()
        change(path, BROKEN)

        def then(entry: Entry) -> None:
            if not told:  # all of them are kept, and most of them wait for a later turn
                journal.append("demo", NOW, chat(count + 1), (Fact("grant/1", {}),), then)
            told.append(entry.envelope.id)

        for number in range(1, count + 1):
            journal.append("demo", NOW, chat(number), (), then)
        with anyio.fail_after(PATIENCE):
            await failed.wait()
    assert kept_ids(path) == ["0", *told]
    assert len(told) == count


async def test_full_disk_is_told_once_and_nothing_follows(path: Path, clock: Clock) -> None:
    failures: list[str] = []
    follows: list[Entry] = []
    async with opened(path, clock) as journal:
        journal.on_failed = failures.append
        entries = await kept(journal, chat(1))
        fill_disk(journal, 10)
        for number in range(20):
            journal.append("demo", NOW, chat(number, message="x" * 10_000), (), follows.append)
            await journal.flush(PATIENCE)
        assert "full" in failures[0]
        journal.append("demo", NOW, chat(99), (), follows.append)
        journal.call_when_kept(lambda: follows.append(entries[0]))
        journal.read("demo", after=0, until=2**62, limit=1, then=follows.extend)
        told = len(follows)
    assert len(failures) == 1
    assert failures[0].startswith(f"the journal {path} cannot be written: ")
    assert len(follows) == told
    assert len(rows(path, "SELECT seq FROM entry")) == told + 1


async def test_full_disk_at_the_start_is_no_damage(path: Path, clock: Clock) -> None:
    for _ in ("there is none yet", "one is there"):
        with (
            full_disk(),
            pytest.raises(ConfigurationError, match=r"cannot be written: .*; make room"),
        ):
            await opened(path, clock).__aenter__()
        async with opened(path, clock) as journal:
            await kept(journal, chat(1))


async def test_only_its_owner_may_read_the_file(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
        modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()}
        assert modes["journal.db"] == modes["journal.db-wal"] == 0o600


async def test_size_is_that_of_its_files(path: Path, clock: Clock) -> None:
    async with opened(path, clock) as journal:
        await kept(journal, chat(1))
        files = [each for each in path.parent.iterdir() if not each.name.endswith("-shm")]
        assert journal.size() == sum(each.stat().st_size for each in files) > 0
