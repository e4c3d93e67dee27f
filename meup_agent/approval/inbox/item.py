"""Items of an inbox: a proposal that waits for a person, with its marks, its past and its likes."""

from __future__ import annotations

import json
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

import anyio
import msgspec

from meup_agent.errors import MeupError, printable
from meup_agent.protocol.exchange import ProposalEntry, ProposalKey
from meup_agent.protocol.proposals import ProposalState
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.payloads import (
    Call,
    Change,
    changes,
    is_list,
    is_object,
    is_same_json,
    read_proposal,
)
from meup_agent.protocol.wire.shown_text import remarks
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from meup_agent.approval.reviewer.methods import InboxRule, ToolFacts
    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.protocol.wire.outcomes import Fulfillment, Rejection


# --- history of decided proposals ---
# How a proposer's last ones ended, and the last similar call.

LAST: Final = 10
"""Endings that are kept of a proposer."""

MAX_PROPOSERS: Final = 1_000
"""Proposers whose endings are kept; those that were heard of longest ago go first."""

MAX_CALLS: Final = 1_000
"""Calls that are kept to compare others with: one of each tool of each participant."""

MAX_CALL_CHARS: Final = 64 * 1024
"""Characters of such a call; a larger one is compared with nothing."""


class DecidedItem(msgspec.Struct, frozen=True):
    """A proposal that was decided.

    Attributes:
        id: Its id.
        proposer: Its proposer.
        call: The call that was proposed.
        state: ``fulfilled``, ``rejected``, ``withdrawn`` or ``expired``; ``permitted`` until its
            outcome is reported.
        by: The participant that decided it.
        reason: The reason code that came with that, if any.
        failed: It was fulfilled, and its answer is an error, or the report of its permit says
            that it failed or did not run.
    """

    id: str
    proposer: str
    call: Call
    state: ProposalState
    by: str = ""
    reason: str = ""
    failed: bool = False


def past_of(record: ProposalRecord) -> DecidedItem:
    """A decided proposal as the history keeps it."""
    call = read_proposal(record.envelope.payload)
    return DecidedItem(
        record.id, record.proposer, call, *ending_of(record), failed=record.has_failed
    )


def ending_of(record: ProposalRecord) -> tuple[ProposalState, str, str]:
    """The end of a decided proposal, with who decided it and for which reason."""
    return record.state, record.decided_by or "", record.reason or ""


class SimilarCall(msgspec.Struct, frozen=True):
    """The last proposal of the same tool of the same participant, and what differs from it.

    Attributes:
        past: That proposal, and how it ended.
        changes: What the new one has otherwise; empty: it is the same call.
    """

    past: DecidedItem
    changes: tuple[Change, ...]


class ProposerRecord(msgspec.Struct, frozen=True):
    """The endings of the last proposals of one proposer.

    Attributes:
        endings: The latest first, ten at the most.
    """

    endings: tuple[DecidedItem, ...] = ()

    @property
    def counts(self) -> dict[ProposalState, int]:
        """The endings by state, the most frequent first."""
        return dict(Counter(each.state for each in self.endings).most_common())

    @property
    def failed(self) -> int:
        """The number of those that were fulfilled, and failed."""
        return sum(each.failed for each in self.endings)


class DecisionHistory:
    """The latest decided proposals, by proposer and by tool."""

    def __init__(self) -> None:
        self._endings: OrderedDict[str, deque[DecidedItem]] = OrderedDict()
        self._calls: OrderedDict[tuple[str | None, str, str], DecidedItem] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, past: DecidedItem, size: int | None = None) -> None:
        """Remember a decided proposal; the same one once, and of a permit also what came of it.

        Args:
            past: The proposal; later ones are noted later.
            size: Characters that its arguments take; ``None``: they are counted.
        """
        key = (past.proposer, past.id)
        if key in self._seen:
            self._note_outcome(past)
            return
        keep_last(self._seen, key, None, MAX_PROPOSERS * LAST)
        # Its arguments are kept once, to compare with, and not for each ending.
        call = Call(past.call.method, {"name": past.call.name} if past.call.name else {})
        endings = self._endings.get(past.proposer, deque(maxlen=LAST))
        endings.append(msgspec.structs.replace(past, call=call))
        keep_last(self._endings, past.proposer, endings, MAX_PROPOSERS)
        if (_size_of(past.call) if size is None else size) <= MAX_CALL_CHARS:
            keep_last(self._calls, _tool_of(past.call), past, MAX_CALLS)

    def _note_outcome(self, past: DecidedItem) -> None:
        """Note what came of a permit that is remembered."""
        endings, tool = self._endings.get(past.proposer, deque[DecidedItem]()), _tool_of(past.call)
        for at, each in enumerate(endings):
            if each.id == past.id and each.state is ProposalState.PERMITTED:
                endings[at] = msgspec.structs.replace(past, call=each.call)
        last = self._calls.get(tool)
        if last is not None and (last.proposer, last.id) == (past.proposer, past.id):
            self._calls[tool] = past

    def note_before(self, past: Iterable[DecidedItem]) -> None:
        """Remember proposals that were decided before all that are remembered, and read later."""
        older = DecisionHistory()
        for each in past:
            if (each.proposer, each.id) in self._seen:
                self._note_outcome(each)
            else:
                older.note(each)
        for proposer, latest in self._endings.items():
            endings = older._endings.get(proposer, deque(maxlen=LAST))
            endings.extend(latest)
            keep_last(older._endings, proposer, endings, MAX_PROPOSERS)
        for tool, call in self._calls.items():
            keep_last(older._calls, tool, call, MAX_CALLS)
        for key in self._seen:
            keep_last(older._seen, key, None, MAX_PROPOSERS * LAST)
        self._endings, self._calls, self._seen = older._endings, older._calls, older._seen

    def record(self, proposer: str) -> ProposerRecord:
        return ProposerRecord(tuple(reversed(self._endings.get(proposer, ()))))

    def similar(self, call: Call) -> SimilarCall | None:
        """The last decided proposal of the same tool; ``None`` if none is known."""
        past = self._calls.get(_tool_of(call))
        return None if past is None else SimilarCall(past, changes(past.call, call, call.target))


