"""The tasks of handlers: each on its own, none beyond its block."""

from contextvars import ContextVar
from functools import partial

import anyio
import pytest

from meup_agent.agent.tasks import handler_tasks
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

colour: ContextVar[str] = ContextVar("colour", default="none")


async def test_the_block_ends_with_the_last_task() -> None:
    seen: list[str] = []
    go = anyio.Event()

    async def handler(name: str) -> None:
        with anyio.CancelScope(shield=True):
            await go.wait()
        seen.append(name)

    async def let_go() -> None:
        go.set()

    with anyio.fail_after(PATIENCE):
        async with handler_tasks() as (tasks, group):
            tasks.start(partial(handler, "a"), "a")
            tasks.start(partial(handler, "b"), "b")
            await anyio.lowlevel.checkpoint()
            group.start_soon(let_go)
            assert seen == []
    assert sorted(seen) == ["a", "b"]


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
        async with handler_tasks() as (tasks, _):
            tasks.start(other, "other")
            tasks.start(fail, "fail")
            try:
                await anyio.sleep_forever()
            finally:
                stopped.set()

    with anyio.fail_after(PATIENCE), pytest.raises(LookupError, match="a defect"):
        await block()
    assert ended.is_set()


async def test_each_task_begins_in_the_context_of_the_block() -> None:
    seen: list[str] = []

    async def paint(name: str) -> None:
        seen.append(colour.get())
        colour.set(name)

    with anyio.fail_after(PATIENCE):
        colour.set("white")
        async with handler_tasks() as (tasks, group):

            async def start_one() -> None:
                colour.set("red")
                tasks.start(partial(paint, "green"), "green")

            group.start_soon(start_one)
            await anyio.wait_all_tasks_blocked()
            tasks.start(partial(paint, "blue"), "blue")
            await anyio.wait_all_tasks_blocked()
    assert seen == ["white", "white"]
