"""Requests and their cancels, from the wire to a handler or an answer (PROTOCOL 4.4, 4.7)."""

from __future__ import annotations

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.admission import early_fulfillment, is_early
from meup_agent.protocol.exchange.effects import Role
from meup_agent.protocol.exchange.handler_scheduler import HandlerScheduler, TablePart
from meup_agent.protocol.exchange.inbound_exchange import USED_AGAIN, InboundExchange, cause_of_end
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import (
    FulfillingRequest,
    ProposalEntry,
    fingerprint_of,
)
from meup_agent.protocol.exchange.resolution import NO_PROPOSAL, Resolution, executors_of, resolve
from meup_agent.protocol.exchange.response_reader import ResponseReader
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.lifecycle import ProposalEvent
from meup_agent.protocol.payloads import Call
from meup_agent.reasons import Reason, cause_of_cancel


class InboundRequests(TablePart):
    """Enters each request in the proposal that it carries out, and hands ours to a handler."""

    def __init__(
        self,
        context: TableContext,
        outbound: OutboundTracker,
        scheduler: HandlerScheduler,
        reader: ResponseReader,
    ) -> None:
        super().__init__(context, outbound, scheduler)
        self._reader = reader

    # --- a request ---

    def receive(self, envelope: Envelope, call: Call, now: float) -> None:
        """Apply a request: a record for everybody, work for its executors."""
        means, fulfillment = self.enter(envelope, now)
        if self._is_for_us(envelope, means.record) and self._context.mode.answers:
            self._take(envelope, call, means, fulfillment, now)

    def enter(self, envelope: Envelope, now: float) -> tuple[Resolution, FulfillingRequest | None]:
        """Enter a request in the proposal that it carries out, if it does; both."""
        means = NO_PROPOSAL
        if envelope.correlation:
            means = resolve(envelope, self._context.proposal_store, now)
        record, fulfillment = means.record, None
        if record is not None and envelope.sender != record.key.proposer:
            fulfillment = self._enter_fulfillment(record, envelope, now)
            self._reader.note_fulfillment(record, now)
        return means, fulfillment

    def _enter_fulfillment(
        self, record: ProposalEntry, envelope: Envelope, now: float
    ) -> FulfillingRequest | None:
        """The entry of a fulfilling request; another one under its id takes its place."""
        store = self._context.proposal_store
        known = record.fulfillment(envelope.sender, envelope.id)
        if known is not None:
            if fingerprint_of(known.envelope) == fingerprint_of(envelope):
                return known
            store.not_carried_out(record, known)
        fulfillment = FulfillingRequest(envelope.replace(), executors_of(record, envelope))
        return store.requested(record, fulfillment, now)

    def _is_for_us(self, envelope: Envelope, record: ProposalEntry | None) -> bool:
        """True if we carry a request out: it, or the proposal, names us, or no participant."""
        me = self._context.me
        asked = envelope.to if record is None else executors_of(record, envelope)
        return me in asked if asked or envelope.sender == me else True

    def _take(
        self,
        envelope: Envelope,
        call: Call,
        means: Resolution,
        fulfillment: FulfillingRequest | None,
        now: float,
    ) -> None:
        """Queue a handler for a request, or answer why none starts."""
        if self._is_repeated(envelope, now):
            return
        context, scheduler, responses = self._context, self._scheduler, self._scheduler.responses
        handler = context.find_handler(Role.REQUEST, envelope, call) if call.method else None
        exchange = scheduler.new_exchange(Role.REQUEST, envelope, call, handler)
        exchange.fulfills, exchange.doubt = means.record, means.doubt
        exchange.fulfillment = fulfillment
        denial = scheduler.admission.denial(exchange, now)
        if self._is_cancelled_already(exchange, call, now):
            context.drop("cancelled_before", envelope, expected=True)
        elif fulfillment is not None and fulfillment.taken_up:
            context.drop("duplicate_request", envelope, expected=True)
        elif denial is not None:
            scheduler.deny(exchange, denial, now, answered=exchange.addressed or bool(handler))
        elif call.rpc_id is not None and call.rpc_name is None:
            if exchange.addressed:
                responses.invalid(exchange, "the request's JSON-RPC id is too long", now)
        elif not handler:
            if exchange.addressed:
                responses.unknown_method(exchange, call.method, now)
        elif not scheduler.make_room():
            responses.busy(exchange, now)
        else:
            self._take_up_fulfillment(exchange, call, now)
            scheduler.enqueue(exchange, now)
            return
        scheduler.requests.settle(exchange, now)

    def _is_repeated(self, envelope: Envelope, now: float) -> bool:
        """True if a request came before: its answer is sent again, the work is not done again.

        Another one under the same id ends the first, which a restart of its sender has orphaned:
        an answer to the first would be taken for an answer to the second.
        """
        name, requests = (envelope.sender, envelope.id), self._scheduler.requests
        running, settled = requests.find_open(name), requests.find_settled(name, now)
        if running is None and settled is None:
            return False
        fingerprint = fingerprint_of(envelope)
        if running is not None and fingerprint_of(running.work.envelope) != fingerprint:
            running.superseded = True
            requests.remove(running)
            cause = cause_of_end(*name, Reason.NO_LONGER_NEEDED, USED_AGAIN, now)
            self._scheduler.cancel(running, cause, now)
            return False
        if running is None and settled is not None:
            if settled.fingerprint != fingerprint:
                return False
            if settled.answer_id is not None:
                self._context.envelope_sender.resend(settled.answer_id, now)
        self._context.drop("duplicate_request", envelope, expected=True)
        return True

    def _is_cancelled_already(self, exchange: InboundExchange, call: Call, now: float) -> bool:
        """True if the cancel of a request came before it."""
        tombstones = self._context.tombstones
        if tombstones.is_empty or call.method == "initialize":
            return False
        return any(
            tombstones.get("cancelled", *name, now) is not None
            for name in exchange.names
            if name is not None
        )

    # --- the proposal that it carries out ---

    def _take_up_fulfillment(self, exchange: InboundExchange, call: Call, now: float) -> None:
        """Remember that we carry a proposal out, also one that we have not seen."""
        request = exchange.work.envelope
        if exchange.fulfillment is None and request.correlation:
            exchange.fulfillment = early_fulfillment(request, call)
            for name in request.correlation:
                self._context.proposal_store.put_early(name, exchange.fulfillment, now)
        if exchange.fulfillment is not None:
            exchange.fulfillment.taken_up = exchange.fulfillment.running = True
        if exchange.fulfills is not None:
            exchange.fulfills.holders += 1

    def bind_early(self, record: ProposalEntry, now: float) -> None:
        """Enter in a new proposal the requests that carry it out and came before it."""
        for item in self._context.proposal_store.early(record.key.id, now):
            if not is_early(item, record):
                continue
            self._context.proposal_store.requested(record, item, now)
            if item.carried_out:
                record.step(ProposalEvent.RESPONSE, item.by)
            for exchange in self._scheduler.requests.open():
                if exchange.fulfillment is item:
                    exchange.fulfills = record
                    record.holders += 1

    # --- a cancel ---

    def receive_cancel(self, envelope: Envelope, call: Call, now: float) -> None:
        """Apply ``notifications/cancelled``: the requester's, or the gateway's in its place."""
        context, named = self._context, call.params.get("requestId")
        is_ours = envelope.sender == context.me
        concerns = context.me in envelope.to if is_ours else envelope.concerns(context.me)
        if isinstance(named, bool) or not isinstance(named, int | str):
            if concerns:
                context.drop("malformed_cancel", envelope)
            return
        requester, request_id = context.on_behalf_of(envelope, call.params), str(named)
        self._free_proposal(requester, (request_id, *envelope.correlation), now)
        if requester != envelope.sender:
            self._outbound.end_by_gateway(requester, request_id, Reason.REVOKED, now)
        if concerns:
            self._cancel_handler(envelope, call, (requester, request_id), now)

    def _free_proposal(self, requester: str, names: tuple[str, ...], now: float) -> None:
        """Let the proposal of a cancelled fulfillment wait again."""
        for name in names:
            record = self._context.proposal_store.request_cancelled(requester, name, now)
            if record is not None:
                self._reader.note_fulfillment_ended(record, now)
                return

    def _cancel_handler(
        self, envelope: Envelope, call: Call, name: tuple[str, str], now: float
    ) -> None:
        """Cancel the handler of a request; one that comes first is kept (PROTOCOL 4.7)."""
        context, requests = self._context, self._scheduler.requests
        exchange = requests.find_named(name)
        if exchange is not None:
            if exchange.call is not None and exchange.call.method == "initialize":
                context.drop("initialize_is_not_cancelled", envelope)
                return
            cause = cause_of_cancel(
                call.params, by=envelope.sender, exchange_id=exchange.key.id, at=now
            )
            self._scheduler.cancel(exchange, cause, now)
        elif requests.has_ended(name, now):
            context.drop("late_cancel", envelope, expected=True)
        else:
            by_another = requests.is_anothers(name)
            why = "cancel_by_another" if by_another else "unknown_cancel"
            context.drop(why, envelope, expected=not by_another)
            context.tombstones.put("cancelled", *name, Reason.NO_LONGER_NEEDED, now)
