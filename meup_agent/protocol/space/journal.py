"""The journal: every accepted envelope of a gateway in order, and what must outlive a restart.

Resume reads from it and the audit folds it (PROTOCOL 6). Here is the contract, on which a space
depends, and the engine for a space in memory; other engines are in ``meup_agent.gateway.journal``.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from meup_agent.protocol.proposals import UNPERMITTED, ProposalState
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct
from meup_agent.protocol.wire.payloads import JsonObject

MAX_SEARCHED: Final = 100_000
"""Decisions that one question looks through, newest first; a page says where it stopped, and the
next question goes on there. So none holds up other readers for longer than a fraction of a
second."""

MAX_PERMITS: Final = 10_000
"""Permits whose report is waited for; of more, the oldest stay as they are."""

MAX_UNPERMITTED: Final = 1_000
"""Calls without a permit of which it is noted that they ran; of more, not of the oldest."""

MAX_KEPT_TEXT: Final = 200
"""Characters of a rule's name and of a reason that a row keeps; a decider writes them."""


class ProposalChange(NamedTuple):
    """A proposal that an envelope begins, gives more time, or ends; as the space decided it."""

    proposer: str
    id: str
    tool: str  # the tool (or prompt) that it calls; empty: its method has none
    expires_at: int | None  # its deadline, in microseconds since 1970 (UTC)
    # Its last state, where it has ended; pending then: it was forgotten, and not decided.
    state: ProposalState = ProposalState.PENDING
    begins: bool = False
    ended: bool = False
    at: int = 0  # the time of this change, in microseconds since 1970 (UTC)
    # Of one that has ended: the participant that decided it, its reason code, and the rule that it
    # named; empty: none. ``failed``: it was fulfilled, by an answer that is an error, or its call
    # ran without a permit.
    by: str = ""
    reason: str = ""
    rule: str = ""
    failed: bool = False


class DecisionRow(NamedTuple):
    """A proposal, as the table has it; times are in microseconds since 1970 (UTC)."""

    seq: int
    space: str
    proposer: str
    id: str
    tool: str
    proposed_at: int
    # The time at which it ended; while it is open, its deadline; ``None``: it has none.
    ends_at: int | None
    # ``pending`` also where a request is out, or its time is over: what tells that is the time.
    # ``permitted`` until its outcome is reported.
    state: str
    decided: int | None = None  # the number of the entry that ended it
    by: str = ""
    reason: str = ""
    rule: str = ""
    failed: int = 0  # 1: it was fulfilled, by an answer that is an error, or ran without a permit

    @property
    def ran_anyway(self) -> bool:
        """True if its call ran, though no permit was given."""
        return bool(self.failed) and self.state in UNPERMITTED

    @property
    def waited(self) -> int:
        """Microseconds from the proposal to its end."""
        return max((self.ends_at or self.proposed_at) - self.proposed_at, 0)


class DecisionFollower:
    """Makes the rows of what entries change; follows what is open."""

    def __init__(self, rows: Iterable[DecisionRow] = ()) -> None:
        self._open = dict[tuple[str, str, str], DecisionRow]()
        # Those that wait for their reports, the oldest first.
        self._permits = dict[tuple[str, str, str], DecisionRow]()
        # Those that got none, and may be reported to have run.
        self._unpermitted = dict[tuple[str, str, str], DecisionRow]()
        for row in rows:
            waiting = self._permits if row.state == ProposalState.PERMITTED else self._open
            waiting[row.space, row.proposer, row.id] = row

    def follow(
        self, number: int, space: str, changes: Iterable[ProposalChange]
    ) -> list[DecisionRow]:
        """The rows that the entry with a number changes."""
        rows, opened = list[DecisionRow](), self._open
        for each in changes:
            key = (space, each.proposer, each.id)
            if each.begins:
                row = opened[key] = DecisionRow(
                    number, *key, each.tool, each.at, each.expires_at, each.state
                )
                rows.append(row)
                continue
            permitted = None if key in opened else self._permits.pop(key, None)
            if permitted is not None and each.state is ProposalState.FULFILLED:
                rows.append(permitted._replace(state=each.state, failed=int(each.failed)))
            if each.ended and key not in opened and key in self._unpermitted:
                rows.append(self._unpermitted.pop(key)._replace(failed=int(each.failed)))
            known = opened.get(key)
            if known is None:
                continue
            if not each.ended:
                row = opened[key] = known._replace(ends_at=each.expires_at)
                rows.append(row)
                continue
            del opened[key]
            if not each.state.is_pending:  # else it was forgotten, or its id is used again
                decided = None if each.state is ProposalState.EXPIRED else number
                row = known._replace(
                    ends_at=each.at,
                    state=each.state,
                    decided=decided,
                    by=each.by,
                    reason=each.reason[:MAX_KEPT_TEXT],
                    rule=each.rule[:MAX_KEPT_TEXT],
                    failed=int(each.failed),
                )
                rows.append(row)
                if each.state is ProposalState.PERMITTED:
                    _keep(self._permits, key, row, MAX_PERMITS)
                elif each.state in UNPERMITTED:
                    _keep(self._unpermitted, key, row, MAX_UNPERMITTED)
        return rows


