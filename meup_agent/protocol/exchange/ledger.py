"""Every proposal that we have seen, our own included: what it is, and what was done about it.

This is what an onlooker can know. Whether a rejection ends a wait is the proposer's decision, so
for everybody else a rejected proposal becomes ``withdrawn`` when its proposer says so (PROTOCOL
4.5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.lifecycle import PROPOSAL, ProposalEvent, ProposalState
from meup_agent.protocol.payloads import Call, read_call

MAX_PROPOSALS = 4096
"""Proposals that are remembered: history for a person, and enough for everything in flight."""

MAX_PROPOSAL_BYTES = 64 * 1024 * 1024
"""Payload bytes of the proposals that are remembered."""

PROPOSAL_SECONDS = 3600.0
"""How long a proposal is remembered."""

MAX_NOTES = 64
"""Rejections, and fulfilling requests, that are kept for one proposal."""


class ProposalKey(NamedTuple):
    """Names a proposal: two proposers may use the same id."""

    proposer: str
    id: str


@dataclass(slots=True)
class Fulfillment:
    """A request that carries a proposal out.

    Attributes:
        envelope: The request.
        live: Neither answered nor cancelled yet.
    """

    envelope: Envelope
    live: bool = True

    @property
    def by(self) -> str:
        """Who sent it."""
        return self.envelope.sender


@dataclass(slots=True)
class ProposalRecord:
    """What is known of one proposal.

    Attributes:
        key: Its proposer and id.
        envelope: The proposal as it was sent.
        state: Where it stands (PROTOCOL 4.2).
        fulfillments: The requests that carry it out, by their ids, in the gateway's order.
        rejections: Who rejected it, and why.
        decided_by: Who brought it to its final state.
        reason: The reason code that came with that, if any.
    """

    key: ProposalKey
    envelope: Envelope
    state: ProposalState = ProposalState.PENDING
    fulfillments: dict[str, Fulfillment] = field(default_factory=dict[str, Fulfillment])
    rejections: dict[str, str] = field(default_factory=dict[str, str])
    decided_by: str | None = None
    reason: str | None = None

    @property
    def call(self) -> Call:
        """The call that is proposed."""
        return read_call(self.envelope.payload)

    @property
    def in_progress_by(self) -> str | None:
        """Whose fulfilling request is out; of several, the first in the gateway's order."""
        return next((item.by for item in self.fulfillments.values() if item.live), None)

    def step(self, event: ProposalEvent, by: str, reason: str | None = None) -> bool:
        """Go on if the lifecycle has such a step; whether it had."""
        following = PROPOSAL.get((self.state, event))
        if following is None:
            return False
        self.state = following
        if not following.is_pending:
            self.decided_by, self.reason = by, reason
        return True


class Ledger:
    """The proposals of a space, by proposer and id."""

    def __init__(self) -> None:
        self._records: Memory[ProposalKey, ProposalRecord] = Memory(
            count=MAX_PROPOSALS, seconds=PROPOSAL_SECONDS, size=MAX_PROPOSAL_BYTES
        )
        self._by_id: Memory[str, ProposalRecord] = Memory(
            count=MAX_PROPOSALS, seconds=PROPOSAL_SECONDS
        )
        self._by_request: Memory[str, ProposalRecord] = Memory(
            count=MAX_PROPOSALS, seconds=PROPOSAL_SECONDS
        )

    def add(self, envelope: Envelope, now: float) -> ProposalRecord:
        """Take a proposal up; the same one again changes nothing."""
        key = ProposalKey(envelope.sender, envelope.id)
        record = self._records.get(key, now)
        if record is None:
            record = ProposalRecord(key, envelope.replace())
            self._records.put(key, record, now, size=len(envelope.raw_payload))
            # Who uses an id first owns it here: nobody can take another's proposal over.
            if self._by_id.get(envelope.id, now) is None:
                self._by_id.put(envelope.id, record, now)
        return record

    def get(self, key: ProposalKey, now: float) -> ProposalRecord | None:
        """A proposal by its proposer and id."""
        return self._records.get(key, now)

    def named(self, ids: tuple[str, ...], now: float) -> ProposalRecord | None:
        """The first proposal that one of these correlation ids names."""
        for exchange_id in ids:
            record = self._by_id.get(exchange_id, now)
            if record is not None:
                return record
        return None

    def records(self, now: float) -> list[ProposalRecord]:
        """Every proposal remembered, oldest first."""
        return list(self._records.values(now))

    def withdrawn(self, key: ProposalKey, reason: str, now: float) -> bool:
        """The proposer took it back; ``False`` if it was no longer pending, or is unknown."""
        record = self._records.get(key, now)
        return record is not None and record.step(ProposalEvent.WITHDRAWAL, key.proposer, reason)

    def requested(self, envelope: Envelope, now: float) -> ProposalRecord | None:
        """A request came by; the proposal that it fulfills, if it does."""
        record = self.named(envelope.correlation, now)
        if record is None or envelope.sender == record.key.proposer:
            return None
        if envelope.id in record.fulfillments:
            return record
        if len(record.fulfillments) < MAX_NOTES and record.step(
            ProposalEvent.REQUEST, envelope.sender
        ):
            record.fulfillments[envelope.id] = Fulfillment(envelope.replace())
            self._by_request.put(envelope.id, record, now)
        return record

    def request_cancelled(self, sender: str, request_id: str, now: float) -> None:
        """A request was cancelled by its sender; with the last one, a proposal waits again."""
        record = self._by_request.get(request_id, now)
        fulfillment = None if record is None else record.fulfillments.get(request_id)
        if record is not None and fulfillment is not None and fulfillment.by == sender:
            self.not_carried_out(record, fulfillment)

    def not_carried_out(self, record: ProposalRecord, fulfillment: Fulfillment) -> None:
        """A fulfilling request ended without being carried out: cancelled, or refused."""
        fulfillment.live = False
        if record.in_progress_by is None:
            record.step(ProposalEvent.REQUEST_CANCELLED, fulfillment.by)

    def responded(
        self, envelope: Envelope, now: float
    ) -> tuple[ProposalRecord, Fulfillment] | None:
        """A response came by; the proposal that it completes, and the request it answers.

        It counts from somebody whom a fulfilling request was addressed to, and from the fulfiller,
        who relays the outcome where the gateway hides it (PROTOCOL 5). All correlation ids are
        looked at.
        """
        for exchange_id in envelope.correlation:
            record = self._by_request.get(exchange_id, now)
            if record is None:
                continue
            fulfillment = record.fulfillments.get(exchange_id)
            if fulfillment is not None and (
                not fulfillment.envelope.to
                or envelope.sender in fulfillment.envelope.to
                or envelope.sender == fulfillment.by
            ):
                return record, fulfillment
        record = self.named(envelope.correlation, now)
        if record is not None:
            for fulfillment in record.fulfillments.values():
                if fulfillment.by == envelope.sender:
                    return record, fulfillment
        return None

    def complete(self, record: ProposalRecord, fulfillment: Fulfillment) -> bool:
        """Note the answer; ``False`` if the proposal had ended otherwise before."""
        fulfillment.live = False
        return record.step(ProposalEvent.RESPONSE, fulfillment.by)
