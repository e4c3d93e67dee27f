import anyio
import pytest

from meup_agent.transport.helpers import helper_tasks

pytestmark = pytest.mark.anyio


async def test_tasks_end_with_the_block() -> None:
    ended = anyio.Event()

    async def helper() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            ended.set()

    with anyio.fail_after(5):
        async with helper_tasks() as tasks:
            tasks.start_soon(helper)
            await anyio.wait_all_tasks_blocked()
        assert ended.is_set()


async def test_error_of_the_block_stays_plain() -> None:
    problem = LookupError()
    with pytest.raises(LookupError) as caught:  # noqa: PT012 - the block is what is tested
        async with helper_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise problem
    assert caught.value is problem


async def test_outer_cancellation_passes_through() -> None:
    with anyio.CancelScope() as scope:
        async with helper_tasks() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught


async def test_defect_of_a_task_ends_the_block() -> None:
    async def helper() -> None:
        raise LookupError

    with anyio.fail_after(5):
        with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012 - the same
            async with helper_tasks() as tasks:
                tasks.start_soon(helper)
                await anyio.sleep_forever()
    assert caught.group_contains(LookupError, depth=1)
