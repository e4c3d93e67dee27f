"""The seat of a person decides nothing."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, ExitStack

import anyio
import pytest

from meup_agent import Agent, Space
from meup_agent.approval.seat import SEATED, keep_seat
from tests.interaction.people import Meeting, join, raw, until
from tests.patience import PATIENCE
from tests.wire import kinds, payloads

pytestmark = pytest.mark.anyio


async def test_a_flood_of_proposals_is_left_to_the_person(meeting: Meeting) -> None:
    """Whatever comes: for the others a rejection would be the person's word."""
    call = {"name": "read", "arguments": {}}
    with anyio.fail_after(PATIENCE):
        async with join(meeting, Agent("reviewer"), settings=SEATED) as seat:
            async with raw(meeting, "mallory") as mallory:
                for number in range(1_000):
                    body = payloads.proposal("tools/call", call)
                    await mallory.say(kinds.MCP_PROPOSAL, body, id=f"p{number}", to=("reviewer",))
                await mallory.request("reviewer", "tools/list", {}, id="r1")
                answer = await mallory.response("r1")
            assert payloads.read_response(answer.payload)[0]["tools"] == []
            await until(lambda: len(seat.proposals) == 1_000)
            assert all(each.state.is_pending and not each.rejections for each in seat.proposals)


@pytest.mark.rule("5.control.shutdown", "3.control.rejoin")
async def test_seat_that_was_shut_down_is_taken_again(meeting: Meeting) -> None:
    """A person cannot be shut out of the page: the seat leaves, and comes back."""

    def is_there(space: Space) -> bool:
        return any(each.id == "reviewer" for each in space.participants)

    with anyio.fail_after(PATIENCE), ExitStack() as stack:
        async with (
            join(meeting, "tools") as boss,
            join(meeting, Agent("page"), "reviewer", observe=True) as page,
            anyio.create_task_group() as tasks,
        ):
            heard = stack.enter_context(page.watch())
            joins: list[Agent] = []

            def sit(agent: Agent) -> AbstractAsyncContextManager[Space]:
                joins.append(agent)
                return join(meeting, agent, "reviewer", settings=SEATED)

            tasks.start_soon(keep_seat, lambda: not is_there(page), heard.__anext__, sit)
            for _ in range(3):
                await until(lambda: is_there(boss))
                came = len(joins)
                await boss.shutdown("reviewer")
                await until(lambda came=came: len(joins) > came)  # type: ignore[misc]
            await until(lambda: is_there(boss))
            tasks.cancel_scope.cancel()
