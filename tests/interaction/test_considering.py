"""A participant that considers a proposal tells its proposer so, by progress (PROTOCOL 4.9)."""

import pytest

from meup_agent import Agent, Context, Progress, Proposal, ProposalState, Reason
from tests.interaction.people import Meeting, Notes, gathered
from tests.interaction.views import call_of, taped
from tests.wire import kinds

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("to", ["reviewer", ()], ids=["addressed", "broadcast"])
async def test_the_proposer_hears_that_it_is_considered(
    meeting: Meeting, notes: Notes, to: str | tuple[str, ...]
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal, ctx: Context) -> None:
        ctx.progress(0.1, message="behind two others")
        await notes.until((0.1, "behind two others"))
        await proposal.reject(Reason.BUSY)

    def heard(progress: Progress) -> None:
        notes((progress.done, progress.message))

    async with (
        gathered(meeting, reviewer, "proposer") as (_, space),
        taped(space) as tape,
        space.propose("tools", "x", to=to, on_progress=heard, wait="first") as proposal,
    ):
        outcome = await proposal.outcome()
        assert proposal.state is ProposalState.REJECTED
        assert outcome.word == "rejected"
        [said] = tape.calls(kinds.PROGRESS)
        assert said.correlation == (proposal.id,)
        assert call_of(said).params["message"] == "behind two others"


async def test_a_failed_handler_is_told_once_where_others_may_decide(
    meeting: Meeting, notes: Notes
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        raise LookupError("a path of ours")

    def heard(progress: Progress) -> None:
        notes(progress.message)

    async with (
        gathered(meeting, reviewer, "proposer") as (_, space),
        taped(space) as tape,
        space.propose("tools", "x", on_progress=heard) as proposal,
    ):
        words = "its handler failed; others may still decide"
        await notes.until(words)
        assert proposal.state is ProposalState.PENDING
        [record] = space.proposals
        assert record.told == {"reviewer": words}
        assert len(tape.calls(kinds.PROGRESS)) == 1
