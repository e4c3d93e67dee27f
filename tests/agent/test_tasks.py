"""The tasks of handlers: none goes on beyond a defect of another."""

import anyio
import pytest

from meup_agent.agent.runner import handler_tasks
from tests.patience import PATIENCE


async def test_what_a_task_raises_ends_the_block_and_leaves_it_as_it_was_raised() -> None:
    ended = anyio.Event()
    stopped = anyio.Event()

    async def fail() -> None:
        raise LookupError("a defect")

    async def other() -> None:
        with anyio.CancelScope(shield=True):  # as a handler's own scope is
            await stopped.wait()
        ended.set()

    async def block() -> None:
        async with handler_tasks() as (start, _):
            start(other, "other")
            start(fail, "fail")
            try:
                await anyio.sleep_forever()
            finally:
                stopped.set()

    with anyio.fail_after(PATIENCE), pytest.raises(LookupError, match="a defect"):
        await block()
    assert ended.is_set()
