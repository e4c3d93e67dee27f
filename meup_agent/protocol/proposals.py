"""The fold of proposals, from the envelopes about them to their states.

A record has all that is known of one proposal, a store keeps records by proposer and id, and
:func:`~meup_agent.protocol.proposals.resolve` finds the one that an envelope means.
The exchange table of an agent and the audit fold by it. The gateway's space folds in ``space``, by
the lifecycle, the withdrawals and the deadlines that stand here. Nothing here sends, starts,
or checks a capability.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from meup_agent.causes import MAX_REASON_CHARS, Cause, Reason, declines, read_reason
from meup_agent.errors import IllegalStep
from meup_agent.protocol.dialects import Addressees, choose_executors
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import CLOCK_DIFFERENCE, MICROSECOND, Envelope
from meup_agent.protocol.wire.outcomes import (
    FailedFulfillment,
    PermitReport,
    Rejection,
    read_report,
)
from meup_agent.protocol.wire.payloads import (
    META,
    REFUSED,
    REJECTED_BY,
    Call,
    JsonObject,
    as_object,
    changes,
    read_call,
    read_proposal,
)
from meup_agent.protocol.wire.ttl_map import FairTTLMap, PerSenderTTLMap, Tombstones, size_of

# --- lifecycle ---


class ProposalState(StrEnum):
    """The state of a proposal; *in progress* is pending with a fulfilling request on its way."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    PERMITTED = "permitted"
    """Its proposer runs the call itself, and has not said yet what came of it (PROTOCOL 4.20)."""
    FULFILLED = "fulfilled"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"
    EXPIRED = "expired"

    @property
    def is_pending(self) -> bool:
        """True if it can still be decided."""
        return self is ProposalState.PENDING or self is ProposalState.IN_PROGRESS


class ProposalEvent(StrEnum):
    """The events of a proposal."""

    REQUEST = "request"  # a fulfilling request is out
    REQUEST_CANCELLED = "request_cancelled"
    """The last fulfilling request that was out has been cancelled by its sender."""
    RESPONSE = "response"
    PERMIT = "permit"  # the response by which a door takes its permit (PROTOCOL 4.20)
    TAKEN = "taken"  # its word that the program that asked has come back for that
    REPORT = "report"  # its word on what came of that
    REJECTION = "rejection"  # a rejection that counts (PROTOCOL 4.5)
    WITHDRAWAL = "withdrawal"
    EXPIRY = "expiry"


_P, _PE = ProposalState, ProposalEvent

PROPOSAL: Final[Mapping[tuple[ProposalState, ProposalEvent], ProposalState]] = {
    (_P.PENDING, _PE.REQUEST): _P.IN_PROGRESS,
    # The cancel of the fulfilling request crossed its response: it was carried out all the same.
    (_P.PENDING, _PE.RESPONSE): _P.FULFILLED,
    (_P.PENDING, _PE.PERMIT): _P.PERMITTED,
    (_P.PENDING, _PE.REJECTION): _P.REJECTED,
    (_P.PENDING, _PE.WITHDRAWAL): _P.WITHDRAWN,
    (_P.PENDING, _PE.EXPIRY): _P.EXPIRED,
    (_P.IN_PROGRESS, _PE.REQUEST): _P.IN_PROGRESS,
    (_P.IN_PROGRESS, _PE.REQUEST_CANCELLED): _P.PENDING,
    (_P.IN_PROGRESS, _PE.RESPONSE): _P.FULFILLED,
    (_P.IN_PROGRESS, _PE.PERMIT): _P.PERMITTED,
    (_P.IN_PROGRESS, _PE.WITHDRAWAL): _P.WITHDRAWN,
    (_P.IN_PROGRESS, _PE.EXPIRY): _P.EXPIRED,
    (_P.PERMITTED, _PE.TAKEN): _P.PERMITTED,
    # Nothing else ends a permit: what runs, runs.
    (_P.PERMITTED, _PE.REPORT): _P.FULFILLED,
}
"""PROTOCOL 4.2. Steps go one way; only the mark *in progress* can be lost again."""


UNPERMITTED: Final = frozenset({_P.REJECTED, _P.WITHDRAWN, _P.EXPIRED})
"""States whose call should not have run; a report that it did is noted, and is no step (4.20)."""


def state_at(state: ProposalState, expires_at: int | None, at: int | None) -> ProposalState:
    """The state at a time of the gateway's clock; times are in microseconds since 1970.

    Without a request out, a proposal is expired once its time is over by more than two clocks may
    differ (PROTOCOL 4.2). One in progress does not expire: what was accepted in time completes.
    """
    if state is not ProposalState.PENDING or expires_at is None or at is None:
        return state
    return state if at <= last_moment(expires_at) else ProposalState.EXPIRED


def last_moment(expires_at: int) -> int:
    """The last moment at which a proposal with that deadline is open for some participant."""
    return expires_at + _CLOCK_DIFFERENCE


def first_moment(at: int) -> int:
    """The earliest deadline with which a proposal is open for some participant at a time."""
    return at - _CLOCK_DIFFERENCE


MAX_RENEWAL_SECONDS: Final = 7 * 24 * 3600.0
"""Time that a renewal may give from its acceptance on: an open proposal costs each reader."""

MAX_RENEWALS: Final = 1_000
"""Renewals of one proposal: each is kept in the journal, and read by every member."""


def renewal_problem(
    state: ProposalState, expires_at: int | None, until: int, at: int | None, renewals: int
) -> str:
    """The reason why a proposal gets no more time; empty: it does (PROTOCOL 4.17).

    ``until`` is the time that its proposer asks for, ``at`` the gateway's at this moment, both in
    microseconds since 1970, and ``renewals`` how often it was renewed before.
    """
    now = state_at(state, expires_at, at)
    if not now.is_pending:
        return f"it is {now}"
    if expires_at is None:
        return "it has no deadline that could be later"
    if until <= expires_at:
        return "its deadline is as late already; a renewal takes no time away"
    if at is not None and until > at + round(MAX_RENEWAL_SECONDS * 1_000_000) + _CLOCK_DIFFERENCE:
        return f"a renewal gives at most {MAX_RENEWAL_SECONDS:.0f} s"
    if renewals >= MAX_RENEWALS:
        return f"it was renewed {MAX_RENEWALS} times"
    return ""


