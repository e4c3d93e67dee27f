"""Voting in the inbox, where a rule asks for several people."""

import re
from typing import Any

import anyio
import anyio.lowlevel

from meup_agent import Agent, Fulfillment, Request
from tests.changed_server import ChangedServer
from tests.gateway.console.conftest import Site, fields_in, key_in
from tests.interaction.people import ended

POLICY = """
rules:
  - quorum: {tool: write_file, of: 2, among: [you, voter], name: four eyes}
end: true
"""


async def test_two_votes_carry_a_call_out(site: Site) -> None:
    await site.review(POLICY)
    proposal = await site.propose(await site.proposer())
    you, voter = await site.browser("you"), await site.browser("voter")
    key = await you.key("four eyes", "Vote for it")
    assert (await you.decide(key, "vote", vote="approve")).status_code == 303
    assert site.ran == []
    # The other one sees who has voted.
    key = await voter.key("Vote for it", "for it</li>")
    assert (await voter.decide(key, "vote", vote="maybe")).status_code == 400
    assert (await voter.decide(key, "vote", vote="approve")).status_code == 303
    assert (await ended(proposal, Fulfillment)).by == "reviewer"
    assert len(site.ran) == 1
    # Its page tells by which rule it ran, and who voted how.
    story = " ".join(re.sub(r"<[^>]+>", " ", (await you.get(f"/proposals/{key}")).text).split())
    assert "By the rule four eyes , which asks for 2 votes: you voted for it, voter" in story


async def test_approval_is_a_vote_before_ones_own_session_was_told_the_rule(site: Site) -> None:
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
    page = await you.page("/inbox", "four eyes", "Vote for it")
    key = key_in(page)
    assert "Approve" not in page.partition("</article>")[0].partition('id="acts"')[2]
    fields = fields_in(page, f"/inbox/{key}/vote")
    answer = await you.post(f"/inbox/{key}/approve", {**fields, "sure": "yes"})
    assert answer.status_code == 303
    assert votes == [f"proposer {proposal.id} approve"]
    assert site.ran == []
    assert "Voted for write_file" in (await you.get("/inbox")).text
    done.set()


async def test_vote_is_about_the_tool_that_was_shown(site: Site) -> None:
    """It changes while the voter's own inbox session begins, which hears of the rule."""
    server, reviewer = ChangedServer("write_file", ["is new"], ""), Agent("reviewer")
    votes, sent = list[str](), dict[str, str]()
    boss = await site.join("boss", server.agent)
    proposer = await site.join("proposer")
    you = await site.browser("you")
    proposing = proposer.propose("boss", "write_file", {"path": "a.md"}, ttl=600)
    proposal = await site.stack.enter_async_context(proposing)
    key = await you.key("does not offer this tool as it was accepted")
    action = f"/inbox/{key}/approve"

    @reviewer.on_request("dev.meup/waiting")
    async def waiting() -> dict[str, Any]:
        if not sent:
            return {"proposals": []}
        server.form = "f2"
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        await boss.send("mcp/request", changed)
        while (await you.fields("/inbox", action))["digest"] == sent["digest"]:
            await anyio.lowlevel.checkpoint()
        about = {"proposal": proposal.id, "proposer": "proposer", "kind": "quorum", "votes": {}}
        rule = {"rule": {"name": "four eyes", "number": 0}, "of": 2, "among": ["you", "voter"]}
        return {"proposals": [about | rule]}

    @reviewer.on_request("dev.meup/vote")
    async def vote(request: Request) -> dict[str, Any]:
        votes.append(request.params["form"])
        return {"of": 2, "among": ["you", "voter"], "votes": {"you": request.params["vote"]}}

    await site.join("reviewer", reviewer)
    fields = await you.fields("/inbox", action)
    sent |= fields
    await you.post(f"/inbox/{key}/vote", {**fields, "vote": "approve"})
    assert (server.form, votes) == ("f2", ["f1"])
