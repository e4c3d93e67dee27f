"""What every journal does, in memory and in a file."""

import pytest

from meup_agent.protocol.space.journal import MAX_PAGE_BYTES, Entry, Fact
from tests.gateway.journal.conftest import NOW, Clock, MakeJournal, chat, ids, kept, read, settled

pytestmark = pytest.mark.anyio


async def test_what_follows_comes_in_the_order_of_the_calls(make_journal: MakeJournal) -> None:
    said: list[str] = []

    def note(entry: Entry) -> None:
        said.append(entry.envelope.id)

    async with make_journal() as journal:
        journal.append("demo", chat(1), (), note)
        journal.call_when_kept(lambda: said.append("after 1"))
        journal.append("other", chat(2), (), note)
        journal.append("demo", chat(3), (), note)
        journal.call_when_kept(lambda: said.append("after 3"))
        await settled(journal)

    assert said == ["1", "after 1", "2", "3", "after 3"]


async def test_what_follows_may_say_more(make_journal: MakeJournal) -> None:
    said: list[str] = []
    async with make_journal() as journal:

        def answer(entry: Entry) -> None:
            said.append(entry.envelope.id)
            journal.call_when_kept(lambda: said.append("for one"))
            journal.append("demo", chat(2), (), lambda entry: said.append(entry.envelope.id))

        journal.append("demo", chat(1), (), answer)
        await settled(journal)
        await settled(journal)

    assert said == ["1", "for one", "2"]


async def test_numbers_grow_over_all_spaces(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        start = journal.floor("demo")
        assert journal.latest("demo") == start
        (first,) = await kept(journal, chat(1))
        (other,) = await kept(journal, chat(1), space="other")
        second, third = await kept(journal, chat(2), chat(3))
        assert [each.seq - start for each in (first, other, second, third)] == [1, 2, 3, 4]
        assert journal.latest("demo") == third.seq
        assert journal.latest("other") == other.seq
        assert journal.floor("demo") == journal.floor("other") == start


async def test_entry_says_where_and_when(make_journal: MakeJournal, clock: Clock) -> None:
    async with make_journal() as journal:
        clock.now += 5
        (entry,) = await kept(journal, chat(1), space="other")
        assert entry == Entry(NOW + 1, "other", NOW + 5, chat(1))
        assert await read(journal, "other") == (entry,)


async def test_page_has_what_was_asked_for(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        for number in range(10):
            await kept(journal, chat(number), space="other" if number % 3 == 0 else "demo")
        assert ids(await read(journal)) == ["1", "2", "4", "5", "7", "8"]
        assert ids(await read(journal, after=NOW + 3)) == ["4", "5", "7", "8"]
        assert ids(await read(journal, until=NOW + 6)) == ["1", "2", "4", "5"]
        assert ids(await read(journal, after=NOW + 2, limit=2)) == ["2", "4"]
        assert ids(await read(journal, after=NOW + 4, until=NOW + 4)) == []
        assert ids(await read(journal, "nowhere")) == []


async def test_page_has_no_more_than_fits(make_journal: MakeJournal) -> None:
    quarter = "x" * (MAX_PAGE_BYTES // 4)
    async with make_journal() as journal:
        await kept(journal, *(chat(number, message=quarter[:-200]) for number in range(5)))
        await kept(journal, chat(5), chat(6))
        assert ids(await read(journal)) == ["0", "1", "2", "3", "4"]
        assert ids(await read(journal, after=NOW + 3)) == ["3", "4", "5", "6"]


async def test_facts_hold_until_they_are_replaced(make_journal: MakeJournal) -> None:
    async with make_journal() as journal:
        await kept(journal, chat(1), facts=(Fact("grant/b", {"n": 1}), Fact("grant/a", {"n": 2})))
        await kept(journal, chat(2), facts=(Fact("grant/b", {"n": 3}), Fact("kicked/x", {})))
        await kept(journal, chat(3), facts=(Fact("grant/a", None), Fact("grant/none", None)))
        await kept(journal, chat(4), space="other", facts=(Fact("grant/b", {"n": 4}),))
        facts = journal.recover("demo", since=0, limit=0).facts
        assert list(facts.items()) == [("grant/b", {"n": 3}), ("kicked/x", {})]
        assert journal.recover("other", since=0, limit=0).facts == {"grant/b": {"n": 4}}
        assert journal.recover("nowhere", since=0, limit=9) == ({}, ())


async def test_recovered_are_the_latest(make_journal: MakeJournal, clock: Clock) -> None:
    async with make_journal() as journal:
        for number in range(6):
            clock.now = NOW + number
            await kept(journal, chat(number), chat(number + 10), space="demo")
            await kept(journal, chat(99), space="other")

        def recovered(since: int, limit: int) -> list[str]:
            return ids(journal.recover("demo", since=since, limit=limit).entries)

        assert recovered(NOW + 4, 100) == ["4", "14", "5", "15"]
        assert recovered(NOW, 3) == ["14", "5", "15"]
        assert recovered(NOW + 6, 100) == []
        assert recovered(NOW, 0) == []
