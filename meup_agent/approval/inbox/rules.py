"""Queue of an inbox, and which rule of which reviewer asks about each proposal in it."""

from __future__ import annotations

import logging
import math
from bisect import bisect_left
from collections import Counter
from itertools import count, islice, product
from typing import TYPE_CHECKING, Final

import anyio
import msgspec

from meup_agent.approval.reviewer.methods import VOTE, WAITING, InboxRule, read_waiting
from meup_agent.errors import MeupError, RequestError, printable
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.payloads import Call, as_object
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anyio.abc import TaskGroup

    from meup_agent.approval.inbox.item import InboxItem, ItemLeft, Verb
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.client.space import Space
    from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
    from meup_agent.protocol.wire.envelope import Envelope


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
    heard: tuple[object, ...] = ()  # what others said of it, as far as readers know


class InboxQueue:
    """The proposals that an inbox holds, and those of them that wait, oldest deadline first."""

    def __init__(self) -> None:
        self._held: dict[ProposalKey, HeldItem] = {}
        self._places: list[_Place] = []
        self._waiting: list[HeldItem] = []  # in the same order
        self._of = Counter[str]()
        self._numbers = count()
        self._turn = 0

    def __len__(self) -> int:
        """The number of proposals that wait."""
        return len(self._waiting)

    def __iter__(self) -> Iterator[HeldItem]:
        """All that is held, in the order of arrival."""
        return iter(list(self._held.values()))

    @property
    def items(self) -> list[InboxItem]:
        """The proposals that wait, oldest deadline first; then those without one."""
        return [held.item for held in self._waiting]

    def first(self, count: int) -> list[HeldItem]:
        return self._waiting[:count]

    def next_turn(self, count: int) -> list[HeldItem]:
        """The next ``count`` proposals, others each time until all have had their turn."""
        begin = self._turn if self._turn < len(self._waiting) else 0
        self._turn = begin + count
        return self._waiting[begin : self._turn]

    def get(self, key: ProposalKey) -> HeldItem | None:
        return self._held.get(key)

    def has_room_for(self, proposer: str) -> bool:
        return len(self._held) < MAX_ITEMS and self._of[proposer] < MAX_OF_A_PROPOSER

    def add(self, item: InboxItem, entry: ProposalEntry) -> HeldItem:
        """Hold a proposal, which does not wait yet."""
        held = self._held[entry.key] = HeldItem(item, entry, next(self._numbers))
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
        self._waiting.insert(at, held)
        return True

    def remove(self, held: HeldItem) -> None:
        """Let a proposal wait no longer, but hold it."""
        if held.place is not None:
            at = bisect_left(self._places, held.place)
            del self._places[at], self._waiting[at]
            held.place = None

    def due(self, moment: float) -> list[HeldItem]:
        """The proposals whose deadline has passed, in seconds since 1970."""
        return self._waiting[: bisect_left(self._places, (moment, 0))]


# --- rules of an inbox ---

log = logging.getLogger("meup_agent.approval")

_VOTE: Final = VOTE.removeprefix(payloads.PREFIX).encode()  # a slash may be written as an escape

MAX_LOOKED_AT: Final = 20
"""Proposals by which reviewers are found: the first ones that wait, and as many others by turns."""

MAX_AT_A_TIME: Final = 8
"""Reviewers that are asked at the same time."""

ASK_SECONDS: Final = 5.0
"""Wait for a reviewer's answer."""

PAUSE_SECONDS: Final = 0.25
"""Pause between two questions to a reviewer, so that many votes are not as many questions."""

PAUSE_PER_PROPOSAL: Final = 0.002
"""Seconds of that pause for each proposal in an answer, where that is longer: a thousand are half a
megabyte, which the reviewer, the gateway and each inbox read."""

AGAIN_SECONDS: Final = 15.0
"""Interval at which reviewers are asked although nothing happened: a policy file may change."""

MAX_RULES: Final = 10_000
"""Proposals of which a reviewer's rules are kept; one of ours tells of a thousand at most."""

MAX_VOTES: Final = 1_000
"""Votes of others whose answers are waited for; that of one that is forgotten is heard of at the
next question."""


class _Candidate(msgspec.Struct, eq=False):
    """A participant that may be a reviewer, as far as it has answered.

    Attributes:
        answers: True for a reviewer, ``False`` for a participant without the method; ``None`` for
            one of which neither is known.
        is_asked: A question to it is out, or waits for its turn.
        was_asked: A question to it has ended, whatever came of it.
        round: The round in which it was asked last.
        not_before: The moment from which it may be asked again.
        pause: Seconds until then, where it gives no answer.
        scope: The scope of its last question.
    """

    answers: bool | None = None
    is_asked: bool = False
    was_asked: bool = False
    round: int = 0
    not_before: float = -math.inf
    pause: float = AGAIN_SECONDS
    scope: anyio.CancelScope = msgspec.field(default_factory=anyio.CancelScope)


