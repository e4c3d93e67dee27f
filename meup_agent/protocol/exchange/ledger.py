"""Every proposal that we have seen, our own included: what it is, and what was done about it.

This is what an onlooker can know. Whether a rejection ends a wait is the proposer's decision, so
for everybody else a rejected proposal becomes ``withdrawn`` when its proposer says so (PROTOCOL
4.5).
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.memory import Memory, size_of
from meup_agent.protocol.lifecycle import PROPOSAL, ProposalEvent, ProposalState
from meup_agent.protocol.outcomes import Rejected
from meup_agent.protocol.payloads import Call, read_call, read_proposal

MAX_PROPOSALS = 4096
"""Proposals that are remembered: history for a person, and enough for everything in flight."""

MAX_PROPOSAL_BYTES = 64 * 1024 * 1024
"""Bytes of the proposals that are remembered, and of what fulfills them."""

PROPOSAL_SECONDS = 3600.0
"""How long a proposal is remembered."""

MAX_FULFILLMENTS = 64
"""Fulfilling requests that are kept for one proposal; the first wins, so few are ever of use."""

MAX_REJECTIONS = 1024
"""Rejections that are kept for one proposal: one a participant, and spaces are smaller."""

MAX_SAME_ID = 64
"""Proposals, or requests, of different senders that share one id."""


class ProposalKey(NamedTuple):
    """Names a proposal: two proposers may use the same id."""

    proposer: str
    id: str


def content_of(envelope: Envelope) -> int:
    """Tells whether an envelope is the same one again, or another under an id used before.

    Some peers count their ids from one after each restart.
    """
    return hash(
        (envelope.ts, envelope.kind, envelope.to, envelope.correlation, envelope.raw_payload)
    )


class Fulfillment(msgspec.Struct):
    """A request that carries a proposal out.

    Attributes:
        envelope: The request.
        live: Neither answered nor cancelled yet.
        carried_out: We, as the executor, have answered it.
    """

    envelope: Envelope
    live: bool = True
    carried_out: bool = False

    @property
    def by(self) -> str:
        """Who sent it."""
        return self.envelope.sender

    @property
    def names(self) -> set[str]:
        """What a cancel may call it: its JSON-RPC id, or its envelope's (PROTOCOL 4.8)."""
        rpc_name = read_call(self.envelope.payload).rpc_name
        return {self.envelope.id} if rpc_name is None else {self.envelope.id, rpc_name}

    def may_answer(self, sender: str) -> bool:
        """Whether a response counts: the executor's, or the fulfiller's relay (PROTOCOL 5)."""
        return not self.envelope.to or sender in self.envelope.to or sender == self.by


class ProposalRecord(msgspec.Struct):
    """What is known of one proposal.

    Attributes:
        key: Its proposer and id.
        envelope: The proposal as it was sent.
        content: Tells it from another one under the same id.
        state: Where it stands (PROTOCOL 4.2).
        fulfillments: The requests that carry it out, in the gateway's order.
        rejections: Who rejected it, and why; of each participant, the first.
        decided_by: Who brought it to its final state.
        reason: The reason code that came with that, if any.
        holders: Exchanges and handlers of ours that are about it; while there are any, it is
            not forgotten.
        handled: A handler of ours has begun on it.
        refused: We have rejected it; on gateways without echoes ``rejections`` does not tell.
    """

    key: ProposalKey
    envelope: Envelope
    content: int
    state: ProposalState = ProposalState.PENDING
    fulfillments: list[Fulfillment] = msgspec.field(default_factory=list[Fulfillment])
    rejections: dict[str, Rejected] = msgspec.field(default_factory=dict[str, Rejected])
    decided_by: str | None = None
    reason: str | None = None
    holders: int = 0
    handled: bool = False
    refused: bool = False

    @property
    def call(self) -> Call:
        """The call that is proposed."""
        return read_proposal(self.envelope.payload)

    @property
    def in_progress(self) -> Fulfillment | None:
        """The fulfilling request that is out; of several, the first in the gateway's order."""
        if self.state is not ProposalState.IN_PROGRESS:
            return None
        return next((item for item in self.fulfillments if item.live), None)

    @property
    def in_progress_by(self) -> str | None:
        """Whose fulfilling request is out."""
        return None if self.in_progress is None else self.in_progress.by

    def fulfillment(self, by: str, request_id: str) -> Fulfillment | None:
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
        """Go on if the lifecycle has such a step; whether it had."""
        following = PROPOSAL.get((self.state, event))
        if following is None:
            return False
        self.state = following
        if not following.is_pending:
            self.decided_by, self.reason = by, reason
        return True

    def rejected(self, reject: Envelope, reason: str) -> Rejected | None:
        """Note a rejection; ``None`` if this participant has rejected it before."""
        if reject.sender in self.rejections or len(self.rejections) >= MAX_REJECTIONS:
            return None
        noted = Rejected(self.key.id, reason, reject.sender, reject.id)
        self.rejections[reject.sender] = noted
        return noted


