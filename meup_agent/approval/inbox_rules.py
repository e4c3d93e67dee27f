"""Rules of an inbox: which rule of which reviewer asks about each proposal, and the votes on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meup_agent.approval.reviewer_rules import ReviewerRules
from meup_agent.protocol.payloads import digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from meup_agent.approval.inbox_queue import InboxQueue
    from meup_agent.approval.reviewer_rules import InboxRule
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
    from meup_agent.protocol.payloads import Call

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
        """Note the count that a reviewer answered our vote with."""
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
