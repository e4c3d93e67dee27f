"""Inbox: the proposals that wait for a participant, live, and its decisions about them.

It owns no state of a proposal: that is the exchange table's. It follows each envelope, keeps what
waits from being forgotten, and orders it by deadline. A decision takes its proposal out at once,
before anything is sent, so that a second one is refused; where nothing comes of it, it is back.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import anyio
import msgspec
from anyio import AsyncContextManagerMixin

from meup_agent.approval.inbox_changes import InboxChanges, InboxReaders
from meup_agent.approval.inbox_item import (
    Departure,
    InboxItem,
    ItemArrived,
    ItemChanged,
    ItemLeft,
    Verb,
)
from meup_agent.approval.proposal_history import PastProposal, ProposalHistory
from meup_agent.client.proposal import ProposalRecord
from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.errors import AlreadyDecided, AlreadyInProgress, MeupError, NotOffered, UsageError
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.exchange.roster import read_participant
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.reasons import Reason
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Iterable
    from typing import Self

    from meup_agent.approval.inbox_item import ToolFacts
    from meup_agent.approval.proposal_history import ProposerRecord, SimilarCall
    from meup_agent.client.messages import OnProgress
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry
    from meup_agent.protocol.outcomes import Fulfillment

MAX_ITEMS: Final = 20_000
"""Proposals that an inbox holds; of more, those that come later are left out, and counted."""

MAX_OF_A_PROPOSER: Final = 2_000
"""Of one proposer, so that a flood of one leaves out none of the others'."""

MAX_AT_ONCE: Final = 100
"""Proposals that are approved by one call, each of which the person has seen."""

LOOK_SECONDS: Final = 1.0
"""Interval at which proposals past their deadline are looked at: no envelope says that one has
expired."""


class _Held(msgspec.Struct):
    """A proposal that is kept, with its place among those that wait."""

    item: InboxItem
    entry: ProposalEntry
    number: int
    place: tuple[float, int] | None = None  # None: it does not wait now
    ours: ItemLeft | None = None  # our own decision, of which the gateway may not have told yet
    offers: frozenset[Verb] | None = None  # what our capabilities allow; None: not asked yet


class Decided(msgspec.Struct, frozen=True):
    """The outcome of one approval among several.

    Attributes:
        item: The proposal.
        fulfillment: What came of it; ``None``: it was a vote, or it failed.
        error: Why it failed; ``None``: it did not.
    """

    item: InboxItem
    fulfillment: Fulfillment | None = None
    error: MeupError | None = None


