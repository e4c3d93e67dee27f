"""What others say of our own requests and proposals: responses, rejections, progress."""

from __future__ import annotations

from dataclasses import replace

from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Conflict, Progressed
from meup_agent.protocol.exchange.ends import cause_of
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import FulfillingRequest, ProposalEntry
from meup_agent.protocol.exchange.relays import Relays, outcome_of_relay
from meup_agent.protocol.exchange.resolution import find_answered
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.lifecycle import OutboundEvent, OutboundState, ProposalEvent
from meup_agent.protocol.outcomes import Ending, Fulfillment, LostRace, Rejection, Responded
from meup_agent.protocol.payloads import read_response
from meup_agent.protocol.reasons import Cause, Reason


class ResponseReader:
    """Applies what others say to the exchanges of ours that it is about."""

    def __init__(self, context: TableContext, outbound: OutboundTracker) -> None:
        self._context = context
        self._outbound = outbound
        self._relays = Relays(context)

    def rival_requested(self, record: ProposalEntry, now: float) -> None:
        """A fulfilling request was ordered; ours, if it is another and comes later, has lost."""
        first, me = record.in_progress, self._context.me
        if first is None:
            return
        for exchange in self._outbound.open_fulfillments(record.key):
            if (first.by, first.envelope.id) == (me, exchange.key.id):
                continue
            cause = Cause(Reason.DUPLICATE, by=me, id=exchange.key.id, at=now)
            self._outbound.apply(
                exchange, OutboundEvent.GIVE_UP, now, LostRace(first.by), cause=cause
            )

    def response(self, envelope: Envelope, now: float) -> bool:
        """A response came; whether it was one to a request of ours."""
        for exchange_id in envelope.correlation:
            exchange = self._outbound.find(exchange_id, now)
            if exchange is None or exchange.is_proposal:
                continue
            if not exchange.answerable_by(envelope, self._context.me):
                # An onlooker sees the answers to others who used the same id.
                if envelope.concerns(self._context.me):
                    self._context.drop("foreign_response", envelope)
                    return True
                continue
            result, error = read_response(envelope.payload)
            is_first = not exchange.is_answered
            self._answered(exchange, envelope, Responded(envelope.sender, result, error), now)
            if is_first:
                self._relays.send_response(exchange, envelope, now)
            return True
        return False

    def fulfilled(
        self, record: ProposalEntry, fulfillment: FulfillingRequest, envelope: Envelope, now: float
    ) -> Conflict | None:
        """The response to a fulfilling request of our proposal; a conflict if it is too late."""
        exchange = self._outbound.of_proposal(record, now)
        if exchange is None:
            return None
        result, error = read_response(envelope.payload)
        request = payloads.read_call(fulfillment.envelope.payload)
        to = fulfillment.envelope.to
        executor = to[0] if len(to) == 1 else envelope.sender
        ending = Fulfillment(
            proposal_id=record.key.id,
            by=fulfillment.by,
            executor=executor,
            result=result,
            error=error,
            changes=payloads.changes(record.call, request, executor),
        )
        return self._conflict(exchange, envelope, ending, now)

    def relayed(self, envelope: Envelope, now: float) -> tuple[bool, Conflict | None]:
        """A response that may be the outcome of a proposal of ours, which its fulfiller sent on.

        Returns:
            Whether it was, and the conflict if it is too late.
        """
        record = self._relays.about(envelope, now)
        exchange = None if record is None else self._outbound.of_proposal(record, now)
        if record is None or exchange is None:
            return False, None
        if payloads.is_refusal(envelope.payload):
            return True, None
        if not exchange.is_answered:
            self.order_unechoed(record, now)
            record.step(ProposalEvent.RESPONSE, envelope.sender)
        return True, self._conflict(exchange, envelope, outcome_of_relay(record, envelope), now)

    def _conflict(
        self, exchange: OutboundExchange, envelope: Envelope, ending: Fulfillment, now: float
    ) -> Conflict | None:
        """Apply the outcome of a proposal; a conflict if we had given it up."""
        if not self._answered(exchange, envelope, ending, now):
            return None
        assert exchange.ending is not None  # it had been given up
        return Conflict(ending.proposal_id, ending, exchange.ending)

    def order_unechoed(self, record: ProposalEntry, now: float) -> None:
        """On a gateway without echoes, our withdraw came when we said it (PROTOCOL 4.13)."""
        exchange = self._outbound.of_proposal(record, now)
        if (
            exchange is not None
            and exchange.state is OutboundState.GIVEN_UP
            and not exchange.echoed
        ):
            reason = cause_of(exchange.ending).code
            record.step(ProposalEvent.WITHDRAWAL, self._context.me, reason)

    def _answered(
        self, exchange: OutboundExchange, envelope: Envelope, ending: Ending, now: float
    ) -> bool:
        """Apply an answer; ``True`` if it is the first for something that we had given up."""
        if exchange.is_answered:
            self._context.drop("duplicate_response", envelope, expected=True)
            return False
        self._outbound.has_left(exchange, now)
        exchange.late = exchange.state is OutboundState.GIVEN_UP
        self._outbound.apply(exchange, OutboundEvent.RESPONSE, now, ending)
        if exchange.late:
            self._context.drop("late_response", envelope, expected=True)
        return exchange.late

    def rejection(self, record: ProposalEntry, rejected: Rejection, now: float) -> Rejection | None:
        """A rejection of a proposal of ours; ``None`` if nobody waits for it any more."""
        exchange = self._outbound.of_proposal(record, now)
        if exchange is None or not exchange.is_open:
            return None
        self._outbound.has_left(exchange, now)
        counts = self._outbound.reconsider(exchange, record, now)
        return replace(rejected, counts=counts)

    def no_longer_in_progress(self, record: ProposalEntry, now: float) -> None:
        """A fulfillment came to nothing: what was said meanwhile may decide."""
        exchange = self._outbound.of_proposal(record, now)
        if exchange is not None and exchange.is_open:
            self._outbound.reconsider(exchange, record, now)
            self._outbound.watch_absence(exchange, now)

    def in_progress(self, record: ProposalEntry, now: float) -> None:
        """Somebody's fulfilling request for a proposal of ours is out: it is they who must stay."""
        exchange = self._outbound.of_proposal(record, now)
        if exchange is not None and exchange.is_open:
            self._outbound.watch_absence(exchange, now)

    def progress(self, envelope: Envelope, params: payloads.JsonObject, now: float) -> None:
        """Progress of something that we wait for (PROTOCOL 4.9)."""
        done = payloads.number(params.get("progress"))
        exchange = self._reported(envelope, params.get(payloads.PROGRESS_TOKEN), now)
        if exchange is None or done is None or done <= exchange.progress:
            return
        exchange.advanced(done, now)
        total, message = payloads.number(params.get("total")), params.get("message")
        text = message if isinstance(message, str) else ""
        self._context.effects.append(Progressed(exchange.key, done, total, text))
        self._relays.send_progress(exchange, done, total, text, now)

    def _reported(self, envelope: Envelope, token: object, now: float) -> OutboundExchange | None:
        """What a progress is about: our request, or our proposal that somebody carries out."""
        exchange = self._outbound.find_open(token) if isinstance(token, str) else None
        if exchange is not None and not exchange.is_proposal:
            if exchange.answerable_by(envelope, self._context.me):
                return exchange
            if envelope.concerns(self._context.me):
                self._context.drop("foreign_progress", envelope)
                return None
        found = find_answered(envelope, self._context.proposal_store, now)
        record = found[0] if found is not None else self._relays.about(envelope, now)
        proposal = None if record is None else self._outbound.of_proposal(record, now)
        return proposal if proposal is not None and proposal.is_open else None