_CLOCK_DIFFERENCE: Final = CLOCK_DIFFERENCE // MICROSECOND


S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
R = TypeVar("R")


def look_up(table: Mapping[tuple[S, E], R], state: S, event: E, what: str) -> R:
    """The entry of a table for a state and an event; IllegalStep if it has none."""
    try:
        return table[state, event]
    except KeyError:
        raise IllegalStep(f"{what} that is {state} has no step for {event}") from None


# --- deadlines ---
# The deadlines of proposals, for every reader that lets them expire.


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

    def __init__(self, is_open: Callable[[P], bool]) -> None:
        self._is_open = is_open
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
        if len(self._heap) > self._most:
            self._sort_out()
        self._added += 1
        heappush(self._heap, (last_moment(item.expires_at), self._added, item))

    def _sort_out(self) -> None:
        """Drop those that have ended, once they may be most of all."""
        # One that was renewed or waits again stands here more than once.
        kept = {id(item): item for _, _, item in self._heap if self._is_open(item)}
        self._heap, self._most = [], SPARE_DEADLINES + 2 * len(kept)
        for item in kept.values():
            self.add(item)

    def pop_due(self, at: int) -> Iterator[P]:
        """Remove the proposals whose last moment is before a time."""
        while self._heap and self._heap[0][0] < at:
            yield heappop(self._heap)[2]


MAX_TOLD: Final = 8
"""Participants whose words about a proposal that waits are kept; they are for people."""

MAX_TOLD_CHARS: Final = 200
"""Characters kept of each one's words."""

MAX_REJECTIONS: Final = 1024
"""Rejections that are kept for one proposal: one a participant, and spaces are smaller."""

EARLY_EXPIRY_SECONDS: Final = 1.0
"""Time before its deadline from which a withdraw with ``timeout`` is an expiry: a proposer's timer
and the gateway's clock differ by that after a night."""

_EARLY_MICROSECONDS: Final = round(EARLY_EXPIRY_SECONDS * 1_000_000)


class ProposalKey(NamedTuple):
    """The name of a proposal: two proposers may use the same id."""

    proposer: str
    id: str


def fingerprint_of(envelope: Envelope) -> int:
    """A hash that tells a repeated envelope from another: some peers count ids anew each start."""
    return hash(
        (envelope.ts, envelope.kind, envelope.to, envelope.correlation, envelope.raw_payload)
    )


def names_of(request: Envelope, call: Call) -> frozenset[str]:
    """The ids that a cancel of a request may use: its JSON-RPC id, or its envelope's (4.8)."""
    rpc_name = call.rpc_name
    return frozenset((request.id,) if rpc_name is None else (request.id, rpc_name))


class FulfillingRequest(msgspec.Struct):
    """A request that carries a proposal out."""

    envelope: Envelope
    # The participants that are to carry it out, and may answer; empty: each that has the tool.
    executors: tuple[str, ...] = ()
    live: bool = True  # neither answered nor cancelled yet
    taken_up: bool = False  # we, as the executor, have taken it up
    running: bool = False  # a handler of ours is queued or runs for it
    carried_out: bool = False  # we, as the executor, have answered it
    unattended: bool = False  # its sender was not present, as over HTTP
    early: bool = False  # it came before the proposal, and is not entered with any
    refused_by: frozenset[str] = frozenset()  # those of its executors that refused it
    names: frozenset[str] = frozenset()  # its :func:`names_of`

    def __post_init__(self) -> None:
        # Once, and not for each envelope that may be about it.
        if not self.names:
            self.names = names_of(self.envelope, read_call(self.envelope.payload))

    @property
    def by(self) -> str:
        return self.envelope.sender

    def may_answer(self, sender: str) -> bool:
        """True if a response counts: the executor's, or the fulfiller's relay (PROTOCOL 5)."""
        return not self.executors or sender in self.executors or sender == self.by

    @property
    def was_refused(self) -> bool:
        return bool(self.executors) and self.refused_by.issuperset(self.executors)

    @property
    def may_go(self) -> bool:
        """True if it can be forgotten: it ended, and we did not carry it out."""
        return not (self.live or self.running or self.carried_out)


class NotedReason(Protocol):
    """A rejection, as it is kept."""

    @property
    def reason(self) -> str: ...


N = TypeVar("N", bound=NotedReason)