def _keep(
    kept: dict[tuple[str, str, str], DecisionRow],
    key: tuple[str, str, str],
    row: DecisionRow,
    count: int,
) -> None:
    """Keep a row as the latest, and at most so many."""
    kept.pop(key, None)
    kept[key] = row
    if len(kept) > count:
        del kept[next(iter(kept))]


SORT_KEYS: Final[dict[str, Callable[[DecisionRow], int | str]]] = {
    "when": lambda row: row.ends_at or 0,
    "tool": lambda row: row.tool,
    "proposer": lambda row: row.proposer,
    "state": lambda row: row.state,
    "by": lambda row: row.by,
    "rule": lambda row: row.rule,
    "waited": lambda row: row.waited,
}
"""The columns by which decisions are sorted."""


class HistoryQuery(NamedTuple):
    """Selects decided and expired proposals of a space, newest first unless it says otherwise."""

    until: int  # a time in microseconds since 1970 (UTC): only what had ended by then
    # The numbers of those that are open still, though their deadline was before that.
    still_open: frozenset[int] = frozenset()
    text: str = ""  # is somewhere in tool, proposer, decider, rule, reason or id; case is ignored
    states: frozenset[ProposalState] = frozenset()  # one of these; empty: any
    tool: str = ""
    proposer: str = ""
    by: str = ""
    after: int = -1  # only what ended after this time
    sort: str = "when"
    ascending: bool = False
    skip: int = 0  # so many of those that are found
    limit: int = 50

    def takes(self, row: DecisionRow) -> bool:
        """True for a row that has ended, and is selected; its state must be the real one."""
        return (
            (not self.states or row.state in self.states)
            and self.tool in ("", row.tool)
            and self.proposer in ("", row.proposer)
            and self.by in ("", row.by)
            and (not self.text or _lower(self.text) in _lower(_searched(row)))
        )


class HistoryPage(NamedTuple):
    """Decided and expired proposals."""

    rows: tuple[DecisionRow, ...] = ()
    more: bool = False  # more were found than the page has
    # Nothing that ended before this time was looked through; ``None``: all was.
    searched_to: int | None = None


def _searched(row: DecisionRow) -> str:
    return "\n".join((row.tool, row.proposer, row.by, row.rule, row.reason, row.id))


def _lower(text: str) -> bytes:
    # As SQLite does it: the letters of ASCII alone.
    return text.encode(errors="surrogatepass").lower()


def select_decisions(rows: Iterable[DecisionRow], query: HistoryQuery) -> HistoryPage:
    """The page of a query, from rows in any order."""
    ended = [each for row in rows if (each := _as_ended(row, query)) is not None]
    ended.sort(key=lambda row: (row.ends_at or 0, row.seq), reverse=True)
    looked_through: Sequence[DecisionRow] = ended[:MAX_SEARCHED]
    found = [row for row in looked_through if query.takes(row)]
    if (query.sort, query.ascending) != ("when", False):
        found.sort(key=SORT_KEYS[query.sort], reverse=not query.ascending)
    page = tuple(islice(found, query.skip, query.skip + query.limit))
    is_all = len(looked_through) == len(ended)
    last = None if is_all else looked_through[-1].ends_at
    return HistoryPage(page, len(found) > query.skip + query.limit, last)


