"""Listing of an inbox: what was open before it, and the history of decided proposals.

The gateway lists both. Of ten thousand open proposals the first page shows fifty: so the rest is
read in turns, and each turn takes a few milliseconds.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, TypeVar

import anyio
import msgspec

from meup_agent.errors import MeupError, printable
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.wire.membership import ProposalQuery
from meup_agent.protocol.wire.payloads import Call, Change, changes, read_proposal
from meup_agent.transport.base import Condition

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meup_agent.client.proposal import ProposalRecord
    from meup_agent.client.proposal_feed import ProposalFeed
    from meup_agent.protocol.exchange import ProposalEntry


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


K = TypeVar("K")
V = TypeVar("V")


class DecidedItem(msgspec.Struct, frozen=True):
    """A proposal that was decided.

    Attributes:
        id: Its id.
        proposer: Its proposer.
        call: The call that was proposed.
        state: ``fulfilled``, ``rejected``, ``withdrawn`` or ``expired``.
        by: The participant that decided it.
        reason: The reason code that came with that, if any.
    """

    id: str
    proposer: str
    call: Call
    state: ProposalState
    by: str = ""
    reason: str = ""


def past_of(record: ProposalRecord) -> DecidedItem:
    """A decided proposal as the history keeps it."""
    call = read_proposal(record.envelope.payload)
    return DecidedItem(record.id, record.proposer, call, *ending_of(record))


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


class DecisionHistory:
    """The latest decided proposals, by proposer and by tool."""

    def __init__(self) -> None:
        self._endings: OrderedDict[str, deque[DecidedItem]] = OrderedDict()
        self._calls: OrderedDict[tuple[str | None, str, str], DecidedItem] = OrderedDict()
        self._seen: OrderedDict[tuple[str, str], None] = OrderedDict()

    def note(self, past: DecidedItem, size: int | None = None) -> None:
        """Remember a decided proposal; the same one only once.

        Args:
            past: The proposal; later ones are noted later.
            size: Characters that its arguments take; ``None``: they are counted.
        """
        key = (past.proposer, past.id)
        if key in self._seen:
            return
        _keep(self._seen, key, None, MAX_PROPOSERS * LAST)
        # Its arguments are kept once, to compare with, and not for each ending.
        call = Call(past.call.method, {"name": past.call.name} if past.call.name else {})
        endings = self._endings.get(past.proposer, deque(maxlen=LAST))
        endings.append(msgspec.structs.replace(past, call=call))
        _keep(self._endings, past.proposer, endings, MAX_PROPOSERS)
        if (_size_of(past.call) if size is None else size) <= MAX_CALL_CHARS:
            _keep(self._calls, _tool_of(past.call), past, MAX_CALLS)

    def note_before(self, past: Iterable[DecidedItem]) -> None:
        """Remember proposals that were decided before all that are remembered, and read later."""
        older = DecisionHistory()
        for each in past:
            if (each.proposer, each.id) not in self._seen:
                older.note(each)
        for proposer, latest in self._endings.items():
            endings = older._endings.get(proposer, deque(maxlen=LAST))
            endings.extend(latest)
            _keep(older._endings, proposer, endings, MAX_PROPOSERS)
        for tool, call in self._calls.items():
            _keep(older._calls, tool, call, MAX_CALLS)
        for key in self._seen:
            _keep(older._seen, key, None, MAX_PROPOSERS * LAST)
        self._endings, self._calls, self._seen = older._endings, older._calls, older._seen

    def record(self, proposer: str) -> ProposerRecord:
        return ProposerRecord(tuple(reversed(self._endings.get(proposer, ()))))

    def similar(self, call: Call) -> SimilarCall | None:
        """The last decided proposal of the same tool; ``None`` if none is known."""
        past = self._calls.get(_tool_of(call))
        return None if past is None else SimilarCall(past, changes(past.call, call, call.target))


def _tool_of(call: Call) -> tuple[str | None, str, str]:
    return call.target, call.method, call.name


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Keep a value as the latest; of more than so many the oldest is forgotten."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


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