class ProposalProgress(msgspec.Struct, Generic[N], kw_only=True):
    """The state of a proposal, with its rejections and its deadline."""

    state: ProposalState = ProposalState.PENDING
    # The first rejection of each participant, in order.
    rejections: dict[str, N] = {}
    rejected_first: int = 0  # how many of these came before the request that is out
    # The time at which its proposer gives it up, in microseconds since 1970 (UTC), as far as said.
    expires_at: int | None = None
    renewals: int = 0  # how often that was moved
    decided_by: str | None = None  # the participant that brought it to its final state
    reason: str | None = None  # the reason code that came with that, if any
    # The last words of each participant that considers or queues it (PROTOCOL 4.9).
    told: dict[str, str] | None = None
    is_watched: bool = False  # its call runs whatever is said of it (PROTOCOL 4.20)

    @property
    def deciders(self) -> tuple[str, ...]:
        """The participants that decide it; empty: all that may."""
        raise NotImplementedError

    @property
    def proposer(self) -> str:
        raise NotImplementedError

    def step(self, event: ProposalEvent, by: str, reason: str | None = None) -> bool:
        """Take a step of the lifecycle; ``False`` if it has none for this event."""
        following = PROPOSAL.get((self.state, event))
        if following is not None:
            self._move(following, by, reason)
        return following is not None

    def note_told(self, by: str, words: str) -> bool:
        """Keep words of a participant that considers it; ``False``: they are not kept, or old."""
        told, words = self.told or {}, words[:MAX_TOLD_CHARS]
        has_room = by in told or len(told) < MAX_TOLD
        if not words or not has_room or told.get(by) == words:
            return False
        self.told = {**told, by: words}
        return True

    def _move(self, following: ProposalState, by: str, reason: str | None) -> None:
        if self.state is ProposalState.PENDING:
            self.rejected_first = len(self.rejections)
        self.state = following
        if not following.is_pending:
            self.decided_by, self.reason = by, reason

    def state_at(self, at: int | None) -> ProposalState:
        """Its state at a time: without a request out it expires (PROTOCOL 4.2)."""
        return state_at(self.state, self.expires_at, at)

    def expire(self, at: int | None) -> None:
        """Step it, if it has expired at a time of the gateway's clock."""
        if self.state_at(at) is not self.state:
            self.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)

    @property
    def _counted(self) -> Sequence[str]:
        """The participants whose rejection may have ended the wait: no later one counts (4.4)."""
        rejected_by = tuple(self.rejections)
        in_progress = self.state is ProposalState.IN_PROGRESS
        return rejected_by[: self.rejected_first] if in_progress else rejected_by

    @property
    def inferred_rejection(self) -> str:
        """The participant whose rejection a withdraw without a reason of its own follows.

        By default the first rejection of an addressee ends the wait, and the last one of a
        broadcast proposal. The wait for one that is in progress ends by no rejection but an earlier
        one of an addressee. Empty: none does.
        """
        if self.deciders:
            return next((name for name in self._counted if name in self.deciders), "")
        if self.state is ProposalState.IN_PROGRESS or not self.rejections:
            return ""
        return self._counted[-1]

    def _find_rejection(self, payload: JsonObject) -> str:
        """The participant whose rejection a withdraw follows, told or inferred; empty: none."""
        if self.is_watched:
            return ""
        meta = as_object(payload.get(META))
        if REJECTED_BY not in meta:
            return self.inferred_rejection
        return next((name for name in self._counted if name == meta[REJECTED_BY]), "")

    def withdrawn(self, payload: JsonObject, at: int | None, said_by: str = "") -> bool:
        """Note a withdraw of its proposer; ``False`` if it is no longer pending (PROTOCOL 4.2).

        On the wire a proposer says one thing, whatever ended its wait: a withdraw with a reason.
        The exchange tables, the gateway and the audit read it by this one function. ``at`` is the
        gateway's time, in microseconds since 1970, as far as it is known, and ``said_by`` the
        gateway where that withdrew it in the proposer's name.
        """
        if not self.state.is_pending:
            return False
        reason, by = read_reason(payload.get("reason")), said_by or self.proposer
        early = None if self.expires_at is None else self.expires_at - _EARLY_MICROSECONDS
        if reason == Reason.TIMEOUT and early is not None and at is not None and at >= early:
            self.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
        elif reason == Reason.NO_LONGER_NEEDED and (rejecter := self._find_rejection(payload)):
            if self.state is ProposalState.IN_PROGRESS:
                # The withdraw ends the request that crossed the rejection.
                self.step(ProposalEvent.REQUEST_CANCELLED, by, reason)
            self.step(ProposalEvent.REJECTION, rejecter, self.rejections[rejecter].reason)
        else:
            self.step(ProposalEvent.WITHDRAWAL, by, reason)
        return True

    def has_room_for(self, rejected_by: str) -> bool:
        """True for a participant whose first rejection this is, and that can be kept."""
        return rejected_by not in self.rejections and len(self.rejections) < MAX_REJECTIONS


class ProposalEntry(ProposalProgress[Rejection]):
    """The record of one proposal."""

    key: ProposalKey
    envelope: Envelope
    # Its :func:`fingerprint_of`, which tells it from another one under the same id.
    fingerprint: int
    # The requests that carry it out, in the gateway's order.
    fulfillments: list[FulfillingRequest] = []
    failed: FailedFulfillment | None = None  # the last of them that came to nothing
    # It was fulfilled, by an answer that is an error, or its permit's report says so.
    has_failed: bool = False
    # Exchanges and handlers of ours that are about it; while there are any, it is not forgotten.
    holders: int = 0
    # The participants whose handlers failed on it; no new process of theirs has joined since
    # (PROTOCOL 4.6).
    failed_handlers: frozenset[str] = frozenset()
    left_by: frozenset[str] = frozenset()  # and those that leave it to others
    handled: bool = False  # a handler of ours has begun on it
    refused: bool = False  # we have rejected it; without echoes ``rejections`` does not show that
    # The participants that have decided to reject it, we included: neither is a request of theirs
    # carried out, nor do they carry it out (PROTOCOL 4.4).
    declined_by: set[str] = set()
    copied: bool = False  # another proposer's proposal had the id already: no handler sees this one
    seen_at: float = 0.0
    # It has no number that we have read: its own may still come.
    unnumbered: bool = True
    # Ours, ended here by a rejection or its time: until our withdraw comes back, the gateway may
    # have ordered a result before it (PROTOCOL 4.13).
    unordered: bool = False
    size: int = 0  # bytes of the proposal alone, as they count against the room of all
    # Other proposals that its proposer made under this id before, latest first.
    earlier: tuple[ProposalEntry, ...] = ()
    report: PermitReport | None = None  # what came of the call that it was permitted
    # Its method and its tool, once they were asked for.
    named_call: tuple[str, str] | None = None

    @classmethod
    def of(cls, envelope: Envelope) -> ProposalEntry:
        """The record of a proposal that no participant has seen."""
        key = ProposalKey(envelope.sender, envelope.id)
        return cls(key, envelope, fingerprint_of(envelope))

    @property
    def proposer(self) -> str:
        return self.key.proposer

    @property
    def deciders(self) -> tuple[str, ...]:
        """The participants that decide it; empty: all that may."""
        return self.envelope.to

    @property
    def call(self) -> Call:
        return read_proposal(self.envelope.payload)

    @property
    def asks_permit(self) -> bool:
        """True if its proposer runs the call itself once it may (PROTOCOL 4.20)."""
        return self.call.asks_permit(self.key.proposer)

    @property
    def called(self) -> tuple[str, str]:
        """Its method and its tool (or prompt); a request that carries it out has the same."""
        if self.named_call is None:
            self.named_call = self.call.called
        return self.named_call

    @property
    def in_progress(self) -> FulfillingRequest | None:
        """The fulfilling request that is out; of several, the first in the gateway's order."""
        if self.state is not ProposalState.IN_PROGRESS:
            return None
        return next((item for item in self.fulfillments if item.live), None)

    @property
    def in_progress_by(self) -> str | None:
        """The sender of the fulfilling request that is out."""
        return None if self.in_progress is None else self.in_progress.by

    @property
    def cancelled_by(self) -> tuple[str, ...]:
        """While it is pending: the senders of cancelled requests, which may have begun before."""
        ended = (item for item in self.fulfillments if not item.live)
        return tuple(dict.fromkeys(item.by for item in ended if not item.was_refused))

    def fulfillment(self, by: str, request_id: str) -> FulfillingRequest | None:
        """A fulfilling request, by its sender and id."""
        return next(
            (
                item
                for item in self.fulfillments
                if item.by == by and item.envelope.id == request_id
            ),
            None,
        )

    def step(self, event: ProposalEvent, by: str, reason: str | None = None) -> bool:
        """Take a step of the lifecycle; ``False`` if it has none for this event."""
        if self.unordered and event in (ProposalEvent.RESPONSE, ProposalEvent.PERMIT):
            self._move(PROPOSAL[ProposalState.IN_PROGRESS, event], by, reason)
        elif not super().step(event, by, reason):
            return False
        self.unordered = False
        return True

    def reported(self, report: PermitReport) -> bool:
        """Note what came of a call; ``False``: it is not the time for that, or was told before."""
        ran_anyway = self.state in UNPERMITTED and report.has_run and self.asks_permit
        if self.report is not None and (self.report.is_end or not report.is_end):
            return False
        step = ProposalEvent.REPORT if report.is_end else ProposalEvent.TAKEN
        if not (ran_anyway or self.step(step, self.decided_by or "", self.reason)):
            return False
        self.report = report
        self.has_failed = self.state is ProposalState.FULFILLED and report.has_failed
        return True

    def rejected(self, by: str, reason: str, reject_id: str = "") -> Rejection | None:
        """Note a rejection; ``None`` if this participant has rejected it before."""
        if by not in self.rejections and not self.has_room_for(by):
            return None
        if declines(reason):
            self.declined_by.add(by)
        if by in self.rejections:
            return None
        noted = self.rejections[by] = Rejection(self.key.id, reason, by, reject_id)
        return noted


