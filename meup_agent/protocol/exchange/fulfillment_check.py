"""Check of a fulfilling request of ours, as it is made and again as it leaves (PROTOCOL 4.4)."""

from __future__ import annotations

from dataclasses import dataclass

from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    AmbiguousProposal,
    ParticipantGone,
)
from meup_agent.protocol.exchange.outbound_exchange import (
    FulfillmentTarget,
    OutboundExchange,
    OutboundIndex,
)
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, TableContext
from meup_agent.protocol.outcomes import Ending, Unwanted
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.proposals.record import FulfillingRequest, ProposalEntry, ProposalKey
from meup_agent.protocol.proposals.resolution import resolve


@dataclass
class FulfillmentCheck:
    """Refuses a fulfilling request whose proposal is not wanted any more."""

    _context: TableContext
    _index: OutboundIndex

    def check(
        self, exchange: OutboundExchange, fulfilling: FulfillmentTarget
    ) -> ProposalEntry | None:
        """Check that a proposal may be fulfilled: pending, in time, and waited for; its record.

        What its decider has seen counts, also where it is long forgotten (PROTOCOL 4.4).
        """
        now = self._context.now
        context, proposal = self._context, fulfilling.proposal
        means = resolve(exchange.draft, context.proposal_store, now)
        record = means.record or context.proposal_store.get(proposal, now) or fulfilling.record
        if means.doubt is not None or (record is not None and record.key != proposal):
            raise AmbiguousProposal(proposal.id, [each.key.proposer for each in means.named])
        if record is not None:
            declined = ProposalState.REJECTED if context.has_declined(record) else None
            state = declined or context.state_of(record)
            if not state.is_pending:
                raise AlreadyDecided(proposal.id, state)
            request = record.in_progress
            if request is not None and not _is_of(request, exchange):
                raise AlreadyInProgress(proposal.id, request.by)
        if context.tombstones.get("withdrawn", *proposal, now) is not None:
            raise AlreadyDecided(proposal.id, ProposalState.WITHDRAWN)
        if any(other is not exchange for other in self._index.open_fulfillments(proposal)):
            raise AlreadyInProgress(proposal.id, context.me)
        if not fulfilling.even_if_gone and self._has_left(proposal, record):
            raise ParticipantGone(
                f"proposal {proposal.id} was not fulfilled: {proposal.proposer!r}, whose it is,"
                " has left the space; even_if_gone=True (meup fulfill --even-if-gone) carries it"
                " out all the same"
            )
        return record

    def _has_left(self, proposal: ProposalKey, record: ProposalEntry | None) -> bool:
        """True if a proposer was seen to leave after it proposed, half a minute ago or more."""
        now = self._context.now
        left_at = self._context.roster.left_at(proposal.proposer, now)
        if record is None or left_at is None:
            return False
        return record.seen_at <= left_at <= now - ABSENCE_SECONDS

    def unwanted(self, exchange: OutboundExchange, fulfilling: FulfillmentTarget) -> Ending | None:
        """The ending of a fulfilling request that is not wanted any more as it is to leave."""
        try:
            self.check(exchange, fulfilling)
        except (
            AlreadyDecided,
            AlreadyInProgress,
            AmbiguousProposal,
            ParticipantGone,
        ) as error:
            return Unwanted(error)
        return None


def _is_of(request: FulfillingRequest, exchange: OutboundExchange) -> bool:
    """True if a request that is out is this exchange, sent before."""
    return (request.by, request.envelope.id) == (exchange.key.sender, exchange.key.id)