def _tool_of(call: Call) -> tuple[str | None, str, str]:
    return call.target, call.method, call.name


def _size_of(call: Call) -> int:
    try:
        return len(msgspec.json.encode(call.params))
    except RecursionError:
        return MAX_CALL_CHARS + 1


# --- listing of an inbox ---

log = logging.getLogger("meup_agent.approval")

MAX_AT_FIRST: Final = 64
"""Proposals that are listed when an inbox opens, before it is drawn: more than a screen shows."""

MAX_AWAITED: Final = 100
"""Open proposals up to which an inbox waits for all of them, and for what was decided lately."""

MAX_AT_A_TURN: Final = 40
"""Proposals that are listed in one turn of the loop: a few milliseconds."""

FIRST_SECONDS: Final = 5.0
"""Wait for the first page; the inbox is shown without it then."""

SCREEN_SECONDS: Final = 0.25
"""Pause before the rest, in which the first screen is drawn."""

TURN_SECONDS: Final = 0.02
"""Pause between turns, so that a screen is drawn meanwhile also where the machine is busy."""

TELL_EVERY: Final = 1_000
"""Proposals that are listed until readers are told."""


async def pause_for_screen() -> None:
    """Wait as long as a first screen is drawn."""
    await anyio.sleep(SCREEN_SECONDS)


class InboxListing:
    """Reads what the gateway lists, and hands it to an inbox.

    Args:
        feed: The proposals of the session.
        update_item: Lists an open one, of which no reader is told by itself.
        note_past: Takes those that were decided, in the order of their decisions.
        told: Called after every thousand, and at the end.
        until_drawn: Waits until the first screen is drawn.
    """

    def __init__(
        self,
        feed: ProposalFeed,
        update_item: Callable[[ProposalEntry], None],
        note_past: Callable[[Iterable[DecidedItem]], None],
        told: Callable[[], None],
        until_drawn: Callable[[], Awaitable[None]],
    ) -> None:
        self._feed = feed
        self._update_item = update_item
        self._note_past = note_past
        self._told = told
        self._until_drawn = until_drawn
        # Listed ones are kept from being forgotten: a vote may be asked for later.
        self._kept: dict[ProposalKey, ProposalEntry] = {}
        self._again = Condition()
        self._wanted, self._read = 1, 0  # how often all of it was asked for, and listed
        self.left = self.omitted = 0
        """Open proposals that are not listed yet, and those of which the gateway cannot tell."""

    @property
    def is_complete(self) -> bool:
        """True once all of it is listed."""
        return self._read == self._wanted

    async def read_first(self) -> None:
        """List the most urgent ones; of few proposals all, and what was decided lately."""
        with anyio.move_on_after(FIRST_SECONDS):
            try:
                await self._read_open(ProposalQuery(to_me=True, urgent=True, limit=MAX_AT_FIRST))
                if self.left <= MAX_AWAITED:
                    await self._read_rest(0.0)
            except MeupError as error:
                log.warning("what was proposed before is not listed: %s", printable(str(error)))

    async def run(self) -> None:
        """List the rest, and all of it anew when :meth:`read_again` asks for it."""
        while True:
            while not self.is_complete:
                await self._until_drawn()
                wanted = self._wanted
                try:
                    await self._read_rest(TURN_SECONDS)
                except MeupError as error:
                    log.warning("the rest is not listed: %s", printable(str(error)))
                self.left, self._read = 0, wanted
                self._told()
            await self._again.wait()

    def read_again(self) -> None:
        """List all of it anew: a connection was lost, or we may do something else."""
        self._wanted += 1
        self._again.notify_all()

    def release(self) -> None:
        """Let what is listed be forgotten in its time."""
        while self._kept:
            self._feed.release(self._kept.popitem()[1])

    async def _read_rest(self, pause: float) -> None:
        wanted, past = self._wanted, list[DecidedItem]()
        for key, entry in tuple(self._kept.items()):
            if not entry.state.is_pending:
                self._feed.release(self._kept.pop(key))
        async with aclosing(self._feed.list_pages(ProposalQuery("decided"))) as pages:
            async for page in pages:
                past.extend(map(past_of, page.records))
        self._note_past(past)
        await self._read_open(ProposalQuery(limit=MAX_AT_A_TURN), pause)
        for entry in self._feed.pending():
            if entry.key not in self._kept:
                self._list(entry.key)  # heard, and too large to be listed
        self._read = wanted

    async def _read_open(self, query: ProposalQuery, pause: float = 0.0) -> None:
        listed = omitted = 0
        async with aclosing(self._feed.list_pages(query)) as pages:
            async for page in pages:
                for record in page.records:
                    self._list(ProposalKey(record.proposer, record.id))
                omitted += page.omitted
                before, listed = listed, listed + len(page.records)
                if before // TELL_EVERY < listed // TELL_EVERY:
                    self._told()
                self.left = page.left
                await anyio.sleep(pause)
        self.omitted = omitted

    def _list(self, key: ProposalKey) -> None:
        entry = self._feed.get(key)
        if entry is None:
            return
        known = self._kept.get(key)
        if known is not entry:
            if known is not None:
                self._feed.release(known)
            self._feed.hold(entry)
            self._kept[key] = entry
        self._update_item(entry)


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
        if is_object(each):
            pending.append(iter(each.items()))
        elif is_list(each):
            # Its name was looked at with the list.
            pending.append(("", item) for item in each)


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


