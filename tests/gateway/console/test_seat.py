"""A person who is signed in is present for the others, beside an agent or without one."""

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Space
from tests.gateway.console.conftest import Site
from tests.interaction.people import until
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


def sees(space: Space, participant: str) -> bool:
    return participant in {each.id for each in space.participants}


async def test_whoever_opens_the_inbox_is_present(site: Site) -> None:
    proposer = await site.join("proposer")
    assert not sees(proposer, "you")
    browser = await site.browser("you")
    await browser.get("/inbox")
    with anyio.fail_after(PATIENCE):
        await until(lambda: sees(proposer, "you"))
        # As every member does, and at once: who lists all tools does not wait for a person.
        assert await proposer.tools("you") == []


async def test_proposal_for_the_person_alone_is_left_to_the_inbox(site: Site) -> None:
    await site.tools()
    proposer = await site.join("proposer")
    browser = await site.browser("you")
    await browser.get("/inbox")
    with anyio.fail_after(PATIENCE):
        await until(lambda: sees(proposer, "you"))
        await site.propose(proposer, to="you")
        await until(lambda: bool(proposer.proposals))
        await proposer.chat("so far")
        # The page may be a turn of the gateway's loop behind.
        while "Approve" not in (await browser.get("/inbox")).text:
            await anyio.lowlevel.checkpoint()
    (proposal,) = proposer.proposals
    assert proposal.state.is_pending
    assert not proposal.rejections


async def test_an_agent_that_joins_takes_the_seat_and_gives_it_back(site: Site) -> None:
    proposer = await site.join("proposer")
    browser = await site.browser("you")
    await browser.get("/inbox")
    heard: list[str] = []
    agent = Agent("you")

    @agent.tool
    async def note(text: str) -> None:
        heard.append(text)

    with anyio.fail_after(PATIENCE):
        await until(lambda: sees(proposer, "you"))
        joining = agent.join(site.gateway.url, space="demo", token=site.token("you"))
        async with joining as own:
            assert [each["name"] for each in await proposer.tools("you")] == ["note"]
            assert (await browser.get("/inbox")).status_code == 200
            assert own.connected  # the console took nothing back while it is there
        await until(lambda: sees(proposer, "you"))
        assert await proposer.tools("you") == []


async def test_a_running_agent_is_not_taken_over(site: Site) -> None:
    own = await site.join("you")
    browser = await site.browser("you")
    for _ in range(3):
        assert (await browser.get("/inbox")).status_code == 200
    assert own.connected
