"""A client that does not resume counts its ids anew, and means what it says again (PROTOCOL 6)."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Proposal, ProposalState
from tests.interaction.cast import willing
from tests.interaction.people import Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import is_, is_error, is_response, state_of
from tests.wire import kinds, payloads

pytestmark = pytest.mark.rule("6.said_again")

CALL: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}}
REQUEST = payloads.request("tools/call", CALL, "1")


def counting(notes: Notes, *, stops: bool = False) -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def add(a: int, b: int) -> int:
        notes("runs")
        if stops and notes.all.count("runs") == 1:
            try:
                await anyio.sleep_forever()
            finally:
                notes("stopped")
        return a + b

    return tools


async def test_a_request_that_is_made_again_runs_again(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, counting(notes)), raw(meeting, "second") as client:
        for _ in range(3):
            await client.say(kinds.MCP_REQUEST, REQUEST, id="second-1", to=("tools",))
            answer = await client.hear(is_response)
            assert answer.correlation == ("second-1",)
    assert notes.all == ["runs"] * 3


async def test_the_one_that_still_runs_is_superseded(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, counting(notes, stops=True)), raw(meeting, "second") as client:
        await client.say(kinds.MCP_REQUEST, REQUEST, id="second-1", to=("tools",))
        await notes.until("runs")
        await client.say(kinds.MCP_REQUEST, REQUEST, id="second-1", to=("tools",))
        await client.hear(is_response)
    assert sorted(notes.all) == ["runs", "runs", "stopped"]


async def test_an_approval_that_is_said_again_is_used_once(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def add(a: int, b: int, context: Context) -> int:
        notes("runs")
        await notes.until("said again")
        return a + b

    proposal = payloads.proposal("tools/call", CALL)
    async with (
        gathered(meeting, tools),
        raw(meeting, "proposer") as proposer,
        raw(meeting, "second") as client,
    ):
        await proposer.say(kinds.MCP_PROPOSAL, proposal, id="p1")
        await client.hear(is_("p1"))
        asked: dict[str, Any] = {"id": "second-1", "to": ("tools",), "correlation": ("p1",)}
        await client.say(kinds.MCP_REQUEST, REQUEST, **asked)
        await notes.until("runs")
        await client.say(kinds.MCP_REQUEST, REQUEST, **asked)
        notes("said again")
        await client.hear(is_response)
        await client.say(kinds.MCP_REQUEST, REQUEST, **asked)
        refused = await client.hear(is_error)
        assert refused.payload["error"] == "not_pending"
    assert notes.all.count("runs") == 1


async def test_a_proposal_made_again_is_decided_again(meeting: Meeting, notes: Notes) -> None:
    body = payloads.proposal("tools/call", {**CALL, "_meta": {payloads.TARGET: "tools"}})
    async with (
        gathered(meeting, counting(notes), willing()) as (_, reviewer),
        raw(meeting, "proposer") as proposer,
    ):
        for _ in range(2):
            await proposer.say(kinds.MCP_PROPOSAL, body, id="proposer-1")
            await proposer.hear(is_response)
        await until(lambda: state_of(reviewer, "proposer-1") is ProposalState.FULFILLED)
    assert notes.all == ["runs", "runs"]


async def test_a_proposal_made_again_ends_the_first_one(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        notes("begins")
        try:
            await anyio.sleep_forever()
        finally:
            notes("ends")

    body = payloads.proposal("tools/call", CALL)
    looking = join(meeting, reviewer, grace=0)
    async with gathered(meeting, looking) as (space,), raw(meeting, "proposer") as proposer:
        await proposer.say(kinds.MCP_PROPOSAL, body, id="proposer-1")
        await notes.until("begins")
        await proposer.say(kinds.MCP_PROPOSAL, body, id="proposer-1")
        await notes.until("ends")
        await until(lambda: notes.all.count("begins") == 2)
        assert state_of(space, "proposer-1") is ProposalState.PENDING
