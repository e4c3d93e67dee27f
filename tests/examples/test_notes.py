"""The example that offers resources, run as a program."""

import pytest

from meup_agent import Space
from meup_agent.errors import RequestError
from meup_agent.gateway import ThreadedGateway
from tests.examples.test_examples import gateway, in_space, run_example

__all__ = ["gateway"]


def test_notes_are_listed_and_read(gateway: ThreadedGateway) -> None:
    async def read(space: Space) -> None:
        listed = await space.resources("tools")
        assert [each["name"] for each in listed] == ["groceries", "calls"]
        [content] = await space.read_resource("tools", "note:///calls")
        assert content["text"] == "the dentist"
        with pytest.raises(RequestError, match="there is no note"):
            await space.read_resource("tools", "note:///else")

    with run_example(gateway, "notes.py", "tools") as tools:
        tools.wait_for("connected to")
        in_space(gateway, "fulfiller", read)
        assert tools.stop() == 0
