"""Examples of tools, run as programs: middleware, resources, MCP servers, and finding a tool."""

import pytest

from examples import calculator, find_a_tool
from meup_agent import Space
from meup_agent.errors import RequestError, ToolError
from meup_agent.gateway import ThreadedGateway
from meup_agent.testing import MemorySpace
from tests.cli.participants import act_as
from tests.examples.test_examples import run_example, serving_example
from tests.programs import ROOT, program


def test_calls_are_logged_with_their_outcome(gateway: ThreadedGateway) -> None:
    async def divide(space: Space) -> None:
        assert await space.call("tools", "divide", {"dividend": 6, "divisor": 3}) == 2
        with pytest.raises(ToolError):
            await space.call("tools", "divide", {"dividend": 6, "divisor": 0})

    with serving_example(gateway, "log_calls.py", "tools") as tools:
        act_as(gateway, "fulfiller", divide)
        tools.wait_for("ZeroDivisionError")
    assert tools.stdout == [
        "request 'divide' from fulfiller done",
        "request 'divide' from fulfiller failed: ZeroDivisionError",
    ]


def test_calls_beyond_the_limit_are_refused(gateway: ThreadedGateway) -> None:
    async def count(space: Space) -> None:
        for _ in range(3):
            await space.request("tools", "tools/list")  # counts for nothing
            assert await space.call("tools", "count", {"text": "to be or not"}) == 4
        with pytest.raises(RequestError, match="refused: busy: at most 3 calls in 60 s"):
            await space.call("tools", "count", {"text": "to be"})

    with serving_example(gateway, "limit_calls.py", "tools"):
        act_as(gateway, "fulfiller", count)


def test_notes_are_listed_and_read(gateway: ThreadedGateway) -> None:
    async def read(space: Space) -> None:
        listed = await space.offers.resources("tools")
        assert [each["name"] for each in listed] == ["groceries", "calls"]
        [content] = await space.offers.read_resource("tools", "note:///calls")
        assert content["text"] == "the dentist"
        with pytest.raises(RequestError, match="there is no note"):
            await space.offers.read_resource("tools", "note:///else")

    with serving_example(gateway, "notes.py", "tools"):
        act_as(gateway, "fulfiller", read)


def test_a_traced_tool_works_without_an_sdk(gateway: ThreadedGateway) -> None:
    async def divide(space: Space) -> None:
        assert await space.call("tools", "divide", {"dividend": 6, "divisor": 3}) == 2

    with serving_example(gateway, "traced.py", "tools"):
        act_as(gateway, "fulfiller", divide)


ANYTHING = [{"kind": "*"}]


async def test_no_participant_that_took_the_name_is_called(
    capsys: pytest.CaptureFixture[str],
) -> None:
    there = MemorySpace(participants={"tools": ANYTHING, "thief": ANYTHING, "bot": ANYTHING})
    async with find_a_tool.agent.join(there.connector("bot")) as space:
        assert "no participant that can be asked" in await find_a_tool.divide(space, 22, 7)
        async with calculator.agent.join(there.connector("tools")):
            await space.present("tools")
            assert await find_a_tool.divide(space, 22, 7) == "22 / 7 = 3.143"
        async with calculator.agent.join(there.connector("thief")):
            await space.present("thief")
            assert "that of 'tools', which has it no more" in await find_a_tool.divide(space, 1, 2)
    assert "tools has divide: " in capsys.readouterr().out


def test_the_example_says_that_there_is_none(gateway: ThreadedGateway) -> None:
    with run_example(gateway, "find_a_tool.py", "fulfiller") as program:
        assert program.wait() == 0
    [said] = program.stdout
    assert said.startswith("not called: no participant that can be asked has the tool 'divide'")


def test_a_server_is_called_and_asks() -> None:
    assert (ROOT / "examples" / "mcp_tides.py").exists()  # it starts this server
    with program([ROOT / "examples" / "mcp_bridge.py"]) as running:
        running.wait_for("Whitby: at noon")
        assert running.wait() == 0
    assert running.stdout == [
        "['high_water', 'my_high_water']",
        "Leith: at noon",
        "tides asks for skipper: Which harbour?",
        "Whitby: at noon",
    ]


def test_a_slow_call_is_polled() -> None:
    with program([ROOT / "examples" / "mcp_tasks.py"]) as running:
        running.wait_for("{'result': 1500}")
        assert running.wait() == 0
