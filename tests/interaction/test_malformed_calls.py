"""Calls that their readers would read differently are refused before any of them sees them."""

from typing import Any

import pytest

from meup_agent import Agent, Context, Proposal
from meup_agent.errors import NotExpressible, ProposalRejected
from tests.interaction.people import Meeting, Notes, gathered, raw
from tests.interaction.views import is_error, of_kind, taped
from tests.wire import kinds, payloads

pytestmark = pytest.mark.rule("1.calls")

LARGE = 2**53
"""The first integer that a reader with doubles cannot tell from the next."""

STRUCTURE: dict[str, Any] = {
    "arguments are a list": {"name": "run", "arguments": ["rm", "-rf", "/"]},
    "arguments are a text": {"name": "run", "arguments": "rm -rf /"},
    "arguments are a number": {"name": "run", "arguments": 1},
    "arguments are true": {"name": "run", "arguments": True},
    "no name": {"arguments": {}},
    "an empty name": {"name": "", "arguments": {}},
    "a name that is not text": {"name": ["run"], "arguments": {}},
    "parameters are a list": ["run"],
}
VALUES: dict[str, Any] = {
    "a large integer": {"name": "run", "arguments": {"id": LARGE}},
    "a large negative integer": {"name": "run", "arguments": {"a": [{"b": -LARGE}]}},
    "a name that JavaScript drops": {"name": "run", "arguments": {"a": [{"__proto__": 1}]}},
    "a large integer beside": {"name": "run", "arguments": {}, "task": {"ttl": LARGE}},
}
WELL_FORMED: dict[str, Any] = {
    "no arguments": {"name": "run"},
    "null": {"name": "run", "arguments": None},
    "an object": {"name": "run", "arguments": {"id": LARGE - 1, "x": -LARGE + 1, "y": 1e300}},
    "large digits in a text": {"name": "run", "arguments": {"id": str(LARGE)}},
}


def proposals() -> dict[str, Any]:
    """Malformed payloads of proposals, by what is wrong with them."""
    calls = {why: {"method": "tools/call", "params": it} for why, it in STRUCTURE.items()}
    calls |= {why: {"method": "tools/call", "params": it} for why, it in VALUES.items()}
    calls |= {f"{why}, wrapped": {"proposal": it} for why, it in calls.items()}
    return calls | {
        "no method": {"params": {"name": "run"}},
        "a method that is not text": {"method": ["tools/call"], "params": {"name": "run"}},
        "a wrapper with more": {"proposal": {"method": "ping"}, "more": 1},
        "nothing": {},
    }


def everything(notes: Notes, name: str = "reviewer") -> Agent:
    """An agent that notes whatever it is shown."""
    agent = Agent(name)

    @agent.on_proposal(method="**")
    async def decide(proposal: Proposal) -> None:
        notes(("proposal", proposal.id))
        await proposal.reject("policy")

    @agent.on_request("tools/call")
    async def call(ctx: Context) -> None:
        notes(("request", ctx.envelope.id))

    @agent.on("mcp/proposal", "mcp/request")
    async def watch(ctx: Context) -> None:
        notes(("watched", ctx.envelope.id))

    return agent


async def test_a_malformed_proposal_is_shown_to_nobody(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, everything(notes), "observer") as (_, observer):
        async with raw(meeting, "proposer") as peer, taped(observer) as tape:
            for number, (why, payload) in enumerate(proposals().items()):
                await peer.say(kinds.MCP_PROPOSAL, payload, id=f"p{number}")
                error = await peer.hear(is_error)
                assert error.payload_object["error"] == "invalid_envelope", why
                assert error.correlation == (f"p{number}",)
            good = payloads.proposal("tools/call", {"name": "run"})
            await peer.say(kinds.MCP_PROPOSAL, good, id="good", to=("reviewer",))
            await notes.until(("proposal", "good"))
            await tape.until(of_kind(kinds.MCP_REJECT))
        assert [each.id for each in tape.of(kinds.MCP_PROPOSAL)] == ["good"]
    assert sorted(notes.all) == [("proposal", "good"), ("watched", "good")]


async def test_well_formed_calls_pass(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, everything(notes)), raw(meeting, "proposer") as peer:
        for why, params in WELL_FORMED.items():
            call = payloads.proposal("tools/call", params)
            await peer.say(kinds.MCP_PROPOSAL, call, id=why, to=("reviewer",))
            await notes.until(("proposal", why))


async def test_a_malformed_request_is_shown_to_nobody(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, everything(notes, "tools")), raw(meeting) as peer:
        for number, (why, params) in enumerate(STRUCTURE.items()):
            await peer.request("tools", "tools/call", params, id=f"r{number}")
            error = await peer.hear(is_error)
            assert error.payload_object["error"] == "invalid_envelope", why
        for why, params in VALUES.items():  # which bind nobody's decision
            await peer.request("tools", "tools/call", params, id=why)
            await notes.until(("request", why))


async def test_no_edit_passes_what_no_proposal_does(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, everything(notes, "tools")), raw(meeting, "proposer") as proposer:
        call = payloads.proposal("tools/call", {"name": "run"})
        await proposer.say(kinds.MCP_PROPOSAL, call, id="p", to=("second",))
        async with raw(meeting) as peer:
            for params in VALUES.values():
                asked = payloads.request("tools/call", params, "f")
                await peer.say(kinds.MCP_REQUEST, asked, id="f", to=("tools",), correlation=("p",))
                error = await peer.hear(is_error)
                assert error.payload_object["error"] == "invalid_envelope"
    assert ("request", "f") not in notes.all


async def test_our_verbs_say_why_before_anything_is_sent(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        with pytest.raises(NotExpressible, match=r"9007199254740992 .* as a text"):
            await proposal.fulfill({"id": LARGE})
        await proposal.reject("invalid")

    async with gathered(meeting, everything(notes, "tools"), reviewer, "proposer") as spaces:
        proposer = spaces[-1]
        with pytest.raises(NotExpressible, match=r"9007199254740992 .* as a text"):
            await proposer.call("tools", "run", {"id": LARGE})
        with pytest.raises(ProposalRejected):
            await proposer.call("tools", "run", {"id": 1}, to="reviewer")


async def test_no_old_one_is_replayed_to_a_handler(meeting: Meeting, notes: Notes) -> None:
    """An agent that comes later is told of open proposals by the same rule."""
    async with raw(meeting, "proposer") as peer:
        for number, payload in enumerate(proposals().values()):
            await peer.say(kinds.MCP_PROPOSAL, payload, id=f"p{number}", to=("reviewer",))
        good = payloads.proposal("tools/call", {"name": "run"})
        await peer.say(kinds.MCP_PROPOSAL, good, id="good", to=("reviewer",))
        async with gathered(meeting, everything(notes)):
            await notes.until(("proposal", "good"))
    assert notes.all == [("proposal", "good")]
