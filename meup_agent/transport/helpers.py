"""A task group for what works behind a block."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup


@asynccontextmanager
async def helper_tasks() -> AsyncGenerator[TaskGroup]:
    """Open a task group that nobody outside of the block gets to see.

    Its tasks end with the block, and what the block raises leaves it as it was raised, not inside
    a group (the group never sees it). A task that raises ends the block and leaves as a group:
    helpers are to handle their errors, so that is a defect of theirs.
    """
    failure: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                cancelled = isinstance(error, anyio.get_cancelled_exc_class())
                if cancelled and tasks.cancel_scope.cancel_called:
                    # After a defect of a task this cancellation is the group's own.
                    raise
                failure = error
            tasks.cancel_scope.cancel()
    finally:
        if failure is not None:
            raise failure
