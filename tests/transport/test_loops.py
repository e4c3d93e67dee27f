"""Shortcuts through asyncio do the same as anyio does on every loop."""

import anyio
import pytest

from meup_agent.transport.loops import Condition, asyncio_loop
from tests.gateways import runs_on_asyncio
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


async def test_a_notification_is_not_kept_for_a_later_waiter() -> None:
    condition = Condition()
    condition.notify_all()
    again = 0

    async def wait_twice() -> None:
        nonlocal again
        for _ in range(2):
            await condition.wait()
            again += 1

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait_twice)
            await anyio.wait_all_tasks_blocked()
            assert again == 0
            condition.notify_all()
            condition.notify_all()
            await anyio.wait_all_tasks_blocked()
            assert again == 1
            condition.notify_all()
    assert again == 2


async def test_a_cancelled_wait_takes_no_other_waiters_notification() -> None:
    condition = Condition()
    woken: list[str] = []
    given_up = anyio.CancelScope()

    async def give_up() -> None:
        with given_up:
            await condition.wait()
            woken.append("who gave up")

    async def stay() -> None:
        await condition.wait()
        woken.append("who stayed")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(give_up)
            tasks.start_soon(stay)
            await anyio.wait_all_tasks_blocked()
            given_up.cancel()
            await anyio.wait_all_tasks_blocked()
            condition.notify_all()
    assert woken == ["who stayed"]


async def test_who_is_woken_and_cancelled_at_once_leaves_nobody_asleep() -> None:
    condition = Condition()
    woken: list[str] = []
    cancelled = anyio.CancelScope()

    async def wait() -> None:
        with cancelled:
            await condition.wait()
        await anyio.lowlevel.checkpoint()
        woken.append("cancelled")

    async def stay() -> None:
        await condition.wait()
        woken.append("stayed")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            tasks.start_soon(stay)
            await anyio.wait_all_tasks_blocked()
            cancelled.cancel()
            condition.notify_all()
    assert sorted(woken) == ["cancelled", "stayed"]


async def test_waits_that_are_given_up_leave_nothing_behind() -> None:
    condition = Condition()
    for _ in range(3):
        with anyio.move_on_after(0):
            await condition.wait()
    assert not condition._futures  # it would grow with every wait


async def test_the_loop_is_known_by_who_runs() -> None:
    if runs_on_asyncio():
        import asyncio

        assert asyncio_loop() is asyncio.get_running_loop()
    else:
        assert asyncio_loop() is None
