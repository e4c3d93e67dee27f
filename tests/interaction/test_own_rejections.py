"""What a participant has rejected is rejected for each of its processes (PROTOCOL 4.4, 4.6)."""

import pytest

from meup_agent import Agent, Proposal, ProposalState, Reason
from meup_agent.errors import AlreadyDecided
from tests.interaction.cast import willing
from tests.interaction.people import Meeting, Notes, gathered, join
from tests.interaction.views import has_state

pytestmark = [pytest.mark.anyio, pytest.mark.rule("4.4.own_rejection_lasts")]


def unwilling(notes: Notes, reason: Reason) -> Agent:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(reason)
        notes(proposal.id)

    return reviewer


def files(notes: Notes) -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def delete(path: str) -> None:
        notes(f"deleted {path}")

    return tools


async def test_what_was_rejected_does_not_run_later(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, "observer", "proposer") as (onlooker, proposer),
        proposer.propose("tools", "delete", {"path": "a"}, wait="deadline") as rejected,
    ):
        async with join(meeting, files(notes)), join(meeting, unwilling(notes, Reason.UNSAFE)):
            await notes.until(rejected.id)
        async with (
            join(meeting, files(notes)),
            join(meeting, willing()) as again,
            proposer.propose("tools", "delete", {"path": "b"}) as other,
        ):
            await other.outcome()
            (known,) = [each for each in again.proposals if each.id == rejected.id]
            said = [(each.by, each.reason) for each in known.rejections]
            assert said == [("reviewer", Reason.UNSAFE)]
            with pytest.raises(AlreadyDecided, match="rejected"):
                await again.proposal(rejected.id).fulfill()
        assert notes.all == [rejected.id, "deleted b"]
        # To others it says nothing.
        assert has_state(onlooker, rejected.id, ProposalState.PENDING)
        second = willing("second")
        async with join(meeting, files(notes)), join(meeting, second):
            await notes.until("deleted a")


@pytest.mark.parametrize("reason", [Reason.BUSY, Reason.INCAPABLE])
async def test_who_had_no_time_decides_after_its_restart(
    meeting: Meeting, notes: Notes, reason: Reason
) -> None:
    async with (
        gathered(meeting, files(notes), "proposer") as (_, proposer),
        proposer.propose("tools", "delete", {"path": "a"}, wait="deadline") as proposal,
    ):
        async with join(meeting, unwilling(notes, reason)):
            await notes.until(proposal.id)
        async with join(meeting, willing()):
            await notes.until("deleted a")