MAX_PROPOSALS = 4096
"""Proposals that are remembered: history for a person, and enough for everything in flight. The
proposer with most of them loses the oldest first, so that a flood of one does not make a decided
proposal of another unknown."""

MAX_PROPOSAL_BYTES = 64 * 1024 * 1024
"""Bytes of the proposals that are remembered, and of what fulfills them."""

PROPOSAL_SECONDS = 3600.0
"""Time for which a proposal is remembered."""

MAX_FULFILLMENTS = 64
"""Fulfilling requests that are kept for one proposal; the first wins, so few are ever of use."""

MAX_SAME_ID = 64
"""Proposals, or requests, of different senders that share one id."""

MAX_EARLIER = 8
"""Older proposals of the same proposer and id that are kept, to tell which one is meant."""

EARLY_SENDERS = 256
"""Senders of requests that were carried out before their proposal was seen."""

EARLY_A_SENDER = 1000
"""Such requests of one sender."""

EARLY_A_SENDER_BYTES = 256 * 1024
"""Bytes of them."""


class ProposalStore:
    """The proposals of a space, by proposer and id; bounded by count, age and size."""

    def __init__(
        self,
        *,
        count: int = MAX_PROPOSALS,
        seconds: float = PROPOSAL_SECONDS,
        size: int | None = MAX_PROPOSAL_BYTES,
    ) -> None:
        self._records: FairTTLMap[ProposalKey, ProposalEntry] = FairTTLMap(
            owner=lambda key: key.proposer,
            forgotten=self._leave_indexes,
            count=count,
            seconds=seconds,
            size=size,
            needed=lambda record: record.holders > 0,
            # It may be held for hours, and withdrawn meanwhile.
            lasts=lambda record: record.state.is_pending,
        )
        self._deadlines = DeadlineHeap(self._is_kept)
        # True until the next expiry has been looked at since a deadline was added.
        self.watches_more = False
        self._by_id: dict[str, tuple[ProposalKey, ...]] = {}
        self._by_request: dict[str, tuple[ProposalKey, ...]] = {}
        self._early: PerSenderTTLMap[str, tuple[FulfillingRequest, ...]] = PerSenderTTLMap(
            senders=EARLY_SENDERS,
            count=EARLY_A_SENDER,
            seconds=min(seconds, PROPOSAL_SECONDS),
            size=EARLY_A_SENDER_BYTES,
        )

    def add(
        self, envelope: Envelope, now: float, *, holders: int = 0, accepted: int | None = None
    ) -> ProposalEntry:
        """Enter a proposal, in place of an older one of the same proposer and id.

        ``accepted`` is the time of its acceptance, as the gateway's clock has it.
        """
        key = ProposalKey(envelope.sender, envelope.id)
        older = self._records.get(key, now)
        # Its first proposer keeps an id, also where it uses it again after it was copied.
        copied = bool(self.under(key.id, now)) if older is None else older.copied
        kept = envelope.replace()
        size = size_of(kept)
        record = ProposalEntry(
            key,
            kept,
            fingerprint_of(envelope),
            holders=holders,
            copied=copied,
            seen_at=now,
            expires_at=_expiry_of(envelope, accepted),
            size=size,
            is_watched=_is_watched(envelope),
        )
        if older is not None:
            # Of the same call made again a request need not say which time is meant.
            before = [each for each in (older, *older.earlier) if not _is_same(each, record)]
            record.earlier = tuple(before[:MAX_EARLIER])
            size += sum(each.size for each in record.earlier)
            older.earlier = ()
            self._leave_indexes(key, older)
            # It is decided: only a handler that runs still knows of what carried it out.
            older.fulfillments = []
        _enter(self._by_id, key.id, key)
        self._records.put(key, record, now, size=size)
        self._watch(record)
        return record

    def get(self, key: ProposalKey, now: float) -> ProposalEntry | None:
        return self._records.get(key, now)

    def under(self, exchange_id: str, now: float) -> list[ProposalEntry]:
        """The proposals with an id, of each proposer the latest; oldest first."""
        keys = self._by_id.get(exchange_id)
        if keys is None:
            return []
        return [record for key in keys if (record := self._records.get(key, now)) is not None]

    def knows_any(self, names: Sequence[str]) -> bool:
        is_disjoint = self._by_id.keys().isdisjoint(names)
        return not (is_disjoint and self._by_request.keys().isdisjoint(names))

    def records(self, now: float) -> list[ProposalEntry]:
        """Every proposal remembered, oldest first."""
        return list(self._records.values(now))

    def forget(self, key: ProposalKey) -> None:
        """Forget a proposal before its time."""
        record = self._records.pop(key)
        if record is not None:
            self._leave_indexes(key, record)

    def hold(self, record: ProposalEntry) -> None:
        """Keep a proposal, in room of its own, until it is released as often: a person decides."""
        record.holders += 1
        self._records.widen(1, record.size)

    def release(self, record: ProposalEntry) -> None:
        """Let a proposal that was held be forgotten in its time."""
        record.holders -= 1
        self._records.widen(-1, -record.size)

    def _leave_indexes(self, key: ProposalKey, record: ProposalEntry) -> None:
        _leave(self._by_id, key.id, key)
        for fulfillment in record.fulfillments:
            for name in fulfillment.names:
                _leave(self._by_request, name, key)

    def requested(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, now: float
    ) -> FulfillingRequest | None:
        """Enter a fulfilling request, of a decided proposal, too; ``None`` if there is no room."""
        kept = record.fulfillments
        if len(kept) >= MAX_FULFILLMENTS:
            old = next((item for item in kept if item.may_go), None)
            if old is None:
                return None
            kept.remove(old)
        kept.append(fulfillment)
        fulfillment.early = False
        if fulfillment.live:
            record.step(ProposalEvent.REQUEST, fulfillment.by)
        self._records.grow(record.key, size_of(fulfillment.envelope), now)
        for name in fulfillment.names:
            _enter(self._by_request, name, record.key)
        return fulfillment

    def put_early(self, name: str, fulfillment: FulfillingRequest, now: float) -> None:
        """Remember a request that names, by its own word alone, a proposal that it carries out."""
        older = self._early.get(fulfillment.by, name, now) or ()
        # One that runs still, though its sender used its id again, may be for the same proposal.
        begun = [each for each in older if each.running or each.carried_out]
        kept = (*begun[1 - MAX_FULFILLMENTS :], fulfillment)
        size = len(name) + sum(size_of(each.envelope) for each in kept)
        self._early.put(fulfillment.by, name, kept, now, size=size)

    def early(self, name: str, now: float) -> list[FulfillingRequest]:
        """Requests that we carry out, or did, and that named an id unknown before."""
        if self._early.is_empty:
            return []
        return [each for kept in self._early.found(name, now) for each in kept]

    def find_fulfillments(
        self, name: str, now: float
    ) -> list[tuple[ProposalEntry, FulfillingRequest]]:
        """The requests with a name, each with the proposal that it carries out."""
        return [
            (record, item)
            for key in self._by_request.get(name, ())
            if (record := self._records.get(key, now)) is not None
            for item in record.fulfillments
            if name in item.names
        ]

    def request_cancelled(
        self, sender: str, request_id: str, now: float, cause: Cause | None = None
    ) -> ProposalEntry | None:
        """Note a cancel by a request's sender; the proposal that it was to carry out, if any."""
        theirs = [each for each in self.find_fulfillments(request_id, now) if each[1].by == sender]
        # Some use a JSON-RPC id again: what is out is meant, before what has ended.
        for record, item in sorted(theirs, key=lambda each: not each[1].live):
            if item.live and cause is not None:
                # Without its chain, which may be long: many proposals are remembered.
                ended = Cause(cause.code, cause.by, cause.text)
                record.failed = FailedFulfillment(sender, ended)
            self.not_carried_out(record, item)
            return record
        return None

    def not_carried_out(self, record: ProposalEntry, fulfillment: FulfillingRequest) -> None:
        """Note a cancelled or refused request; after the last one the proposal waits again."""
        fulfillment.live = False
        if not any(item.live for item in record.fulfillments) and record.step(
            ProposalEvent.REQUEST_CANCELLED, fulfillment.by
        ):
            self._watch(record)  # its time may have passed meanwhile

    # --- time ---

    @property
    def next_expiry(self) -> int | None:
        """The time after which the next proposal is to be looked at by :meth:`expire`."""
        return self._deadlines.next

    def renew(self, record: ProposalEntry, until: int, at: int | None) -> str:
        """Give a pending proposal more time; the reason why it gets none, or empty."""
        problem = renewal_problem(record.state, record.expires_at, until, at, record.renewals)
        if not problem:
            record.renewals += 1
            self.set_deadline(record, until)
        return problem

    def set_deadline(self, record: ProposalEntry, expires_at: int) -> None:
        record.expires_at = expires_at
        self._watch(record)

    def expire(self, at: int) -> list[ProposalEntry]:
        """Step every proposal whose time is over at a time of the gateway's clock."""
        expired: list[ProposalEntry] = []
        for record in self._deadlines.pop_due(at):
            # It may have been renewed, or forgotten, since it was put here.
            if state_at(record.state, record.expires_at, at) is not record.state:
                record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
                expired.append(record)
        return expired

    def _watch(self, record: ProposalEntry) -> None:
        if record.expires_at is None or record.state is not ProposalState.PENDING:
            return
        self._deadlines.add(record)
        self.watches_more = True

    def _is_kept(self, record: ProposalEntry) -> bool:
        return self._records.peek(record.key) is record

    def refused(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, by: str, text: str
    ) -> None:
        """Note an executor's refusal; the last one of all ends the request.

        The other executors may run it still, and its own sender cancels it instead. Of one that was
        for each participant that has the tool, it is not known which are left.
        """
        if by in fulfillment.executors:
            fulfillment.refused_by |= {by}
        if fulfillment.was_refused:
            cause = Cause(REFUSED, by, text[:MAX_REASON_CHARS])
            record.failed = FailedFulfillment(fulfillment.by, cause, refused=True)
            self.not_carried_out(record, fulfillment)

    def complete(
        self,
        record: ProposalEntry,
        fulfillment: FulfillingRequest,
        *,
        is_error: bool,
        is_permit: bool = False,
    ) -> bool:
        """Note the answer to a fulfilling request (PROTOCOL 4.2); ``True`` if it was carried out.

        An error for a request that was cancelled only confirms the cancel, as MCP peers do; a
        result for it says that it was carried out.
        """
        was_live, fulfillment.live = fulfillment.live, False
        if not was_live and is_error:
            return False
        event = ProposalEvent.PERMIT if is_permit else ProposalEvent.RESPONSE
        record.step(event, fulfillment.by)
        return True


