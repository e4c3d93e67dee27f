"""Messages that cross: the gateway's order decides, and each end learns of the loser."""

from functools import partial

import anyio
import pytest

from meup_agent import Agent, Context, Fulfillment, Proposal, ProposalState, Reason, Rejection
from meup_agent.errors import AlreadyInProgress, RequestTimeout, ToolError
from meup_agent.types import Conflict
from tests.interaction.cast import willing
from tests.interaction.people import LONG_ENOUGH, Meeting, Notes, gathered, raw, until
from tests.interaction.views import (
    all_idle,
    call_of,
    has_state,
    is_request,
    run_within,
    session_of,
    state_of,
    taped,
)
from tests.wire import kinds, payloads


@pytest.mark.rule("race.response_after_cancel", "4.7.no_response")
async def test_a_response_after_the_cancel_is_ignored_and_counted(meeting: Meeting) -> None:
    async with raw(meeting) as mallory, gathered(meeting, "second") as (caller,):
        with pytest.raises(RequestTimeout):
            await caller.request("mallory", "work", timeout=LONG_ENOUGH)
        request = await mallory.hear(is_request)
        await mallory.hear(lambda e: call_of(e).method == kinds.CANCELLED)
        await mallory.answer(request, payloads.result(request.id, "late"))
        await until(lambda: session_of(caller).counters["late_response"] == 1)


@pytest.mark.rule("5.own.given_up.response", "4.13.loser_is_reported")
async def test_a_result_of_what_was_withdrawn_is_a_conflict(meeting: Meeting, notes: Notes) -> None:
    """The executor had not seen the cancel when it answered: the proposer learns of it."""
    proposer = Agent("proposer")

    @proposer.on_conflict
    async def conflict(conflict: Conflict) -> None:
        assert conflict.outcome is not None
        notes((conflict.proposal_id, conflict.outcome.response, type(conflict.after).__name__))

    async with raw(meeting) as mallory, gathered(meeting, willing(), proposer) as (_, proposers):
        async with proposers.propose("mallory", "pay") as proposal:
            request = await mallory.hear(is_request)
        await mallory.hear(lambda e: call_of(e).method == kinds.CANCELLED)
        await mallory.answer(request, payloads.result(request.id, "paid"))
        await notes.until((proposal.id, "paid", "Withdrawal"))
        assert proposal.state is ProposalState.WITHDRAWN


@pytest.mark.rule("race.two_fulfillers", "4.4.already_in_progress")
async def test_of_two_who_fulfill_one_executes(meeting: Meeting, notes: Notes) -> None:
    tools, reviewer, second = Agent("tools"), Agent("reviewer"), Agent("second")

    @tools.tool
    async def pay() -> str:
        notes("paid")
        await notes.until("one came too late")
        return "paid"

    async def both() -> None:
        while notes.all.count("reviewing") < 2:
            await anyio.lowlevel.checkpoint()

    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        await both()
        try:
            fulfilled = await proposal.fulfill()
            notes(("fulfilled", fulfilled.by))
        except AlreadyInProgress as error:
            notes("one came too late")
            notes(("too late for", error.by))

    reviewer.on_proposal(review)
    second.on_proposal(review)
    async with gathered(meeting, tools, reviewer, second, "proposer") as everybody:
        async with everybody[-1].propose("tools", "pay") as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert not outcome.is_error
        await all_idle(*everybody)
        for space in everybody:
            await until(partial(has_state, space, proposal.id, ProposalState.FULFILLED))
    assert notes.all.count("paid") == 1
    told = sorted(note for note in notes.all if isinstance(note, tuple))
    assert told == [("fulfilled", outcome.by), ("too late for", outcome.by)]


@pytest.mark.rule("race.reject_crosses_fulfillment")
async def test_a_reject_that_crosses_a_fulfillment(meeting: Meeting, notes: Notes) -> None:
    """The gateway's order decides, and everybody ends with the same."""
    tools, reviewer, second = Agent("tools"), Agent("reviewer"), Agent("second")

    @tools.tool
    async def pay() -> str:
        return "paid"

    async def both() -> None:
        while notes.all.count("reviewing") < 2:
            await anyio.lowlevel.checkpoint()

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        notes("reviewing")
        await both()
        await proposal.fulfill()

    @second.on_proposal
    async def refuse(proposal: Proposal) -> None:
        notes("reviewing")
        await both()
        try:
            await proposal.reject(Reason.DISAGREE)
        except AlreadyInProgress:
            notes("the fulfillment came first")

    async with gathered(meeting, tools, reviewer, second, "proposer") as everybody:
        to = ["reviewer", "second"]
        async with everybody[-1].propose("tools", "pay", to=to) as proposal:
            outcome = await proposal.outcome()
        await all_idle(*everybody)
        for space in everybody:
            # What this one has said is with the others when it has come back to itself.
            async with taped(space) as own:
                await own.all_said(*everybody)
        others = {state_of(space, proposal.id) for space in everybody[:-1]}
        if isinstance(outcome, Fulfillment):
            assert proposal.state is ProposalState.FULFILLED
            assert others == {ProposalState.FULFILLED}
        else:
            assert isinstance(outcome, Rejection)
            assert proposal.state is ProposalState.REJECTED
            assert len(others) == 1, "in the gateway's order"
            assert others <= {ProposalState.REJECTED, ProposalState.FULFILLED}


@pytest.mark.rule("4.2.refusal_completes_nothing")
async def test_a_refusal_inside_a_tool_is_its_failure(meeting: Meeting, notes: Notes) -> None:
    """An error that a tool gets when it asks on is its failure, not its requester's answer."""
    tools = Agent("tools")

    @tools.tool
    async def outer(ctx: Context) -> None:
        await ctx.space.request("mallory", "inner")

    async with (
        raw(meeting) as mallory,
        gathered(meeting, tools, "second") as (_, caller),
        anyio.create_task_group() as tasks,
    ):
        failing = pytest.raises(ToolError, match="refused")
        tasks.start_soon(run_within, failing, caller.call, "tools", "outer")
        request = await mallory.hear(lambda e: call_of(e).method == "inner")
        refusal = payloads.error(request.id, -32000, "refused: no", {"reason": "refused"})
        await mallory.answer(request, refusal)
