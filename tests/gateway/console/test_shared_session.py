"""One inbox for all who see the same, and an own one for who does not."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, ProposalState
from meup_agent.gateway.console.presence import InboxFeed
from tests.gateway.console.conftest import Browser, Site, open_site
from tests.patience import PATIENCE
from tests.wire import kinds


async def reject(browser: Browser) -> int:
    answer = await browser.decide(await browser.key(), "reject", reason="unsafe", words="no")
    return answer.status_code


async def test_who_rejects_sees_it_go_and_the_others_do_not(site: Site) -> None:
    proposer = await site.proposer()
    # The first leads: its session is the one that both follow.
    for decider, other in (("boss", "reviewer"), ("reviewer", "boss")):
        mine, theirs = await site.browser(decider), await site.browser(other)
        proposal = await site.propose(proposer, {"path": f"{decider}.md"})
        await mine.page("/inbox", f"{decider}.md")
        await theirs.page("/inbox", f"{decider}.md")
        assert await reject(mine) == 303
        assert f"{decider}.md" not in await mine.page()
        assert f"{decider}.md" in await theirs.page()
        await proposal.withdraw()
        await theirs.page(gone=f"{decider}.md")


async def test_one_of_many_approves_for_all(site: Site) -> None:
    proposal = await site.propose(await site.proposer())
    browsers = [await site.browser(each) for each in ("boss", "reviewer")]
    for each in browsers:
        assert "write_file" in await each.page()
    assert (await browsers[1].decide(await browsers[1].key())).status_code == 303
    await proposal.outcome()
    assert len(site.ran) == 1
    for each in browsers:
        await each.page(gone="write_file</span>")


async def test_proposal_for_one_is_shown_to_that_one_alone(site: Site) -> None:
    proposer = await site.proposer()
    mine, theirs = await site.browser("boss"), await site.browser("reviewer")
    for each in (mine, theirs):
        assert "Nothing waits" in await each.page()
    proposal = await site.propose(proposer, {"path": "secret.md"}, to="reviewer")
    assert "secret.md" in await theirs.page("/inbox", "secret.md")
    assert "secret.md" not in await mine.page()
    # Who signs in later, and who leads next, see what is theirs as well.
    assert "secret.md" in await (await site.browser("reviewer")).page()
    await proposal.withdraw()
    await theirs.page(gone="secret.md")


async def test_proposal_that_names_many_opens_one_session_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("meup_agent.gateway.console.presence.MAX_OPENING", 1)
    async with open_site() as site:
        proposer = await site.proposer()
        people = ("boss", "reviewer", "you", "other")
        browsers = [await site.browser(each) for each in people]
        for each in browsers:
            await each.page()
        handle = proposer.propose("tools", "write_file", {"path": "all.md"}, ttl=600, to=people)
        async with handle:
            for each in browsers:
                await each.page("/inbox", "all.md")


async def test_own_proposal_does_not_wait_for_its_proposer(site: Site) -> None:
    await site.tools()
    boss = await site.join("boss")
    mine, theirs = await site.browser("boss"), await site.browser("reviewer")
    await mine.page()
    await site.propose(boss, {"path": "by-the-boss.md"})
    await theirs.page("/inbox", "by-the-boss.md")
    assert "by-the-boss.md" not in await mine.page()


async def test_capabilities_that_change_change_what_is_shown(site: Site) -> None:
    await site.tools()
    boss = await site.join("boss")
    await site.propose(await site.join("proposer"))
    looker, you = await site.browser("looker"), await site.browser("you")
    assert "write_file" in await you.page()
    assert "Nothing waits" in await looker.page()
    await boss.members.grant("looker", [{"kind": "mcp/reject"}])
    assert "Reject" in await looker.page("/inbox", "write_file")
    await boss.members.revoke("looker", [{"kind": "mcp/reject"}])
    await looker.page(gone="write_file")
    assert "write_file" in await you.page()


async def test_others_go_on_when_the_one_whose_session_they_follow_is_removed(site: Site) -> None:
    proposer = await site.proposer()
    kicker = await site.join("boss")
    first, second = await site.browser("you"), await site.browser("other")
    # With the same capabilities as the first.
    await kicker.members.grant("other", [{"kind": "chat"}])
    for each in (first, second):
        assert "Nothing waits" in await each.page()
    await kicker.members.kick("you")
    await site.propose(proposer)
    await second.page("/inbox", "write_file")
    assert (await first.get("/inbox")).status_code == 403


@pytest.mark.parametrize("way", ["removed", "away"])
async def test_gateway_goes_on_without_the_one_whom_a_proposal_names(
    site: Site, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A session of its own, which nobody needs any more, once kept the gateway's loop for ever."""
    boss = await site.join("boss")
    await site.propose(await site.proposer(), to="other")
    named, other = await site.browser("other"), await site.browser("boss")
    await named.page("/inbox", "write_file")
    if way == "removed":
        await boss.members.kick("other")
        while (await named.get("/inbox")).status_code != 403:
            await anyio.lowlevel.checkpoint()
    else:
        monkeypatch.setattr("meup_agent.gateway.console.presence.IDLE_SECONDS", 0.0)
        await named.get("/inbox")
        monkeypatch.undo()
    for _ in range(5):
        assert (await other.get("/inbox")).status_code == 200