def _is_same(older: ProposalEntry, newer: ProposalEntry) -> bool:
    call = newer.call
    return not changes(older.call, call, call.target) and older.call.target == call.target


def _expiry_of(proposal: Envelope, accepted: int | None) -> int | None:
    """The deadline of a proposal; most payloads tell without being decoded that there is none."""
    raw = proposal.raw_payload
    if b"ttl" not in raw and b"expires_at" not in raw and b"\\u" not in raw:
        return None
    return read_proposal(proposal.payload).expiry(accepted)


def _is_watched(proposal: Envelope) -> bool:
    # Read without being decoded, as above.
    if b"watched" not in proposal.raw_payload and b"\\u" not in proposal.raw_payload:
        return False
    return read_proposal(proposal.payload).is_watched(proposal.sender)


def _enter(index: dict[str, tuple[ProposalKey, ...]], name: str, key: ProposalKey) -> None:
    keys = index.get(name, ())
    # The first ones stay, so that using an id after its owner does not push the owner's out.
    if key not in keys and len(keys) < MAX_SAME_ID:
        index[name] = (*keys, key)


def _leave(index: dict[str, tuple[ProposalKey, ...]], name: str, key: ProposalKey) -> None:
    others = tuple(each for each in index.get(name, ()) if each != key)
    if others:
        index[name] = others
    else:
        index.pop(name, None)


