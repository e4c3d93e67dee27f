"""Background tasks of a block: its user sees the exception that matters, not a group."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio

from meup_agent.errors import ConnectionFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

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
