"""Tells when the next deadline of an exchange has come."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio

from meup_agent.transport.loops import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from anyio.abc import TaskGroup


class Timer:
    """A task while there is a deadline, and none otherwise: most agents mostly wait for nothing.

    Args:
        deadline: Tells the next deadline, on the loop's clock; ``None``: there is none.
        ring: Called when it has come.
    """

    def __init__(self, deadline: Callable[[], float | None], ring: Callable[[], None]) -> None:
        self._deadline = deadline
        self._ring = ring
        self._changed = Wakeup()
        self._at: float | None = None
        self._tasks: TaskGroup | None = None

    @contextmanager
    def runs_in(self, tasks: TaskGroup) -> Generator[None]:
        """Ring for the length of a block, in a task of this group."""
        self._tasks = tasks
        self.watch()
        try:
            yield
        finally:
            self._tasks = None

    def watch(self) -> None:
        """The next deadline may be another one: ring in time for it."""
        at = self._deadline()
        if at is None or self._tasks is None:
            return
        if self._at is None:
            self._at = at
            self._tasks.start_soon(self._run, name="meup session: timer")
        elif at < self._at:
            self._changed.wake()

    async def _run(self) -> None:
        while (at := self._deadline()) is not None:
            self._at = at
            with anyio.CancelScope(deadline=at):
                await self._changed.wait()
            self._ring()
        self._at = None
