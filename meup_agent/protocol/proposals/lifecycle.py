"""The lifecycle of a proposal as a table (PROTOCOL 4.2): deadline, renewal, withdrawal.

A table maps a state and an event to the next state and what is to be done about it. A pair that a
table does not have is an illegal step: it raises and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from heapq import heappop, heappush
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from meup_agent.causes import Reason, read_reason
from meup_agent.errors import IllegalStep
from meup_agent.protocol.wire.envelope import CLOCK_DIFFERENCE, MICROSECOND
from meup_agent.protocol.wire.payloads import META, REJECTED_BY, JsonObject, as_object

# --- lifecycle ---


class ProposalState(StrEnum):
    """The state of a proposal; *in progress* is pending with a fulfilling request on its way."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
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
    REJECTION = "rejection"  # a rejection that counts (PROTOCOL 4.5)
    WITHDRAWAL = "withdrawal"
    EXPIRY = "expiry"


_P, _PE = ProposalState, ProposalEvent

PROPOSAL: Final[Mapping[tuple[ProposalState, ProposalEvent], ProposalState]] = {
    (_P.PENDING, _PE.REQUEST): _P.IN_PROGRESS,
    # The cancel of the fulfilling request crossed its response: it was carried out all the same.
    (_P.PENDING, _PE.RESPONSE): _P.FULFILLED,
    (_P.PENDING, _PE.REJECTION): _P.REJECTED,
    (_P.PENDING, _PE.WITHDRAWAL): _P.WITHDRAWN,
    (_P.PENDING, _PE.EXPIRY): _P.EXPIRED,
    (_P.IN_PROGRESS, _PE.REQUEST): _P.IN_PROGRESS,
    (_P.IN_PROGRESS, _PE.REQUEST_CANCELLED): _P.PENDING,
    (_P.IN_PROGRESS, _PE.RESPONSE): _P.FULFILLED,
    (_P.IN_PROGRESS, _PE.WITHDRAWAL): _P.WITHDRAWN,
    (_P.IN_PROGRESS, _PE.EXPIRY): _P.EXPIRED,
}
"""PROTOCOL 4.2. Steps go one way; only the mark *in progress* can be lost again."""


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

    def __init__(self) -> None:
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
        self._added += 1
        heappush(self._heap, (last_moment(item.expires_at), self._added, item))

    def sort_out(self, is_open: Callable[[P], bool]) -> None:
        """Drop those that have ended, once they may be most of all."""
        if len(self._heap) <= self._most:
            return
        # One that was renewed or waits again stands here more than once.
        kept = {id(item): item for _, _, item in self._heap if is_open(item)}
        self._heap = []
        for item in kept.values():
            self.add(item)
        self._most = SPARE_DEADLINES + 2 * len(self._heap)

    def pop_due(self, at: int) -> Iterator[P]:
        """Remove the proposals whose last moment is before a time."""
        while self._heap and self._heap[0][0] < at:
            yield heappop(self._heap)[2]


# --- withdrawals ---
# The state that a proposer's withdraw leads to (PROTOCOL 4.2, 4.5).
#
# On the wire a proposer says one thing, whatever ended its wait: a withdraw with a reason. The
# exchange tables, the gateway and the audit read it by this one function.

MAX_REJECTIONS: Final = 1024
"""Rejections that are kept for one proposal: one a participant, and spaces are smaller."""

EARLY_EXPIRY_SECONDS: Final = 1.0
"""Time before its deadline from which a withdraw with ``timeout`` is an expiry: a proposer's timer
and the gateway's clock differ by that after a night."""

_EARLY_MICROSECONDS: Final = round(EARLY_EXPIRY_SECONDS * 1_000_000)


class Waiting(NamedTuple):
    """The wait for a proposal, as its readers know it when its proposer withdraws it."""

    state: ProposalState  # pending, or in progress
    to: Sequence[str]  # the addressees of the proposal, who decide it; empty: all that may
    rejected_by: Sequence[str]  # the participants that have rejected it, in order
    rejected_first: int  # how many of these did before the request that is out
    expires_at: int | None  # its deadline, in microseconds since 1970; ``None``: it has none

    @property
    def _counted(self) -> Sequence[str]:
        """The participants whose rejection may have ended the wait: no later one counts (4.4)."""
        in_progress = self.state is ProposalState.IN_PROGRESS
        return self.rejected_by[: self.rejected_first] if in_progress else self.rejected_by

    @property
    def inferred_rejection(self) -> str:
        """The participant whose rejection a withdraw without a reason of its own follows.

        By default the first rejection of an addressee ends the wait, and the last one of a
        broadcast proposal. The wait for one that is in progress ends by no rejection but an earlier
        one of an addressee. Empty: none does.
        """
        if self.to:
            return next((name for name in self._counted if name in self.to), "")
        if self.state is ProposalState.IN_PROGRESS or not self.rejected_by:
            return ""
        return self.rejected_by[-1]

    def find_rejection(self, payload: JsonObject) -> str:
        """The participant whose rejection a withdraw follows, told or inferred; empty: none."""
        meta = as_object(payload.get(META))
        if REJECTED_BY not in meta:
            return self.inferred_rejection
        return next((name for name in self._counted if name == meta[REJECTED_BY]), "")


class Withdrawn(NamedTuple):
    """The steps of a proposal's lifecycle that a withdraw of its proposer takes, in order."""

    events: tuple[ProposalEvent, ...]
    rejected_by: str = ""  # the participant whose rejection ended the wait


def read_withdrawal(payload: JsonObject, waiting: Waiting, at: int | None) -> Withdrawn:
    """The steps that a withdraw takes.

    Args:
        payload: Its payload.
        waiting: The wait that it ends.
        at: The gateway's time, in microseconds since 1970; ``None``: it is not known.
    """
    reason = read_reason(payload.get("reason"))
    if reason == Reason.TIMEOUT and waiting.expires_at is not None and at is not None:
        if at >= waiting.expires_at - _EARLY_MICROSECONDS:
            return Withdrawn((ProposalEvent.EXPIRY,))
    elif reason == Reason.NO_LONGER_NEEDED and (by := waiting.find_rejection(payload)):
        if waiting.state is ProposalState.IN_PROGRESS:
            # The withdraw ends the request that crossed the rejection.
            return Withdrawn((ProposalEvent.REQUEST_CANCELLED, ProposalEvent.REJECTION), by)
        return Withdrawn((ProposalEvent.REJECTION,), by)
    return Withdrawn((ProposalEvent.WITHDRAWAL,))
