"""Deadlines: the timer that waits for the next one, and checks of timeouts that callers give."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import UsageError
from meup_agent.protocol.payloads import MAX_TTL
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from anyio.abc import TaskGroup

EXTENSIONS: Final = 10
"""So many times its timeout a request waits in all, if progress comes and nothing else is said."""


class Timer:
    """A task while there is a deadline, and none otherwise: most agents mostly wait for nothing."""

    def __init__(self, deadline: Callable[[], float | None], ring: Callable[[], None]) -> None:
        self._deadline = deadline
        self._ring = ring
        self._changed = Condition()
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
            self._changed.notify_all()

    async def _run(self) -> None:
        while (at := self._deadline()) is not None:
            self._at = at
            with anyio.CancelScope(deadline=at):
                await self._changed.wait()
            self._ring()
        self._at = None


def checked_total(timeout: float | None, total: float | None) -> float:
    """Seconds that a request may wait in all, however often progress comes."""
    if timeout is None or total == math.inf:
        return math.inf
    if total is None:
        return EXTENSIONS * timeout
    if not total >= timeout:
        raise UsageError(
            f"a total_timeout of {total:g} is less than the timeout of {timeout:g} s that it is to"
            " extend; give as much, or more"
        )
    return total


def checked_ttl(seconds: float | None) -> float | None:
    """Seconds for which a proposal waits; ``None`` and infinity are as long as it takes.

    Raises:
        UsageError: It is no time to wait, or more than readers take for one.
    """
    ttl = checked_timeout(seconds)
    if ttl is not None and ttl > MAX_TTL:
        raise UsageError(
            f"a proposal waits for at most {MAX_TTL:.0f} s; give None for as long as it takes"
        )
    return ttl


def checked_timeout(seconds: float | None) -> float | None:
    """Seconds that a verb may wait, fit to be added to a clock; infinite is as good as ``None``.

    NaN is refused: a comparison with it would never end a wait.
    """
    if seconds is None or seconds == math.inf:
        return None
    if math.isnan(seconds) or seconds < 0:
        raise UsageError(
            f"{seconds} is no time to wait; give seconds from 0 on, or None for as long as it takes"
        )
    return seconds
