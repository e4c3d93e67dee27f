"""A fulfiller that starts after the proposal sees it, on our gateway (PROTOCOL 4.6)."""

import anyio
import pytest

from meup_agent import Agent, Fulfillment, Proposal, ProposalState, Space
from meup_agent.errors import AlreadyDecided
from tests.interaction.cast import calculator, onlooking, willing
from tests.interaction.people import Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import has_state, is_request, of_kind, taped
from tests.wire import kinds

pytestmark = pytest.mark.rule("4.6.newcomers.handled")


async def heard(onlooker: Space, proposal_id: str) -> None:
    """Wait until the gateway has told everybody of a proposal."""
    await until(lambda: has_state(onlooker, proposal_id, ProposalState.PENDING))


async def test_a_fulfiller_that_comes_later_decides(meeting: Meeting) -> None:
    async with (
        gathered(meeting, calculator(), "observer", "proposer") as (_, onlooker, proposer),
        proposer.propose("tools", "add", {"a": 1, "b": 2}) as proposal,
    ):
        await heard(onlooker, proposal.id)
        async with join(meeting, willing()):
            assert isinstance(await proposal.outcome(), Fulfillment)


async def test_what_was_withdrawn_is_not_looked_at(meeting: Meeting, notes: Notes) -> None:

    async with gathered(meeting, calculator(), "observer", "proposer") as (_, onlooker, proposer):
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}) as first:
            await heard(onlooker, first.id)
        async with proposer.propose("tools", "add", {"a": 1, "b": 2}) as second:
            await heard(onlooker, second.id)
            async with join(meeting, onlooking(notes)):
                await notes.until(second.id)
        assert first.id not in notes.all


@pytest.mark.rule("4.6.newcomers.record")
async def test_what_another_fulfills_starts_no_handler(meeting: Meeting, notes: Notes) -> None:
    reviewer, tools = Agent("reviewer"), Agent("tools")
    go_on = anyio.Event()

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        notes("looked at")

    @tools.tool
    async def slow() -> int:
        notes("runs")
        await go_on.wait()
        return 7

    async with (
        gathered(meeting, tools, willing("second"), "proposer") as (_, _, proposer),
        proposer.propose("tools", "slow", {}) as proposal,
    ):
        await notes.until("runs")
        async with join(meeting, reviewer) as late:
            await until(lambda: has_state(late, proposal.id, ProposalState.IN_PROGRESS))
            (seen,) = late.proposals
            assert seen.in_progress_by == "second"
            go_on.set()
            assert isinstance(await proposal.outcome(), Fulfillment)
            await until(lambda: has_state(late, proposal.id, ProposalState.FULFILLED))
        assert notes.all == ["runs"]


@pytest.mark.rule("4.6.newcomers.cancelled")
async def test_a_late_result_is_told_to_a_newcomer(meeting: Meeting, notes: Notes) -> None:
    impatient, reviewer = Agent("second"), Agent("reviewer")
    give_up = anyio.CancelScope()

    @impatient.on_proposal
    async def approve(proposal: Proposal) -> None:
        with give_up:
            await proposal.fulfill()

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        notes("looks")
        await until(lambda: proposal.state is ProposalState.FULFILLED)
        with pytest.raises(AlreadyDecided):
            await proposal.fulfill()
        notes("is told")

    async with (
        gathered(meeting, "observer", impatient, "proposer") as (onlooker, _, proposer),
        raw(meeting, "tools") as tools,
        proposer.propose("tools", "add", {}) as proposal,
    ):
        request = await tools.hear(is_request)
        await until(lambda: has_state(onlooker, proposal.id, ProposalState.IN_PROGRESS))
        give_up.cancel()
        await until(lambda: has_state(onlooker, proposal.id, ProposalState.PENDING))
        async with join(meeting, reviewer) as late:
            await notes.until("looks")
            (seen,) = late.proposals
            assert (seen.state, seen.cancelled_by) == (ProposalState.PENDING, ("second",))
            answer = {"jsonrpc": "2.0", "id": request.id, "result": {"content": []}}
            await tools.answer(request, answer)
            await until(lambda: has_state(late, proposal.id, ProposalState.FULFILLED))
            await notes.until("is told")


async def test_an_agent_that_comes_back_looks_once(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def look(proposal: Proposal) -> None:
        notes((proposal.id, len(notes.all)))

    async with (
        gathered(meeting, "observer", "proposer") as (onlooker, proposer),
        proposer.propose("tools", "add", {}) as proposal,
    ):
        await heard(onlooker, proposal.id)
        async with join(meeting, reviewer) as here, taped(here) as tape:
            await notes.until((proposal.id, 0))
            meeting.drop("reviewer")
            await tape.until(of_kind(kinds.SYSTEM_WELCOME))
            await tape.all_said(proposer)
            assert notes.all == [(proposal.id, 0)]


async def test_a_client_that_does_not_resume_hears_nothing_old(meeting: Meeting) -> None:
    async with (
        gathered(meeting, "observer", "proposer") as (onlooker, proposer),
        proposer.propose("tools", "add", {}) as proposal,
    ):
        await heard(onlooker, proposal.id)
        async with raw(meeting, "mallory") as mallory:
            marker = await proposer.chat("so far")
            names = [""]
            while names[-1] != marker:
                names.append((await mallory.hear(lambda _: True)).id)
        assert proposal.id not in names
