"""The loop's clock, a condition variable, and the background tasks of a block.

Clock and condition are cheaper on asyncio than through anyio.
"""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio

from meup_agent.errors import ConnectionFailed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import AsyncGenerator, Callable

    from anyio.abc import TaskGroup


def runs_on_asyncio() -> bool:
    """True if the loop that runs is asyncio's, or one in its place.

    Told by the name, so that importing an agent does not load a loop (a seventh of its time).
    """
    return anyio.get_cancelled_exc_class().__module__.partition(".")[0] == "asyncio"


def asyncio_loop() -> AbstractEventLoop | None:
    """The loop that runs, if it is asyncio's, or one in its place."""
    if runs_on_asyncio():
        import asyncio

        return asyncio.get_running_loop()
    return None


def loop_clock() -> Callable[[], float]:
    """The clock of the running loop, in seconds; valid while that loop runs.

    Found once: a session reads it several times for each envelope, and
    :func:`anyio.current_time` asks each time which loop runs.
    """
    loop = asyncio_loop()
    return anyio.current_time if loop is None else loop.time


class Condition:
    """A condition variable without a lock, for the tasks of one loop.

    It remembers nothing: a wait that begins after :meth:`notify_all` ends with the next one. So a
    caller checks what it waits for and then waits, with no checkpoint in between, and checks again
    afterwards. Without a waiter it takes next to no memory; a wait takes a fifth of the time and
    of the kilobyte of an event.
    """

    __slots__ = ("_event", "_futures", "_loop")

    def __init__(self, loop: AbstractEventLoop | None = None) -> None:
        """Make a condition; ``loop`` is that of asyncio, where it has been found."""
        self._event: anyio.Event | None = None
        self._futures: list[Future[None]] | None = None
        self._loop = loop

    def notify_all(self) -> None:
        """End every wait that has begun."""
        if self._futures is not None:
            futures, self._futures = self._futures, None
            for future in futures:
                if not future.done():
                    future.set_result(None)
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Wait for the next :meth:`notify_all`."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio_loop()
            if loop is None:
                self._event = self._event or anyio.Event()
                await self._event.wait()
                return
        future = loop.create_future()
        if self._futures is None:
            self._futures = [future]
        else:
            self._futures.append(future)
        try:
            await future
        except BaseException:
            # A wait that is given up again and again must not leave anything behind.
            if self._futures and future in self._futures:
                self._futures.remove(future)
            raise


def condition_maker() -> Callable[[], Condition]:
    """Makes conditions of the running loop, which none of them has to find."""
    return partial(Condition, asyncio_loop())


log = logging.getLogger("meup_agent.session")


@asynccontextmanager
async def background_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group whose tasks end with the block.

    What the block raises leaves it as it was raised, not inside a group (the group never sees it).
    A task that raises cancels the block; its exception leaves as itself, unless the block has one
    of its own to raise; then a defect of the task's goes to the log.
    """
    own: BaseException | None = None
    failed: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                if tasks.cancel_scope.cancel_called and _is_cancellation(error):
                    # A task has failed, and this is the group's own way to end the block.
                    raise
                own = error
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        failed = _what_matters(group)
    if own is not None:
        if failed is not None and not isinstance(failed, ConnectionFailed):
            log.error("a background task failed, too", exc_info=failed)
        raise own
    if failed is not None:
        raise failed


def _is_cancellation(error: BaseException) -> bool:
    cancelled = anyio.get_cancelled_exc_class()
    if isinstance(error, BaseExceptionGroup):
        # A nursery of trio's own raises its cancellations in a group.
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(cancelled) is not None
    return isinstance(error, cancelled)


def _what_matters(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One exception of a group: a defect first, then why the connection ended.

    Several defects stay together.
    """
    flat: list[BaseException] = []
    pending: list[BaseException] = [group]
    while pending:
        error = pending.pop(0)
        if isinstance(error, BaseExceptionGroup):
            inner = cast("BaseExceptionGroup[BaseException]", error)
            pending[:0] = inner.exceptions
        else:
            flat.append(error)
    defects = [error for error in flat if not isinstance(error, ConnectionFailed)]
    if not defects:
        return flat[0]
    return defects[0] if len(defects) == 1 else group


def is_cancelled_here() -> bool:
    """True if the current task is being cancelled by a scope around it."""
    return anyio.current_effective_deadline() == -math.inf
