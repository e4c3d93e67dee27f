"""The contract of a journal, with every engine, and with one whose store is elsewhere."""

from pathlib import Path
from typing import Any

import pytest

from meup_agent.gateway import Config, JournalConfig
from meup_agent.gateway.journal import waiting
from meup_agent.gateway.journal.engines import open_journal
from tests.gateway.journal.conftest import NOW, Clock, MakeJournal, chat, ids, kept, read, settled
from tests.gateways import ENGINES
from tests.patience import PATIENCE
from tests.spaces import MAX_PAGE_BYTES, Entry, Fact


async def test_what_follows_comes_in_the_order_of_the_calls(make_journal: MakeJournal) -> None:
    said: list[str] = []

    def note(entry: Entry) -> None:
        said.append(entry.envelope.id)

    async with make_journal() as journal:
        journal.append("demo", NOW, chat(1), (), note)
        journal.call_when_kept(lambda: said.append("after 1"))
        journal.append("other", NOW, chat(2), (), note)
        journal.append("demo", NOW, chat(3), (), note)
        journal.call_when_kept(lambda: said.append("after 3"))
        await settled(journal)

    assert said == ["1", "after 1", "2", "3", "after 3"]


async def test_what_follows_may_say_more(make_journal: MakeJournal) -> None:
    said: list[str] = []
    async with make_journal() as journal:

        def answer(entry: Entry) -> None:
            said.append(entry.envelope.id)
            journal.call_when_kept(lambda: said.append("for one"))
            journal.append("demo", NOW, chat(2), (), lambda entry: said.append(entry.envelope.id))

        journal.append("demo", NOW, chat(1), (), answer)
        await settled(journal)
        await settled(journal)

    assert said == ["1", "for one", "2"]