class Ledger:
    """The proposals of a space, by proposer and id.

    Args:
        count: Proposals at the most.
        seconds: How long each is remembered.
        size: Bytes of all of them at the most; ``None``: whatever they take.
    """

    def __init__(
        self,
        *,
        count: int = MAX_PROPOSALS,
        seconds: float = PROPOSAL_SECONDS,
        size: int | None = MAX_PROPOSAL_BYTES,
    ) -> None:
        self._count, self._seconds = count, seconds
        self._records: Memory[ProposalKey, ProposalRecord] = Memory(
            count=count, seconds=seconds, size=size, needed=lambda record: record.holders > 0
        )
        self._by_id = self._index()
        self._by_request = self._index()

    def _index(self) -> Memory[str, tuple[ProposalKey, ...]]:
        return Memory(count=self._count, seconds=self._seconds, needed=self._is_held)

    def _is_held(self, keys: tuple[ProposalKey, ...]) -> bool:
        records = (self._records.peek(key) for key in keys)
        return any(record is not None and record.holders > 0 for record in records)

    def add(self, envelope: Envelope, now: float, *, holders: int = 0) -> ProposalRecord:
        """Take a proposal up, in place of an older one of the same proposer and id.

        One that nobody holds yet is not remembered where what is held takes all the room.
        """
        key = ProposalKey(envelope.sender, envelope.id)
        record = ProposalRecord(key, envelope.replace(), content_of(envelope), holders=holders)
        self._records.put(key, record, now, size=size_of(record.envelope))
        _enter(self._by_id, envelope.id, key, now)
        return record

    def get(self, key: ProposalKey, now: float) -> ProposalRecord | None:
        """A proposal by its proposer and id."""
        return self._records.get(key, now)

    def named(
        self, ids: tuple[str, ...], now: float, *, to: tuple[str, ...] = ()
    ) -> ProposalRecord | None:
        """The proposal that correlation ids name; the first id that names one decides.

        Args:
            ids: The correlation of an envelope.
            now: The time.
            to: Whom that envelope is for. Where several proposers used the id, it tells which is
                meant; otherwise the oldest pending one is, so nobody takes another's over.
        """
        for exchange_id in ids:
            keys = self._by_id.get(exchange_id, now) or ()
            records = [record for key in keys if (record := self._records.get(key, now))]
            if records:
                return max(
                    records, key=lambda item: (item.key.proposer in to, item.state.is_pending)
                )
        return None

    def records(self, now: float) -> list[ProposalRecord]:
        """Every proposal remembered, oldest first."""
        return list(self._records.values(now))

    def forget(self, key: ProposalKey) -> None:
        """Forget a proposal before its time."""
        record = self._records.pop(key)
        if record is None:
            return
        _leave(self._by_id, key.id, key)
        for fulfillment in record.fulfillments:
            for name in fulfillment.names:
                _leave(self._by_request, name, key)

    def withdrawn(self, key: ProposalKey, reason: str, now: float) -> bool:
        """The proposer took it back; ``False`` if it was no longer pending, or is unknown."""
        record = self._records.get(key, now)
        return record is not None and record.step(ProposalEvent.WITHDRAWAL, key.proposer, reason)

    def carried_out_by(self, request: Envelope, now: float) -> ProposalRecord | None:
        """The proposal that a request names and would carry out.

        A request for anything else only refers to it: whoever may ask for little, a ``ping`` say,
        must not decide what others proposed. A proposal in words of its own, without a method, is
        carried out by whatever request names it.
        """
        record = self.named(request.correlation, now)
        if record is None:
            return None
        proposed, requested = record.call, read_call(request.payload)
        same = (proposed.method, proposed.name) == (requested.method, requested.name)
        return record if same or not proposed.method else None

    def requested(
        self, envelope: Envelope, now: float, *, fulfills: ProposalKey | None = None
    ) -> ProposalRecord | None:
        """A request came by; the proposal that it fulfills, if it does.

        It is noted for a decided proposal too: its answer may still come, as a conflict.

        Args:
            envelope: The request.
            now: The time.
            fulfills: The proposal, where we know it because the request is ours.
        """
        if fulfills is not None:
            record = self._records.get(fulfills, now)
        else:
            record = self.carried_out_by(envelope, now)
        if record is None or envelope.sender == record.key.proposer:
            return None
        known = record.fulfillment(envelope.sender, envelope.id) is not None
        if not known and len(record.fulfillments) < MAX_FULFILLMENTS:
            record.step(ProposalEvent.REQUEST, envelope.sender)
            fulfillment = Fulfillment(envelope.replace())
            record.fulfillments.append(fulfillment)
            self._records.grow(record.key, size_of(fulfillment.envelope), now)
            for name in fulfillment.names:
                _enter(self._by_request, name, record.key, now)
        return record

    def request_cancelled(self, sender: str, request_id: str, now: float) -> ProposalRecord | None:
        """A request was cancelled by its sender; the proposal that it was to carry out, if any."""
        for key in self._by_request.get(request_id, now) or ():
            record = self._records.get(key, now)
            for item in [] if record is None else record.fulfillments:
                if record is not None and item.by == sender and request_id in item.names:
                    self.not_carried_out(record, item)
                    return record
        return None

    def carried_out(self, sender: str, request_id: str, now: float) -> None:
        """We have answered a request; if it fulfilled a proposal, that is done."""
        for key in self._by_request.get(request_id, now) or ():
            record = self._records.get(key, now)
            item = None if record is None else record.fulfillment(sender, request_id)
            if item is not None:
                item.carried_out = True

    def not_carried_out(self, record: ProposalRecord, fulfillment: Fulfillment) -> None:
        """A fulfilling request ended without being carried out: cancelled, or refused.

        With the last one, the proposal waits again.
        """
        fulfillment.live = False
        if not any(item.live for item in record.fulfillments):
            record.step(ProposalEvent.REQUEST_CANCELLED, fulfillment.by)

    def responded(
        self, envelope: Envelope, now: float
    ) -> tuple[ProposalRecord, Fulfillment] | None:
        """A response (or progress) came by; the proposal that it is about, and the request.

        All correlation ids are looked at, those of requests first (PROTOCOL 4.4).
        """
        for exchange_id in envelope.correlation:
            found = [
                (record, item)
                for key in self._by_request.get(exchange_id, now) or ()
                if (record := self._records.get(key, now)) is not None
                for item in record.fulfillments
                if item.envelope.id == exchange_id and item.may_answer(envelope.sender)
            ]
            if found:
                return max(found, key=lambda pair: pair[1].by in envelope.to)
        record = self.named(envelope.correlation, now, to=envelope.to)
        if record is not None:
            for item in record.fulfillments:
                if item.by == envelope.sender:
                    return record, item
        return None

    def complete(self, record: ProposalRecord, fulfillment: Fulfillment, *, is_error: bool) -> bool:
        """Note the answer to a fulfilling request (PROTOCOL 4.2); whether it was carried out.

        An error for a request that was cancelled only confirms the cancel, as MCP peers do; a
        result for it says that it was carried out.
        """
        was_live, fulfillment.live = fulfillment.live, False
        if not was_live and is_error:
            return False
        record.step(ProposalEvent.RESPONSE, fulfillment.by)
        return True


def _enter(
    index: Memory[str, tuple[ProposalKey, ...]], name: str, key: ProposalKey, now: float
) -> None:
    keys = index.get(name, now) or ()
    if key not in keys:
        index.put(name, (*keys, key)[-MAX_SAME_ID:], now)


def _leave(index: Memory[str, tuple[ProposalKey, ...]], name: str, key: ProposalKey) -> None:
    others = tuple(each for each in index.peek(name) or () if each != key)
    if others:
        index.change(name, others)
    else:
        index.pop(name)
