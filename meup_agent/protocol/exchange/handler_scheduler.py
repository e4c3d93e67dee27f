"""What others began and we handle (PROTOCOL 5, first and second table), and the queue for it."""

from __future__ import annotations

from typing import Any

import msgspec

from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.admission import (
    Admission,
    Denial,
    early_fulfillment,
    is_early,
)
from meup_agent.protocol.exchange.concurrency_limiter import ConcurrencyLimiter, Limits
from meup_agent.protocol.exchange.effects import (
    Cancel,
    Key,
    Role,
    Start,
    Subject,
    Work,
)
from meup_agent.protocol.exchange.inbound_exchange import InboundExchange, Requests, ended_by
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
)
from meup_agent.protocol.exchange.resolution import NO_PROPOSAL, Resolution, resolve
from meup_agent.protocol.exchange.response_writer import ResponseWriter
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, TableContext
from meup_agent.protocol.lifecycle import (
    InboundAction,
    InboundEvent,
    InboundState,
    ProposalEvent,
    inbound_step,
)
from meup_agent.protocol.outcomes import Withdrawal
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Cause, Reason, cause_of_cancel

USED_AGAIN = "its sender used the id again"
"""Why something ends whose sender began something else under its id."""

_DROPPABLE = frozenset({Role.CHAT, Role.JOIN, Role.LEAVE, Role.KIND, Role.GRANT, Role.REVOKE})


