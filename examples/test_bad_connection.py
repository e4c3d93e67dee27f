"""Agents over a connection that fails, on purpose and the same each time.

Run it with ``python -m pytest examples/test_bad_connection.py``.
"""

import anyio
import pytest

from examples import calculator
from meup_agent import Agent, Backoff, Settings
from meup_agent.testing import FaultPlan, Faults, FaultyConnector, MemorySpace

pytestmark = pytest.mark.anyio  # runs the async tests, on asyncio and on trio

PARTICIPANTS = {"caller": [{"kind": "mcp/request"}], "tools": []}
AT_ONCE = Settings(backoff=Backoff(first=0))


async def test_an_answer_that_was_lost_is_said_again() -> None:
    space = MemorySpace(participants=PARTICIPANTS)
    # The tool owner's first connection breaks as it sends its answer.
    breaking = FaultyConnector(
        space.connector("tools"), [FaultPlan(outgoing=Faults(cut_after=0))]
    )
    tools = calculator.agent.join(breaking, settings=AT_ONCE)
    caller = Agent("caller").join(space.connector("caller"))
    with anyio.fail_after(10):
        async with tools, caller as here:
            assert await here.call("tools", "add", {"a": 1, "b": 2}) == 3
    assert breaking.dialled == 2


async def test_what_comes_twice_runs_once() -> None:
    printer = Agent("printer")
    printed: list[str] = []

    @printer.tool
    async def print_page(text: str) -> None:
        printed.append(text)

    space = MemorySpace(participants=PARTICIPANTS)
    stuttering = FaultyConnector(
        space.connector("tools"), [FaultPlan(incoming=Faults(duplicate=1))]
    )
    caller = Agent("caller").join(space.connector("caller"))
    with anyio.fail_after(10):
        async with printer.join(stuttering), caller as here:
            for text in ("first", "second"):
                await here.call("tools", "print_page", {"text": text})
    assert printed == ["first", "second"]
