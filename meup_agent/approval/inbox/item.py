"""Records of an inbox: a proposal that waits for a person, its marks, and what changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from meup_agent.approval.inbox.listing import ending_of
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.payloads import read_proposal
from meup_agent.protocol.wire.shown_text import remarks
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from meup_agent.approval.inbox.listing import ProposerRecord, SimilarCall
    from meup_agent.approval.reviewer.told_rules import InboxRule
    from meup_agent.approval.reviewer.tool_directory import ToolFacts
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.errors import MeupError
    from meup_agent.protocol.wire.outcomes import Fulfillment, Rejection
    from meup_agent.protocol.wire.payloads import Call


# --- marks of a call ---
# Characters in it that hide or deceive, in words.

MAX_MARKED_CHARS: Final = 20_000
"""Characters of a call that are looked through for look-alikes, a value as one more; a longer one
is called long."""


def marked_in(call: Call) -> Iterator[str]:
    """Characters of a call that hide or deceive, in words."""
    if call.target is not None:
        yield from (f"its target has {each}" for each in remarks(call.target, is_name=True))
    yield from (f"its tool has {each}" for each in remarks(call.name, is_name=True))
    found: dict[str, None] = {}
    left = MAX_MARKED_CHARS
    for name, text in _texts(payloads.without_meta(call.params)):
        for each in remarks(name[: max(left, 0)], is_name=True):
            found.setdefault(f"the name of an argument has {each}")
        left -= len(name)
        for each in remarks(_without_line_ends(text[: max(left, 0)])):
            found.setdefault(f"its arguments have {each}")
        # A value without characters counts, too: a list may have millions of them.
        left -= len(text) + 1
        if left < 0:
            break
    yield from found
    if left < 0:
        yield "it is long"


def _without_line_ends(text: str) -> str:
    # Lines and columns are shown as such.
    return text.replace("\r\n", "\n").replace("\n", " ").replace("\t", " ")


def _texts(value: object) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value, with the name that it has in its object, while it is read."""
    pending: list[Iterator[tuple[str, object]]] = [iter([("", value)])]
    while pending:
        found = next(pending[-1], None)
        if found is None:
            pending.pop()
            continue
        name, each = found
        yield name, each if isinstance(each, str) else ""
        if isinstance(each, dict):
            members: dict[str, object] = each  # pyright: ignore[reportUnknownVariableType]
            pending.append(iter(members.items()))
        elif isinstance(each, list):
            items: list[object] = each  # pyright: ignore[reportUnknownVariableType]
            # Its name was looked at with the list.
            pending.append(("", item) for item in items)


# --- records of an inbox ---


class Verb(StrEnum):
    """The decisions that a participant may be offered."""

    APPROVE = "approve"  # fulfill it
    VOTE = "vote"
    REJECT = "reject"


class InboxView(Protocol):
    """The parts of an inbox that its items ask."""

    def similar(self, item: InboxItem) -> SimilarCall | None: ...

    def record(self, item: InboxItem) -> ProposerRecord:
        """The endings of the proposer's last proposals."""
        ...

    def danger(self, item: InboxItem) -> tuple[str, ...]:
        """Reasons to look twice."""
        ...

    def time_of_day(self) -> datetime:
        """The time by which proposals expire."""
        ...

    def tool_facts(self, item: InboxItem) -> ToolFacts | None:
        """The tool as its participant describes it."""
        ...