MAX_NAMED = 64
"""Correlation ids that are looked at; a request with more is refused."""


class Doubt(StrEnum):
    """The reason for which an envelope that names a proposal means none."""

    AMBIGUOUS = "ambiguous"  # several proposals have the id, and nothing tells which is meant
    SEVERAL = "several"  # it names more than one proposal, and a request carries out one
    TOO_MANY = "too_many"  # it names more ids than are looked at


class KnownProposal(Protocol):
    """A proposal, as a gateway or an agent keeps it."""

    @property
    def proposer(self) -> str: ...

    @property
    def call(self) -> Call: ...

    @property
    def earlier(self) -> Sequence[Any]:
        """Those that its proposer made under this id before."""
        ...

    @property
    def called(self) -> tuple[str, str]:
        """Its method and its tool (or prompt), as they are kept; requests for it have the same."""
        ...


K = TypeVar("K", bound=KnownProposal)
R_co = TypeVar("R_co", bound=KnownProposal, covariant=True)


class KnownProposals(Protocol[R_co]):
    """The proposals that a gateway or an agent keeps."""

    def under(self, exchange_id: str, now: float) -> Sequence[R_co]: ...

    def get(self, key: ProposalKey, now: float) -> R_co | None:
        """The latest of a proposer under an id."""
        ...


class Resolution(NamedTuple, Generic[K]):
    """The proposal that an envelope means."""

    # The proposal; ``None``: none that is known, or it cannot be told which.
    record: K | None = None
    doubt: Doubt | None = None  # the reason for which it cannot be told
    named: tuple[K, ...] = ()


def resolve(
    envelope: Envelope, known: KnownProposals[K], now: float, call: Call | None = None
) -> Resolution[K]:
    """The proposal that an envelope means; ``call`` is that of a request, where it is read.

    A request means the proposal that it carries out, which must have its method and its tool: one
    that asks for anything else only refers to it. Otherwise a participant that may send little, a
    ``ping`` say, would decide the proposals of others. Any other envelope means the proposal that
    its first known id names.
    """
    if not envelope.correlation:
        return Resolution()
    if envelope.kind == kinds.MCP_REQUEST:
        call = payloads.read_call(envelope.payload) if call is None else call
        if not call.is_notification:
            return _carried_out(envelope, call, known, now)
    for name in envelope.correlation[:MAX_NAMED]:
        named = known.under(name, now)
        if named:
            return choose_addressed(envelope, named)
    return Resolution()


def choose_addressed(envelope: Envelope, named: Sequence[K]) -> Resolution[K]:
    """Of the proposals with one id, the one that an envelope means: whom it is for tells whose."""
    meant = named if len(named) < 2 else [it for it in named if it.proposer in envelope.to]
    return _one_of(named, meant)


def find_referenced(envelope: Envelope, store: ProposalStore, now: float) -> list[ProposalEntry]:
    names = dict.fromkeys(envelope.correlation[:MAX_NAMED])
    return [record for name in names for record in store.under(name, now)]


