"""Shortcuts through asyncio do as anyio does on every loop, and tasks end with their block."""

import anyio
import pytest

from meup_agent.transport.base import Condition, asyncio_loop, background_tasks
from tests.gateways import runs_on_asyncio
from tests.patience import PATIENCE


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


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_cancelled_wait_takes_no_other_waiters_notification(at_once: bool) -> None:
    condition, given_up = Condition(), anyio.CancelScope()
    woken: list[str] = []

    async def wait(who: str, scope: anyio.CancelScope) -> None:
        with scope:
            await condition.wait()
            await anyio.lowlevel.checkpoint()
            woken.append(who)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, "who gave up", given_up)
            tasks.start_soon(wait, "who stayed", anyio.CancelScope())
            await anyio.wait_all_tasks_blocked()
            given_up.cancel()
            if not at_once:
                await anyio.wait_all_tasks_blocked()
            condition.notify_all()
    assert woken == ["who stayed"]


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


@pytest.mark.parametrize("pressed", [False, True])
async def test_what_ctrl_c_breaks_in_a_task_is_no_defect(
    caplog: pytest.LogCaptureFixture, pressed: bool
) -> None:
    async def parse() -> None:
        raise RuntimeError("half read") from (KeyboardInterrupt() if pressed else None)

    with pytest.raises(LookupError):  # noqa: PT012
        async with background_tasks() as tasks:
            tasks.start_soon(parse)
            try:
                await anyio.sleep_forever()
            finally:
                raise LookupError("of the block")
    assert bool(caplog.records) is not pressed
