"""A person in a browser beside the agent with the same token."""

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Rejection, Settings
from tests.gateway.console.conftest import Site
from tests.gateway.console.test_waiting_clicks import Press, approve
from tests.gateway.console.test_waiting_clicks import press as press
from tests.interaction.people import ended
from tests.patience import PATIENCE
from tests.wire import DIALECTS


async def test_person_is_one_participant_however_many_browsers_it_has(site: Site) -> None:
    boss = await site.join("boss")
    for _ in range(3):
        browser = await site.browser("you")
        await browser.get("/inbox")
    await boss.present("you", timeout=PATIENCE)
    assert site.gateway.counters.taken_over == 0
    # Boss, and two connections of you: one by which it is present, and one of its inbox session.
    assert site.gateway.counters.joined == 3


async def test_person_leaves_a_running_agent_its_connection(site: Site) -> None:
    agent = Agent("you")
    asked = 0

    @agent.tool
    async def count() -> int:
        nonlocal asked
        asked += 1
        return asked

    await site.join("you", agent)
    boss = await site.join("boss")
    assert (await (await site.browser("you")).get("/inbox")).status_code == 200
    assert await boss.call("you", "count") == 1
    assert site.gateway.counters.taken_over == 0


async def test_agent_that_comes_loses_nothing(site: Site, press: Press) -> None:
    """An approved call runs on, and the browser goes on beside the agent."""
    proposer = await site.join("proposer")
    proposal = await site.propose(proposer)
    browser, _ = await approve(site, press)
    await site.join("you")
    press.go_on.set()
    assert await proposal.result() == "a.mdhello"
    await site.propose(proposer, {"path": "next.md"})
    # Its session connects anew after a moment.
    await browser.page("/inbox", "next.md")


async def test_person_who_cannot_be_told_all_begins_anew(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await site.browser("you")
    monkeypatch.setattr("meup_agent.gateway.console.local_session.MAX_UNHEARD", 0)
    answer = await browser.get("/inbox")
    assert answer.status_code == 503
    assert "the gateway has too much to do" in answer.text
    monkeypatch.undo()
    # Once what has failed is gone.
    while (await browser.get("/inbox")).status_code != 200:
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_person_decides_what_is_proposed_in_any_dialect(site: Site, dialect: str) -> None:
    await site.tools()
    joining = Agent("proposer").join(
        site.gateway.url,
        space="demo",
        token=site.token("proposer", "demo"),
        settings=Settings(dialect=dialect),
    )
    proposer = await site.stack.enter_async_context(joining)
    browser = await site.browser("you")
    await browser.get("/inbox")
    approved = await site.propose(proposer, {"path": "yes.md"})
    assert (await browser.decide(await browser.key("yes.md"))).status_code == 303
    assert await approved.result(accept_edits=True) == "written"
    rejected = await site.propose(proposer, {"path": "no.md"})
    answer = await browser.decide(await browser.key("no.md"), "reject", reason="unsafe")
    assert answer.status_code == 303
    assert (await ended(rejected, Rejection)).by == "you"
