"""A participant that considers a proposal tells its proposer so, by progress (PROTOCOL 4.9)."""

from collections.abc import Callable

import pytest

from meup_agent import Agent, Context, Gone, Progress, Proposal, ProposalState, Reason, Rejection
from meup_agent.approval import AskRule, Policy
from tests.interaction.people import Latch, Meeting, Notes, ended, gathered, join, keep_away, until
from tests.interaction.views import call_of, taped
from tests.wire import kinds


@pytest.fixture
def heard(notes: Notes) -> Callable[[Progress], None]:
    """Notes the words of each progress."""
    return lambda progress: notes(progress.message)


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


def failing() -> Agent:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        raise LookupError("a path of ours")

    return reviewer


FAILED = "its handler failed"


async def test_a_proposal_ends_where_the_handler_of_the_last_that_may_decide_failed(
    meeting: Meeting, heard: Callable[[Progress], None]
) -> None:
    async with (
        gathered(meeting, failing(), "proposer") as (_, space),
        taped(space) as tape,
        space.propose("tools", "x", on_progress=heard) as proposal,
    ):
        outcome = await ended(proposal, Gone)
        assert outcome.failed == ("reviewer",)
        assert "the handler of reviewer failed" in str(outcome)
        assert "a path of ours" not in str(outcome)
        [record] = space.proposals
        assert record.told == {"reviewer": FAILED}
        assert len(tape.calls(kinds.PROGRESS)) == 1


@pytest.mark.parametrize("wait", ["addressed", "later"])
async def test_a_failed_handler_ends_nothing_that_others_may_decide(
    meeting: Meeting, notes: Notes, wait: str, heard: Callable[[Progress], None]
) -> None:
    async with (
        gathered(meeting, failing(), "second", "proposer") as (_, other, space),
        space.propose("tools", "x", on_progress=heard, wait=wait) as proposal,
    ):
        await notes.until(FAILED)
        assert proposal.state is ProposalState.PENDING
        await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
        outcome = await ended(proposal, Rejection)
        assert (outcome.by, outcome.reason) == ("second", Reason.UNSAFE)


async def test_a_wait_for_who_comes_later_goes_on_where_all_handlers_failed(
    meeting: Meeting, notes: Notes, heard: Callable[[Progress], None]
) -> None:
    async with (
        gathered(meeting, failing(), "proposer") as (_, space),
        space.propose("tools", "x", on_progress=heard, wait="later") as proposal,
    ):
        await notes.until(FAILED)
        assert proposal.state is ProposalState.PENDING
        async with join(meeting, "second") as other:
            await until(lambda: proposal.id in {each.id for each in other.proposals})
            await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
            assert (await ended(proposal, Rejection)).by == "second"


async def test_a_participant_that_comes_back_looks_at_it_anew(
    meeting: Meeting, notes: Notes, heard: Callable[[Progress], None]
) -> None:
    async with (
        gathered(meeting, "second", "proposer") as (other, space),
        space.propose("tools", "x", on_progress=heard) as proposal,
    ):
        async with join(meeting, failing()):
            await notes.until(FAILED)
        await until(lambda: "reviewer" not in {each.id for each in space.participants})
        async with join(meeting, "reviewer"):
            await until(lambda: "reviewer" in {each.id for each in space.participants})
            await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
            await until(lambda: any(each.rejections for each in space.proposals))
            assert proposal.state is ProposalState.PENDING


def asking() -> Agent:
    reviewer = Agent("reviewer")
    reviewer.use(Policy([AskRule(tool="*")]))
    return reviewer


async def test_a_no_is_enough_where_all_others_leave_it_to_people(meeting: Meeting) -> None:
    async with (
        gathered(meeting, asking(), "second", "deep", "proposer") as (_, other, third, space),
        taped(space) as tape,
        space.propose("tools", "x") as proposal,
    ):
        await until(lambda: len(tape.calls(kinds.PROGRESS)) == 1)
        await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
        await until(lambda: any(each.rejections for each in space.proposals))
        assert proposal.state is ProposalState.PENDING
        await third.proposals.get(proposal.id, proposer="proposer").reject(Reason.POLICY)
        assert (await ended(proposal, Rejection)).by == "deep"


async def test_who_leaves_it_to_others_alone_ends_nothing_and_may_be_followed(
    meeting: Meeting,
) -> None:
    heard = list[Progress]()

    async with (
        gathered(meeting, asking(), "proposer") as (_, space),
        taped(space) as tape,
        space.propose("tools", "x", on_progress=heard.append) as proposal,
    ):
        await until(lambda: len(tape.calls(kinds.PROGRESS)) == 1)
        assert proposal.state is ProposalState.PENDING
        async with join(meeting, "second") as other:
            await until(lambda: proposal.id in {each.id for each in other.proposals})
            await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
            outcome = await ended(proposal, Rejection)
            assert (outcome.by, outcome.reason) == ("second", Reason.UNSAFE)
    assert heard == []


@pytest.mark.parametrize("make", [asking, failing])
async def test_who_comes_back_is_not_waited_for_again(
    meeting: Meeting, make: Callable[[], Agent]
) -> None:
    """It has looked at the proposal, and does not say it again."""
    latch = Latch()
    async with (
        gathered(meeting, join(meeting, make(), latch=latch), "second", "proposer") as (
            reviewing,
            other,
            space,
        ),
        taped(space) as tape,
        space.propose("tools", "x") as proposal,
    ):
        await until(lambda: len(tape.calls(kinds.PROGRESS)) == 1)
        await keep_away(meeting, latch, reviewing)
        await until(lambda: "reviewer" not in {each.id for each in space.participants})
        latch.closed = False
        await until(lambda: "reviewer" in {each.id for each in space.participants})
        await other.proposals.get(proposal.id, proposer="proposer").reject(Reason.UNSAFE)
        assert (await ended(proposal, Rejection)).by == "second"