class InboxRules:
    """The rules that the reviewers of a space tell, by proposal.

    A reviewer is a participant that may carry out what waits, and answers the method
    ``dev.meup/waiting``. No name of a tool makes one: a bridge has the names that its server gives
    to its tools, and to ask it by one would be a call that nobody approved.

    Args:
        space: The space.
        feed: Its proposals.
        queue: Those that wait for us.
        update_item: Called for each proposal whose rule has changed.
        told: Called when a reviewer has told its rules, or was asked in vain.
    """

    def __init__(
        self,
        space: Space,
        feed: ProposalFeed,
        queue: InboxQueue,
        update_item: Callable[[ProposalEntry], None],
        told: Callable[[], None],
    ) -> None:
        self._space = space
        self._feed = feed
        self._queue = queue
        self._update_item = update_item
        self._told = told
        self._changed = Condition()
        self._candidates: dict[str, _Candidate] = {}
        # Others' votes without an answer so far, by voter and id.
        self._votes: dict[tuple[str, str], None] = {}
        self._round = 1
        self._next_round = -math.inf
        self._young_since: float | None = None
        self._has_begun = False
        # By reviewer; a proposal of which it says nothing more has no rule of its any more.
        self._rules: dict[str, dict[ProposalKey, InboxRule]] = {}
        # Of the calls that rules are about: canonical JSON of a large one takes a second.
        self._digests: dict[ProposalKey, tuple[Envelope, str | None]] = {}
        # Reviewers whose rule was heard while they might carry the call out.
        self._asked_by: dict[ProposalKey, set[str]] = {}
        # The last proposal for others alone: a reviewer among these may ask us.
        self._for_others: Call | None = None

    @property
    def has_asked(self) -> bool:
        """True if each participant that may be a reviewer has been asked once."""
        return self._has_begun and not any(
            each.is_asked and not each.was_asked for each in self._candidates.values()
        )

    @property
    def has_reviewer(self) -> bool:
        """True if a participant that is here has answered as a reviewer."""
        return any(each.answers for each in self._candidates.values())

    def learn_from(self, other: InboxRules) -> None:
        """Take over the rules that another inbox of the same space was told, and by whom."""
        for name, each in other._candidates.items():
            if each.answers is not None:
                self._candidates[name] = _Candidate(each.answers, was_asked=True)
        # What a reviewer tells is replaced whole, and never changed.
        self._rules.update({name: dict(each) for name, each in other._rules.items()})
        self._asked_by.update({key: set(names) for key, names in other._asked_by.items()})

    def look_for_reviewers_of(self, call: Call) -> None:
        """Ask those who may carry out a call that is for others: its reviewer may ask us."""
        self._for_others = call
        self.look_again(is_new=True)

    def rule_for(self, entry: ProposalEntry, call: Call) -> InboxRule | None:
        """The rule that asks: of several reviewers', one that counts votes, else the first."""
        found = self.rules_for(entry, call)
        return min(found, key=lambda rule: (not rule.is_quorum, not rule.takes_word), default=None)

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
        self._forget(participant)
        if not is_here:
            self._rules.pop(participant, None)

    def forget_others(self) -> None:
        """Forget the participants that are not known as reviewers."""
        for name in [name for name, each in self._candidates.items() if not each.answers]:
            self._forget(name)

    def _forget(self, participant: str) -> None:
        """Forget what a participant has answered."""
        known = self._candidates.pop(participant, None)
        if known is not None:
            known.scope.cancel()

    def _digest_of(self, entry: ProposalEntry, call: Call) -> str | None:
        known, found = self._digests.get(entry.key, (None, None))
        if known is not entry.envelope:
            # Another one under the same id has a digest of its own.
            found = payloads.digest(call.method, call.params, call.target)
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
        self._told()

    # --- asking reviewers ---

    def look_again(self, *, is_new: bool = False) -> None:
        """Ask all reviewers soon.

        Args:
            is_new: A proposal has come. A reviewer may have to read a list of tools before it
                knows its rule, so it is asked more than once.
        """
        if is_new:
            self._young_since = anyio.current_time()
        self._begin_round()
        self._changed.notify_all()

    def hear(self, envelope: Envelope) -> None:
        """Ask again once a reviewer has counted the vote of another one.

        An answer to a question like ours is not a reason: two inboxes would ask each other on.
        Nor is a refused vote, which any participant can send without end.
        """
        if self._space.me in (envelope.sender, *envelope.to):
            return
        if (
            envelope.kind == kinds.MCP_REQUEST
            and _VOTE in envelope.raw_payload
            and as_object(envelope.payload).get("method") == VOTE
        ):
            self._votes[envelope.sender, envelope.id] = None
            if len(self._votes) > MAX_VOTES:
                del self._votes[next(iter(self._votes))]
        elif envelope.kind == kinds.MCP_RESPONSE and self._votes:
            answered = self._votes.keys() & product(envelope.to, envelope.correlation)
            for each in answered:
                del self._votes[each]
            by = self._candidates.get(envelope.sender)
            if answered and by is not None and by.answers:
                _, error = payloads.read_response(envelope.payload)
                if error is None:
                    self.look_again()

    async def run(self) -> None:
        """Ask, until cancelled."""
        limiter = anyio.CapacityLimiter(MAX_AT_A_TIME)
        async with anyio.create_task_group() as tasks:
            while True:
                now = anyio.current_time()
                until = min(self._begin_asking(tasks, limiter, now), self._next_round)
                with anyio.CancelScope(deadline=until):
                    await self._changed.wait()
                await anyio.sleep(PAUSE_SECONDS)
                if anyio.current_time() >= self._next_round:
                    self._begin_round()

    def _begin_round(self) -> None:
        """Have all reviewers asked once more, and again after a while."""
        self._round += 1
        self._next_round = anyio.current_time() + self._pause()

    def _pause(self) -> float:
        """Seconds until reviewers are asked again, if nothing happens."""
        if self._young_since is None:
            return AGAIN_SECONDS
        # A quarter of a second after a proposal came, then half a second, and so on.
        age = anyio.current_time() - self._young_since
        if age > AGAIN_SECONDS:
            self._young_since = None
        return min(max(age, PAUSE_SECONDS), AGAIN_SECONDS)

    def _begin_asking(self, tasks: TaskGroup, limiter: anyio.CapacityLimiter, now: float) -> float:
        """Ask those whose turn it is; the moment at which it is that of the next one."""
        until = math.inf
        known = self._candidates
        reviewers: list[str] = []
        others: list[str] = []
        for each in self._space.participants:
            answers = known[each.id].answers if each.id in known else None
            if each.id == self._space.me or answers is False:
                continue
            if answers:
                reviewers.append(each.id)
            elif not each.aside:  # who has connections beside alone runs no reviewer that answers
                others.append(each.id)
        # By turns, too: a flood of more urgent ones is to hide no reviewer of the others.
        looked_at = (*self._queue.first(MAX_LOOKED_AT), *self._queue.next_turn(MAX_LOOKED_AT))
        calls = [held.item.call for held in looked_at]
        if self._for_others is not None:
            calls.append(self._for_others)
        for participant in (*reviewers, *self._feed.find_who_may_carry_out(others, calls)):
            if not self._space.may_request(participant, WAITING, {}):
                continue
            candidate = known.setdefault(participant, _Candidate())
            if candidate.is_asked or candidate.round == self._round:
                continue
            if candidate.not_before > now:
                until = min(until, candidate.not_before)
                continue
            candidate.round, candidate.is_asked = self._round, True
            candidate.scope = anyio.CancelScope()
            tasks.start_soon(self._ask, participant, candidate, limiter)
        self._has_begun = True
        self._told()
        return until

    async def _ask(
        self, participant: str, candidate: _Candidate, limiter: anyio.CapacityLimiter
    ) -> None:
        count = 0
        with candidate.scope:
            async with limiter:
                count = await self._request(participant, candidate)
        now = anyio.current_time()
        if candidate.answers is None:
            # A terminal of another make shows each question to its person, and answers none.
            candidate.not_before = now + candidate.pause
            candidate.pause *= 2
        else:
            candidate.not_before = now + max(PAUSE_SECONDS, count * PAUSE_PER_PROPOSAL)
        candidate.is_asked, candidate.was_asked = False, True
        self._told()
        self._changed.notify_all()

    async def _request(self, participant: str, candidate: _Candidate) -> int:
        """Ask one of them; how many proposals it told of."""
        try:
            said = as_object(
                await self._space.request(
                    participant, WAITING, {}, timeout=ASK_SECONDS, idempotent=True
                )
            )
        except MeupError as error:
            if isinstance(error, RequestError) and error.code in payloads.UNKNOWN_METHOD:
                if candidate.answers:
                    self._replace_rules(participant, {})
                candidate.answers = False
            else:
                log.info("%r does not tell what waits: %s", participant, printable(str(error)))
            return 0
        candidate.answers = True
        rules = dict(islice(read_waiting(participant, said), MAX_RULES))
        self._replace_rules(participant, rules)
        return len(rules)
