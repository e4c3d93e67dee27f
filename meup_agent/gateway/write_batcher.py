"""The end of a turn of the loop, at which each connection gets in one write what is due for it.

Apart from the queues, since the runtime of a gateway has one batcher and its queues know the
runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


class BatchedQueue(Protocol):
    """A queue with something to be written."""

    def flush(self) -> None:
        """Write what is due."""
        ...


class WriteBatcher:
    """Writes what became due in a turn of the loop at its end, in one write for each connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[BatchedQueue] = []

    def add(self, queue: BatchedQueue) -> None:
        """Have a queue written at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(queue)

    def call(self, then: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._loop.call_soon(then)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for queue in waiting:
            queue.flush()
