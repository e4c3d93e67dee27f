"""What has come so far, and a wait for what is still to come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

import anyio

T = TypeVar("T")

PATIENCE: Final = 5.0
"""Seconds that a scene waits for something; then it has not happened."""


class EventLog(Generic[T]):
    """Things in the order of their coming; as few as a demo makes."""

    def __init__(self) -> None:
        self.all: list[T] = []
        self._came = anyio.Event()

    def add(self, item: T) -> None:
        """Note something."""
        self.all.append(item)
        self._came.set()
        self._came = anyio.Event()

    async def next(self, after: int) -> T:
        """The one that comes after so many, however long it takes."""
        while len(self.all) <= after:
            await self._came.wait()
        return self.all[after]

    async def first(self, wanted: Callable[[T], bool]) -> T | None:
        """The first that is wanted, waited for; ``None`` if it does not come in time."""
        with anyio.move_on_after(PATIENCE):
            while True:
                for item in self.all:
                    if wanted(item):
                        return item
                await self._came.wait()
        return None