class InboxItem:
    """A proposal that waits for a decision of ours; its properties go on being true.

    Attributes:
        envelope: The proposal as it came.
        call: The call that is proposed, which is what an approval carries out.
        target: The participant that should carry it out, where the proposer said so.
        may: The decisions that are offered now.
        rule: The rule that asks; ``None``: none is known.
        arrived_at: When we saw it first, in seconds of the loop's clock.
        left: Why it has left the inbox; ``None`` while it is in it.
    """

    __slots__ = (
        *("_marks", "_record", "_view"),
        *("arrived_at", "call", "envelope", "left", "may", "rule", "target"),
    )

    def __init__(self, view: InboxView, record: ProposalRecord, arrived_at: float) -> None:
        self._view = view
        self._record = record
        self.envelope = record.envelope
        self.call = read_proposal(record.envelope.payload)
        # Whoever comes or leaves is looked for among the targets of thousands.
        self.target = self.call.target
        self.arrived_at = arrived_at
        self.may: frozenset[Verb] = frozenset()
        self.rule: InboxRule | None = None
        self.left: ItemLeft | None = None
        self._marks: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        """The id, the proposer and the tool."""
        return f"<InboxItem {self.id} of {self.proposer!r}: {self.tool!r}>"

    @property
    def id(self) -> str:
        """The proposal's id, unique for its proposer alone."""
        return self.envelope.id

    @property
    def proposer(self) -> str:
        """The participant that proposes it."""
        return self.envelope.sender

    @property
    def client(self) -> str:
        """The program that the proposer serves, as that names itself; empty: none is told."""
        return self.call.client

    @property
    def key(self) -> ProposalKey:
        """Its name, which its id alone is not."""
        return ProposalKey(self.proposer, self.id)

    @property
    def method(self) -> str:
        """The MCP method, usually ``tools/call``."""
        return self.call.method

    @property
    def tool(self) -> str:
        """The tool's name; empty for other methods."""
        return self.call.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as they were proposed; not to be changed."""
        return self.call.arguments

    @property
    def state(self) -> ProposalState:
        """The proposal's state now."""
        return self._record.state

    @property
    def in_progress_by(self) -> str | None:
        """The participant whose fulfilling request is out."""
        return self._record.in_progress_by

    @property
    def asks_permit(self) -> bool:
        """True if its proposer runs the call itself once it may (PROTOCOL 4.20)."""
        return self.call.asks_permit(self.proposer)

    @property
    def takes_edits(self) -> bool:
        """True unless its proposer runs the call itself, and as it is alone (PROTOCOL 4.20)."""
        door = self.call.door if self.asks_permit else None
        return door is None or door.get("edits") is not False

    @property
    def cancelled_by(self) -> tuple[str, ...]:
        """Participants that approved it before, and whose request was cancelled, perhaps midway."""
        return self._record.cancelled_by

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """Rejections of others so far; it waits all the same."""
        return self._record.rejections

    @property
    def told(self) -> Mapping[str, str]:
        """Last words of each participant that considers or queues it, or whose handler failed."""
        return self._record.told

    @property
    def marks(self) -> tuple[str, ...]:
        """Characters of its call that hide or deceive, in words."""
        # Once: the row of each of fifty in a queue asks whether there are any.
        if self._marks is None:
            self._marks = tuple(marked_in(self.call))
        return self._marks

    @property
    def deadline(self) -> datetime | None:
        """The moment until which it waits, the proposer's or the rule's; ``None``: none is said."""
        ends = [self._record.expires_at, None if self.rule is None else self.rule.deadline]
        return min((each for each in ends if each is not None), default=None)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until its deadline, below 0 after it; ``None``: it has none."""
        deadline = self.deadline
        return None if deadline is None else (deadline - self._view.time_of_day()).total_seconds()

    @property
    def takes_word(self) -> bool:
        """True if who approves it types a word, as its rule says."""
        return self.rule is not None and self.rule.takes_word

    @property
    def votes(self) -> Mapping[str, str]:
        """The votes so far, ``approve`` or ``reject`` by participant."""
        return {} if self.rule is None else self.rule.votes

    @property
    def similar(self) -> SimilarCall | None:
        """The last decided proposal of the same tool, and what this one has otherwise."""
        return self._view.similar(self)

    @property
    def record(self) -> ProposerRecord:
        """The endings of the last ten proposals of its proposer."""
        return self._view.record(self)

    @property
    def tool_facts(self) -> ToolFacts | None:
        """The tool as its participant describes it; ``None`` where that is not known."""
        return self._view.tool_facts(self)

    @property
    def form(self) -> str:
        """Digest of its tool's form, as it is shown now, where nobody has accepted that."""
        facts = self.tool_facts
        return "" if facts is None else facts.form

    @property
    def danger(self) -> tuple[str, ...]:
        """Reasons to look twice before approving, in words; none: it is as any other."""
        return self._view.danger(self)


class ApprovalOutcome(msgspec.Struct, frozen=True):
    """The outcome of one approval among several.

    Attributes:
        item: The proposal.
        fulfillment: What came of it; ``None``: it was a vote, or it failed.
        error: Why it failed; ``None``: it did not.
    """

    item: InboxItem
    fulfillment: Fulfillment | None = None
    error: MeupError | None = None


class Departure(StrEnum):
    """The ways in which a proposal leaves an inbox."""

    APPROVED = "approved"  # its fulfillment is on its way, or done
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"
    REPLACED = "replaced"  # its proposer made another one under its id
    NOT_OURS = "not ours any more"  # our capabilities were changed


class ItemArrived(msgspec.Struct, frozen=True):
    """A proposal waits for us."""

    item: InboxItem


class ItemLeft(msgspec.Struct, frozen=True):
    """A proposal waits for us no longer.

    Attributes:
        item: The proposal.
        why: The way in which it left.
        by: The participant that decided it; empty where none did.
        reason: The reason code that came with that, if any.
    """

    item: InboxItem
    why: Departure
    by: str = ""
    reason: str = ""

    @property
    def words(self) -> str:
        """The departure in words, with text of strangers in it: ``withdrawn by bob: timeout``."""
        by = f" by {self.by}" if self.by else ""
        reason = f": {self.reason}" if self.reason else ""
        return f"{self.why}{by}{reason}"


class ItemChanged(msgspec.Struct, frozen=True):
    """Something about a proposal that waits has changed: its rule, a vote, what is offered."""

    item: InboxItem


class InboxRenewed(msgspec.Struct, frozen=True):
    """So much has changed that a reader does best to look at all items anew."""


InboxChange = ItemArrived | ItemLeft | ItemChanged | InboxRenewed
"""A change of an inbox."""


def departure_of(item: InboxItem, record: ProposalRecord) -> ItemLeft:
    state, by, reason = ending_of(record)
    is_approved = state in (ProposalState.FULFILLED, ProposalState.PERMITTED)
    return ItemLeft(item, Departure.APPROVED if is_approved else Departure(state), by, reason)


# --- inbox changes ---
# Changes of an inbox, for readers that may be slower than the space.

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
