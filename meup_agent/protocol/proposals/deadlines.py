"""The deadlines of proposals, for every reader that lets them expire."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

from meup_agent.protocol.proposals.lifecycle import ProposalState, last_moment


class MayExpire(Protocol):
    """A record of a proposal."""

    state: ProposalState
    expires_at: int | None


P = TypeVar("P", bound=MayExpire)

SPARE_DEADLINES: Final = 1_024
"""Deadlines that are kept of proposals which have ended or were renewed, before they are sorted
out."""


class DeadlineHeap(Generic[P]):
    """The proposals that may expire, the first to do so first."""

    def __init__(self) -> None:
        # By their last moment, and a number that keeps items from being compared.
        self._heap: list[tuple[int, int, P]] = []
        self._added = 0
        self._most = SPARE_DEADLINES

    @property
    def next(self) -> int | None:
        """The last moment of the first of them, in microseconds since 1970 (UTC)."""
        return self._heap[0][0] if self._heap else None

    def add(self, item: P) -> None:
        """Add a proposal, if it has a deadline and no request is out for it."""
        if item.expires_at is None or item.state is not ProposalState.PENDING:
            return
        self._added += 1
        heappush(self._heap, (last_moment(item.expires_at), self._added, item))

    def sort_out(self, is_open: Callable[[P], bool]) -> None:
        """Drop those that have ended, once they may be most of all."""
        if len(self._heap) <= self._most:
            return
        # One that was renewed or waits again stands here more than once.
        kept = {id(item): item for _, _, item in self._heap if is_open(item)}
        self._heap = []
        for item in kept.values():
            self.add(item)
        self._most = SPARE_DEADLINES + 2 * len(self._heap)

    def pop_due(self, at: int) -> Iterator[P]:
        """Remove the proposals whose last moment is before a time."""
        while self._heap and self._heap[0][0] < at:
            yield heappop(self._heap)[2]
