"""A journal that is copied from a file to a server, and back: what a gateway finds there."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import JournalConfig
from meup_agent.gateway.cluster.membership import ClusterMembership
from meup_agent.gateway.journal import copying
from meup_agent.gateway.journal.copying import copy_journal
from meup_agent.gateway.journal.engines import engine_of
from meup_agent.gateway.journal.nats.journal import NatsJournal
from meup_agent.gateway.journal.places import JournalPlace
from tests.gateway.journal.conftest import (
    NOW,
    Clock,
    chat,
    handed_over,
    kept,
    nats_config,
    opened,
    postgres_config,
    read,
    settled,
)
from tests.gateway.journal.test_decisions import lived
from tests.spaces import Fact, HistoryQuery, Journal

SPACES = ("demo", "Ü.b")
UNTIL = 2**60


@pytest.fixture(params=["NATS", "PostgreSQL"])
def elsewhere(path: Path, request: pytest.FixtureRequest) -> JournalPlace:
    """A place on a server."""
    return _on(request.param, path)


def _on(server: str, path: Path) -> JournalPlace:
    if server == "NATS":
        return JournalPlace("NATS", nats=nats_config(path), spaces=SPACES)
    return JournalPlace("PostgreSQL", postgres=postgres_config(path))


def file_place(path: Path) -> JournalPlace:
    return JournalPlace(path.name, path=path)


@asynccontextmanager
async def journal_at(place: JournalPlace, clock: Clock, **more: Any) -> AsyncGenerator[Journal]:
    if place.path is not None:
        async with opened(place.path, clock, **more) as journal:
            yield journal
        return
    config = JournalConfig(nats=place.nats, postgres=place.postgres, **more)
    there = engine_of(config).open(config, clock)
    try:
        yield there
    finally:
        await there.aclose()


async def contents(place: JournalPlace, clock: Clock) -> list[Any]:
    """What a gateway finds in a journal, whatever the numbers are."""
    found: list[Any] = []
    async with journal_at(place, clock) as journal:
        for space in SPACES:
            entries = await read(journal, space)
            recovered = journal.recover(space, since=0, limit=100_000)
            said = [(each.at, each.envelope, each.facts) for each in entries]
            facts = list(recovered.facts.items())
            query = HistoryQuery(UNTIL, limit=1_000)
            ask = partial(journal.find_decisions, space, query)
            page = await handed_over(ask)
            place_of = {each.seq: number for number, each in enumerate(entries)}
            rows = [
                row._replace(seq=place_of[row.seq], decided=place_of.get(row.decided or 0))
                for row in page.rows
            ]
            found.append((said, facts, rows, journal.seen(space, "alice")))
    return found


async def live(path: Path, clock: Clock) -> None:
    """A file with a past: proposals in one space, facts in both, the first of them forgotten."""
    async with lived(path, clock) as history:
        for _ in range(150):
            await history.step()
        journal = history.journal
        for space in SPACES:
            facts = Fact(f"grant/{space}", {"n": 2**70}), Fact("grant/b", {"n": 1})
            await kept(journal, chat(1), space=space, at=clock(), facts=facts)
            await kept(journal, chat(2), space=space, at=clock(), facts=(Fact("grant/b", None),))
            journal.mark_seen(space, "alice", NOW + 7)


@pytest.mark.thorough
async def test_copy_and_copy_back_say_the_same(
    path: Path, clock: Clock, elsewhere: JournalPlace
) -> None:
    await live(path, clock)
    source, back = file_place(path), file_place(path.with_name("back.db"))
    before = await contents(source, clock)
    there = await copy_journal(source, elsewhere, clock)
    assert there.envelopes == sum(len(each[0]) for each in before)
    assert there.spaces == 2
    assert await contents(elsewhere, clock) == before
    async with journal_at(elsewhere, clock) as journal:
        journal.floor("empty")
    elsewhere = elsewhere._replace(spaces=(*SPACES, "empty"))
    again = await copy_journal(elsewhere, back, clock)
    assert again == there
    assert await contents(back, clock) == before
    assert (await copy_journal(elsewhere, back, clock))._replace(was_there=False) == there._replace(
        went_on=there.went_on
    )


@pytest.mark.parametrize("way", ["to a server", "to a file"])
async def test_a_copy_that_was_interrupted_goes_on_and_is_no_journal_before(
    path: Path, clock: Clock, elsewhere: JournalPlace, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await live(path, clock)
    source, target = file_place(path), elsewhere
    whole = await contents(source, clock)
    if way == "to a file":
        await copy_journal(source, elsewhere, clock)
        source, target = elsewhere, file_place(path.with_name("copy.db"))
    monkeypatch.setattr(copying, "AT_ONCE", 50)

    def stop(count: int) -> None:
        if count > 60:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await copy_journal(source, target, clock, stop)
    if target.path is None:
        with pytest.raises(ConfigurationError, match="a copy that is not complete"):
            await contents(target, clock)
    else:
        assert not target.path.exists()
    done = await copy_journal(source, target, clock)
    assert 60 < done.went_on < done.envelopes
    assert await contents(target, clock) == whole


async def test_what_has_something_else_is_left_as_it_is(
    path: Path, clock: Clock, elsewhere: JournalPlace
) -> None:
    source, other = file_place(path), file_place(path.with_name("other.db"))
    async with journal_at(source, clock) as journal:
        await kept(journal, chat(1))
    for target in (other, elsewhere):
        async with journal_at(target, clock) as journal:
            await kept(journal, chat(2))
        before = await contents(target, clock)
        with pytest.raises(ConfigurationError, match="has something else already"):
            await copy_journal(source, target, clock)
        assert await contents(target, clock) == before
    # A gateway went on from the copy.
    copy = file_place(path.with_name("copy.db"))
    await copy_journal(source, copy, clock)
    async with journal_at(copy, clock) as journal:
        await kept(journal, chat(3))
    with pytest.raises(ConfigurationError, match="has something else already"):
        await copy_journal(source, copy, clock)


async def test_no_journal_is_copied_that_a_gateway_uses(
    path: Path, clock: Clock, elsewhere: JournalPlace
) -> None:
    source = file_place(path)
    async with journal_at(source, clock) as journal:
        await kept(journal, chat(1))
        with pytest.raises(ConfigurationError, match="is running; stop its gateway, or copy what"):
            await copy_journal(source, elsewhere, clock)
    async with journal_at(elsewhere, clock) as journal:
        await settled(journal)
        membership = None
        if elsewhere.nats is not None:
            assert isinstance(journal, NatsJournal)
            membership = ClusterMembership(journal.link, elsewhere.nats.prefix, "here", {})
            await membership.join()
        for places in ((source, elsewhere), (elsewhere, file_place(path.with_name("copy.db")))):
            with pytest.raises(ConfigurationError, match="uses it; stop all gateways"):
                await copy_journal(*places, clock)
        if membership is not None:
            membership.end()


@pytest.mark.parametrize("to", ["a server", "a file"])
async def test_what_grows_while_it_is_copied_is_no_journal_before_all_is_there(
    path: Path, clock: Clock, elsewhere: JournalPlace, to: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with journal_at(elsewhere, clock) as journal:
        await kept(journal, chat(1))
    target = file_place(path)
    if to == "a server":
        target = _on(elsewhere.name, path.with_name("copy"))
    append = copying._append

    async def append_while_somebody_writes(*arguments: Any) -> None:
        await append(*arguments)
        async with journal_at(elsewhere, clock) as journal:
            await kept(journal, chat(2))

    with monkeypatch.context() as patch:
        patch.setattr(copying, "_append", append_while_somebody_writes)
        with pytest.raises(ConfigurationError, match="wrote to space 'demo' while it was copied"):
            await copy_journal(elsewhere, target, clock)
    done = await copy_journal(elsewhere, target, clock)
    assert (done.went_on, done.envelopes) == (1, 2)
    assert await contents(target, clock) == await contents(elsewhere, clock)


async def test_who_saw_the_old_numbers_is_told_of_a_gap(
    path: Path, clock: Clock, elsewhere: JournalPlace
) -> None:
    source, back = file_place(path), file_place(path.with_name("back.db"))
    clock.now += 10**12  # and so a clock that is set back
    async with journal_at(source, clock) as journal:
        (old,) = await kept(journal, chat(1))
    clock.now = NOW
    for places in ((source, elsewhere), (elsewhere, back)):
        await copy_journal(*places, clock)
        async with journal_at(places[1], clock) as journal:
            assert journal.resume_from("demo", old.seq) == journal.floor("demo") > old.seq
            old = (await read(journal))[0]


async def test_facts_without_entries_are_copied(
    path: Path, clock: Clock, elsewhere: JournalPlace
) -> None:
    async with opened(path, clock, max_age=1.0) as journal:
        await kept(journal, chat(1), facts=(Fact("grant/a", {"n": 1}),))
        clock.now += 10**7
        while journal.floor("demo") == NOW:
            await kept(journal, chat(2), space="Ü.b", at=clock())
    before = await contents(file_place(path), clock)
    assert before[0][:2] == ([], [("grant/a", {"n": 1})])
    await copy_journal(file_place(path), elsewhere, clock)
    assert await contents(elsewhere, clock) == before
