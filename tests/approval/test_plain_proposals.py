"""Proposals that do not say who should carry them out: the only participant that has the tool."""

from typing import Any

import pytest

from meup_agent import Agent, Fulfillment, ProposalState
from meup_agent.approval import DenyRule, Inbox, Policy, Verb
from meup_agent.errors import NotOffered, OwnerUnknown, UsageError
from tests.interaction.cast import calculator, noting_adder, willing
from tests.interaction.people import Meeting, Notes, gathered, raw, until
from tests.interaction.views import state_of
from tests.wire import kinds, payloads

CALL: dict[str, Any] = {"name": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.rule("4.4.plain")
async def test_a_bare_fulfill_goes_to_the_only_owner(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), willing(), "proposer") as (*_, proposer):
        async with proposer.propose(None, "add", {"a": 1, "b": 2}, ttl=60) as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert (outcome.executor, outcome.result(), outcome.changes) == ("tools", 3, ())


@pytest.mark.rule("4.4.plain")
async def test_a_plain_proposal_is_approved_in_an_inbox(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "reviewer", "proposer") as (_, reviewer, proposer),
        Inbox(reviewer) as inbox,
        proposer.propose(None, "add", {"a": 1, "b": 2}, ttl=60) as proposal,
    ):
        await until(lambda: len(inbox) == 1)
        [item] = inbox.items
        assert (item.target, payloads.TARGET in str(item.envelope.payload)) == (None, False)
        assert item.may == {Verb.APPROVE, Verb.REJECT}
        fulfillment = await inbox.approve(item)
        assert fulfillment is not None
        assert (fulfillment.executor, fulfillment.result()) == ("tools", 3)
        assert state_of(reviewer, proposal.id) is ProposalState.FULFILLED


@pytest.mark.rule("4.4.plain")
async def test_two_owners_are_both_named_and_it_waits(meeting: Meeting, notes: Notes) -> None:
    people = (noting_adder(notes), noting_adder(notes, "mallory"), "reviewer", "proposer")
    async with (
        gathered(meeting, *people) as (*_, reviewer, proposer),
        Inbox(reviewer) as inbox,
        proposer.propose(None, "add", {"a": 1, "b": 2}, ttl=60) as proposal,
    ):
        await until(lambda: len(inbox) == 1)
        [item] = inbox.items
        with pytest.raises(OwnerUnknown, match="'tools', 'mallory'") as raised:
            await inbox.approve(item)
        assert raised.value.owners == ("tools", "mallory")
        assert inbox.items == [item], "it waits again"
        fulfillment = await reviewer.proposals.get(proposal.id).fulfill(executor="mallory")
        assert fulfillment.executor == "mallory"
    assert notes.all == ["mallory"]


@pytest.mark.rule("4.4.plain")
async def test_no_proposer_carries_out_what_it_proposes(meeting: Meeting, notes: Notes) -> None:
    people = (noting_adder(notes, "proposer"), noting_adder(notes), "reviewer")
    async with gathered(meeting, *people) as (proposer, _, reviewer):
        async with proposer.propose(None, "add", {"a": 1, "b": 2}, ttl=60) as proposal:
            await until(lambda: state_of(reviewer, proposal.id) is not None)
            fulfillment = await reviewer.proposals.get(proposal.id).fulfill()
            assert fulfillment.executor == "tools"
        assert notes.all == ["tools"]


@pytest.mark.rule("4.4.plain")
async def test_only_a_tool_has_an_owner(meeting: Meeting) -> None:
    body = payloads.proposal("prompts/get", {"name": "add"})
    async with (
        gathered(meeting, calculator(), "reviewer") as (_, reviewer),
        raw(meeting, "proposer") as proposer,
        Inbox(reviewer) as inbox,
    ):
        await proposer.say(kinds.MCP_PROPOSAL, body, id="p1")
        await until(lambda: len(inbox) == 1)
        assert inbox.items[0].may == {Verb.REJECT}
        with pytest.raises(NotOffered, match="does not say who should carry it out"):
            await inbox.approve(inbox.items[0])
        with pytest.raises(UsageError, match="executor="):
            await reviewer.proposals.get("p1").fulfill()


@pytest.mark.rule("4.4.plain")
async def test_who_is_denied_is_not_reached_by_leaving_its_name_out(meeting: Meeting) -> None:
    """Else a person would let it pass without being told of the rule."""
    reviewer = Agent("reviewer")
    reviewer.use(Policy([DenyRule("**", target="tools", reason="policy")]))
    async with gathered(meeting, calculator(), reviewer, "proposer") as (*_, proposer):
        async with proposer.propose(None, "add", {"a": 1, "b": 2}, to="reviewer", ttl=60) as asked:
            outcome = await asked.outcome()
    assert asked.state is ProposalState.REJECTED
    assert getattr(outcome, "reason", "") == "policy"


@pytest.mark.rule("4.4.unaddressed")
async def test_an_approval_without_to_runs_once_at_most(meeting: Meeting, notes: Notes) -> None:
    people = (noting_adder(notes), noting_adder(notes, "mallory"), "reviewer")
    body = payloads.proposal("tools/call", CALL)
    async with (
        gathered(meeting, *people) as (*_, reviewer),
        raw(meeting, "proposer") as proposer,
        raw(meeting, "second") as terminal,
    ):
        for owner in ("tools", "mallory"):
            await reviewer.offers.tools(owner)
        await proposer.say(kinds.MCP_PROPOSAL, body, id="p1")
        await terminal.hear(lambda e: e.id == "p1")
        asked = payloads.request("tools/call", CALL, "r1")
        await terminal.say(kinds.MCP_REQUEST, asked, id="r1", correlation=("p1",))
        error = await terminal.hear(lambda e: e.kind == kinds.SYSTEM_ERROR)
        assert error.payload["error"] == "ambiguous_executor"
        assert error.payload["executors"] == ["tools", "mallory"]
        await terminal.say(kinds.MCP_REQUEST, asked, id="r2", to=("tools",), correlation=("p1",))
        await terminal.hear(lambda e: e.kind == kinds.MCP_RESPONSE)
    assert notes.all == ["tools"]