class HandlerScheduler:
    """Everything that a handler of ours runs for or waits for."""

    def __init__(self, context: TableContext, outbound: OutboundTracker, limits: Limits) -> None:
        self._context = context
        self._outbound = outbound
        self._response_writer = ResponseWriter(context)
        self._admission = Admission(context)
        self._limiter = ConcurrencyLimiter(limits)
        self._open: dict[Key, InboundExchange] = {}
        self._requests = Requests()
        self._proposals: dict[ProposalKey, InboundExchange] = {}

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended."""
        return self._limiter.running

    @property
    def queued(self) -> int:
        """What waits for a handler to begin."""
        return self._limiter.queued

    def find(self, key: Key) -> InboundExchange | None:
        """What is open under a key."""
        return self._open.get(key)

    # --- arrivals ---

    def request(
        self,
        envelope: Envelope,
        call: Call,
        now: float,
        *,
        means: Resolution = NO_PROPOSAL,
        fulfillment: FulfillingRequest | None = None,
    ) -> None:
        """A request that concerns us.

        Args:
            envelope: The request.
            call: What it asks for.
            now: The time.
            means: The proposal that it carries out.
            fulfillment: What the proposal_store has of that.
        """
        if not self._context.mode.answers:
            return
        if self._is_repeated(envelope, now):
            return
        handler = self._context.find_handler(Role.REQUEST, envelope, call) if call.method else None
        exchange = self._taken_up(Role.REQUEST, envelope, call, handler)
        exchange.fulfills, exchange.doubt = means.record, means.doubt
        exchange.fulfillment = fulfillment
        denial = self._admission.denial(exchange, now)
        if self._is_cancelled_already(exchange, call, now):
            self._context.drop("cancelled_before", envelope, expected=True)
        elif fulfillment is not None and fulfillment.taken_up:
            self._context.drop("duplicate_request", envelope, expected=True)
        elif denial is not None:
            self._deny(exchange, denial, now, answered=exchange.addressed or bool(handler))
        elif call.rpc_id is not None and call.rpc_name is None:
            if exchange.addressed:
                self._response_writer.invalid(
                    exchange, "the request's JSON-RPC id is too long", now
                )
        elif not handler:
            if exchange.addressed:
                self._response_writer.unknown_method(exchange, call.method, now)
        elif not self._make_room():
            self._response_writer.busy(exchange, now)
        else:
            self._take_up_fulfillment(exchange, now)
            self._requests.add(exchange)
            self._enqueue(exchange, now)
            return
        self._requests.settle(exchange, now)

    def _deny(
        self, exchange: InboundExchange, denial: Denial, now: float, *, answered: bool = True
    ) -> None:
        """Say why something starts no handler, where an answer is owed."""
        self._context.drop(denial.why, exchange.work.envelope, expected=denial.expected)
        if exchange.fulfills is not None and exchange.fulfillment is not None:
            # Without waiting for our own words to come back, which they do not everywhere.
            self._context.proposal_store.not_carried_out(exchange.fulfills, exchange.fulfillment)
        if exchange.is_request and denial.answer and answered:
            self._response_writer.exchange_error(exchange, payloads.REFUSED, denial.answer, now)

    def _take_up_fulfillment(self, exchange: InboundExchange, now: float) -> None:
        """Remember that we carry a proposal out, also one that we have not seen."""
        request = exchange.work.envelope
        if exchange.fulfillment is None and request.correlation and exchange.call is not None:
            exchange.fulfillment = early_fulfillment(request, exchange.call)
            for name in request.correlation:
                self._context.proposal_store.put_early(name, exchange.fulfillment, now)
        if exchange.fulfillment is not None:
            exchange.fulfillment.taken_up = exchange.fulfillment.running = True
        if exchange.fulfills is not None:
            exchange.fulfills.holders += 1

    def fulfilled_early(self, record: ProposalEntry, now: float) -> None:
        """A proposal has come; requests that carry it out may have come before it."""
        for item in self._context.proposal_store.early(record.key.id, now):
            if not is_early(item, record):
                continue
            self._context.proposal_store.requested(record, item, now)
            if item.carried_out:
                record.step(ProposalEvent.RESPONSE, item.by)
            for exchange in self._requests.open():
                if exchange.fulfillment is item:
                    exchange.fulfills = record
                    record.holders += 1

    def _bind(self, exchange: InboundExchange, now: float) -> None:
        """See which proposal a request carries out whose proposals were not known as it came."""
        item = exchange.fulfillment
        if exchange.fulfills is not None or item is None or not item.early:
            return
        means = resolve(exchange.work.envelope, self._context.proposal_store, now)
        exchange.fulfills, exchange.doubt = means.record, means.doubt
        if means.record is not None:
            means.record.holders += 1
            if means.record.key.proposer != item.by:
                self._context.proposal_store.requested(means.record, item, now)

    def _is_repeated(self, envelope: Envelope, now: float) -> bool:
        """Whether it is a request that came before: its answer is repeated, the work is not.

        Another one under the same id ends the first, which a restart of its sender has orphaned:
        an answer to the first would be taken for an answer to the second.
        """
        name = (envelope.sender, envelope.id)
        running, settled = self._requests.opened(name), self._requests.settled(name, now)
        fingerprint = fingerprint_of(envelope)
        if running is not None and fingerprint_of(running.work.envelope) != fingerprint:
            running.superseded = True
            self._requests.forget(running)
            cause = ended_by(envelope.sender, envelope.id, Reason.NO_LONGER_NEEDED, USED_AGAIN, now)
            self._apply(running, InboundEvent.CANCEL, now, cause)
            return False
        if running is None and (settled is None or settled.fingerprint != fingerprint):
            return False
        if running is None and settled is not None and settled.answer_id is not None:
            self._context.envelope_sender.resend(settled.answer_id, now)
        self._context.drop("duplicate_request", envelope, expected=True)
        return True

    def _is_cancelled_already(self, exchange: InboundExchange, call: Call, now: float) -> bool:
        tombstones = self._context.tombstones
        if tombstones.is_empty or call.method == "initialize":
            return False
        return any(
            tombstones.get("cancelled", *name, now) is not None
            for name in exchange.names
            if name is not None
        )

    def proposal(self, record: ProposalEntry, envelope: Envelope, now: float) -> None:
        """A new proposal that is broadcast or addressed to us."""
        if not self._context.mode.answers:
            return
        call = payloads.read_proposal(envelope.payload)
        handler = self._context.find_handler(Role.PROPOSAL, envelope, call) if call.method else None
        exchange = self._taken_up(Role.PROPOSAL, envelope, call, handler)
        exchange.record = record
        denial = self._admission.denial(exchange, now)
        if denial is not None:
            self._deny(exchange, denial, now)
        elif not call.method:
            self._response_writer.rejection(exchange, Reason.INVALID, now)
        elif not handler:
            # Where targets are hidden, who is to carry it out is addressed beside those who are to
            # decide, so as to see it (PROTOCOL 2): it is not asked, and would end the wait.
            if call.target != self._context.me or len(envelope.to) < 2:
                self._response_writer.rejection(exchange, Reason.INCAPABLE, now)
        elif (
            self._context.proposal_store.get(record.key, now) is not record or not self._make_room()
        ):
            self._response_writer.busy(exchange, now)
        else:
            record.holders += 1
            self._proposals[record.key] = exchange
            self._enqueue(exchange, now)

    def notice(
        self,
        role: Role,
        envelope: Envelope,
        now: float,
        subject: Subject = None,
        *,
        droppable: bool = False,
        handler: object = None,
    ) -> None:
        """Something that a handler is told of, and nobody waits for.

        Args:
            role: Which handlers it is for.
            envelope: The envelope that it is about.
            now: The time.
            subject: What the role adds to that.
            droppable: It is left out where there is no room, as notices of most roles are.
            handler: The handler, where the caller has looked it up already.
        """
        if not self._context.mode.answers or self._limiter.is_shut:
            return
        handler = handler or self._context.find_handler(role, envelope, None)
        if not handler:
            return
        droppable = droppable or role in _DROPPABLE
        if droppable and not self._make_room():
            self._context.drop("overflow", envelope, expected=self._context.closing)
            return
        key = Key("job", envelope.sender, f"{role}:{self._context.envelope_sender.new_id()}")
        exchange = InboundExchange(
            key, Work(role, envelope, subject, handler=handler), droppable=droppable
        )
        self._enqueue(exchange, now)

    def _taken_up(
        self, role: Role, envelope: Envelope, call: Call, handler: object
    ) -> InboundExchange:
        key = Key("in", envelope.sender, envelope.id)
        while key in self._open:
            key = key._replace(again=key.again + 1)
        addressed = self._context.me in envelope.to
        return InboundExchange(
            key, Work(role, envelope, call=call, handler=handler), call, addressed
        )

    def _make_room(self) -> bool:
        """Whether one more is taken; if need be, the oldest chat or presence is left out for it."""
        if self._context.closing:
            return False
        if not self._limiter.is_full:
            return True
        key = self._limiter.oldest_droppable()
        if key is None:
            return False
        dropped = self._open.pop(key)
        self._limiter.remove(key)
        self._context.drop("overflow", dropped.work.envelope)
        return True

    def _enqueue(self, exchange: InboundExchange, now: float) -> None:
        self._open[exchange.key] = exchange
        self._limiter.add(exchange.key, droppable=exchange.droppable)
        self._start_next(now)

    def _start_next(self, now: float) -> None:
        while (key := self._limiter.next()) is not None:
            exchange = self._open[key]
            # Its proposal may have come, or been decided, while it waited.
            self._bind(exchange, now)
            denial = self._admission.denial(exchange, now)
            if denial is None:
                self._apply(exchange, InboundEvent.START, now)
            else:
                self._deny(exchange, denial, now)
                self._forget(exchange, now)

    # --- ends that others bring ---

    def cancel(
        self, envelope: Envelope, params: dict[str, Any], now: float, *, requester: str
    ) -> str | None:
        """``notifications/cancelled`` (PROTOCOL 4.7); the id that it names, if we know no such.

        Args:
            envelope: The cancel.
            params: What it says.
            now: The time.
            requester: Whose request it ends: its sender's, unless the gateway does that.
        """
        request_id = params.get("requestId")
        if isinstance(request_id, bool) or not isinstance(request_id, int | str):
            self._context.drop("malformed_cancel", envelope)
            return None
        name = (requester, str(request_id))
        exchange = self._requests.meant(name)
        if exchange is None:
            if self._requests.has_ended(name, now):
                self._context.drop("late_cancel", envelope, expected=True)
                return None
            by_another = self._requests.others(name)
            self._context.drop(
                "cancel_by_another" if by_another else "unknown_cancel",
                envelope,
                expected=not by_another,
            )
            return name[1]
        if exchange.call is not None and exchange.call.method == "initialize":
            self._context.drop("initialize_is_not_cancelled", envelope)
            return None
        cause = cause_of_cancel(params, by=envelope.sender, exchange_id=exchange.key.id, at=now)
        self._apply(exchange, InboundEvent.CANCEL, now, cause)
        return None

    def withdrawn(
        self,
        proposal: ProposalKey,
        record: ProposalEntry | None,
        reason: str,
        now: float,
        text: str = "",
        *,
        by: str | None = None,
    ) -> None:
        """A proposer took its proposal back: our handler, and our fulfillment of it, end.

        Args:
            proposal: The proposal.
            record: What is known of it.
            reason: The reason code.
            now: The time.
            text: Why, in words.
            by: Who took it back, where it was not the proposer.
        """
        cause = ended_by(by or proposal.proposer, proposal.id, reason, text, now)
        exchange = self._proposals.get(proposal)
        if exchange is not None:
            if exchange.state in (InboundState.RUNNING, InboundState.CANCELLING):
                exchange.withdrawal = cause
            self._apply(exchange, InboundEvent.CANCEL, now, cause)
        elif record is not None and record.handled:
            self._tell_withdrawn(record, cause, now)
        for request in self._outbound.open_fulfillments(proposal):
            self._outbound.give_up(request.key, cause, now)

    def rejected_by_sibling(self, record: ProposalEntry, reason: str, now: float) -> None:
        """Another process of ours has rejected a proposal: our handler has nothing left to decide.

        Unless it is fulfilling it: then rejections are only recorded (PROTOCOL 4.4).
        """
        if not record.state.is_pending or self._outbound.open_fulfillments(record.key):
            return
        record.refused = record.declined = True
        exchange = self._proposals.get(record.key)
        if exchange is not None and not exchange.rejected:
            exchange.rejected = True
            self._decided_by_sibling(exchange, reason, "another process of ours rejected it", now)

    def answered_by_sibling(self, response: Envelope, now: float) -> None:
        """Another process of ours has answered a request: our handler's answer would be a copy."""
        for exchange in self._requests.to_answer(response):
            text = "another process of ours answered it"
            self._decided_by_sibling(exchange, Reason.NO_LONGER_NEEDED, text, now)

    def _decided_by_sibling(
        self, exchange: InboundExchange, reason: str, text: str, now: float
    ) -> None:
        cause = ended_by(self._context.me, exchange.key.id, reason, text, now)
        self._apply(exchange, InboundEvent.CANCEL, now, cause)

    # --- presence and connection ---

    def pause(self, now: float, *, paused: bool) -> None:
        """Begin nothing while we read what we missed: it may have been taken back long ago."""
        self._limiter.is_paused = paused
        self._start_next(now)

    def participant_left(self, participant: str, now: float) -> None:
        """Somebody left: what they began goes on for the grace period."""
        for exchange in self._begun_by(participant):
            self._sender_left(exchange, now)

    def participant_joined(self, participant: str) -> None:
        """Somebody is back."""
        for exchange in self._begun_by(participant):
            exchange.sender_left_at = None

    def connection_lost(self, now: float) -> None:
        """Nobody's absence can be seen now; what runs goes on."""
        for exchange in self._begun_by_others():
            exchange.sender_left_at = None
            self._apply(exchange, InboundEvent.LOST, now)

    def welcomed(self, now: float) -> None:
        """Whoever is not there after a welcome has left."""
        for exchange in self._begun_by_others():
            if exchange.key.sender not in self._context.roster:
                self._sender_left(exchange, now)

    def look(self, key: Key, now: float) -> None:
        """A timer has rung: see whether the sender has been away for the whole grace period."""
        exchange = self._open.get(key)
        if exchange is None or exchange.sender_left_at is None:
            return
        until = exchange.sender_left_at + ABSENCE_SECONDS
        if now < until:
            self._context.look_again(until, key)
            return
        cause = ended_by(
            key.sender, key.id, Reason.NO_LONGER_NEEDED, "its sender left the space", now
        )
        self._apply(exchange, InboundEvent.SENDER_ABSENT, now, cause)

    def _sender_left(self, exchange: InboundExchange, now: float) -> None:
        if exchange.sender_left_at is None:
            exchange.sender_left_at = now
            self._apply(exchange, InboundEvent.SENDER_LEFT, now)

    def _begun_by_others(self) -> list[InboundExchange]:
        return [exchange for exchange in self._open.values() if exchange.key.side == "in"]

    def _begun_by(self, participant: str) -> list[InboundExchange]:
        return [item for item in self._begun_by_others() if item.key.sender == participant]

    # --- our own shutdown ---

    def shutdown(self, now: float) -> None:
        """Nothing new: what is queued is answered ``busy``."""
        for exchange in list(self._open.values()):
            if exchange.key.side == "in":
                self._apply(exchange, InboundEvent.SHUTDOWN, now)
            elif exchange.state is InboundState.QUEUED:
                self._close(exchange, now)

    def shutdown_over(self, now: float) -> None:
        """The grace is over: what still runs is cancelled, and answered so."""
        self._limiter.shut()
        for exchange in list(self._open.values()):
            if exchange.state is InboundState.QUEUED:
                self._close(exchange, now)
                continue
            cause = Cause(
                Reason.NO_LONGER_NEEDED,
                self._context.me,
                "the agent shuts down",
                exchange.key.id,
                now,
            )
            self._apply(exchange, InboundEvent.SHUTDOWN_OVER, now, cause)

    # --- the handler ---

    def count_waits(self, key: Key, change: int, now: float) -> None:
        """A handler begins (+1) or ends (−1) to await an exchange."""
        self._limiter.count_waits(key, change)
        self._start_next(now)

    def returned(self, key: Key, result: object, now: float) -> None:
        """A handler has ended well; the result is a request's answer.

        Raises:
            NotExpressible: The result has no form in JSON; nothing was changed.
        """
        exchange = self._open.get(key)
        if exchange is None:
            return
        owes = exchange.is_request and exchange.state is InboundState.RUNNING
        answer = msgspec.Raw(encode_json(result)) if owes else None
        self._apply(exchange, InboundEvent.RETURNED, now)
        if answer is not None:
            self._response_writer.result(exchange, answer, now)
            _carried_out(exchange)
        self._close(exchange, now)

    def raised(self, key: Key, code: int, message: str, data: object, now: float) -> None:
        """A handler has failed, or has ended cancelled."""
        exchange = self._open.get(key)
        if exchange is None:
            return
        if self._apply(exchange, InboundEvent.RAISED, now) is InboundAction.RESPOND_ERROR:
            if exchange.is_request:
                self._response_writer.failure(exchange, code, message, data, now)
                _carried_out(exchange)
            elif exchange.is_proposal and not self._fulfillment_sent(exchange, now):
                self._response_writer.rejection(exchange, Reason.OTHER, now)
        self._close(exchange, now)

    # --- the table ---

    def _apply(
        self, exchange: InboundExchange, event: InboundEvent, now: float, cause: Cause | None = None
    ) -> InboundAction:
        """Take a step and do what it asks for, but for the answer at a handler's end."""
        exchange.state, action = inbound_step(exchange.state, event)
        match action:
            case InboundAction.START:
                if exchange.record is not None:
                    exchange.record.handled = True
                self._context.effects.append(Start(exchange.key, exchange.work))
                self._begin_grace(exchange)
            case InboundAction.BEGIN_GRACE:
                self._begin_grace(exchange)
            case InboundAction.ANSWER_BUSY:
                self._response_writer.busy(exchange, now)
                self._close(exchange, now)
            case InboundAction.CANCEL_SCOPE:
                self._cancel(exchange, cause, now)
            case InboundAction.CANCEL_SCOPE_AND_ANSWER:
                self._response_writer.cancelled(
                    exchange, self._fulfillment_sent(exchange, now), now
                )
                self._cancel(exchange, cause, now)
            case InboundAction.DROP:
                self._context.drop("cancelled_in_queue", exchange.work.envelope, expected=True)
                self._close(exchange, now)
            case InboundAction.COUNT_LATE:
                self._context.drop("late_withdraw", exchange.work.envelope, expected=True)
            case (
                InboundAction.RESPOND
                | InboundAction.RESPOND_ERROR
                | InboundAction.DISCARD
                | InboundAction.LOG
                | InboundAction.KEEP
                | InboundAction.IGNORE
            ):
                pass
        return action

    def _begin_grace(self, exchange: InboundExchange) -> None:
        if exchange.sender_left_at is not None:
            until = exchange.sender_left_at + ABSENCE_SECONDS
            self._context.look_again(until, exchange.key)

    def _cancel(self, exchange: InboundExchange, cause: Cause | None, now: float) -> None:
        """End the scope, and at once what the handler has open elsewhere."""
        assert cause is not None
        exchange.cause = cause
        self._context.effects.append(Cancel(exchange.key, cause))
        self._outbound.give_up_children(exchange.key, cause, now)

    def _close(self, exchange: InboundExchange, now: float) -> None:
        self._forget(exchange, now)
        self._start_next(now)

    def _forget(self, exchange: InboundExchange, now: float) -> None:
        key = exchange.key
        del self._open[key]
        self._limiter.remove(key)
        if exchange.is_request:
            self._requests.settle(exchange, now)
        if exchange.fulfillment is not None:
            exchange.fulfillment.running = False
            if exchange.fulfills is not None:
                exchange.fulfills.holders -= 1
        if exchange.record is not None:
            exchange.record.holders -= 1
            if self._proposals.get(exchange.record.key) is exchange:
                del self._proposals[exchange.record.key]
        leftover = exchange.cause or Cause(
            Reason.NO_LONGER_NEEDED, self._context.me, "", key.id, now
        )
        self._outbound.give_up_children(key, leftover, now)
        if exchange.withdrawal is not None and exchange.record is not None:
            self._tell_withdrawn(exchange.record, exchange.withdrawal, now)

    def _tell_withdrawn(self, record: ProposalEntry, cause: Cause, now: float) -> None:
        """A proposal that we handled was withdrawn; what we rejected is no news to us."""
        if not record.refused:
            subject = Withdrawal(record.key.id, record.key.proposer, cause)
            self.notice(Role.WITHDRAW, record.envelope, now, subject)

    def reject(self, proposal: ProposalKey, reason: str, now: float) -> Envelope:
        """Say no to a proposal.

        It is settled then: the withdraw with which its proposer answers cancels nobody, since the
        handler may still have something to put in order.
        """
        exchange = self._proposals.get(proposal)
        if exchange is not None:
            exchange.rejected = True
            if exchange.state is InboundState.RUNNING:
                self._apply(exchange, InboundEvent.REJECTED, now)
        return self._response_writer.reject(proposal, reason, now)

    def _fulfillment_sent(self, exchange: InboundExchange, now: float) -> bool:
        """Whether we fulfill, or have fulfilled, a proposal: here, or in another process."""
        out = None if exchange.record is None else exchange.record.in_progress
        beside = out is not None and self._context.envelope_sender.is_from_sibling(
            (out.envelope.id,), now
        )
        return beside or self._outbound.has_fulfilled(exchange.proposal_key, now)


def _carried_out(exchange: InboundExchange) -> None:
    """We have answered a request; if it fulfilled a proposal, that is done."""
    if exchange.fulfillment is not None:
        exchange.fulfillment.carried_out = True
