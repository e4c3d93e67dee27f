"""Waits that outlive the block of what they wait for: they end with it, also in other tasks."""

from collections.abc import Awaitable, Callable

import anyio
import pytest

from meup_agent import Agent, ProposalHandle, Space
from meup_agent.errors import MeupError, OutcomeUnknown, ParticipantGone
from meup_agent.types import CallNext, OutboundMessage
from tests.interaction.people import Meeting, gathered, join, until


async def watch(space: Space) -> list[str]:
    with space.watch(lambda _: False) as nothing:
        return [each.kind async for each in nothing]


async def read(space: Space) -> list[bytes]:
    with space.streams.read(space.streams[0]) as reader:
        return [frame async for frame in reader]


WAITS: dict[str, tuple[Callable[[Space], Awaitable[object]], object]] = {
    "watch": (watch, []),
    "stream": (read, []),
    "present": (lambda space: space.present("deep", timeout=None), ParticipantGone),
    "status": (lambda space: space.control.request_status("deep", timeout=None), OutcomeUnknown),
}


@pytest.mark.parametrize("is_lost", [False, True], ids=["left", "lost"])
@pytest.mark.parametrize("wait", WAITS)
async def test_what_waits_outside_a_space_s_block_ends_with_it(
    meeting: Meeting, wait: str, is_lost: bool
) -> None:
    verb, expected = WAITS[wait]
    ends: list[object] = []

    async def note(space: Space) -> None:
        try:
            ends.append(await verb(space))
        except MeupError as error:
            ends.append(type(error))

    async with gathered(meeting, "tools") as (tools,), tools.streams.open():
        async with anyio.create_task_group() as outside, join(meeting, "second") as space:
            await until(lambda: len(space.streams) > 0)
            outside.start_soon(note, space)
            await anyio.sleep(0.01)
            if is_lost:
                meeting.drop("second")
        assert ends == [expected]


async def test_what_is_watched_ends_with_its_block(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (space,):
        with space.watch(lambda each: each.kind == "chat") as envelopes:
            await space.chat("one")
            assert (await anext(envelopes)).sender == "second"
        assert [each async for each in envelopes] == []


async def test_a_kept_proposal_is_not_waited_for_outside_its_block(meeting: Meeting) -> None:
    async def wait(proposal: ProposalHandle) -> None:
        with pytest.raises(OutcomeUnknown, match="stays open"):
            await proposal.outcome()

    async with (
        gathered(meeting, "reviewer", "proposer") as (_, space),
        anyio.create_task_group() as tasks,
    ):
        async with space.propose("tools", "add", outlives=True) as proposal:
            proposal.keep()
            tasks.start_soon(wait, proposal)
            await anyio.sleep(0.01)
        await wait(proposal)
        assert proposal.state.is_pending


async def test_layers_do_not_wait_for_a_kept_proposal(meeting: Meeting) -> None:
    heard: list[type[Exception]] = []
    proposer = Agent("proposer")

    @proposer.middleware
    async def wait(message: OutboundMessage, call_next: CallNext) -> object:
        try:
            return await call_next(message)
        except OutcomeUnknown as error:
            heard.append(type(error))
            raise

    async with gathered(meeting, "reviewer", proposer) as (_, space):
        async with space.propose("tools", "add", outlives=True) as proposal:
            proposal.keep()
            await anyio.sleep(0.01)
        assert proposal.state.is_pending
    assert heard == [OutcomeUnknown]
