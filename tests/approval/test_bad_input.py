"""Unusual proposals and reviewers: each has one outcome, those of docs/reference/policy.md."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from meup_agent import Agent, Rejection
from meup_agent.approval import AllowRule, DenyRule, Policy
from tests.interaction.people import Meeting, Notes, Raw, gathered, raw
from tests.wire import kinds, payloads

POLICY = Policy(
    [
        DenyRule("put", arguments={"**": "*secret*"}, reason="unsafe", name="no secrets"),
        AllowRule("put"),
        AllowRule("get"),
    ]
)


def tools(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def put(data: dict[str, Any]) -> None:
        notes("put")

    return agent


def reviewer(policy: Policy = POLICY, name: str = "reviewer") -> Agent:
    agent = Agent(name)
    agent.use(policy)
    return agent


@asynccontextmanager
async def by_hand(meeting: Meeting, notes: Notes) -> AsyncGenerator[Raw]:
    async with gathered(meeting, tools(notes), reviewer()), raw(meeting, "proposer") as peer:
        yield peer


async def outcome_of(peer: Raw, name: str, arguments: dict[str, Any], id: str = "p1") -> str:
    """The reason of a rejection, or ``allow``."""
    params = {"name": name, "arguments": arguments, "_meta": {payloads.TARGET: "tools"}}
    body = payloads.proposal("tools/call", params)
    await peer.say(kinds.MCP_PROPOSAL, body, id=id, to=("reviewer",))
    ends = (kinds.MCP_REJECT, kinds.MCP_REQUEST)
    found = await peer.hear(lambda e: e.kind in ends and e.correlation == (id,))
    return "allow" if found.kind == kinds.MCP_REQUEST else found.payload_object["reason"]


def nested(depth: int, inside: object = 1) -> dict[str, Any]:
    value: Any = inside
    for _ in range(depth):
        value = {"a": value}
    return {"data": value}


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("put", {"data": {"x": "y" * 1_000_000}}, "allow"),
    ("put", {"data": {"x": "y" * 500_000 + "secret" + "y" * 500_000}}, "unsafe"),
    ("put", {"data": {f"k{number}": "secret" for number in range(20_000)}}, "unsafe"),
    ("put", nested(40), "allow"),
    ("put", nested(40, "a secret"), "unsafe"),
    ("put", {"data": {"x": "\u202esecret\x00\x1b[2J"}}, "unsafe"),
    ("put", {"data": {"x": "se\u200bcret"}}, "unsafe"),
    ("pսt", {"data": {}}, "invalid"),
    ("PUT", {"data": {}}, "invalid"),
    ("put ", {"data": {}}, "invalid"),
    ("put\u200b", {"data": {}}, "invalid"),
    ("get", {}, "invalid"),
]
"""Tool, arguments, outcome."""


async def test_each_proposal_has_one_outcome(meeting: Meeting, notes: Notes) -> None:
    async with by_hand(meeting, notes) as peer:
        found = [
            await outcome_of(peer, tool, arguments, f"p{number}")
            for number, (tool, arguments, _) in enumerate(BAD)
        ]
    assert found == [outcome for _, _, outcome in BAD]


async def test_too_deep_a_call_reaches_no_rule_or_person(meeting: Meeting, notes: Notes) -> None:
    async with by_hand(meeting, notes) as peer, raw(meeting, "observer") as other:
        params = {"name": "put", "arguments": nested(150), "_meta": {payloads.TARGET: "tools"}}
        await peer.say(kinds.MCP_PROPOSAL, payloads.proposal("tools/call", params), id="deep")
        refused = await peer.hear(lambda e: e.kind == kinds.SYSTEM_ERROR)
        assert refused.payload_object["error"] == "too_deep"
        assert await outcome_of(peer, "put", {"data": {}}) == "allow"
        first = await other.hear(lambda e: e.kind == kinds.MCP_PROPOSAL)
        assert first.id == "p1"


async def test_of_two_reviewers_the_addressed_one_decides(meeting: Meeting, notes: Notes) -> None:
    never = reviewer(Policy([DenyRule("put")]), "second")
    everyone = (tools(notes), reviewer(), never, "proposer")
    async with gathered(meeting, *everyone) as (*_, proposer):
        async with proposer.propose("tools", "put", {"data": {}}, to="second") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        assert notes.all == []
        # To all: a rejection of one stops nothing while another may fulfill (PROTOCOL 4.5).
        async with proposer.propose("tools", "put", {"data": {}}) as proposal:
            assert not isinstance(await proposal.outcome(), Rejection)
    assert notes.all == ["put"]


async def test_two_reviewers_that_allow_carry_out_once(meeting: Meeting, notes: Notes) -> None:
    everyone = (tools(notes), reviewer(), reviewer(name="second"), "proposer")
    async with gathered(meeting, *everyone) as (*_, proposer):
        for _ in range(10):
            async with proposer.propose("tools", "put", {"data": {}}) as proposal:
                assert not isinstance(await proposal.outcome(), Rejection)
    assert notes.all == ["put"] * 10
