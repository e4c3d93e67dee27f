"""The exception that leaves a block with background tasks."""

import anyio
import pytest

from meup_agent.transport.loops import background_tasks
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def test_tasks_end_with_the_block() -> None:
    ended = anyio.Event()

    async def helper() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(PATIENCE):
        async with background_tasks() as tasks:
            tasks.start_soon(helper)
            await anyio.wait_all_tasks_blocked()
        assert ended.is_set()


async def test_error_of_the_block_stays_plain() -> None:
    problem = LookupError()
    with pytest.raises(LookupError) as caught:  # noqa: PT012 - the block is what is tested
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise problem
    assert caught.value is problem


async def test_outer_cancellation_passes_through() -> None:
    with anyio.CancelScope() as scope:
        async with background_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_defect_of_a_task_ends_the_block() -> None:
    async def helper() -> None:
        raise LookupError

    with anyio.fail_after(PATIENCE):
        with pytest.raises(LookupError):  # noqa: PT012 - the same
            async with background_tasks() as tasks:
                tasks.start_soon(helper)
                await anyio.sleep_forever()


async def test_a_tasks_defect_is_logged_where_the_block_raises_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def defect() -> None:
        raise LookupError("the task's")

    async def block() -> None:
        async with background_tasks() as tasks:
            tasks.start_soon(defect)
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("the block's")

    with anyio.fail_after(PATIENCE), pytest.raises(ValueError, match="the block's"):
        await block()
    assert "LookupError: the task's" in caplog.text
