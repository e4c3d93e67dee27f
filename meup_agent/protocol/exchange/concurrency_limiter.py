"""How much is handled at once, and what happens to the rest (PROTOCOL 5, overflow)."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from meup_agent.protocol.exchange.effects import Key


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one agent.

    Attributes:
        handlers: Handlers that run at once; one that awaits an exchange does not count meanwhile.
        queued: Requests, proposals and notices that wait for a place.
        awaiting: Handlers that may await exchanges besides these; more would be memory that
            anybody can make us use.
    """

    handlers: int = 64
    queued: int = 256
    awaiting: int = 1024


class ConcurrencyLimiter:
    """Counts the handlers that run and keeps those that wait, first come first served."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._running: dict[Key, int] = {}
        self._busy = 0
        self._queue: OrderedDict[Key, bool] = OrderedDict()
        self.is_shut = False
        self.is_paused = False
        """Nobody begins for now; the places that stay free are places in the queue meanwhile."""

    def shut(self) -> None:
        """Let nobody begin any more."""
        self.is_shut = True

    @property
    def is_full(self) -> bool:
        """Whether the queue takes no more."""
        limits = self._limits
        free = limits.handlers - self._busy if self.is_paused else 0
        return len(self._queue) >= limits.queued + free

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended, waiting or not."""
        return len(self._running)

    @property
    def queued(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    def add(self, key: Key, *, droppable: bool) -> None:
        """Put somebody at the end of the queue."""
        self._queue[key] = droppable

    def oldest_droppable(self) -> Key | None:
        """What may be left out when there is no more room."""
        return next((key for key, droppable in self._queue.items() if droppable), None)

    def remove(self, key: Key) -> None:
        """Take somebody out: out of the queue, or because the handler has ended."""
        self._queue.pop(key, None)
        if self._running.pop(key, None) == 0:
            self._busy -= 1

    def next(self) -> Key | None:
        """Whose turn it is, if there is a place; it counts as running from here on."""
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
        """A handler begins (+1) or ends (−1) to await an exchange."""
        before = self._running.get(key)
        if before is None:
            return
        self._running[key] = after = before + change
        if before == 0 and after > 0:
            self._busy -= 1
        elif before > 0 and after == 0:
            self._busy += 1

    def keys(self) -> list[Key]:
        """Everything queued, first come first."""
        return list(self._queue)
