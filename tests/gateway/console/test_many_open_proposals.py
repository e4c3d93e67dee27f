"""Pages of an inbox of many: the first one at once, and what it lacks as soon as it is read."""

import math
import re

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Rejection
from tests.gateway.console.conftest import Browser, Site, key_in
from tests.gateway.console.test_event_streams import stream


@pytest.fixture(autouse=True)
def _one_is_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("MAX_AT_FIRST", 1),
        ("MAX_AWAITED", 0),
        ("MAX_AT_A_TURN", 1),
        ("SCREEN_SECONDS", 0),
        ("TURN_SECONDS", 0),
    ):
        monkeypatch.setattr(f"meup_agent.approval.inbox.item.{name}", value)
    # A browser without a script opens no stream.
    monkeypatch.setattr("meup_agent.gateway.console.presence.STREAM_SECONDS", 0.0)


async def until_shown(browser: Browser, *words: str, rows: int = 1) -> str:
    """The inbox, as soon as some words are in it, and so many rows in its queue."""
    while (page := await browser.page("/inbox", *words)).count('id="q-') != rows:
        await anyio.lowlevel.checkpoint()
    return page


def waiting(page: str) -> int:
    return int(re.findall(r'id="count">(\d+)<', page)[0])


async def test_record_and_similar_call_come_to_the_first_screen(site: Site) -> None:
    proposer = await site.proposer()
    before = await site.propose(proposer, {"path": "a.md", "text": "then"}, to="other")
    other = await site.browser("other")
    await other.decide(key_in(await until_shown(other, "write_file")), "reject", reason="unsafe")
    assert isinstance(await before.outcome(), Rejection)
    for number in range(3):
        await site.propose(proposer, {"path": "a.md", "text": f"now{number}"})
    you = await site.browser("you")
    # At once: what waits is counted whether it is listed or not.
    first = (await you.get("/inbox")).text
    assert waiting(first) == 3
    assert "write_file" in first
    page = await until_shown(you, "Its only one so far was rejected.", rows=3)
    assert "<code>then</code>" in page
    assert waiting(page) == 3


async def test_rest_is_read_once_a_stream_is_open(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.presence.STREAM_SECONDS", math.inf)
    proposer = await site.proposer()
    before = await site.propose(proposer, {"path": "then.md"})
    other = await site.browser("other")
    await other.get("/inbox")
    async with stream(other):
        key = key_in(await until_shown(other, "write_file"))
        await other.decide(key, "reject", reason="unsafe")
        assert isinstance(await before.outcome(), Rejection)
    for number in range(3):
        await site.propose(proposer, {"path": f"now{number}.md"})
    you = await site.browser("you")
    for _ in range(20):
        page = (await you.get("/inbox")).text
        # Each is counted, and one alone is listed.
        assert (waiting(page), page.count('id="q-')) == (3, 1)
    async with stream(you):
        page = await until_shown(you, "Its only one so far was rejected.", rows=3)
    assert waiting(page) == 3


async def test_own_proposals_of_the_one_whom_all_follow_wait_for_the_others(site: Site) -> None:
    await site.tools()
    for who in ("boss", "reviewer"):
        await site.propose(await site.join(who), {"path": f"by-{who}.md"})
    boss, reviewer = await site.browser("boss"), await site.browser("reviewer")
    looker = await site.browser("looker")
    # A session each, and behind them the one that they share, by the session of the first.
    assert "by-boss.md" not in await until_shown(boss, "by-reviewer.md")
    assert "by-reviewer.md" not in await until_shown(reviewer, "by-boss.md")
    everyone = await site.browser("you")
    await until_shown(everyone, rows=2)
    assert "Nothing waits" in (await looker.get("/inbox")).text


async def test_each_of_many_is_decided_as_it_was_shown(site: Site) -> None:
    proposer = await site.proposer()
    proposals = [await site.propose(proposer, {"path": f"{n}.md"}) for n in range(3)]
    you = await site.browser("you")
    for left in (2, 1, 0):
        key = key_in(await until_shown(you, "write_file", rows=left + 1))
        answer = await you.submit(f"/inbox/{key}", f"/inbox/{key}/approve", sure="yes")
        assert answer.status_code == 303
    assert {each["path"] for each in site.ran} == {"0.md", "1.md", "2.md"}
    for each in proposals:
        assert await each.result() == "written"