MAX_TOGETHER: Final = 50
"""Calls that are shown at once, and decided together."""

MAX_DIFFERING: Final = 3
"""Arguments that a row tells."""

MAX_VALUE: Final = 60
"""Characters of a value in a row; the card has all of it."""


class QueueRow(NamedTuple):
    """A call in a queue.

    Attributes:
        item: The call.
        of: Calls of its group, at the first of them; 0 at the others.
        differs: The names and the beginnings of the values that the others have otherwise; of a
            call that is alone, its first ones.
        is_same: The others of its group have the same arguments.
    """

    item: InboxItem
    of: int
    differs: tuple[tuple[str, str], ...]
    is_same: bool = False


def group_of(item: InboxItem) -> tuple[str, ...]:
    """The tool and the proposer of a call: of those in one group they are the same."""
    return (item.proposer, item.client, item.target or "", item.method, item.tool)


def queue_rows(items: Sequence[InboxItem]) -> list[QueueRow]:
    """The rows of the calls at the head of a queue, those of a group one after the other."""
    groups: dict[tuple[str, ...], list[InboxItem]] = {}
    for each in items:
        groups.setdefault(group_of(each), []).append(each)
    return [row for group in groups.values() for row in _rows_of(group)]


def _rows_of(group: list[InboxItem]) -> Iterable[QueueRow]:
    # A large call is told by none of its arguments: it would be compared at each change.
    told = {each: None for each in group if len(each.envelope.raw_payload) <= MAX_CALL_CHARS}
    names = dict.fromkeys(name for each in told for name in each.arguments)
    differing = [name for name in names if _differs(name, [*told])]
    for place, each in enumerate(group):
        of = 0 if place else len(group)
        if each not in told:
            yield QueueRow(each, of, ())
            continue
        shown = [name for name in (differing if len(told) > 1 else names) if name in each.arguments]
        values = tuple((name, _beginning(each.arguments[name])) for name in shown[:MAX_DIFFERING])
        yield QueueRow(each, of, values, len(told) > 1 and not differing)


def _differs(name: str, group: list[InboxItem]) -> bool:
    first = group[0].arguments
    return any(
        name not in each.arguments
        or name not in first
        or not is_same_json(first[name], each.arguments[name])
        for each in group
    )


def _beginning(value: object) -> str:
    """The beginning of a value: a text as it is, anything else as JSON."""
    if not isinstance(value, str):
        # As much as is told of it: a list may have thousands of values.
        value = "".join(islice(_JSON.iterencode(value), MAX_VALUE))
    return value if len(value) <= MAX_VALUE else value[: MAX_VALUE - 2] + " …"


_JSON: Final = json.JSONEncoder(ensure_ascii=False)


def why_alone(item: InboxItem) -> str:
    """The reason for which a call is not approved together with others; empty: it is."""
    if Verb.VOTE in item.may:
        return "a rule counts votes about it"
    if Verb.APPROVE not in item.may:
        return "it cannot be approved here now"
    if item.danger:
        return f"it is marked as dangerous: {item.danger[0]}"
    if item.takes_word:
        return "its rule asks for a typed word"
    facts = item.tool_facts
    if facts is not None and facts.mark is not None:
        return "its tool has changed since it was accepted"
    return ""