async def test_inbox_is_led_by_the_next_in_turn(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = await site.proposer()
    monkeypatch.setattr("meup_agent.gateway.console.presence.IDLE_SECONDS", 0.0)
    first = await site.browser("boss")
    await first.page()
    monkeypatch.undo()
    second = await site.browser("reviewer")
    await second.page()
    proposal = await site.propose(proposer)
    await second.page("/inbox", "write_file")
    assert (await second.decide(await second.key())).status_code == 303
    await proposal.outcome()
    assert proposal.state is ProposalState.FULFILLED


async def test_word_about_a_decision_waits_for_the_next_page(site: Site) -> None:
    await site.propose(await site.proposer())
    browser = await site.browser("boss")
    assert await reject(browser) == 303
    for headers in ({"Sec-Fetch-Dest": "empty"}, {"Accept": "text/html"}):
        assert "Rejected: write_file" not in (await browser.get("/inbox", headers=headers)).text
    assert "Rejected: write_file" in await browser.page()


async def test_answer_to_a_form_can_be_loaded_anew(site: Site) -> None:
    await site.propose(await site.proposer())
    browser = await site.browser("boss")
    key = await browser.key()
    for verb in ("approve", "edit", "reject", "vote"):
        answer = await browser.get(f"/inbox/{key}/{verb}")
        assert answer.status_code == 303
        assert answer.headers["location"] == f"/console/inbox/{key}"


@dataclass(eq=False)
class Shown:
    """A proposal that is shown."""

    id: str
    proposer: str = "bot"
    client: str = ""
    target: str = "tools"
    method: str = "tools/call"
    tool: str = "read"
    arguments: Any = field(default_factory=dict[str, Any])
    envelope: Any = field(default_factory=lambda: SimpleNamespace(raw_payload=b"{}"))


def test_feed_of_another_session_begins_where_pages_are_if_it_shows_the_same() -> None:
    def inbox(*ids: str) -> Any:
        return SimpleNamespace(items=[Shown(each) for each in ids])

    def feed(shown: Any, before: InboxFeed | None = None) -> InboxFeed:
        return InboxFeed(shown, lambda _: None, before)

    before = feed(inbox("1", "2"))
    assert feed(inbox("1", "2"), before).version == before.version
    assert feed(inbox("2"), before).version != before.version
    assert feed(inbox("1", "2")).version != before.version


async def test_sharing_people_take_one_session_between_them(site: Site) -> None:
    watcher = await site.join("looker", Agent("looker"))
    askers: list[str] = []
    with watcher.watch() as envelopes:
        await site.propose(await site.proposer())
        for each in ("boss", "reviewer"):
            await (await site.browser(each)).page()
        await watcher.chat("enough")
        with anyio.fail_after(PATIENCE):
            async for envelope in envelopes:
                if envelope.kind == "chat":
                    break
                if b"tools/list" in envelope.raw_payload and envelope.sender != kinds.GATEWAY:
                    askers.append(envelope.sender)
    # One asks each of those who may carry it out.
    assert askers
    assert len(set(askers)) == 1