def find_answered(
    envelope: Envelope, proposal_store: ProposalStore, now: float
) -> tuple[ProposalEntry, FulfillingRequest] | None:
    """The proposal that a response (or progress) is about, and the request.

    All correlation ids are looked at, those of requests first (PROTOCOL 4.4). Two requesters may
    have used one id: whom the response is for tells which is meant. Of one requester, who counts
    its ids anew, the request is meant that is still out, and came last.
    """
    for name in envelope.correlation[:MAX_NAMED]:
        found = [
            (record, item)
            for record, item in proposal_store.find_fulfillments(name, now)
            if item.envelope.id == name and item.may_answer(envelope.sender)
        ]
        if len(found) == 1:
            return found[0]
        if len({item.by for _, item in found}) > 1:
            found = [(record, item) for record, item in found if item.by in envelope.to]
            if len({item.by for _, item in found}) != 1:
                return None
        if found:
            return max(reversed(found), key=lambda each: each[1].live)
    record = resolve(envelope, proposal_store, now).record
    if record is not None:
        for item in record.fulfillments:
            if item.by == envelope.sender:
                return record, item
    return None


def executors_of(record: ProposalEntry, request: Envelope) -> tuple[str, ...]:
    """The executors of a fulfilling request; empty: each that has the tool (PROTOCOL 4.4)."""
    if request.to:
        return request.to
    named = Addressees(record.envelope.to, record.call.target)
    return choose_executors(named, request.sender)


def claimed_proposer(call: Call) -> str | None:
    proposer = call.meta.get(payloads.PROPOSER)
    return proposer if isinstance(proposer, str) else None


def _carried_out(
    request: Envelope, call: Call, known: KnownProposals[K], now: float
) -> Resolution[K]:
    if len(request.correlation) > MAX_NAMED:
        return Resolution(doubt=Doubt.TOO_MANY)
    proposer = claimed_proposer(call)
    by_id: list[list[K]] = []
    for name in dict.fromkeys(request.correlation):
        named = list(known.under(name, now))
        if proposer is not None:
            # An id that very many have used has no place for all of them.
            claimed = known.get(ProposalKey(proposer, name), now)
            if claimed is not None and claimed not in named:
                named.append(claimed)
        if named:
            by_id.append(named)
    if len(by_id) > 1:
        every = tuple(record for named in by_id for record in named)
        return Resolution(doubt=Doubt.SEVERAL, named=every)
    called = call.called
    candidates: list[K] = [
        record
        for named in by_id
        for latest in named
        for record in (latest, *latest.earlier)
        if record.called == called
    ]
    proposers = {record.proposer for record in candidates}
    if len(candidates) == 1 and (proposer is None or proposer in proposers):
        return Resolution(candidates[0], named=tuple(candidates))
    return _one_of(candidates, _possible_referents(candidates, call, proposer))


def _possible_referents(candidates: list[K], call: Call, proposer: str | None) -> list[K]:
    """Return the proposals, of several, to which a request can refer."""
    fitting = [record for record in candidates if _fits(record, call)]
    theirs = [record for record in candidates if record.proposer == proposer]
    if theirs:
        fitting_theirs = [record for record in fitting if record.proposer == proposer]
        if fitting_theirs:
            return fitting_theirs[:1]  # the latest of what is the same call by the same proposer
        if call.meta.get(payloads.EDITED) is True:
            return theirs
    if len({record.proposer for record in fitting}) == 1:
        return fitting[:1]  # they have one id
    return fitting


def _fits(record: KnownProposal, call: Call) -> bool:
    """True if a request is the proposed call unchanged: the digest alone may be copied."""
    proposed = record.call
    if payloads.changes(proposed, call, proposed.target):
        return False
    claimed = call.meta.get(payloads.DIGEST)
    if not isinstance(claimed, str):
        return True
    return claimed == payloads.digest(proposed.method, proposed.params, proposed.target)


def _one_of(named: Sequence[K], meant: Sequence[K]) -> Resolution[K]:
    if len(meant) == 1:
        return Resolution(meant[0], named=tuple(named))
    return Resolution(doubt=Doubt.AMBIGUOUS if named else None, named=tuple(named))


class Folded(NamedTuple):
    """The effect of an envelope."""

    # The proposal that it is about; ``None`` where there is none that is known.
    record: ProposalEntry | None = None
    # The fulfilling request that it is, or that it answers.
    fulfillment: FulfillingRequest | None = None
    doubt: Doubt | None = None  # the reason for which it cannot be told which proposal it means
    was_pending: bool = True  # the proposal was pending before; ``True`` where there is none
    # The reason why it changed nothing, as the exchange table drops it; empty: it did.
    dropped: str = ""
    # The proposal in whose place a new one stands, which its proposer wants no more.
    replaced: ProposalEntry | None = None

    @property
    def rejection(self) -> Rejection | None:
        """The rejection that its proposer takes for an answer, if the envelope ends it so."""
        record = self.record
        if record is None or not self.was_pending or record.state is not ProposalState.REJECTED:
            return None
        return record.rejections.get(record.decided_by or "")


NOTHING = Folded()


