"""The proposals seen, our own included, by proposer and id; bounded by count, age and size."""

from __future__ import annotations

from collections.abc import Sequence

from meup_agent.causes import MAX_REASON_CHARS, Cause, Reason
from meup_agent.protocol.proposals.lifecycle import (
    DeadlineHeap,
    ProposalEvent,
    ProposalState,
    renewal_problem,
    state_at,
)
from meup_agent.protocol.proposals.record import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
)
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import FailedFulfillment
from meup_agent.protocol.wire.payloads import REFUSED, changes, read_proposal
from meup_agent.protocol.wire.ttl_map import FairTTLMap, PerSenderTTLMap, size_of

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
        if by in fulfillment.executors and by not in fulfillment.refused_by:
            fulfillment.refused_by = (*fulfillment.refused_by, by)
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