class Inbox(AsyncContextManagerMixin):
    """The proposals that wait for a participant's decision; an async context manager.

    ::

        async with Inbox(space) as inbox:
            for item in inbox.items:
                await inbox.reject(item, Reason.UNSAFE)

    Args:
        space: The participant's space.
        past: Proposals that were decided before, the oldest first.
        before: Proposals of before we came, of which the gateway did not tell when we joined.

    Attributes:
        left_out: Proposals that were left out since too many wait.
    """

    def __init__(
        self,
        space: Space,
        *,
        past: Iterable[PastProposal] = (),
        before: Iterable[Envelope] = (),
    ) -> None:
        self._space = space
        self._feed = ProposalFeed(space)
        self._before = tuple(before)
        self._history = ProposalHistory()
        for each in past:
            self._history.note(each)
        self._held: dict[ProposalKey, _Held] = {}
        self._order: list[tuple[tuple[float, int], InboxItem]] = []
        self._of: dict[str, int] = {}
        self._readers = InboxReaders()
        self._may_reject = False
        self._numbers = 0
        self.left_out = 0

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        async with background_tasks() as tasks:
            with self._feed.deciding(self):
                for envelope in self._before:
                    self._feed.add(envelope)
                self._look_at_all()
                tasks.start_soon(self._watch_time)
                try:
                    yield self
                finally:
                    for held in self._held.values():
                        self._feed.release(held.entry)

    # --- what waits ---

    @property
    def items(self) -> list[InboxItem]:
        """The proposals that wait for us, oldest deadline first; then those without one."""
        return [item for _, item in self._order]

    def __len__(self) -> int:
        """The number of proposals that wait for us."""
        return len(self._order)

    def changes(self) -> InboxChanges:
        """Every change from here on.

        A reader that is slower than the space is handed one :class:`InboxRenewed` in place of what
        it has not read.
        """
        return self._readers.add()

    # --- decisions ---

    async def approve(
        self,
        item: InboxItem,
        arguments: dict[str, Any] | None = None,
        *,
        timeout: float | Literal["proposer"] | None = "proposer",
        on_progress: OnProgress | None = None,
    ) -> Fulfillment | None:
        """Approve a proposal: carry it out, or vote for it where a reviewer counts votes.

        Args:
            item: The proposal.
            arguments: Other arguments than the proposed ones; the proposer is told the difference.
            timeout: Seconds to wait for its result; by default as long as the proposer waits.
            on_progress: Called with the tool's progress.

        Returns:
            Its result; ``None`` if it was a vote.

        Raises:
            NotOffered: We may neither carry it out nor vote.
            AlreadyDecided: It waits no longer, or we have decided it before.
            AlreadyInProgress: Another participant has approved it.
            MeupError: As :meth:`Proposal.fulfill`; then it waits again, if it is still pending.
        """
        self._check_waits(item)
        if Verb.APPROVE not in item.may:
            raise NotOffered(self._why_not(item, Verb.APPROVE))
        with self._deciding(item, Departure.APPROVED) as held:
            proposal = self._space.proposal(item.envelope)
            fulfillment = await proposal.fulfill(
                arguments, timeout=timeout, on_progress=on_progress
            )
            self._undecide(held)  # the executor may have refused it
        return fulfillment

    async def approve_all(self, items: Iterable[InboxItem]) -> list[Decided]:
        """Approve several proposals, each as :meth:`approve`.

        Args:
            items: The proposals, one by one: no pattern approves. One that stands twice is approved
                once.

        Returns:
            The outcome of each, in their order.

        Raises:
            UsageError: They are more than a person has looked at.
        """
        chosen = list(dict.fromkeys(items))
        if len(chosen) > MAX_AT_ONCE:
            raise UsageError(
                f"{len(chosen)} proposals are too many to approve at once; at most {MAX_AT_ONCE}"
            )
        outcomes = [Decided(item) for item in chosen]

        async def approve_one(position: int, item: InboxItem) -> None:
            try:
                outcomes[position] = Decided(item, await self.approve(item))
            except MeupError as error:
                outcomes[position] = Decided(item, error=error)

        async with anyio.create_task_group() as tasks:
            for position, item in enumerate(chosen):
                tasks.start_soon(approve_one, position, item)
        return outcomes

    async def reject(self, item: InboxItem, reason: str, explanation: str | None = None) -> None:
        """Reject a proposal.

        Args:
            item: The proposal.
            reason: A reason code, for example ``Reason.UNSAFE``.
            explanation: Longer words for the proposer.

        Raises:
            NotOffered: We may not reject it.
            AlreadyDecided: It waits no longer, or we have decided it before.
            AlreadyInProgress: Another participant has approved it.
            MeupError: As :meth:`Proposal.reject`.
        """
        self._check_waits(item)
        if Verb.REJECT not in item.may:
            raise NotOffered(self._why_not(item, Verb.REJECT))
        with self._deciding(item, Departure.REJECTED, str(reason)):
            await self._space.proposal(item.envelope).reject(reason, explain=explanation or None)

    def _check_waits(self, item: InboxItem) -> _Held:
        held = self._held.get(_key(item))
        if held is not None and held.item is item and held.place is not None:
            return held
        by = item.in_progress_by
        if by is not None:
            raise AlreadyInProgress(item.id, by)
        state = str(item.state)
        if item.state.is_pending:
            state = "not waiting" if item.left is None else str(item.left.why)
        raise AlreadyDecided(item.id, state)

    @contextmanager
    def _deciding(self, item: InboxItem, why: Departure, reason: str = "") -> Generator[_Held]:
        held = self._check_waits(item)
        held.ours = ItemLeft(item, why, self._space.me, reason)
        self._place(held)
        try:
            yield held
        except BaseException:
            self._undecide(held)
            raise

    def _undecide(self, held: _Held) -> None:
        """Forget our own decision: what the space says of the proposal counts."""
        held.ours = None
        if self._held.get(held.entry.key) is held:
            self._look(held.entry)

    def _why_not(self, item: InboxItem, verb: Verb) -> str:
        if verb is Verb.APPROVE and item.target is None:
            return f"proposal {item.id} does not say who should carry it out"
        if verb is Verb.APPROVE and item.target not in self._feed.roster:
            return f"proposal {item.id} is for {item.target!r}, who is not here"
        return f"proposal {item.id}: our capabilities do not allow to {verb} it"

    # --- what changes ---

    def put(self, envelope: Envelope) -> None:
        """Look at what an envelope may have changed."""
        if envelope.kind == kinds.SYSTEM_WELCOME:
            self._look_at_all()
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            participant = read_participant(envelope.payload_object.get("participant"))
            if participant is not None:
                self._look_at_those_for(participant.id)
        else:
            for entry in self._feed.concerned(envelope):
                self._look(entry)

    def _look_at_all(self) -> None:
        """Begin anew with what we may: a welcome says that, and who is here."""
        self._may_reject = self._space.may(kinds.MCP_REJECT, {"reason": str(Reason.DISAGREE)})
        for held in self._held.values():
            held.offers = None
        for entry in self._feed.records():
            self._look(entry)

    def _look_at_those_for(self, participant: str) -> None:
        for held in list(self._held.values()):
            if held.item.target == participant:
                self._look(held.entry)

    async def _watch_time(self) -> None:
        while True:
            await anyio.sleep(LOOK_SECONDS)
            now = datetime.now(UTC).timestamp()
            until = bisect_left(self._order, (now, 0), key=lambda each: each[0])
            for _, item in self._order[:until]:
                held = self._held.get(_key(item))
                if held is not None:
                    self._look(held.entry)

    def _look(self, entry: ProposalEntry) -> None:
        """Bring the inbox up to date with one proposal."""
        record, held = ProposalRecord(entry), self._held.get(entry.key)
        if held is not None and held.entry is not entry:
            self._drop(held, ItemLeft(held.item, Departure.REPLACED, entry.key.proposer))
            held = None
        if not record.state.is_pending:
            self._history.note(past_of(record), len(entry.envelope.raw_payload))
            if held is not None:
                self._drop(held, departure_of(held.item, record))
            return
        if held is None:
            if not self._is_for_us(entry, record):
                return
            held = self._hold(entry, record)
        if held is not None:
            self._place(held)

    def _is_for_us(self, entry: ProposalEntry, record: ProposalRecord) -> bool:
        me = self._space.me
        # Another proposer had the id first: no decision can mean this one for certain.
        if entry.copied or record.proposer == me:
            return False
        return (not record.to or me in record.to) and bool(self._offers(entry.call))

    def _hold(self, entry: ProposalEntry, record: ProposalRecord) -> _Held | None:
        proposer = entry.key.proposer
        count = self._of.get(proposer, 0)
        if len(self._held) >= MAX_ITEMS or count >= MAX_OF_A_PROPOSER:
            self.left_out += 1
            return None
        self._of[proposer] = count + 1
        self._numbers += 1
        item = InboxItem(self, record, self._feed.now)
        held = self._held[entry.key] = _Held(item, entry, self._numbers)
        self._feed.hold(entry)
        return held

    def _offers(self, call: payloads.Call) -> frozenset[Verb]:
        """The decisions that our capabilities allow, whoever is here."""
        found = {Verb.REJECT} if self._may_reject else set[Verb]()
        if self._space.may(kinds.MCP_REQUEST, payloads.request(call.method, call.params, "")):
            found.add(Verb.APPROVE)
        return frozenset(found)

    def _place(self, held: _Held) -> None:
        """Put an item where it belongs, and tell of it."""
        item, offers = held.item, held.offers
        if offers is None:
            offers = held.offers = self._offers(item.call)
        away = held.ours or self._away(item, offers)
        if away is not None:
            if held.place is not None:
                self._remove(held)
                item.left = away
                self._readers.tell(away)
            return
        target = item.target
        # What is sent to who is not here would wait, and perhaps run long after.
        is_here = target is not None and (target in self._feed.roster or target == self._space.me)
        may = offers if is_here else offers - {Verb.APPROVE}
        deadline = item.deadline
        place = (float("inf") if deadline is None else deadline.timestamp(), held.number)
        changed = may != item.may or place != held.place
        item.may = may
        if held.place is None:
            item.left = None
            self._insert(held, place)
            self._readers.tell(ItemArrived(item))
        elif changed:
            self._remove(held)
            self._insert(held, place)
            self._readers.tell(ItemChanged(item))

    def _away(self, item: InboxItem, offers: frozenset[Verb]) -> ItemLeft | None:
        """The departure of a pending proposal that does not wait for us; ``None``: it does."""
        by = item.in_progress_by
        if by is not None:
            return ItemLeft(item, Departure.APPROVED, by)
        mine = next((each for each in item.rejections if each.by == self._space.me), None)
        if mine is not None:
            return ItemLeft(item, Departure.REJECTED, mine.by, mine.reason)
        return None if offers else ItemLeft(item, Departure.NOT_OURS)

    def _insert(self, held: _Held, place: tuple[float, int]) -> None:
        held.place = place
        insort(self._order, (place, held.item), key=lambda each: each[0])

    def _remove(self, held: _Held) -> None:
        if held.place is not None:
            at = bisect_left(self._order, held.place, key=lambda each: each[0])
            del self._order[at]
            held.place = None

    def _drop(self, held: _Held, left: ItemLeft) -> None:
        was_waiting = held.place is not None
        self._remove(held)
        del self._held[held.entry.key]
        self._feed.release(held.entry)
        proposer = held.entry.key.proposer
        self._of[proposer] -= 1
        if not self._of[proposer]:
            del self._of[proposer]
        if was_waiting:
            held.item.left = left
            self._readers.tell(left)

    # --- what items ask ---

    def similar(self, item: InboxItem) -> SimilarCall | None:
        """The last decided proposal of the same tool."""
        return self._history.similar(item.call)

    def record(self, item: InboxItem) -> ProposerRecord:
        """The endings of the last proposals of an item's proposer."""
        return self._history.record(item.proposer)

    def tool_facts(self, item: InboxItem) -> ToolFacts | None:
        """The tool as its participant describes it."""
        del item
        return None

    def danger(self, item: InboxItem) -> tuple[str, ...]:
        """Reasons to look twice before approving."""
        del item
        return ()


