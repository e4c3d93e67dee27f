"""Agents tested without a network: they meet in a space inside the test.

Run it with ``python -m pytest examples/test_without_network.py``.
"""

import anyio
import pytest

from examples import calculator, fulfiller
from meup_agent import Agent
from meup_agent.errors import ProposalRejected
from meup_agent.testing import MemorySpace

pytestmark = pytest.mark.anyio  # runs the async tests, on asyncio and on trio

# Who is there and what each may send, as in a gateway's configuration.
PARTICIPANTS = {
    "proposer": [{"kind": "mcp/proposal"}],
    "fulfiller": [
        {"kind": kind} for kind in ("mcp/request", "mcp/reject", "chat")
    ],
    "tools": [],
}


def test_a_tool_is_still_a_function() -> None:
    assert calculator.divide(22, 7) == 3.143


async def test_fulfiller_lets_no_division_by_zero_through() -> None:
    space = MemorySpace(participants=PARTICIPANTS)
    async with (
        calculator.agent.join(space.connector("tools")),
        fulfiller.agent.join(space.connector("fulfiller")),
        Agent("a proposer").join(space.connector("proposer")) as proposer,
    ):
        good = {"dividend": 22, "divisor": 7}
        result = await proposer.call("tools", "divide", good, to="fulfiller")
        assert result == 3.143

        bad = {"dividend": 22, "divisor": 0}
        with pytest.raises(ProposalRejected, match="invalid"):
            await proposer.call("tools", "divide", bad, to="fulfiller")


async def test_withdrawal_stops_the_tool() -> None:
    started, stopped = anyio.Event(), anyio.Event()
    slow = Agent("a slow calculator")

    @slow.tool
    async def add() -> None:
        started.set()
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    space = MemorySpace(participants=PARTICIPANTS)
    with anyio.fail_after(5):  # a test that waits should not wait for ever
        async with (
            slow.join(space.connector("tools")),
            fulfiller.agent.join(space.connector("fulfiller")),
            Agent("a proposer").join(space.connector("proposer")) as proposer,
        ):
            async with proposer.propose("tools", "add", to="fulfiller"):
                await started.wait()
            # Leaving the block with nothing decided withdrew the proposal.
            await stopped.wait()