def _as_ended(row: DecisionRow, query: HistoryQuery) -> DecisionRow | None:
    """A row with its state at the time of a query; ``None``: it is open, or not of that time."""
    if row.ends_at is None or not query.after < row.ends_at <= query.until:
        return None
    if row.state != ProposalState.PENDING:
        return row
    return None if row.seq in query.still_open else row._replace(state=ProposalState.EXPIRED)


# --- the journal ---

MAX_ENTRIES: Final = 100_000
"""Envelopes that a journal in memory keeps, over all spaces; the oldest is dropped first."""

MAX_BYTES: Final = 64 * 1024 * 1024
"""Bytes of the same."""

ENTRY_BYTES: Final = 600
"""Memory of an entry besides its frame, as a round figure."""

MAX_DECISIONS: Final = 20_000
"""Rows of the table of decisions that a journal in memory keeps, over all spaces; the oldest
proposal goes first."""

MAX_SEQ: Final = 2**63 - 1
"""The largest number of an entry."""

FACT_GROWTH: Final = 8
"""Memory of facts, as a multiple of the payload that they were read from: objects, not text."""

MAX_PAGE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames that are read at a time; a single larger one is."""


class Fact(NamedTuple):
    """A statement that holds in a space until another fact of the same key replaces it."""

    key: str  # for example ``grant/<id>``
    value: JsonObject | None  # a JSON object; ``None``: it does not hold any more


V = TypeVar("V")


def facts_under(facts: Mapping[str, V], prefix: str) -> Iterator[tuple[str, V]]:
    for key, value in facts.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), value


class Entry(FrozenStruct, gc=False):
    """An accepted envelope, and the facts that it made hold."""

    seq: int  # its number: grows in its space, also over restarts of the gateway
    space: str
    at: int  # the time of the decision, in microseconds since 1970 (UTC), by the gateway's clock
    envelope: Envelope  # with the frame as it came, if a member sent it
    facts: tuple[Fact, ...] = ()


class DecisionTable:
    """The table of decisions of an engine that has it in memory, the latest alone."""

    def __init__(self, rows: Iterable[DecisionRow] = ()) -> None:
        self.rows = {row.seq: row for row in rows}

    def put(self, rows: Iterable[DecisionRow]) -> None:
        """Take in rows as they are from now on."""
        for row in rows:
            self.rows[row.seq] = row
        while len(self.rows) > MAX_DECISIONS:
            del self.rows[next(iter(self.rows))]

    def find(self, space: str, query: HistoryQuery) -> HistoryPage:
        return select_decisions((row for row in self.rows.values() if row.space == space), query)


class NumberRange(NamedTuple):
    """Numbers that follow each other."""

    first: int
    last: int


class FoldBegin(NamedTuple):
    """The start of the fold of a space's latest proposals."""

    after: int = 0  # they were made after this number
    older: tuple[Entry, ...] = ()  # what was said before about proposals that may be pending


class Recovered(NamedTuple):
    """The contents of a journal about a space when its gateway starts."""

    facts: dict[str, JsonObject]
    entries: tuple[Entry, ...]  # the latest, oldest first
    # Those before them about what is open. They are read one by one, once: strangers can say any
    # amount about one proposal.
    older: Iterable[Entry] = ()


