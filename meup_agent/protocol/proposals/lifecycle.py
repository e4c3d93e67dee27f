"""The lifecycle of a proposal as a table (PROTOCOL 4.2), its deadline and renewals.

A table maps a state and an event to the next state and what is to be done about it. A pair that a
table does not have is an illegal step: it raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final, Generic, Protocol, TypeVar

from meup_agent.errors import IllegalStep
from meup_agent.protocol.wire.envelope import CLOCK_DIFFERENCE, MICROSECOND

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
