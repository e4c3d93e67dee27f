"""Tools of a space for a model, without any framework."""

import anyio
import pytest

from meup_agent import Agent
from meup_agent.adapters.space_tools import SpaceTools
from meup_agent.errors import UsageError
from tests.gateways import runs_on_asyncio
from tests.interaction.cast import calculator, willing
from tests.interaction.people import Meeting, Notes, gathered, join


async def test_calls_are_answered_for_a_model(meeting: Meeting) -> None:
    async with gathered(meeting, calculator(), willing()), join(meeting, "second") as space:
        if not runs_on_asyncio():
            with pytest.raises(UsageError, match=r"work on asyncio alone; run .* asyncio\.run"):
                SpaceTools(space)
            return
        tools = SpaceTools(space)
        listed = {tool.exposed: tool for tool in await tools.read()}
        assert set(listed) == {"tools_add", "tools_divide", "tools_read"}
        answer = await tools.call(listed["tools_add"], {"a": 1, "b": 2})
        assert (answer.value, answer.text, answer.is_error) == (3, "3", False)
        failed = await tools.call(listed["tools_divide"], {"a": 1, "b": 0})
        assert "division by zero" in failed.text
        assert failed.is_error


async def test_silent_participant_is_left_out(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not runs_on_asyncio():
        return
    silent = Agent("deep")

    @silent.on_request("tools/list")
    async def wait() -> None:
        notes("asked")
        await anyio.sleep_forever()

    monkeypatch.setattr("meup_agent.adapters.space_tools.LIST_SECONDS", 1.0)
    async with gathered(meeting, calculator(), silent), join(meeting, "second") as space:
        listed = await SpaceTools(space).read()
        assert {tool.participant for tool in listed} == {"tools"}
    assert notes.all == ["asked"]
