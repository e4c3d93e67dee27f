"""Handlers that run at once, and the queue of those that wait (PROTOCOL 5, overflow)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from meup_agent.protocol.exchange.effects import Key


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one agent.

    Attributes:
        handlers: Handlers that run at once; one that awaits an exchange does not count meanwhile.
        queued: Requests, proposals and notices that wait for a slot.
        awaiting: Handlers that may await exchanges besides these; more would be memory that any
            sender can make us use.
    """

    handlers: int = 64
    queued: int = 256
    awaiting: int = 1024


class ConcurrencyLimiter:
    """Counts the handlers that run and queues those that wait, first come first served."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: dict[Key, int] = {}
        self._busy = 0
        self._queue: OrderedDict[Key, bool] = OrderedDict()
        self.is_shut = False
        """No handler begins any more."""
        self.is_paused = False
        """No handler begins for now; slots that stay free lengthen the queue meanwhile."""

    @property
    def is_full(self) -> bool:
        """True if the queue takes no more."""
        limits = self._limits
        free = limits.handlers - self._busy if self.is_paused else 0
        return len(self._queue) >= limits.queued + free

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended, awaiting or not."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """Handlers that wait for a slot."""
        return len(self._queue)

    def add(self, key: Key, *, droppable: bool) -> None:
        """Put a handler at the end of the queue."""
        self._queue[key] = droppable

    def oldest_droppable(self) -> Key | None:
        """The first in the queue that may be left out."""
        return next((key for key, droppable in self._queue.items() if droppable), None)

    def remove(self, key: Key) -> None:
        """Take a handler out of the queue, or free the slot of one that has ended."""
        self._queue.pop(key, None)
        if self._running.pop(key, None) == 0:
            self._busy -= 1

    def next(self) -> Key | None:
        """Give a free slot to the first in the queue, if there is one."""
        limits = self._limits
        too_many = len(self._running) >= limits.handlers + limits.awaiting
        if self.is_shut or self.is_paused or too_many:
            return None
        if not self._queue or self._busy >= limits.handlers:
            return None
        key, _ = self._queue.popitem(last=False)
        self._running[key] = 0
        self._busy += 1
        return key

    def count_waits(self, key: Key, change: int) -> None:
        """Free the slot of a handler that begins (+1) its first wait; take it back after (−1)."""
        before = self._running.get(key)
        if before is None:
            return
        self._running[key] = after = before + change
        if before == 0 and after > 0:
            self._busy -= 1
        elif before > 0 and after == 0:
            self._busy += 1
