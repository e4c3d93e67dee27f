"""Bounded memories: everything that others can make us remember has an end."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memory(Generic[K, V]):
    """A dictionary that forgets the oldest, by count, by age and by size.

    Args:
        count: Entries at the most.
        seconds: How long an entry is kept.
        size: The sum of the entries' sizes, in bytes, at the most.
    """

    def __init__(self, *, count: int, seconds: float, size: int | None = None) -> None:
        self._count = count
        self._seconds = seconds
        self._size = size
        self._used = 0
        self._entries: OrderedDict[K, tuple[float, int, V]] = OrderedDict()

    def put(self, key: K, value: V, now: float, *, size: int = 0) -> None:
        """Remember a value, in place of an older one of the same key."""
        self.pop(key)
        self._entries[key] = (now, size, value)
        self._used += size
        while len(self._entries) > self._count or (
            self._size is not None and self._used > self._size
        ):
            self._forget_oldest()

    def get(self, key: K, now: float) -> V | None:
        """The value, if it is still remembered."""
        self._forget_old(now)
        entry = self._entries.get(key)
        return None if entry is None else entry[2]

    def pop(self, key: K) -> V | None:
        """Forget a key; its value, if it was there."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        self._used -= entry[1]
        return entry[2]

    def values(self, now: float) -> Iterator[V]:
        """The values still remembered, oldest first."""
        self._forget_old(now)
        return iter([entry[2] for entry in self._entries.values()])

    def __len__(self) -> int:
        """How many entries are held."""
        return len(self._entries)

    def _forget_old(self, now: float) -> None:
        while self._entries:
            at, _, _ = next(iter(self._entries.values()))
            if now - at < self._seconds:
                return
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        _, (_, size, _) = self._entries.popitem(last=False)
        self._used -= size


class Tombstones:
    """Withdraws and cancels that came before what they name (PROTOCOL 5).

    Each sender has a share of its own, so that nobody can push out another's.
    """

    SECONDS = 300.0
    A_SENDER = 1000
    SENDERS = 1000

    def __init__(self) -> None:
        self._senders: OrderedDict[str, Memory[str, object]] = OrderedDict()

    def put(self, sender: str, exchange_id: str, cause: object, now: float) -> None:
        """Remember that a sender has ended something that we have not seen."""
        share = self._senders.pop(sender, None) or Memory(count=self.A_SENDER, seconds=self.SECONDS)
        share.put(exchange_id, cause, now)
        self._senders[sender] = share
        if len(self._senders) > self.SENDERS:
            self._senders.popitem(last=False)

    def get(self, sender: str, exchange_id: str, now: float) -> object | None:
        """The cause with which the sender ended it, if it did."""
        share = self._senders.get(sender)
        return None if share is None else share.get(exchange_id, now)

    def __len__(self) -> int:
        """How many ends are remembered, over all senders."""
        return sum(len(share) for share in self._senders.values())
