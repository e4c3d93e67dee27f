"""Presence: told as it happens, and after an absence of our own."""

import anyio
import pytest

from meup_agent import Agent, Participant, Space
from meup_agent.errors import ParticipantGone
from tests.interaction.people import Latch, Meeting, Notes, gathered, join, keep_away
from tests.patience import PATIENCE


def onlooker(notes: Notes) -> Agent:
    agent = Agent("reviewer")

    @agent.on_join
    async def joined(participant: Participant) -> None:
        notes(("join", participant.id, len(participant.capabilities)))

    @agent.on_leave
    async def left(participant: Participant) -> None:
        notes(("leave", participant.id))

    return agent


def names(space: Space) -> set[str]:
    return {participant.id for participant in space.participants}


async def test_who_was_there_before_is_not_announced(meeting: Meeting, notes: Notes) -> None:
    async with gathered(meeting, "second", onlooker(notes)) as (_, space):
        assert names(space) == {"second", "reviewer"}
        async with join(meeting, "tools"):
            await notes.until(("join", "tools", 1))
            assert names(space) == {"second", "reviewer", "tools"}
        await notes.until(("leave", "tools"))
        assert names(space) == {"second", "reviewer"}
    assert notes.all == [("join", "tools", 1), ("leave", "tools")]


async def test_who_came_while_we_were_away_is_told(meeting: Meeting, notes: Notes) -> None:
    latch = Latch()
    async with gathered(meeting, join(meeting, onlooker(notes), latch=latch), "deep") as (space, _):
        await notes.until(("join", "deep", 1))
        async with join(meeting, "second"):
            await notes.until(("join", "second", 1))
            await keep_away(meeting, latch, space)
        async with join(meeting, "tools"):
            latch.closed = False
            await notes.until(("join", "tools", 1), ("leave", "second"))
            assert names(space) == {"reviewer", "deep", "tools"}
            # And it goes on as before.
            async with join(meeting, "mallory"):
                await notes.until(("join", "mallory", 1))
    assert notes.all[:2] == [("join", "deep", 1), ("join", "second", 1)]
    assert set(notes.all[2:4]) == {("leave", "second"), ("join", "tools", 1)}
    assert notes.all.count(("join", "deep", 1)) == 1


async def test_somebody_can_be_waited_for(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("reviewer")

    @agent.on_leave
    async def left(participant: Participant, space: Space) -> None:
        # A handler that waits, too, while others run.
        notes(("back", (await space.present(participant.id)).id))

    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent, grace=0.0) as space, anyio.create_task_group() as tasks:

            async def wait() -> None:
                notes(("came", (await space.present("tools", timeout=None)).id))

            tasks.start_soon(wait)
            async with join(meeting, "tools"):
                await notes.until(("came", "tools"))
                assert (await space.present("tools")).capabilities
            async with join(meeting, "tools"):
                await notes.until(("back", "tools"))
            with pytest.raises(ParticipantGone):
                await space.present("deep", timeout=0.001)
