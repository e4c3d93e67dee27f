"""Changes of an inbox, for readers that may be slower than the space."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from meup_agent.approval.inbox_item import InboxChange, InboxRenewed
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from typing import Self

MAX_CHANGES: Final = 1_000
"""Changes that wait for a reader; one that is slower is told to look at all items anew."""


class InboxChanges:
    """The changes of an inbox from its making on, as an async iterator."""

    def __init__(self) -> None:
        self._waiting: deque[InboxChange] = deque()
        self._came = Condition()

    def put(self, change: InboxChange) -> None:
        """Keep a change until it is read."""
        if len(self._waiting) >= MAX_CHANGES:
            self._waiting.clear()
            change = InboxRenewed()
        self._waiting.append(change)
        self._came.notify_all()

    def __aiter__(self) -> Self:
        """The iterator itself."""
        return self

    async def __anext__(self) -> InboxChange:
        """Wait for the next change."""
        while not self._waiting:
            await self._came.wait()
        return self._waiting.popleft()

    def taken(self) -> list[InboxChange]:
        """Every change that waits now, without waiting for one."""
        found = list(self._waiting)
        self._waiting.clear()
        return found
