"""Queue of an inbox, and which rule of which reviewer asks about each proposal in it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from meup_agent.approval.reviewer.rules import ReviewerRules
from meup_agent.protocol.wire.payloads import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from meup_agent.approval.inbox.item import InboxItem, ItemLeft, Verb
    from meup_agent.approval.reviewer.rules import InboxRule
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
    from meup_agent.protocol.wire.envelope import Envelope
    from meup_agent.protocol.wire.payloads import Call


# --- queue of an inbox ---
# What is held, and the order of what waits.

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
        return self._items[:count]

    def next_turn(self, count: int) -> list[InboxItem]:
        """The next ``count`` proposals, others each time until all have had their turn."""
        begin = self._turn if self._turn < len(self._items) else 0
        self._turn = begin + count
        return self._items[begin : self._turn]

    def get(self, key: ProposalKey) -> HeldItem | None:
        return self._held.get(key)

    def has_room_for(self, proposer: str) -> bool:
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


# --- rules of an inbox ---

MAX_LOOKED_AT: Final = 20
"""Proposals by which reviewers are found: the first ones that wait, and as many others by turns."""


class InboxRules(ReviewerRules):
    """The rules that the reviewers of a space tell, by proposal.

    Args:
        space: The space.
        feed: Its proposals.
        queue: Those that wait for us.
        update_item: Called for each proposal whose rule has changed.
        told: Called when a reviewer has told its rules, and when all have been asked.
    """

    def __init__(
        self,
        space: Space,
        feed: ProposalFeed,
        queue: InboxQueue,
        update_item: Callable[[ProposalEntry], None],
        told: Callable[[], None],
    ) -> None:
        super().__init__(space, told)
        self._feed = feed
        self._queue = queue
        self._update_item = update_item
        # By reviewer; a proposal of which it says nothing more has no rule of its any more.
        self._rules: dict[str, dict[ProposalKey, InboxRule]] = {}
        # Of the calls that rules are about: canonical JSON of a large one takes a second.
        self._digests: dict[ProposalKey, tuple[Envelope, str | None]] = {}
        # Reviewers whose rule was heard while they might carry the call out.
        self._asked_by: dict[ProposalKey, set[str]] = {}
        # The last proposal for others alone: a reviewer among these may ask us.
        self._for_others: Call | None = None

    def learn_rules(self, other: InboxRules) -> None:
        """Take over the rules that another inbox of the same space was told."""
        self.learn_from(other)
        # What a reviewer tells is replaced whole, and never changed.
        self._rules.update({name: dict(each) for name, each in other._rules.items()})
        self._asked_by.update({key: set(names) for key, names in other._asked_by.items()})

    def look_for_reviewers_of(self, call: Call) -> None:
        """Ask those who may carry out a call that is for others: its reviewer may ask us."""
        self._for_others = call
        self.look_again(since=self._feed.now)

    def rule_for(self, entry: ProposalEntry, call: Call) -> InboxRule | None:
        """The rule that asks: of several reviewers', one that counts votes, else the first."""
        found = self.rules_for(entry, call)
        return min(found, key=lambda rule: not rule.is_quorum, default=None)

    def rules_for(self, entry: ProposalEntry, call: Call) -> list[InboxRule]:
        """The rules that ask, one of each reviewer that has one."""
        found = [
            rule
            for reviewer, rules in sorted(self._rules.items())
            if (rule := rules.get(entry.key)) is not None
            and reviewer != entry.key.proposer
            and self._feed.may_carry_out(reviewer, call)
            and (not rule.digest or rule.digest == self._digest_of(entry, call))
        ]
        if found:
            self._asked_by.setdefault(entry.key, set()).update(rule.reviewer for rule in found)
        return found

    def reviewers_away(self, key: ProposalKey) -> list[str]:
        """Those whose rule asks about a proposal, as far as was heard, and who are not here."""
        asked_by = self._asked_by.get(key, set())
        return sorted(
            each for each in asked_by if each != self._space.me and not self._feed.is_present(each)
        )

    def note_presence(self, participant: str, *, is_here: bool) -> None:
        """Ask a participant anew that has come, or may do something else; forget one that left."""
        self.forget(participant)
        if not is_here:
            self._rules.pop(participant, None)

    def _digest_of(self, entry: ProposalEntry, call: Call) -> str | None:
        known, found = self._digests.get(entry.key, (None, None))
        if known is not entry.envelope:
            # Another one under the same id has a digest of its own.
            found = digest(call.method, call.params, call.target)
            self._digests[entry.key] = (entry.envelope, found)
        return found

    def note_counted(self, key: ProposalKey, rule: InboxRule) -> None:
        self._rules.setdefault(rule.reviewer, {})[key] = rule
        self.look_again()

    def _replace_rules(self, reviewer: str, rules: dict[ProposalKey, InboxRule]) -> None:
        before = self._rules.get(reviewer, {})
        self._rules[reviewer] = rules
        for key in before.keys() - rules.keys():
            self._digests.pop(key, None)
        for key in [key for key, names in self._asked_by.items() if reviewer in names]:
            if key not in rules:
                self._asked_by[key].discard(reviewer)
                if not self._asked_by[key]:
                    del self._asked_by[key]
        for key in before.keys() | rules.keys():
            if before.get(key) != rules.get(key):
                entry = self._feed.get(key)
                if entry is not None:
                    self._update_item(entry)
        self._asked()

    def _find_candidates(self, participants: Iterable[str]) -> Iterator[str]:
        """Of some participants, those that may carry out what waits: reviewers are among them."""
        # By turns, too: a flood of more urgent ones is to hide no reviewer of the others.
        items = (*self._queue.first(MAX_LOOKED_AT), *self._queue.next_turn(MAX_LOOKED_AT))
        calls = [item.call for item in items]
        if self._for_others is not None:
            calls.append(self._for_others)
        # Who has connections beside alone runs no reviewer that would answer.
        people = {each.id for each in self._space.participants if each.aside}
        agents = (each for each in participants if each not in people)
        return self._feed.find_who_may_carry_out(agents, calls)
