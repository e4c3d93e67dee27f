"""Voting in the inbox, where a rule asks for several people."""

import re
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Fulfillment, Request
from meup_agent.approval import Reviewer
from tests.gateway.console.conftest import Browser, Site, fields_in

pytestmark = pytest.mark.anyio

POLICY = """
rules:
  - quorum: {tool: write_file, of: 2, among: [you, voter], name: four eyes}
end: true
"""


async def key_once(browser: Browser, *words: str) -> str:
    """The key of the first decision, once its page has some words."""
    while True:
        page = (await browser.get("/inbox")).text
        if all(each in page for each in words):
            return page.partition('data-key="')[2][:24]
        await anyio.lowlevel.checkpoint()


async def test_two_votes_carry_a_call_out(site: Site, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    await site.tools()
    reviewer = Reviewer(policy).join(
        site.gateway.url, space="demo", token=site.token("reviewer", "demo")
    )
    await site.stack.enter_async_context(reviewer)
    proposal = await site.propose(await site.join("proposer"))
    you, voter = await site.browser("you"), await site.browser("voter")
    key = await key_once(you, "four eyes", "Vote for it")
    answer = await you.submit("/inbox", f"/inbox/{key}/vote", vote="approve")
    assert answer.status_code == 303
    assert site.ran == []
    # The other one sees who has voted.
    key = await key_once(voter, "Vote for it", "for it</li>")
    answer = await voter.submit("/inbox", f"/inbox/{key}/vote", vote="maybe")
    assert answer.status_code == 400
    answer = await voter.submit("/inbox", f"/inbox/{key}/vote", vote="approve")
    assert answer.status_code == 303
    outcome = await proposal.outcome()
    assert isinstance(outcome, Fulfillment)
    assert outcome.by == "reviewer"
    assert len(site.ran) == 1
    # Its page tells by which rule it ran, and who voted how.
    story = " ".join(re.sub(r"<[^>]+>", " ", (await you.get(f"/proposals/{key}")).text).split())
    assert "By the rule four eyes , which asks for 2 votes: you voted for it, voter" in story


async def test_approval_is_a_vote_before_a_desk_of_ones_own_was_told_the_rule(site: Site) -> None:
    """It is opened for whom a rule asks to vote, and knows what the shared one was told."""
    reviewer, votes, asked = Agent("reviewer"), list[str](), 0
    proposals: list[dict[str, Any]] = []
    done = anyio.Event()

    @reviewer.on_request("dev.meup/waiting")
    async def waiting() -> dict[str, Any]:
        nonlocal asked
        asked += bool(proposals)
        if asked > 1:
            await done.wait()
        return {"proposals": proposals}

    @reviewer.on_request("dev.meup/vote")
    async def vote(request: Request) -> dict[str, Any]:
        given = request.params
        votes.append(f"{given['proposer']} {given['proposal']} {given['vote']}")
        return {"of": 2, "among": ["you", "voter"], "votes": {"you": given["vote"]}}

    await site.tools()
    await site.join("reviewer", reviewer)
    you = await site.browser("you")
    proposal = await site.propose(await site.join("proposer"))
    rule = {"name": "four eyes", "number": 0}
    proposals.append(
        {"proposal": proposal.id, "proposer": "proposer", "rule": rule, "kind": "quorum"}
        | {"of": 2, "among": ["you", "voter"], "votes": {}}
    )
    key = await key_once(you, "four eyes", "Vote for it")
    page = (await you.get("/inbox")).text
    assert "Vote for it" in page
    assert "Approve" not in page.partition("</article>")[0].partition('id="acts"')[2]
    fields = fields_in(page, f"/inbox/{key}/vote")
    answer = await you.post(f"/inbox/{key}/approve", {**fields, "word": "approve"})
    assert answer.status_code == 303
    assert votes == [f"proposer {proposal.id} approve"]
    assert site.ran == []
    assert "Voted for write_file" in (await you.get("/inbox")).text
    done.set()
