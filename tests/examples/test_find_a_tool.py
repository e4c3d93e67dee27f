"""`examples/find_a_tool.py`: the tool is called where it is found, and a taken name is not."""

import pytest

from examples import calculator, find_a_tool
from meup_agent.gateway import ThreadedGateway
from meup_agent.testing import MemorySpace
from tests.examples.test_examples import run_example

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