class Journal(Protocol):
    """A store of accepted envelopes, which gives them their order and their numbers.

    An envelope is delivered when the journal says that it is kept, and never before. A store on
    another machine says so later, and gives the number then: so the number comes with the entry,
    and nothing depends on knowing it earlier.

    All callbacks run on the loop that the journal was opened on, or in the call itself. Those of
    :meth:`append` and :meth:`call_when_kept` come in the order of the calls.

    Two more tell how the store is; the gateway that opens a journal sets them:
    """

    # Called with ``True`` when more waits to be kept than should: nothing more is to be read from
    # senders, and what they have sent may still be appended. Called with ``False`` when there is
    # room again.
    on_full: Callable[[bool], None]
    # Called once, with one sentence, when nothing can be kept any more. No other callback comes
    # after it: what was not kept was not accepted.
    on_failed: Callable[[str], None]

    @property
    def max_bytes(self) -> int | None:
        """Bytes beyond which it forgets the oldest entries; ``None``: it keeps all."""
        ...

    @property
    def max_frame_bytes(self) -> int | None:
        """Bytes of the largest frame that it takes; ``None``: it takes any."""
        return None

    @property
    def problem(self) -> str:
        """The reason for which what is appended now waits, while that lasts; empty: it does not."""
        return ""

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        """Keep an envelope and, all or nothing, the facts that it makes hold, and its changes.

        ``at`` is the time of the decision about it, and the entry's: no clock is asked again.
        ``changes`` are for the table of decisions; a store without one may ignore them.
        """

    def call_when_kept(self, then: Callable[[], None]) -> None:
        """Call when everything that was appended before is kept."""

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        """Hand over the entries of a space with ``after < seq <= until``, oldest first.

        At most ``limit``, and fewer where they are more than :data:`MAX_PAGE_BYTES`.
        """

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        """Find the start of the fold of so many latest proposals, without reading the entries."""

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        """Find decided and expired proposals in the table of decisions, without reading entries.

        A store without such a table finds none.
        """

    def find_chain(
        self, space: str, number: int, then: Callable[[tuple[Entry, ...]], None]
    ) -> None:
        """Find what was said about the proposal with a number, in order.

        None: it is not kept, or is too much, or the store cannot tell it from all the rest.
        """
        then(())

    def seen(self, space: str, participant: str) -> int:
        """The time up to which a participant has seen what expired; 0: it has not looked yet."""
        ...

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        """Note that a participant has seen what had expired at a time; it never goes back.

        It is kept as far as the store keeps anything; a crash may lose the last ones.
        """

    def floor(self, space: str) -> int:
        """The number behind which every entry of the space can be read, but for damage.

        It grows as the store forgets the oldest. In a space without entries it is the start's.
        """
        ...

    def latest(self, space: str) -> int:
        """The last number that the store gave in a space; where there is none, that of the start.

        At least that of the last entry that was handed to a callback of :meth:`append`.
        """
        ...

    def resume_from(self, space: str, seen: int) -> int:
        """The number after which a reader that has seen up to ``seen`` continues.

        ``seen`` itself, if nothing behind it is missing; else a later one, and there is a gap. A
        number that the store never gave is answered by the floor.
        """
        ...

    def damaged(self, space: str, *, after: int, until: int) -> tuple[NumberRange, ...]:
        """The numbers with ``after < seq <= until`` whose entries damage took, the oldest first.

        Which space they were of is not known any more, so they are named in each.
        """
        return ()

    def size(self) -> int | None:
        """Bytes that the entries of all spaces take; ``None`` where the store does not say."""
        ...

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        """Read a space's facts and its latest entries since a time, at the start; may block.

        Before these, what was said about older proposals whose deadline is not over at ``open_at``.
        Both times are in microseconds since 1970 (UTC); ``None``: no older proposals.
        """
        ...

    async def flush(self, timeout: float) -> None:
        """Wait until everything that was appended is kept and its callbacks ran, or cannot be."""

    async def aclose(self) -> None:
        """Keep what waits, and release the store; harmless where it was closed before."""

    def abandon(self) -> None:
        """End at once, as a killed process does: what is not kept is lost; nothing is called."""


def ignore(_: object) -> None:
    """A callback of a caller that does not want to be told."""


