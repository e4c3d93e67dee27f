"""A process that begins anew ends what the one before it had open (PROTOCOL 4.2)."""

from contextlib import AbstractAsyncContextManager

import anyio
import pytest

from meup_agent import Agent, Context, ProposalState, Reason
from meup_agent.errors import AlreadyDecided
from tests.gateways import RESUME_HEADER
from tests.interaction.cast import willing
from tests.interaction.people import Meeting, Notes, Raw, gathered, join, raw, until
from tests.interaction.views import has_state, taped
from tests.wire import kinds

pytestmark = pytest.mark.rule("4.2.new_process")

OLD = "x-old"
"""An id of the process that is killed."""


def killed(meeting: Meeting, name: str) -> AbstractAsyncContextManager[Raw]:
    """A process that could resume; at the end of the block it is gone, without a word."""
    return raw(meeting, name, {RESUME_HEADER: "1"})


async def propose(process: Raw, tool: str) -> None:
    call = {
        "method": "tools/call",
        "params": {"name": tool, "arguments": {}, "_meta": {"dev.meup/target": "tools"}},
    }
    await process.say(kinds.MCP_PROPOSAL, call, id=OLD)


def worker(notes: Notes) -> Agent:
    tools = Agent("tools")

    @tools.tool
    async def sleep(ctx: Context) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            notes(None if ctx.reason is None else ctx.reason.code)

    @tools.tool
    async def count() -> None:
        notes("counted")

    return tools


async def test_what_a_killed_process_proposed_does_not_run(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), "reviewer", "observer") as (_, reviewer, onlooker):
        async with killed(meeting, "proposer") as process:
            await propose(process, "count")
            await until(lambda: has_state(reviewer, OLD, ProposalState.PENDING))
        async with join(meeting, "proposer") as again, again.propose("tools", "count") as twin:
            await until(lambda: has_state(reviewer, twin.id, ProposalState.PENDING))
            with pytest.raises(AlreadyDecided, match="withdrawn"):
                await reviewer.proposals.get(OLD).fulfill()
            await reviewer.proposals.get(twin.id).fulfill()
            await until(lambda: has_state(onlooker, twin.id, ProposalState.FULFILLED))
        assert notes.all == ["counted"]
        assert has_state(onlooker, OLD, ProposalState.WITHDRAWN)


@pytest.mark.parametrize("is_proposed", [True, False])
async def test_what_a_killed_one_began_ends(
    meeting: Meeting, notes: Notes, is_proposed: bool
) -> None:
    caller = "proposer" if is_proposed else "second"
    async with gathered(meeting, worker(notes), willing(), "observer") as (_, reviewer, onlooker):
        async with killed(meeting, caller) as process:
            if is_proposed:
                await propose(process, "sleep")
            else:
                await process.call("tools", "sleep", id=OLD)
            await notes.until("runs")
        async with join(meeting, caller):
            await notes.until(Reason.NO_LONGER_NEEDED)
        if is_proposed:
            await until(lambda: has_state(reviewer, OLD, ProposalState.WITHDRAWN))
            await until(lambda: has_state(onlooker, OLD, ProposalState.WITHDRAWN))


async def test_what_a_killed_fulfiller_began_runs_on(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, worker(notes), "observer", "proposer") as (_, onlooker, proposer):
        async with proposer.propose("tools", "sleep", wait="deadline") as proposal:
            await until(lambda: has_state(onlooker, proposal.id, ProposalState.PENDING))
            async with killed(meeting, "reviewer") as process:
                call = {
                    "method": "tools/call",
                    "id": OLD,
                    "params": {"name": "sleep", "arguments": {}},
                }
                await process.say(
                    kinds.MCP_REQUEST, call, id=OLD, to=("tools",), correlation=(proposal.id,)
                )
                await notes.until("runs")
            async with join(meeting, "reviewer"):
                await onlooker.chat("goes on")
                assert has_state(onlooker, proposal.id, ProposalState.IN_PROGRESS)
                assert notes.all == ["runs"]
        await notes.until(Reason.NO_LONGER_NEEDED)


async def test_a_process_that_comes_back_ends_nothing(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, worker(notes), willing(), "observer", "proposer") as (
            *_,
            onlooker,
            proposer,
        ),
        taped(onlooker) as tape,
        proposer.propose("tools", "sleep") as proposal,
    ):
        await notes.until("runs")
        meeting.drop("proposer")
        await tape.all_said(proposer)  # it is back
        assert has_state(onlooker, proposal.id, ProposalState.IN_PROGRESS)
        assert notes.all == ["runs"]
