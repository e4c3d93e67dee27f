"""The end of a turn of the loop, at which each connection gets in one write what is due for it.

Apart from the queues, since the runtime of a gateway has one batcher and its queues know the
runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


class WriteBatcher:
    """Writes what became due in a turn of the loop at its end, in one write for each connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[Callable[[], None]] = []

    def add(self, flush: Callable[[], None]) -> None:
        """Have a queue's function write it at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(flush)

    def call(self, then: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._loop.call_soon(then)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for flush in waiting:
            flush()