class MemoryJournal(Journal):
    """A ring: as many of the latest envelopes as there is room for, and gone with the process."""

    def __init__(
        self,
        clock: Callable[[], int],
        *,
        max_entries: int = MAX_ENTRIES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        # A ring is never full and cannot fail.
        self.on_full: Callable[[bool], None] = ignore
        self.on_failed: Callable[[str], None] = ignore
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._start = self._seq = clock()
        self._rings: dict[str, _Ring] = {}
        # In the order of all spaces, to know whose entry is the oldest.
        self._order: deque[_Ring] = deque()
        self._bytes = 0
        self._facts: dict[str, dict[str, JsonObject]] = {}
        self._proposals = DecisionFollower()
        self._decisions = DecisionTable()
        self._seen: dict[tuple[str, str], int] = {}

    def append(
        self,
        space: str,
        at: int,
        envelope: Envelope,
        facts: tuple[Fact, ...],
        then: Callable[[Entry], None],
        changes: tuple[ProposalChange, ...] = (),
    ) -> None:
        """See :meth:`Journal.append`; it is kept when the call returns."""
        self._seq = seq = self._seq + 1
        entry = Entry(seq, space, at, envelope, facts)
        ring = self._rings.get(space)
        if ring is None:
            ring = self._rings[space] = _Ring(self._start)
        ring.append(entry)
        self._order.append(ring)
        self._bytes += _size(entry)
        while len(self._order) > self._max_entries or self._bytes > self._max_bytes:
            self._bytes -= _size(self._order.popleft().drop_oldest())
        for key, value in facts:
            held = self._facts.setdefault(space, {})
            if value is None:
                held.pop(key, None)
            else:
                held[key] = value
        if changes:
            self._decisions.put(self._proposals.follow(seq, space, changes))
        then(entry)

    @property
    def max_bytes(self) -> int:
        """See :attr:`Journal.max_bytes`."""
        return self._max_bytes

    def call_when_kept(self, then: Callable[[], None]) -> None:
        then()

    def read(
        self,
        space: str,
        *,
        after: int,
        until: int,
        limit: int,
        then: Callable[[tuple[Entry, ...]], None],
    ) -> None:
        ring = self._rings.get(space)
        then(() if ring is None else ring.between(after, until, limit))

    def find_begin(self, space: str, *, proposals: int, then: Callable[[FoldBegin], None]) -> None:
        """See :meth:`Journal.find_begin`; all that it has is folded in a moment."""
        then(FoldBegin())

    def find_decisions(
        self, space: str, query: HistoryQuery, then: Callable[[HistoryPage], None]
    ) -> None:
        """See :meth:`Journal.find_decisions`."""
        then(self._decisions.find(space, query))

    def seen(self, space: str, participant: str) -> int:
        """See :meth:`Journal.seen`."""
        return self._seen.get((space, participant), 0)

    def mark_seen(self, space: str, participant: str, at: int) -> None:
        """See :meth:`Journal.mark_seen`."""
        self._seen[space, participant] = max(at, self.seen(space, participant))

    def floor(self, space: str) -> int:
        ring = self._rings.get(space)
        return self._start if ring is None else ring.floor

    def size(self) -> int | None:
        """See :meth:`Journal.size`; the bytes of its frames."""
        return self._bytes

    def latest(self, space: str) -> int:
        ring = self._rings.get(space)
        return self._start if ring is None else ring.latest

    def resume_from(self, space: str, seen: int) -> int:
        floor = self.floor(space)
        return seen if floor <= seen <= self.latest(space) else floor

    def recover(
        self, space: str, *, since: int, limit: int, open_at: int | None = None
    ) -> Recovered:
        """See :meth:`Journal.recover`; nothing outlives the process."""
        ring = self._rings.get(space)
        everything = len(self._order), float("inf")
        entries = () if ring is None else ring.between(0, ring.latest, *everything)
        lately = [entry for entry in entries if entry.at >= since]
        latest = tuple(lately[max(0, len(lately) - limit) :])
        return Recovered(dict(self._facts.get(space, {})), latest)

    async def flush(self, timeout: float) -> None:
        """See :meth:`Journal.flush`; nothing ever waits here."""

    async def aclose(self) -> None:
        """See :meth:`Journal.aclose`."""

    def abandon(self) -> None:
        """See :meth:`Journal.abandon`."""


_GONE: Final = Entry(0, "", 0, Envelope(id="", sender="", kind=""))
"""In the place of an entry that was dropped, and whose frame is let go at once."""


class _Ring:
    """The entries of a space, by number: a page in the middle is found without a walk to it."""

    def __init__(self, floor: int) -> None:
        self.floor = self.latest = floor
        self._entries: list[Entry] = []
        # So many at the beginning have been dropped: moving all the others up each time is slow.
        self._dropped = 0

    def append(self, entry: Entry) -> None:
        self._entries.append(entry)
        self.latest = entry.seq

    def drop_oldest(self) -> Entry:
        entry = self._entries[self._dropped]
        self._entries[self._dropped] = _GONE
        self._dropped += 1
        self.floor = entry.seq
        if self._dropped * 2 > len(self._entries):
            del self._entries[: self._dropped]
            self._dropped = 0
        return entry

    def between(
        self, after: int, until: int, limit: int, max_bytes: float = MAX_PAGE_BYTES
    ) -> tuple[Entry, ...]:
        entries = self._entries
        begin = bisect_right(entries, after, self._dropped, key=_seq)
        end = min(bisect_right(entries, until, begin, key=_seq), begin + limit)
        size, at = 0, begin
        while at < end and size < max_bytes:
            size += len(entries[at].envelope.frame)
            at += 1
        return tuple(entries[begin:at])


def _seq(entry: Entry) -> int:
    return entry.seq


def _size(entry: Entry) -> int:
    envelope = entry.envelope
    size = ENTRY_BYTES + len(envelope.frame) + len(envelope.raw_payload)
    if entry.facts:
        size += len(entry.facts) * ENTRY_BYTES + FACT_GROWTH * len(envelope.raw_payload)
    return size


# --- marks ---
# Findings of a decision that its envelope does not say, kept with the entry alone.
#
# A mark is a fact without a value: none holds afterwards, and a state that is folded from the
# journal reads it with the entry. So it takes effect there as it did when it was decided.

_MARK: Final = "mark/"

BESIDE_MARK: Final = Fact(f"{_MARK}beside", None)
"""Its sender said it beside its connection, as over HTTP: it ends with no process of theirs."""

LOCAL_MARK: Final = Fact(f"{_MARK}local", None)
"""Its sender is a session in the gateway's own process, and ends with that."""

_CROWDED: Final = f"{_MARK}crowded"
_ANSWERS: Final = f"{_MARK}answers/"


def crowded_mark(gone_until: int | None) -> Fact:
    """The mark of a proposal for which the abandoned ones of its sender made room.

    With the time until which processes of its sender ran that are gone for good, if any: no entry
    tells of a restart, at which everybody leaves.
    """
    return Fact(_CROWDED if gone_until is None else f"{_CROWDED}/{gone_until}", None)


def rooms_made_in(facts: tuple[Fact, ...]) -> Iterator[int | None]:
    """The times of :func:`crowded_mark`, where there is one."""
    for key, _ in facts:
        if key.startswith(_CROWDED):
            _, _, gone_until = key.removeprefix(_CROWDED).partition("/")
            yield int(gone_until) if gone_until else None


def answer_mark(proposal: Envelope) -> Fact:
    """The mark of a response that decided a proposal by itself (PROTOCOL 2)."""
    return Fact(_ANSWERS + json.dumps([proposal.sender, proposal.id]), None)


def answers_in(facts: tuple[Fact, ...]) -> Iterator[tuple[str, str]]:
    """The proposer and id of each proposal that a response decided by itself."""
    for key, _ in facts:
        if key.startswith(_ANSWERS):
            proposer, proposal = json.loads(key.removeprefix(_ANSWERS))
            yield proposer, proposal


def without_marks(facts: tuple[Fact, ...]) -> tuple[Fact, ...]:
    """The facts that begin or end to hold."""
    return tuple([each for each in facts if not each.key.startswith(_MARK)])
