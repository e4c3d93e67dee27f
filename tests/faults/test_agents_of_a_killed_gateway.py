"""Agents whose gateway is killed under load: nothing is lost, and nothing is handled twice."""

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from meup_agent import Agent, Backoff, Settings, Space
from tests.faults.gateways import JOURNALS, free_port, gateway, space_yaml
from tests.patience import PATIENCE

CALLERS = 8
CALLS = 50
"""Of each caller."""

KILLED_AT = (100, 250)
"""So many calls have been answered when the gateway is killed."""


@pytest.mark.thorough
@pytest.mark.rule("6.journal.kept", "6.resume.once", "6.resume.sent_again")
@pytest.mark.parametrize("journal", JOURNALS)
async def test_each_call_is_handled_once_and_answered(tmp_path: Path, journal: str) -> None:
    file, port = space_yaml(tmp_path, ("tools", "caller"), journal), free_port()
    url = f"ws://127.0.0.1:{port}"
    settings = Settings(backoff=Backoff(first=0.05, longest=0.2))
    handled: Counter[int] = Counter()
    answered: list[int] = []
    more, left = [anyio.Event()], anyio.Event()
    tools = Agent("tools")

    @tools.tool
    async def work(number: int) -> int:
        handled[number] += 1
        await anyio.lowlevel.checkpoint()
        return number

    async def until_answered(number: int) -> None:
        while len(answered) < number:
            more[0] = anyio.Event()
            await more[0].wait()

    async def kill_again_and_again() -> None:
        for number in (*KILLED_AT, CALLERS * CALLS):
            with ExitStack() as stack:  # which kills it
                await to_thread.run_sync(stack.enter_context, gateway(file, port))
                await until_answered(number)
                if number == CALLERS * CALLS:
                    await left.wait()

    async def call(space: Space, caller: int) -> None:
        for number in range(caller * CALLS, (caller + 1) * CALLS):
            assert await space.call("tools", "work", {"number": number}) == number
            answered.append(number)
            more[0].set()

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_again_and_again)
            async with (
                tools.join(url, space="demo", token="tools", settings=settings),
                Agent("caller").join(url, space="demo", token="caller", settings=settings) as space,
                anyio.create_task_group() as calling,
            ):
                for caller in range(CALLERS):
                    calling.start_soon(call, space, caller)
            left.set()

    assert sorted(answered) == list(range(CALLERS * CALLS))
    assert handled == Counter(answered)
