"""Proposals, withdraws and rejects, from the wire to store and handler (PROTOCOL 4.1 to 4.5)."""

from __future__ import annotations

from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Conflict, Role
from meup_agent.protocol.exchange.handler_scheduler import HandlerScheduler, TablePart
from meup_agent.protocol.exchange.inbound_exchange import USED_AGAIN, cause_of_end
from meup_agent.protocol.exchange.inbound_requests import InboundRequests
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import ProposalEntry, ProposalKey, fingerprint_of
from meup_agent.protocol.exchange.resolution import resolve
from meup_agent.protocol.exchange.response_reader import ResponseReader
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.reasons import Cause, Reason, read_reason


class InboundProposals(TablePart):
    """Enters each proposal, and its end, in the store; hands those for us to a handler."""

    def __init__(
        self,
        context: TableContext,
        outbound: OutboundTracker,
        scheduler: HandlerScheduler,
        reader: ResponseReader,
        requests: InboundRequests,
    ) -> None:
        super().__init__(context, outbound, scheduler)
        self._reader = reader
        self._requests = requests

    # --- a proposal ---

    def receive(self, envelope: Envelope, now: float, *, begins: bool = True) -> None:
        """Apply a proposal; one that begins nothing is a record only."""
        context, store = self._context, self._context.proposal_store
        key = ProposalKey(envelope.sender, envelope.id)
        if envelope.sender == context.me:
            return
        known = store.get(key, now)
        if known is not None:
            if known.fingerprint == fingerprint_of(envelope):
                context.drop("duplicate_proposal", envelope, expected=True)
                return
            # Its proposer began to count ids anew, and waits for the older one no more.
            if store.withdrawn(key, Reason.NO_LONGER_NEEDED, now):
                cause = cause_of_end(*key, Reason.NO_LONGER_NEEDED, USED_AGAIN, now)
                self._end(key, known, cause, now)
        record = store.add(envelope, now)
        reason = context.tombstones.get("withdrawn", *key, now)
        if reason is not None:
            store.withdrawn(key, reason, now)
        self._requests.bind_early(record, now)
        if record.copied:
            self._notify_copied(record, envelope, now)
        starts_nothing = record.copied or not record.state.is_pending
        if begins and (starts_nothing or envelope.concerns(context.me)) and context.mode.answers:
            self._take(record, envelope, now)

    def _take(self, record: ProposalEntry, envelope: Envelope, now: float) -> None:
        """Queue a handler for a proposal, or reject it where it was addressed to us."""
        context, scheduler, responses = self._context, self._scheduler, self._scheduler.responses
        call = payloads.read_proposal(envelope.payload)
        handler = context.find_handler(Role.PROPOSAL, envelope, call) if call.method else None
        exchange = scheduler.new_exchange(Role.PROPOSAL, envelope, call, handler)
        exchange.record = record
        denial = scheduler.admission.denial(exchange, now)
        if denial is not None:
            scheduler.deny(exchange, denial, now)
        elif not call.method:
            responses.rejection(exchange, Reason.INVALID, now)
        elif not handler:
            # Where targets are hidden, the executor is addressed beside the deciders, so as to see
            # the proposal (PROTOCOL 2): it is not asked, and its reject would end the wait.
            if call.target != context.me or len(envelope.to) < 2:
                responses.rejection(exchange, Reason.INCAPABLE, now)
        elif context.proposal_store.get(record.key, now) is not record or not scheduler.make_room():
            responses.busy(exchange, now)
        else:
            scheduler.enqueue(exchange, now)

    def _notify_copied(self, record: ProposalEntry, envelope: Envelope, now: float) -> None:
        """Tell handlers that a proposal has the id of another participant's."""
        named = self._context.proposal_store.under(record.key.id, now)
        first = next((each.key.proposer for each in named if not each.copied), "")
        conflict = Conflict(record.key.id, copied_by=envelope.sender, proposer=first)
        self._scheduler.notify(Role.CONFLICT, envelope, now, conflict, droppable=True)

    # --- a withdraw ---

    def receive_withdraw(self, envelope: Envelope, now: float) -> None:
        """Apply a withdraw: the proposer's, or the gateway's in its place (PROTOCOL 4.1, 4.2)."""
        context, store = self._context, self._context.proposal_store
        payload = envelope.payload_object
        reason = read_reason(payload.get("reason"))
        proposer = context.on_behalf_of(envelope, payload)
        for proposal_id in envelope.correlation:
            key = ProposalKey(proposer, proposal_id)
            record = store.get(key, now)
            if record is not None and not record.state.is_pending:
                context.drop("late_withdraw", envelope, expected=True)
                continue
            if record is None:
                if store.under(proposal_id, now):
                    context.drop("withdraw_by_another", envelope)
                # Two proposers may use one id, and this one's proposal may be still to come.
                context.tombstones.put("withdrawn", *key, reason, now)
            store.withdrawn(key, reason, now)
            cause = cause_of_end(envelope.sender, proposal_id, reason, "", now)
            self._end(key, record, cause, now)
            if proposer != envelope.sender:
                self._outbound.end_by_gateway(proposer, proposal_id, reason, now)

    def _end(
        self, proposal: ProposalKey, record: ProposalEntry | None, cause: Cause, now: float
    ) -> None:
        """Cancel our handler of a withdrawn proposal, and our fulfillments of it."""
        exchange = self._scheduler.find_proposal(proposal)
        if exchange is not None:
            self._scheduler.withdraw(exchange, cause, now)
        elif record is not None and record.handled:
            self._scheduler.notify_withdrawn(record, cause, now)
        for request in self._outbound.open_fulfillments(proposal):
            self._outbound.give_up(request.key, cause, now)

    # --- a reject ---

    def receive_reject(self, envelope: Envelope, now: float) -> None:
        """Apply a reject of another participant's, to the record and to our wait (PROTOCOL 4.5)."""
        means = resolve(envelope, self._context.proposal_store, now)
        record = means.record
        if record is None:
            unknown = means.doubt is None
            why = "unknown_reject" if unknown else "ambiguous_reject"
            self._context.drop(why, envelope, expected=unknown)
            return
        if envelope.sender == record.key.proposer:
            self._context.drop("reject_of_own_proposal", envelope)
            return
        rejection = record.rejected(envelope, read_reason(envelope.payload_object.get("reason")))
        if rejection is None:
            self._context.drop("duplicate_reject", envelope, expected=True)
        elif record.key.proposer == self._context.me:
            self._reader.rejection(record, rejection, envelope, now)

    def reject(self, proposal: ProposalKey, reason: str, now: float) -> Envelope:
        """Reject a proposal, as its handler or our user wishes."""
        exchange = self._scheduler.find_proposal(proposal)
        if exchange is not None:
            self._scheduler.settle_rejected(exchange, now)
        return self._scheduler.responses.reject(proposal, reason, now)