def _key(item: InboxItem) -> ProposalKey:
    return ProposalKey(item.proposer, item.id)


def past_of(record: ProposalRecord) -> PastProposal:
    """A decided proposal as the history keeps it."""
    call = payloads.read_proposal(record.envelope.payload)
    left = ending_of(record)
    return PastProposal(record.id, record.proposer, call, *left)


def ending_of(record: ProposalRecord) -> tuple[ProposalState, str, str]:
    """The state, the participant and the reason that a decided proposal ended with.

    A proposer that takes a rejection for an answer withdraws without a reason of its own, and one
    whose time is over with ``timeout`` (PROTOCOL 4.5, 4.12).
    """
    state, by, reason = record.state, record.decided_by or "", record.reason or ""
    if state is ProposalState.WITHDRAWN:
        if reason == Reason.NO_LONGER_NEEDED and record.rejections:
            last = record.rejections[-1]
            return ProposalState.REJECTED, last.by, last.reason
        if reason == Reason.TIMEOUT:
            return ProposalState.EXPIRED, "", ""
    return state, by, reason


_DEPARTURES: Final = {
    ProposalState.FULFILLED: Departure.APPROVED,
    ProposalState.REJECTED: Departure.REJECTED,
    ProposalState.WITHDRAWN: Departure.WITHDRAWN,
    ProposalState.EXPIRED: Departure.EXPIRED,
}


def departure_of(item: InboxItem, record: ProposalRecord) -> ItemLeft:
    """The departure of an item whose proposal was decided."""
    state, by, reason = ending_of(record)
    return ItemLeft(item, _DEPARTURES[state], by, reason)
