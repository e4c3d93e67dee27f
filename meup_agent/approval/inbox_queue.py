"""Queue of an inbox: what is held, and the order of what waits."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meup_agent.approval.inbox_item import InboxItem, ItemLeft, Verb
    from meup_agent.protocol.exchange import ProposalEntry, ProposalKey

MAX_ITEMS: Final = 20_000
"""Proposals that an inbox holds; of more, those that come later are left out, and counted."""

MAX_OF_A_PROPOSER: Final = 2_000
"""Of one proposer, so that a flood of one leaves out none of the others'."""

_Place = tuple[float, int]


class HeldItem(msgspec.Struct, eq=False):
    """A proposal that is held, with its place among those that wait."""

    item: InboxItem
    entry: ProposalEntry
    number: int  # in the order of arrival
    place: _Place | None = None  # None: it does not wait now
    ours: ItemLeft | None = None  # our own decision, of which the gateway may not have told yet
    offers: frozenset[Verb] | None = None  # what our capabilities allow; None: not looked at yet
    rejections: int = 0  # rejections of others that readers know of


class InboxQueue:
    """The proposals that an inbox holds, and those of them that wait, oldest deadline first."""

    def __init__(self) -> None:
        self._held: dict[ProposalKey, HeldItem] = {}
        self._places: list[_Place] = []
        self._items: list[InboxItem] = []  # in the same order
        self._of = Counter[str]()
        self._numbers = 0
        self._turn = 0

    def __len__(self) -> int:
        """The number of proposals that wait."""
        return len(self._items)

    def __iter__(self) -> Iterator[HeldItem]:
        """All that is held, in the order of arrival."""
        return iter(list(self._held.values()))

    @property
    def items(self) -> list[InboxItem]:
        """The proposals that wait, oldest deadline first; then those without one."""
        return self._items.copy()

    def first(self, count: int) -> list[InboxItem]:
        """The first so many of them."""
        return self._items[:count]

    def next_turn(self, count: int) -> list[InboxItem]:
        """The next ``count`` proposals, others each time until all have had their turn."""
        begin = self._turn if self._turn < len(self._items) else 0
        self._turn = begin + count
        return self._items[begin : self._turn]

    def get(self, key: ProposalKey) -> HeldItem | None:
        """A proposal that is held."""
        return self._held.get(key)

    def has_room_for(self, proposer: str) -> bool:
        """True if one more of a proposer can be held."""
        return len(self._held) < MAX_ITEMS and self._of[proposer] < MAX_OF_A_PROPOSER

    def add(self, item: InboxItem, entry: ProposalEntry) -> HeldItem:
        """Hold a proposal, which does not wait yet."""
        self._numbers += 1
        held = self._held[entry.key] = HeldItem(item, entry, self._numbers)
        self._of[entry.key.proposer] += 1
        return held

    def drop(self, held: HeldItem) -> None:
        """Hold a proposal no longer."""
        self.remove(held)
        del self._held[held.entry.key]
        proposer = held.entry.key.proposer
        self._of[proposer] -= 1
        if not self._of[proposer]:
            del self._of[proposer]

    def insert(self, held: HeldItem) -> bool:
        """Let a proposal wait in its place; ``True`` if it was not there before."""
        deadline = held.item.deadline
        place = (float("inf") if deadline is None else deadline.timestamp(), held.number)
        if place == held.place:
            return False
        self.remove(held)
        held.place = place
        at = bisect_left(self._places, place)
        self._places.insert(at, place)
        self._items.insert(at, held.item)
        return True

    def remove(self, held: HeldItem) -> None:
        """Let a proposal wait no longer, but hold it."""
        if held.place is not None:
            at = bisect_left(self._places, held.place)
            del self._places[at], self._items[at]
            held.place = None

    def due(self, moment: float) -> list[InboxItem]:
        """The proposals whose deadline has passed, in seconds since 1970."""
        return self._items[: bisect_left(self._places, (moment, 0))]
