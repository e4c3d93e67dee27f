"""The examples of middleware and of resources, run as programs."""

import pytest

from meup_agent import Space
from meup_agent.errors import RequestError, ToolError
from meup_agent.gateway import ThreadedGateway
from tests.cli.participants import act_as
from tests.examples.test_examples import serving_example


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
