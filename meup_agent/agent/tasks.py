"""The tasks that handlers run in: no more than the loop's own task, and none outlives its block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from meup_agent.transport.loops import Condition, background_tasks, runs_on_asyncio

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from anyio.abc import TaskGroup


class HandlerTasks(Protocol):
    """Runs the handlers of an agent, each in a task of its own.

    A handler begins in the context of the agent: what starts it may be another handler's end, and
    context variables that one has set are none of this one's.
    """

    def start(self, handler: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        """Start a task; what it raises ends the block."""
        ...


@asynccontextmanager
async def handler_tasks() -> AsyncGenerator[tuple[HandlerTasks, TaskGroup]]:
    """Open a place for handlers' tasks, and a task group beside it for what else there is to do.

    The block ends with the last handler: the agent ends them before it leaves.
    """
    async with background_tasks() as group:
        if not runs_on_asyncio():
            yield _GroupTasks(group), group
            return
        native = _NativeTasks(group)
        try:
            yield native, group
        finally:
            native.close()


class _GroupTasks:
    """Tasks of a task group: on trio there is nothing cheaper."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._context = copy_context()

    def start(self, handler: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        self._context.copy().run(partial(self._group.start_soon, handler, name=name))


class _NativeTasks:
    """asyncio's own tasks, kept as a task group keeps them.

    A task of anyio's costs a fifth of what a whole request may (docs/benchmarks.md): it gives each
    one a cancel scope and a handle, of which a handler needs neither, since its scope is its own.
    """

    def __init__(self, group: TaskGroup) -> None:
        import asyncio

        self._group = group
        self._context = copy_context()
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []
        self._emptied = Condition()

    def start(self, handler: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
        task = self._loop.create_task(handler(), name=name, context=self._context.copy())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failures.append(error)
            self._group.cancel_scope.cancel()
        if not self._tasks:
            self._emptied.notify_all()

    def close(self) -> None:
        """Take no more; the block ends with the last one."""
        if self._tasks or self._failures:
            self._group.start_soon(self._wait_closed, name="meup agent: handlers")

    async def _wait_closed(self) -> None:
        """Wait for every task, whatever becomes of the block; raise what one of them raised."""
        with anyio.CancelScope(shield=True):
            while self._tasks:
                await self._emptied.wait()
        if len(self._failures) == 1:
            raise self._failures[0]
        if self._failures:
            raise BaseExceptionGroup("handlers' tasks failed", self._failures)
