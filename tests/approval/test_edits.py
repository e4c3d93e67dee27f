"""Edited fulfillments: judged again, as the call that they now are."""

from typing import Any

import pytest

from meup_agent import Agent, Proposal, ProposalState, Space
from meup_agent.approval import AllowRule, AskRule, DenyRule, Policy
from meup_agent.errors import Refused, UsageError
from meup_agent.types import CallNext, OutboundMessage
from tests.approval.test_decider import hear, tools
from tests.interaction.people import InMemory, Meeting, Notes, gathered, join, until
from tests.wire import kinds, payloads

POLICY = Policy(
    [
        DenyRule("add", arguments={"b": 13}, name="unlucky"),
        DenyRule("add", arguments={"b": 2}, name="two"),
        AllowRule("add", arguments={"b": 7}, others=["a"], name="seven"),
        AskRule("add", arguments={"b": 5}, name="ask"),
        AllowRule("add", name="allowed"),
    ]
)


def editing(b: int | None = None, executor: str | None = None) -> Agent:
    """A reviewer by a policy, whose middleware changes what it fulfills."""
    agent = Agent("reviewer")
    agent.use(POLICY)

    @agent.middleware
    async def edit(message: OutboundMessage, call_next: CallNext) -> Any:
        if message.verb != "fulfill":
            return await call_next(message)
        arguments = message.arguments if b is None else {**message.arguments, "b": b}
        changed = message.replace(arguments=arguments, participant=executor or message.participant)
        return await call_next(changed)

    return agent


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.parametrize(
    ("b", "executor"),
    [(13, None), (5, None), ("text", None), (None, "deep")],
    ids=["denied", "asked", "unfit", "elsewhere"],
)
async def test_a_middleware_makes_nothing_run_that_the_policy_does_not_allow(
    meeting: Meeting, notes: Notes, b: Any, executor: str | None
) -> None:
    async with (
        gathered(meeting, tools(notes), editing(b, executor), "proposer") as (_, _, proposer),
        proposer.propose("tools", "add", {"a": 1, "b": 1}) as proposal,
    ):
        with proposer.watch() as envelopes:
            async with proposer.propose("tools", "add", {"a": 1, "b": 13}) as other:
                denied = await hear(envelopes, lambda e: other.id in e.correlation)
        assert denied.kind == kinds.MCP_REJECT
        assert proposal.state.is_pending
    assert notes.all == []


@pytest.mark.rule("4.4.edits_judged")
async def test_an_allowed_edit_is_told_with_its_rule(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, tools(notes), editing(7), "proposer") as (_, _, proposer):
        with proposer.watch() as envelopes:
            async with proposer.propose("tools", "add", {"a": 1, "b": 1}) as proposal:
                request = await hear(envelopes, lambda e: proposal.id in e.correlation)
                assert await proposal.result(accept_edits=True) == 8
        meta = payloads.read_call(request.payload).meta
        assert (meta[payloads.EDITED], meta[payloads.RULE]["rule"]) == (True, "seven")
    assert notes.all == [("add", 1, 7)]


@pytest.mark.rule("4.4.edits_judged")
@pytest.mark.parametrize(("b", "runs"), [(13, False), (2, False), (5, True), (1, True)])
async def test_people_edit_within_rules(meeting: Meeting, notes: Notes, b: int, runs: bool) -> None:
    agent = Agent("reviewer")
    agent.use(POLICY)
    async with (
        gathered(meeting, tools(notes), agent, "proposer") as (_, reviewer, proposer),
        proposer.propose("tools", "add", {"a": 1, "b": 5}) as proposal,
    ):
        await until(lambda: bool(reviewer.proposals))
        held = reviewer.proposals.get(proposal.id)
        if not runs:
            with pytest.raises(Refused, match="as it was edited"):
                await held.fulfill({"a": 2, "b": b})
            assert proposal.state.is_pending
        else:
            assert (await held.fulfill({"a": 2, "b": b})).result(accept_edits=True) == 2 + b
    assert notes.all == ([("add", 2, b)] if runs else [])


@pytest.mark.rule("4.4.edits_judged")
async def test_an_edit_is_judged_by_the_capabilities_before_it_is_sent(notes: Notes) -> None:
    may = {"method": "tools/call", "params": {"name": "add", "arguments": {"b": 1}}}
    meeting = InMemory(
        {
            "proposer": [{"kind": "mcp/proposal"}],
            "reviewer": [{"kind": "mcp/request", "payload": may}],
            "tools": [{"kind": "mcp/*"}],
        }
    )
    async with (
        join(meeting, tools(notes)),
        join(meeting, "reviewer") as reviewer,
        join(meeting, "proposer") as proposer,
        proposer.propose("tools", "add", {"a": 1, "b": 1}) as proposal,
    ):
        await until(lambda: bool(reviewer.proposals))
        held = reviewer.proposals.get(proposal.id)
        with pytest.raises(Refused, match="as it was edited"):
            await held.fulfill({"a": 1, "b": 2})
        assert held.state is ProposalState.PENDING
        assert (await held.fulfill({"a": 5, "b": 1})).result(accept_edits=True) == 6
    assert notes.all == [("add", 5, 1)]


@pytest.mark.rule("4.4.edits_judged")
async def test_what_was_judged_leaves_whatever_happens(meeting: Meeting, notes: Notes) -> None:
    agent, edited = Agent("reviewer"), {"a": 1, "b": 7}

    async def judge(
        space: Space, proposal: Proposal, call: payloads.Call, rule: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        notes(("judged", call.arguments["b"]))
        edited["b"] = 13
        return rule

    agent.judge_edits(judge)
    async with (
        gathered(meeting, tools(notes), agent, "proposer") as (_, reviewer, proposer),
        proposer.propose("tools", "add", {"a": 1, "b": 5}) as proposal,
    ):
        await until(lambda: bool(reviewer.proposals))
        assert (await reviewer.proposals.get(proposal.id).fulfill(edited)).result(
            accept_edits=True
        ) == 8
    assert notes.all == [("judged", 7), ("add", 1, 7)]


async def test_a_judge_comes_before_the_start(meeting: Meeting) -> None:
    agent = Agent("reviewer")

    async def judge(
        space: Space, proposal: Proposal, call: payloads.Call, rule: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        return rule

    async with join(meeting, agent):
        with pytest.raises(UsageError, match="too late"):
            agent.judge_edits(judge)
