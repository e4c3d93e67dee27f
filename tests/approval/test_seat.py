"""The seat of a person decides nothing."""

from __future__ import annotations

import anyio
import pytest

from meup_agent import Agent
from meup_agent.approval.seat import SEATED
from meup_agent.protocol import kinds, payloads
from tests.interaction.people import PATIENCE, Meeting, join, raw, until

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
