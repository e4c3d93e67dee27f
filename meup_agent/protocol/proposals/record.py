"""The record of a proposal, with the requests and rejections that name it.

This is the view of an onlooker. The proposer decides which rejection ends its wait, so a rejected
proposal is pending until its proposer withdraws it (PROTOCOL 4.5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from meup_agent.causes import Reason, declines, read_reason
from meup_agent.protocol.proposals.lifecycle import (
    PROPOSAL,
    UNPERMITTED,
    ProposalEvent,
    ProposalState,
    state_at,
)
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import FailedFulfillment, PermitReport, Rejection
from meup_agent.protocol.wire.payloads import (
    META,
    REJECTED_BY,
    Call,
    JsonObject,
    as_object,
    read_call,
    read_proposal,
)

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
    refused_by: tuple[str, ...] = ()  # those of its executors that refused it
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
        return bool(self.executors) and set(self.executors) <= set(self.refused_by)

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
    # Exchanges and handlers of ours that are about it; while there are any, it is not forgotten.
    holders: int = 0
    # The participants whose handlers failed on it, and that have stayed since (PROTOCOL 4.6).
    failed_handlers: frozenset[str] = frozenset()
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