async def test_numbers_grow_in_a_space(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        start = journal.floor("demo")
        assert journal.latest("demo") == start
        (first,) = await kept(journal, chat(1))
        (other,) = await kept(journal, chat(1), space="other")
        second, third = await kept(journal, chat(2), chat(3))
        assert start < first.seq < second.seq < third.seq < 2**53
        assert journal.latest("demo") == third.seq
        assert journal.latest("other") == other.seq > journal.floor("other")
        assert journal.floor("demo") == start


async def test_entry_says_where_when_and_what_holds(
    make_journal: MakeJournal, clock: Clock
) -> None:
    facts = (Fact("grant/1", {"to": "bob", "n": None}), Fact("grant/2", None))
    async with make_journal() as journal:
        clock.now += 5  # the time of the decision counts, however late it is kept
        (entry,) = await kept(journal, chat(1), space="other", at=NOW + 3, facts=facts)
        assert entry == Entry(entry.seq, "other", NOW + 3, chat(1), facts)
        assert await read(journal, "other") == (entry,)


async def test_page_has_what_was_asked_for(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        seqs: list[int] = []
        for number in range(10):
            space = "other" if number % 3 == 0 else "demo"
            seqs += [each.seq for each in await kept(journal, chat(number), space=space)]
        assert ids(await read(journal)) == ["1", "2", "4", "5", "7", "8"]
        assert ids(await read(journal, after=seqs[2])) == ["4", "5", "7", "8"]
        assert ids(await read(journal, until=seqs[7] - 1)) == ["1", "2", "4", "5"]
        assert ids(await read(journal, after=seqs[1], limit=2)) == ["2", "4"]
        assert ids(await read(journal, after=seqs[5], until=seqs[5])) == []
        assert ids(await read(journal, "nowhere")) == []


async def test_page_has_no_more_than_fits(make_journal: MakeJournal) -> None:
    quarter = "x" * (MAX_PAGE_BYTES // 4)
    async with make_journal() as journal:
        large = (chat(number, message=quarter[:-200]) for number in range(5))
        _, _, third, *_ = await kept(journal, *large)
        await kept(journal, chat(5), chat(6))
        assert ids(await read(journal)) == ["0", "1", "2", "3", "4"]
        assert ids(await read(journal, after=third.seq)) == ["3", "4", "5", "6"]
        assert ids(journal.recover("demo", since=0, limit=100).entries) == list("0123456")


async def test_facts_hold_until_they_are_replaced(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        await kept(journal, chat(1), facts=(Fact("grant/b", {"n": 1}), Fact("grant/a", {"n": 2})))
        await kept(journal, chat(2), facts=(Fact("grant/b", {"n": 3}), Fact("kicked/x", {})))
        await kept(journal, chat(3), facts=(Fact("grant/a", None), Fact("grant/none", None)))
        await kept(journal, chat(4), space="other", facts=(Fact("grant/b", {"n": 4}),))
        facts = journal.recover("demo", since=0, limit=0).facts
        assert list(facts.items()) == [("grant/b", {"n": 3}), ("kicked/x", {})]
        assert journal.recover("other", since=0, limit=0).facts == {"grant/b": {"n": 4}}
        assert journal.recover("nowhere", since=0, limit=9)[:2] == ({}, ())


@pytest.mark.parametrize("number", [2**70, -(2**63) - 1, 1e300])
async def test_facts_have_numbers_of_any_size(make_durable: MakeJournal, number: float) -> None:
    """A capability that is granted may name any."""
    async with make_durable() as journal:
        fact = Fact("grant/a", {"n": [number]})
        (entry,) = await kept(journal, chat(1), facts=(fact,))
        assert await read(journal) == (entry,)
    async with make_durable() as journal:
        assert journal.recover("demo", since=0, limit=1).facts == dict([fact])


async def test_recovered_are_the_latest(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        for number in range(6):
            at = NOW + number
            await kept(journal, chat(number), chat(number + 10), at=at)
            await kept(journal, chat(99), space="other", at=at)

        def recovered(since: int, limit: int) -> list[str]:
            return ids(journal.recover("demo", since=since, limit=limit).entries)

        assert recovered(NOW + 4, 100) == ["4", "14", "5", "15"]
        assert recovered(NOW, 3) == ["14", "5", "15"]
        assert recovered(NOW + 6, 100) == []
        assert recovered(NOW, 0) == []


async def test_number_comes_with_the_entry_and_is_latest(make_journal: MakeJournal) -> None:
    told: list[tuple[int, int]] = []
    async with make_journal() as journal:

        def then(entry: Entry) -> None:
            told.append((entry.seq, journal.latest("demo")))

        for number in range(3):
            journal.append("demo", NOW, chat(number), (), then)
        await settled(journal)
    assert [seq for seq, _ in told] == sorted({seq for seq, _ in told})
    assert all(latest >= seq for seq, latest in told)


async def test_reader_continues_where_nothing_is_missing(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        floor = journal.floor("demo")
        entries = await kept(journal, *map(chat, range(3)))
        for seen in (floor, *(entry.seq for entry in entries)):
            assert journal.resume_from("demo", seen) == seen
        for seen in (floor - 1, entries[-1].seq + 1):
            assert journal.resume_from("demo", seen) == floor


async def test_flush_waits_for_all_that_was_appended(make_journal: MakeJournal) -> None:
    follows: list[Entry] = []
    async with make_journal() as journal:
        for number in range(500):
            journal.append("demo", NOW, chat(number), (), follows.append)
        await journal.flush(PATIENCE)
        assert ids(tuple(follows)) == [str(number) for number in range(500)]


async def test_abandoned_calls_nothing_more(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        await kept(journal, chat(1))
        follows: list[Entry] = []
        journal.append("demo", NOW, chat(2), (), follows.append)
        before = len(follows)  # in memory it is kept at once
        journal.abandon()
        await journal.flush(PATIENCE)
    assert len(follows) == before


async def test_full_journal_says_so_once_and_when_there_is_room_again(
    make_durable: MakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []
    async with make_durable() as journal:
        monkeypatch.setattr(waiting, "MAX_PENDING", 100)
        journal.on_full = told.append
        entries = await kept(journal, *map(chat, range(300)))  # in one turn of the loop
    assert told == [True, False]
    assert len(entries) == 300


async def test_what_is_for_one_alone_counts_among_what_waits(
    make_durable: MakeJournal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "MAX_PENDING", 100)
    told: list[bool] = []
    async with make_durable() as journal:
        journal.on_full = told.append
        journal.append("demo", NOW, chat(1), (), lambda _: None)
        for _ in range(100):  # refusals, say
            journal.call_when_kept(lambda: None)
        assert told == [True]
        await settled(journal)
        assert told == [True, False]


async def test_what_was_kept_is_there_again(make_durable: MakeJournal) -> None:
    async with make_durable() as journal:
        start = journal.floor("demo")
        entries = await kept(journal, *map(chat, range(1_000)))
        facts = (Fact("grant/1", {"to": "bob"}), Fact("grant/2", None))
        (other,) = await kept(journal, chat(1), space="other", facts=facts)

    async with make_durable() as journal:
        assert await read(journal) == tuple(entries)
        assert journal.recover("demo", since=0, limit=700).entries == tuple(entries[-700:])
        assert journal.recover("other", since=0, limit=9).facts == {"grant/1": {"to": "bob"}}
        assert journal.floor("demo") == journal.floor("other") == start
        assert journal.latest("demo") == entries[-1].seq
        (next_one,) = await kept(journal, chat(2))
        assert next_one.seq > other.seq


async def test_what_waits_is_kept_before_the_end(make_durable: MakeJournal) -> None:
    async with make_durable() as journal:
        for number in range(5_000):
            journal.append("demo", NOW, chat(number), (), lambda _: None)
    async with make_durable() as journal:
        assert len(journal.recover("demo", since=0, limit=10_000).entries) == 5_000


def test_engine_is_chosen_by_the_configuration(path: Path) -> None:
    for config, expected in ((JournalConfig(path), "sqlite"), (JournalConfig(), "memory")):
        assert next(name for name, each in ENGINES.items() if each.serves(config)) == expected


@pytest.mark.parametrize(
    ("keys", "max_bytes"),
    [
        ({"memory_bytes": 5_000}, 5_000),
        ({"path": "j", "memory_bytes": 5_000}, None),
        ({"path": "j", "max_bytes": 7_000}, 7_000),
    ],
)
async def test_limit_is_the_engine_s(
    tmp_path: Path, keys: dict[str, Any], max_bytes: int | None
) -> None:
    if "path" in keys:
        keys = {**keys, "path": tmp_path / keys["path"]}
    async with open_journal(Config((), journal=JournalConfig(**keys)), Clock()) as journal:
        assert journal.max_bytes == max_bytes
