"""The proposals seen, our own included, with the requests and rejections that name them.

This is the view of an onlooker. The proposer decides which rejection ends its wait, so a rejected
proposal is pending until its proposer withdraws it (PROTOCOL 4.5).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from meup_agent.causes import Reason, declines, read_reason
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.ttl_map import FairTTLMap, PerSenderTTLMap, size_of
from meup_agent.protocol.lifecycle import (
    PROPOSAL,
    ProposalEvent,
    ProposalState,
    last_moment,
    renewal_problem,
    state_at,
)
from meup_agent.protocol.outcomes import Rejection
from meup_agent.protocol.payloads import Call, JsonObject, changes, read_call, read_proposal
from meup_agent.protocol.withdrawals import MAX_REJECTIONS, Waiting, read_withdrawal

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


SPARE_EXPIRIES = 1024
"""Deadlines that are kept of proposals which were renewed or forgotten, before they are sorted
out."""


class ProposalKey(NamedTuple):
    """The name of a proposal: two proposers may use the same id."""

    proposer: str
    id: str


def fingerprint_of(envelope: Envelope) -> int:
    """A hash that tells a repeated envelope from another: some peers count ids anew each start."""
    return hash(
        (envelope.ts, envelope.kind, envelope.to, envelope.correlation, envelope.raw_payload)
    )


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
    # The ids that a cancel may use: its JSON-RPC id, or its envelope's (PROTOCOL 4.8).
    names: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        # Once, and not for each envelope that may be about it.
        rpc_name = read_call(self.envelope.payload).rpc_name
        own = self.envelope.id
        self.names = frozenset((own,) if rpc_name is None else (own, rpc_name))

    @property
    def by(self) -> str:
        """Its sender."""
        return self.envelope.sender

    def may_answer(self, sender: str) -> bool:
        """True if a response counts: the executor's, or the fulfiller's relay (PROTOCOL 5)."""
        return not self.executors or sender in self.executors or sender == self.by

    @property
    def was_refused(self) -> bool:
        """True if each of its executors has refused it, so that none has begun it."""
        return bool(self.executors) and set(self.executors) <= set(self.refused_by)

    @property
    def may_go(self) -> bool:
        """True if it can be forgotten: it ended, and we did not carry it out."""
        return not (self.live or self.running or self.carried_out)


class ProposalEntry(msgspec.Struct):
    """The record of one proposal."""

    key: ProposalKey
    envelope: Envelope
    # Its :func:`fingerprint_of`, which tells it from another one under the same id.
    fingerprint: int
    state: ProposalState = ProposalState.PENDING
    # The requests that carry it out, in the gateway's order.
    fulfillments: list[FulfillingRequest] = msgspec.field(default_factory=list[FulfillingRequest])
    # The first rejection of each participant.
    rejections: dict[str, Rejection] = msgspec.field(default_factory=dict[str, Rejection])
    rejected_first: int = 0  # how many of these came before the request that is out
    decided_by: str | None = None  # the participant that brought it to its final state
    reason: str | None = None  # the reason code that came with that, if any
    # Exchanges and handlers of ours that are about it; while there are any, it is not forgotten.
    holders: int = 0
    handled: bool = False  # a handler of ours has begun on it
    refused: bool = False  # we have rejected it; without echoes ``rejections`` does not show that
    # The participants that have decided to reject it, we included: neither is a request of theirs
    # carried out, nor do they carry it out (PROTOCOL 4.4).
    declined_by: set[str] = msgspec.field(default_factory=set[str])
    copied: bool = False  # another proposer's proposal had the id already: no handler sees this one
    seen_at: float = 0.0
    # It has no number that we have read: its own may still come.
    unnumbered: bool = True
    # The time at which its proposer gives it up, in microseconds since 1970 (UTC), as far as said.
    expires_at: int | None = None
    renewals: int = 0  # how often that was moved
    # Ours, ended here by a rejection or its time: until our withdraw comes back, the gateway may
    # have ordered a result before it (PROTOCOL 4.13).
    unordered: bool = False
    size: int = 0  # bytes of the proposal alone, as they count against the room of all
    # Other proposals that its proposer made under this id before, latest first.
    earlier: tuple[ProposalEntry, ...] = ()
    # Its method and its tool, once they were asked for: they say which requests carry it out.
    named_call: tuple[str, str] | None = None

    @classmethod
    def of(cls, envelope: Envelope) -> ProposalEntry:
        """The record of a proposal that no participant has seen."""
        key = ProposalKey(envelope.sender, envelope.id)
        return cls(key, envelope, fingerprint_of(envelope))

    @property
    def call(self) -> Call:
        """The call that is proposed."""
        return read_proposal(self.envelope.payload)

    def is_carried_out_by(self, call: Call) -> bool:
        """True if a request asks for what is proposed: the same method, and the same tool."""
        if self.named_call is None:
            proposed = self.call
            self.named_call = (proposed.method, proposed.name)
        return self.named_call == (call.method, call.name)

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
        following = PROPOSAL.get((self.state, event))
        if following is None and self.unordered and event is ProposalEvent.RESPONSE:
            following = ProposalState.FULFILLED
        if following is None:
            return False
        if self.state is ProposalState.PENDING:
            self.rejected_first = len(self.rejections)
        self.state, self.unordered = following, False
        if not following.is_pending:
            self.decided_by, self.reason = by, reason
        return True

    @property
    def waiting(self) -> Waiting:
        """The wait for it, while it is pending."""
        return Waiting(
            self.state,
            self.envelope.to,
            tuple(self.rejections),
            self.rejected_first,
            self.expires_at,
        )

    def withdrawn(self, payload: JsonObject, at: int | None) -> bool:
        """Note a withdraw of its proposer; ``False`` if it is no longer pending.

        ``at`` is the gateway's time, in microseconds since 1970, as far as it is known.
        """
        if not self.state.is_pending:
            return False
        proposer, reason = self.key.proposer, read_reason(payload.get("reason"))
        found = read_withdrawal(payload, self.waiting, at)
        rejection = self.rejections.get(found.rejected_by)
        for event in found.events:
            if event is ProposalEvent.EXPIRY:
                self.step(event, "", Reason.TIMEOUT)
            elif event is ProposalEvent.REJECTION and rejection is not None:
                self.step(event, rejection.by, rejection.reason)
            else:
                self.step(event, proposer, reason)
        return True

    def rejected(self, by: str, reason: str, reject_id: str = "") -> Rejection | None:
        """Note a rejection; ``None`` if this participant has rejected it before."""
        is_known = by in self.rejections
        if not is_known and len(self.rejections) >= MAX_REJECTIONS:
            return None
        if declines(reason):
            self.declined_by.add(by)
        if is_known:
            return None
        noted = self.rejections[by] = Rejection(self.key.id, reason, by, reject_id)
        return noted


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
        # Pending proposals by the last moment at which they are not expired, and a number that
        # keeps records from being compared. What was renewed stands here more than once.
        self._expiries: list[tuple[int, int, ProposalEntry]] = []
        self._watched = 0
        # True until the next expiry has been looked at since a deadline was added.
        self.watches_more = False
        self._by_id: dict[str, tuple[ProposalKey, ...]] = {}
        self._by_request: dict[str, tuple[ProposalKey, ...]] = {}
        self._early: PerSenderTTLMap[str, FulfillingRequest] = PerSenderTTLMap(
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
        record = ProposalEntry(
            key,
            kept,
            fingerprint_of(envelope),
            holders=holders,
            copied=copied,
            seen_at=now,
            expires_at=_expiry_of(envelope, accepted),
            size=size_of(kept),
        )
        if older is not None:
            # Of the same call made again a request need not say which time is meant.
            before = [each for each in (older, *older.earlier) if not _is_same(each, record)]
            record.earlier = tuple(before[:MAX_EARLIER])
            older.earlier = ()
            self._leave_indexes(key, older)
            # It is decided: only a handler that runs still knows of what carried it out.
            older.fulfillments = []
        _enter(self._by_id, key.id, key)
        generations = (record, *record.earlier)
        size = sum(each.size for each in generations)
        self._records.put(key, record, now, size=size)
        self._watch(record)
        return record

    def get(self, key: ProposalKey, now: float) -> ProposalEntry | None:
        """A proposal by its proposer and id."""
        return self._records.get(key, now)

    def under(self, exchange_id: str, now: float) -> list[ProposalEntry]:
        """The proposals with an id, of each proposer the latest; oldest first."""
        keys = self._by_id.get(exchange_id, ())
        return [record for key in keys if (record := self._records.get(key, now)) is not None]

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
        size = len(name) + size_of(fulfillment.envelope)
        self._early.put(fulfillment.by, name, fulfillment, now, size=size)

    def early(self, name: str, now: float) -> list[FulfillingRequest]:
        """Requests that we carry out, or did, and that named an id unknown before."""
        return [] if self._early.is_empty else self._early.found(name, now)

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

    def request_cancelled(self, sender: str, request_id: str, now: float) -> ProposalEntry | None:
        """Note a cancel by a request's sender; the proposal that it was to carry out, if any."""
        theirs = [each for each in self.find_fulfillments(request_id, now) if each[1].by == sender]
        # Some use a JSON-RPC id again: what is out is meant, before what has ended.
        for record, item in sorted(theirs, key=lambda each: not each[1].live):
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
        return self._expiries[0][0] if self._expiries else None

    def renew(self, record: ProposalEntry, until: int, at: int | None) -> str:
        """Give a pending proposal more time; the reason why it gets none, or empty."""
        problem = renewal_problem(record.state, record.expires_at, until, at, record.renewals)
        if not problem:
            record.renewals += 1
            self.set_deadline(record, until)
        return problem

    def set_deadline(self, record: ProposalEntry, expires_at: int) -> None:
        """Move the deadline of a proposal, as its gateway or its proposer has it."""
        record.expires_at = expires_at
        self._watch(record)

    def expire(self, at: int) -> list[ProposalEntry]:
        """Step every proposal whose time is over at a time of the gateway's clock."""
        expired: list[ProposalEntry] = []
        while self._expiries and self._expiries[0][0] < at:
            _, _, record = heappop(self._expiries)
            # It may have been renewed, or forgotten, since it was put here.
            if state_at(record.state, record.expires_at, at) is not record.state:
                record.step(ProposalEvent.EXPIRY, "", Reason.TIMEOUT)
                expired.append(record)
        return expired

    def _watch(self, record: ProposalEntry) -> None:
        if record.expires_at is None or record.state is not ProposalState.PENDING:
            return
        if len(self._expiries) > SPARE_EXPIRIES + 2 * len(self._records):
            kept = {id(item): item for item in self._records.peek_all()}
            self._expiries = [
                (last_moment(item.expires_at), number, item)
                for number, item in enumerate(kept.values())
                if item.expires_at is not None and item.state is ProposalState.PENDING
            ]
            heapify(self._expiries)
        self._watched += 1
        self.watches_more = True
        heappush(self._expiries, (last_moment(record.expires_at), self._watched, record))

    def refused(self, record: ProposalEntry, fulfillment: FulfillingRequest, by: str) -> bool:
        """Note an executor's refusal; ``True`` if none is left that could carry the request out.

        The other executors may run it still, and its own sender cancels it instead. Of one that was
        for each participant that has the tool, it is not known which are left.
        """
        executors = fulfillment.executors
        if by in executors and by not in fulfillment.refused_by:
            fulfillment.refused_by = (*fulfillment.refused_by, by)
        if not executors or not all(name in fulfillment.refused_by for name in executors):
            return False
        self.not_carried_out(record, fulfillment)
        return True

    def complete(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, *, is_error: bool
    ) -> bool:
        """Note the answer to a fulfilling request (PROTOCOL 4.2); ``True`` if it was carried out.

        An error for a request that was cancelled only confirms the cancel, as MCP peers do; a
        result for it says that it was carried out.
        """
        was_live, fulfillment.live = fulfillment.live, False
        if not was_live and is_error:
            return False
        record.step(ProposalEvent.RESPONSE, fulfillment.by)
        return True


def _is_same(older: ProposalEntry, newer: ProposalEntry) -> bool:
    """True if two proposals are of the same call, for the same executor."""
    call = newer.call
    return not changes(older.call, call, call.target) and older.call.target == call.target


def _expiry_of(proposal: Envelope, accepted: int | None) -> int | None:
    """The deadline of a proposal; most payloads tell without being decoded that there is none."""
    raw = proposal.raw_payload
    if b"ttl" not in raw and b"expires_at" not in raw and b"\\u" not in raw:
        return None
    return read_proposal(proposal.payload).expiry(accepted)


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