class ProposalFold:
    """Takes envelopes into a store of proposals, in the order of the gateway.

    In every method ``now`` are seconds of a clock that only goes forward, by which what is old is
    forgotten, and ``at`` is the gateway's time, in microseconds since 1970 (UTC), as far as known.
    """

    def __init__(self, store: ProposalStore, tombstones: Tombstones) -> None:
        self._store = store
        self._tombstones = tombstones

    def propose(
        self,
        proposal: Envelope,
        now: float,
        at: int | None,
        *,
        is_new: bool,
        expires_at: int | None = None,
    ) -> Folded:
        """Enter a proposal, in place of an older one of its proposer's under the same id.

        ``is_new``: it has a number of its own, so it does not copy what came before. ``expires_at``
        is its deadline where the gateway tells it.
        """
        store, key = self._store, ProposalKey(proposal.sender, proposal.id)
        known, replaced = store.get(key, now), None
        if known is not None:
            same = known.fingerprint == fingerprint_of(proposal)
            if same and _is_copy(known, is_new=is_new):
                return Folded(
                    known, was_pending=known.state.is_pending, dropped="duplicate_proposal"
                )
            # Its proposer began to count ids anew, and waits for the older one no more.
            if known.step(ProposalEvent.WITHDRAWAL, key.proposer, Reason.NO_LONGER_NEEDED):
                replaced = known
        record = store.add(proposal, now, accepted=at)
        record.unnumbered = not is_new
        if expires_at is not None and expires_at != record.expires_at:
            store.set_deadline(record, expires_at)
        withdrawn = self._tombstones.get("withdrawn", *key, now)
        if withdrawn is not None:
            record.withdrawn({"reason": withdrawn}, at)
        return Folded(record, replaced=replaced)

    def renew(self, renewal: Envelope, now: float, at: int | None) -> Folded:
        """Move the deadline of a proposal (PROTOCOL 4.17)."""
        until = payloads.read_renewal(renewal.payload_object)
        record, why = self._find_own(renewal, "renew", until, now)
        if until is None or record is None:
            return Folded(dropped=why)
        refused = self._store.renew(record, until, at)
        return Folded(record, dropped="late_renew" if refused else "")

    def _find_own(
        self, said: Envelope, what: str, read: object, now: float
    ) -> tuple[ProposalEntry | None, str]:
        """The one proposal of its sender's that an envelope names; else why it means none."""
        if read is None or len(said.correlation) != 1:
            return None, f"malformed_{what}"
        (name,) = said.correlation
        record = self._store.get(ProposalKey(said.sender, name), now)
        if record is not None:
            return record, ""
        return None, f"{what}_by_another" if self._store.under(name, now) else f"unknown_{what}"

    def report(self, report: Envelope, now: float) -> Folded:
        """Note what came of a permit: its proposer's word, once (PROTOCOL 4.20)."""
        said = read_report(report.payload_object)
        record, why = self._find_own(report, "report", said, now)
        if said is None or record is None:
            return Folded(dropped=why)
        late = not record.reported(said)
        return Folded(record, was_pending=False, dropped="late_report" if late else "")

    def withdraw(self, key: ProposalKey, payload: JsonObject, now: float, at: int | None) -> Folded:
        """End a proposal that its proposer withdraws, also one that is still to come."""
        record = self._store.get(key, now)
        if record is None:
            # Two proposers may use one id, and this one's proposal may be still to come.
            reason = read_reason(payload.get("reason"))
            self._tombstones.put("withdrawn", *key, reason, now)
            is_known = bool(self._store.under(key.id, now))
            return Folded(dropped="withdraw_by_another" if is_known else "")
        if not record.withdrawn(payload, at):
            record.unordered = False
            return Folded(record, was_pending=False, dropped="late_withdraw")
        return Folded(record)

    def reject(self, reject: Envelope, now: float) -> Folded:
        """Note a rejection (PROTOCOL 4.5)."""
        means = resolve(reject, self._store, now)
        record = means.record
        if record is None:
            unknown = means.doubt is None
            why = "unknown_reject" if unknown else "ambiguous_reject"
            return Folded(doubt=means.doubt, dropped=why)
        was_pending, why = record.state.is_pending, ""
        if reject.sender == record.key.proposer:
            why = "reject_of_own_proposal"
        elif (
            record.rejected(
                reject.sender, read_reason(reject.payload_object.get("reason")), reject.id
            )
            is None
        ):
            why = "duplicate_reject"
        return Folded(record, was_pending=was_pending, dropped=why)

    def request(
        self,
        request: Envelope,
        call: payloads.Call,
        now: float,
        at: int | None = None,
        *,
        live: bool = True,
        unattended: bool = False,
    ) -> Folded:
        """Enter a request in the proposal that it carries out, if it does (PROTOCOL 4.4).

        ``at`` lets the proposal expire before it; without it, the gateway took it in time. One that
        is not ``live`` was cancelled, and counts only if a result comes all the same.
        """
        if not request.correlation:
            return NOTHING
        store = self._store
        record, doubt, _ = resolve(request, store, now, call)
        if record is None or request.sender == record.key.proposer:
            return Folded(record, doubt=doubt)
        was_pending = record.state.is_pending
        known = record.fulfillment(request.sender, request.id)
        if known is not None:
            if fingerprint_of(known.envelope) == fingerprint_of(request):
                if not live:  # its cancel was lost with a gap
                    store.not_carried_out(record, known)
                return Folded(record, known, was_pending=was_pending)
            store.not_carried_out(record, known)  # another one under its id takes its place
        record.expire(at)
        fulfillment = FulfillingRequest(
            request.replace(),
            executors_of(record, request),
            live=live,
            unattended=unattended,
            names=names_of(request, call),
        )
        entered = store.requested(record, fulfillment, now)
        return Folded(record, entered, was_pending=was_pending)

    def cancel(
        self, requester: str, names: tuple[str, ...], now: float, cause: Cause | None = None
    ) -> ProposalEntry | None:
        """Let the proposal of a cancelled request wait again; the request has one of some names."""
        found = (self._store.request_cancelled(requester, name, now, cause) for name in names)
        return next((record for record in found if record is not None), None)

    def answer(self, response: Envelope, payload: object, now: float) -> Folded:
        """Complete the proposal of the request that a response answers, unless it refuses that."""
        found = find_answered(response, self._store, now)
        if found is None:
            return NOTHING
        was_pending = found[0].state.is_pending
        self.complete(*found, response.sender, payload)
        return Folded(*found, was_pending=was_pending)

    def complete(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, by: str, payload: object
    ) -> bool:
        """Take in an answer to a fulfilling request; ``True`` if that was carried out."""
        error = payloads.read_response(payload)[1]
        if error is not None and payloads.is_refusal(payload):
            self._store.refused(record, fulfillment, by, str(error.get("message", "")))
            return False
        is_permit = by == record.proposer and payloads.is_permit(payload) and record.asks_permit
        was_pending = record.state.is_pending
        is_carried_out = self._store.complete(
            record, fulfillment, is_error=error is not None, is_permit=is_permit
        )
        if was_pending and record.state is ProposalState.FULFILLED:
            record.has_failed = payloads.is_failure(payload)
        return is_carried_out


def _is_copy(known: ProposalEntry, *, is_new: bool) -> bool:
    """True if the same proposal came before, and is not made a second time (PROTOCOL 6)."""
    if not is_new:
        return True
    # Read elsewhere, or replayed, it may have come before its own place in the order.
    is_copy = known.unnumbered and known.state.is_pending
    known.unnumbered = False
    return is_copy
