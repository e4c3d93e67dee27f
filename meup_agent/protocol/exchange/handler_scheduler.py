"""The handlers of an agent: queued, started once admitted, cancelled, ended (PROTOCOL 5).

The first and second table of PROTOCOL 5 are carried out here, for requests, proposals and notices
alike; the one :class:`Start` of the package is made here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from meup_agent.causes import Cause, Reason, declines
from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.admission import Admission, ConcurrencyLimiter, Denial, Limits
from meup_agent.protocol.exchange.effects import (
    CONTROL_ROLES,
    Cancel,
    Key,
    Role,
    Start,
    Subject,
    Work,
)
from meup_agent.protocol.exchange.inbound_exchange import (
    InboundExchange,
    RequestIndex,
    ResponseWriter,
    cause_of_end,
)
from meup_agent.protocol.exchange.lifecycle import (
    INBOUND,
    InboundAction,
    InboundEvent,
    InboundState,
)
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.stream_buffer import StreamBuffer
from meup_agent.protocol.exchange.table_context import ABSENCE_SECONDS, TableContext
from meup_agent.protocol.outcomes import Expiry, Withdrawal
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.proposals.lifecycle import look_up
from meup_agent.protocol.proposals.record import ProposalEntry, ProposalKey

_DROPPABLE: Final = frozenset(
    {
        Role.CHAT,
        Role.EXPLANATION,
        Role.JOIN,
        Role.LEAVE,
        Role.KIND,
        Role.GRANT,
        Role.REVOKE,
        Role.STATUS,
        Role.ACKNOWLEDGE,
        Role.COMPACT_DONE,
        Role.STREAM,
    }
)


class HandlerScheduler:
    """Queues, starts and ends the handlers of requests, proposals and notices."""

    def __init__(self, context: TableContext, outbound: OutboundTracker, limits: Limits) -> None:
        self._context = context
        self._outbound = outbound
        self.limiter = ConcurrencyLimiter(limits)
        self._open: dict[Key, InboundExchange] = {}
        self._by_proposal: dict[ProposalKey, InboundExchange] = {}
        self.requests = RequestIndex()
        self.responses = ResponseWriter(context)
        self.admission = Admission(context)
        # Called when the handler of a control message has ended, with what it returned.
        self.on_control_end: Callable[[InboundExchange, object], None] = _ignore
        self.on_idle: Callable[[], None] | None = None

    def find(self, key: Key) -> InboundExchange | None:
        """The open exchange of a name."""
        return self._open.get(key)

    def find_proposal(self, proposal: ProposalKey) -> InboundExchange | None:
        """The open exchange that handles a proposal."""
        return self._by_proposal.get(proposal)

    # --- in ---

    def new_exchange(
        self, role: Role, envelope: Envelope, call: Call, handler: object
    ) -> InboundExchange:
        """A request or proposal, not yet queued."""
        key = Key("in", envelope.sender, envelope.id)
        while key in self._open:
            key = key._replace(again=key.again + 1)
        work = Work(role, envelope, call=call, handler=handler)
        unattended = envelope.sender not in self._context.roster
        addressed = self._context.me in envelope.to
        return InboundExchange(key, work, call, addressed, unattended=unattended)

    def notify(
        self,
        role: Role,
        envelope: Envelope,
        subject: Subject = None,
        *,
        droppable: bool = False,
        handler: object = None,
    ) -> bool:
        """Queue a notice, which owes no answer; ``False``: left out, most for want of room."""
        if not self._context.mode.answers or self.limiter.is_shut:
            return False
        handler = handler or self._context.find_handler(role, envelope, None)
        if not handler:
            return False
        droppable = droppable or role in _DROPPABLE
        if droppable and not self.make_room():
            self._context.drop("overflow", envelope, expected=self._context.closing)
            return False
        key = Key("job", envelope.sender, f"{role}:{self._context.envelope_sender.new_id()}")
        work = Work(role, envelope, subject, handler=handler)
        self.enqueue(InboundExchange(key, work, droppable=droppable))
        return True

    def notify_control(self, role: Role, envelope: Envelope, subject: Subject) -> bool:
        """Start the handler of a control message before all others; ``False``: there is none."""
        handler = self._context.find_handler(role, envelope, None)
        if not handler or self.limiter.is_shut or self._context.closing:
            return False
        if not self.limiter.takes_urgent:
            self._context.drop("overflow", envelope)
            return False
        key = Key("job", envelope.sender, f"{role}:{self._context.envelope_sender.new_id()}")
        work = Work(role, envelope, subject, handler=handler)
        self._open[key] = InboundExchange(key, work)
        self.limiter.add_urgent(key)
        self._start_next()
        return True

    def turns_away(self, exchange: InboundExchange) -> bool:
        """True if a request or proposal is not taken: it names us in a pause, or has no room.

        What names no participant waits for the end of a pause, since no answer tells its sender.
        """
        return (self.limiter.is_held and exchange.addressed) or not self.make_room()

    def make_room(self) -> bool:
        """True if one more is taken; if need be, the oldest chat or presence is left out for it."""
        if self._context.closing:
            return False
        if not self.limiter.is_full:
            return True
        key = self.limiter.oldest_droppable()
        if key is None:
            return False
        dropped = self._open.pop(key)
        self.limiter.remove(key)
        _stop_reading(dropped)
        self._context.drop("overflow", dropped.work.envelope)
        return True

    def enqueue(self, exchange: InboundExchange) -> None:
        """Queue a handler, and start it if there is a free slot."""
        if exchange.is_request:
            self.requests.add(exchange)
        elif exchange.record is not None:
            exchange.record.holders += 1
            self._by_proposal[exchange.record.key] = exchange
        self._open[exchange.key] = exchange
        self.limiter.add(exchange.key, droppable=exchange.droppable)
        self._start_next()

    def _start_next(self) -> None:
        while (key := self.limiter.next()) is not None:
            exchange = self._open[key]
            denial = self.admission.denial(exchange)
            if denial is None:
                self._apply(exchange, InboundEvent.START)
            else:
                self.deny(exchange, denial)
                self._remove(exchange)

    def deny(self, exchange: InboundExchange, denial: Denial, *, answered: bool = True) -> None:
        """Drop what may start no handler, and say why where an answer is owed."""
        self._context.drop(denial.why, exchange.work.envelope, expected=denial.expected)
        self._note_not_carried_out(exchange)
        if exchange.is_request and denial.answer and answered:
            self.responses.exchange_error(exchange, payloads.REFUSED, denial.answer)

    def _note_not_carried_out(self, exchange: InboundExchange) -> None:
        if exchange.fulfills is not None and exchange.fulfillment is not None:
            # At once: not every gateway echoes our refusal.
            self._context.proposal_store.not_carried_out(exchange.fulfills, exchange.fulfillment)

    # --- cancelled ---

    def cancel(self, exchange: InboundExchange, cause: Cause) -> None:
        """Cancel a handler, or take it out of the queue."""
        self._apply(exchange, InboundEvent.CANCEL, cause)

    def withdraw(self, exchange: InboundExchange, cause: Cause) -> None:
        """Cancel the handler of a proposal that was withdrawn; it is told of that when it ends."""
        if exchange.state in (InboundState.RUNNING, InboundState.CANCELLING):
            exchange.withdrawal = cause
        self.cancel(exchange, cause)

    def settle_rejected(self, exchange: InboundExchange) -> None:
        """Settle what its handler rejects: the withdraw that follows cancels it no more."""
        exchange.rejected = True
        if exchange.state is InboundState.QUEUED:
            self._close(exchange)
        elif exchange.state is InboundState.RUNNING:
            self._apply(exchange, InboundEvent.REJECTED)

    def end_rejected(self, record: ProposalEntry, reason: str) -> None:
        """End the handler of what another process of ours has rejected (PROTOCOL 5).

        Unless it is fulfilling it already: its request may have been ordered first.
        """
        if not record.state.is_pending or self._outbound.open_fulfillments(record.key):
            return
        record.refused = True
        if declines(reason):  # others may have rejected it more often than is noted
            record.declined_by.add(self._context.me)
        exchange = self._by_proposal.get(record.key)
        if exchange is not None and not exchange.rejected:
            exchange.rejected = True
            text = "another process of ours rejected it"
            cause = cause_of_end(self._context.me, record.key.id, reason, text, self._context.now)
            self.cancel(exchange, cause)

    def notify_withdrawn(self, record: ProposalEntry, cause: Cause) -> None:
        """Tell handlers that a proposal was withdrawn; of one that we rejected it is no news."""
        if not record.refused:
            subject = Withdrawal(record.key.id, record.key.proposer, cause)
            self.notify(Role.WITHDRAW, record.envelope, subject)

    def chats(self, ids: tuple[str, ...]) -> list[InboundExchange]:
        """The handlers of chats with these ids, that run or wait."""
        return [
            exchange
            for exchange in self._open.values()
            if exchange.work.role is Role.CHAT and exchange.work.envelope.id in ids
        ]

    # --- expired ---

    def expire(self) -> list[ProposalEntry]:
        """End the proposals whose time is over, and what is begun about them (PROTOCOL 4.2)."""
        expired = self._context.expired()
        for record in expired:
            if self._outbound.expire_own(record):
                continue
            cause = Cause(
                Reason.TIMEOUT, "", "the proposal expired", record.key.id, self._context.now
            )
            self.end_expired(record, cause)
        self._context.watch_expiries()
        return expired

    def end_expired(self, record: ProposalEntry, cause: Cause) -> None:
        """Cancel the handler of an expired proposal; it is told of that when it ends."""
        exchange = self._by_proposal.get(record.key)
        if exchange is None or exchange.record is not record:
            self.notify_expired(record)
        elif not exchange.rejected:
            exchange.expired = exchange.state is not InboundState.QUEUED
            self.cancel(exchange, cause)

    def notify_expired(self, record: ProposalEntry) -> None:
        """Tell handlers that a proposal which one of them looked at has expired undecided."""
        if record.handled and not record.refused:
            self.notify(Role.EXPIRE, record.envelope, Expiry(record.key.id))

    # --- presence and connection ---

    def pause(self, *, paused: bool) -> None:
        """Begin nothing during a replay: what comes in it may have been taken back long ago."""
        self.limiter.is_paused = paused
        self._start_next()

    def hold(self, *, held: bool) -> None:
        """Begin nothing but what is urgent while we are paused."""
        self.limiter.is_held = held
        self._start_next()

    def participant_left(self, participant: str) -> None:
        """Begin the grace of what a participant began and left."""
        for exchange in self._begun_by_others():
            if exchange.key.sender == participant:
                self._sender_left(exchange)

    def participant_joined(self, participant: str) -> None:
        """End the grace of what a participant began: it is back."""
        for exchange in self._begun_by_others():
            if exchange.key.sender == participant:
                exchange.sender_left_at = None

    def connection_lost(self) -> None:
        """Let run what runs: no participant's absence can be seen now."""
        for exchange in self._begun_by_others():
            exchange.sender_left_at = None
            self._apply(exchange, InboundEvent.LOST)

    def welcomed(self) -> None:
        """Begin the grace of what was begun by participants that the welcome no longer lists."""
        for exchange in self._begun_by_others():
            if not exchange.unattended and exchange.key.sender not in self._context.roster:
                self._sender_left(exchange)

    def check_absence(self, key: Key) -> None:
        """Cancel a handler whose sender has been away for the whole grace period."""
        now = self._context.now
        exchange = self._open.get(key)
        if exchange is None or exchange.sender_left_at is None or exchange.outlasts_sender:
            return
        until = exchange.sender_left_at + ABSENCE_SECONDS
        if now < until:
            self._context.look_again(until, key)
            return
        text = "its sender left the space"
        cause = cause_of_end(key.sender, key.id, Reason.NO_LONGER_NEEDED, text, now)
        self._apply(exchange, InboundEvent.SENDER_ABSENT, cause)

    def _sender_left(self, exchange: InboundExchange) -> None:
        if exchange.sender_left_at is None:
            exchange.sender_left_at = self._context.now
            self._apply(exchange, InboundEvent.SENDER_LEFT)

    def _begun_by_others(self) -> list[InboundExchange]:
        return [exchange for exchange in self._open.values() if exchange.key.side == "in"]

    # --- our own shutdown ---

    def shutdown(self) -> None:
        """Answer ``busy`` to what is queued."""
        for exchange in list(self._open.values()):
            if exchange.key.side == "in":
                self._apply(exchange, InboundEvent.SHUTDOWN)
            elif exchange.state is InboundState.QUEUED:
                self._close(exchange)

    def shutdown_over(self) -> None:
        """Cancel what still runs after the grace, and answer so."""
        self.limiter.is_shut = True
        for exchange in list(self._open.values()):
            if exchange.state is InboundState.QUEUED:
                self._close(exchange)
                continue
            cause = self._own_cause(exchange, "the agent shuts down")
            self._apply(exchange, InboundEvent.SHUTDOWN_OVER, cause)

    def restart(self, cause: Cause) -> None:
        """End everything that runs or waits, with an answer where one is owed."""
        for exchange in list(self._open.values()):
            if exchange.work.role in CONTROL_ROLES:
                continue
            if exchange.state is not InboundState.QUEUED:
                self._apply(exchange, InboundEvent.SHUTDOWN_OVER, cause)
            elif exchange.key.side == "in":
                self._apply(exchange, InboundEvent.SHUTDOWN)
            else:
                self._close(exchange)

    # --- the handler ---

    def count_waits(self, key: Key, change: int) -> None:
        """Count a wait that a handler begins (+1) or ends (−1); its slot is free meanwhile."""
        self.limiter.count_waits(key, change)
        self._start_next()

    def returned(self, key: Key, result: object) -> None:
        """End a handler that returned; a result that JSON cannot hold raises NotExpressible."""
        exchange = self._open.get(key)
        if exchange is None:
            return
        if exchange.work.role in CONTROL_ROLES:
            self.on_control_end(exchange, result)
        owes = exchange.is_request and exchange.state is InboundState.RUNNING
        answer = encode_json(result) if owes else None
        self._apply(exchange, InboundEvent.RETURNED)
        if answer is not None:
            self.responses.respond(exchange, "result", answer)
            if exchange.fulfillment is not None:
                exchange.fulfillment.carried_out = True
        self._close(exchange)

    def raised(
        self, key: Key, code: int, message: str, data: object, *, begun: bool = True
    ) -> None:
        """End a handler that raised, stopped because it was cancelled, or never began."""
        exchange = self._open.get(key)
        if exchange is None:
            return
        if exchange.work.role in CONTROL_ROLES:
            self.on_control_end(exchange, None)
        if self._apply(exchange, InboundEvent.RAISED) is InboundAction.RESPOND_ERROR:
            if exchange.is_request:
                self.responses.failure(exchange, code, message, data)
                if not begun:
                    self._note_not_carried_out(exchange)
                elif exchange.fulfillment is not None:
                    exchange.fulfillment.carried_out = True
            elif exchange.is_proposal and not self._fulfillment_sent(exchange):
                self.responses.rejection(exchange, Reason.OTHER)
        self._close(exchange)

    # --- the lifecycle ---

    def _apply(
        self, exchange: InboundExchange, event: InboundEvent, cause: Cause | None = None
    ) -> InboundAction:
        """Step an exchange through the lifecycle, and carry out all but the answer at its end."""
        exchange.state, action = look_up(INBOUND, exchange.state, event, "an incoming exchange")
        match action:
            case InboundAction.START:
                if exchange.record is not None:
                    exchange.record.handled = True
                self._context.effects.append(Start(exchange.key, exchange.work))
                if exchange.sender_left_at is not None:
                    self._begin_grace(exchange)
            case InboundAction.BEGIN_GRACE:
                self._begin_grace(exchange)
            case InboundAction.ANSWER_BUSY:
                self.responses.busy(exchange)
                self._close(exchange)
            case InboundAction.CANCEL_SCOPE:
                self._cancel_scope(exchange, cause)
            case InboundAction.CANCEL_SCOPE_AND_ANSWER:
                assert cause is not None
                is_sent = self._fulfillment_sent(exchange)
                self.responses.cancelled(exchange, is_sent, cause.text)
                self._cancel_scope(exchange, cause)
            case InboundAction.DROP:
                self._context.drop("cancelled_in_queue", exchange.work.envelope, expected=True)
                self._close(exchange)
            case InboundAction.COUNT_LATE:
                self._context.drop("late_withdraw", exchange.work.envelope, expected=True)
            case _:  # the answer is the caller's, and the others change nothing
                pass
        return action

    def _begin_grace(self, exchange: InboundExchange) -> None:
        assert exchange.sender_left_at is not None
        self._context.look_again(exchange.sender_left_at + ABSENCE_SECONDS, exchange.key)

    def _cancel_scope(self, exchange: InboundExchange, cause: Cause | None) -> None:
        """Cancel the handler, and in the same step what it has open elsewhere."""
        assert cause is not None
        exchange.cause = cause
        self._context.effects.append(Cancel(exchange.key, cause))
        self._outbound.give_up_children(exchange.key, cause)

    def _close(self, exchange: InboundExchange) -> None:
        self._remove(exchange)
        self._start_next()

    def _remove(self, exchange: InboundExchange) -> None:
        key = exchange.key
        del self._open[key]
        self.limiter.remove(key)
        if exchange.is_request:
            self.requests.settle(exchange, self._context.now)
        elif key.side == "job":
            _stop_reading(exchange)
        if exchange.fulfillment is not None:
            exchange.fulfillment.running = False
            if exchange.fulfills is not None:
                exchange.fulfills.holders -= 1
        if exchange.record is not None:
            exchange.record.holders -= 1
            if self._by_proposal.get(exchange.record.key) is exchange:
                del self._by_proposal[exchange.record.key]
        if len(self._outbound):  # usually nothing is open, and no cause has to be made
            leftover = exchange.cause or self._own_cause(exchange, "")
            self._outbound.give_up_children(key, leftover)
        if exchange.withdrawal is not None and exchange.record is not None:
            self.notify_withdrawn(exchange.record, exchange.withdrawal)
        elif exchange.expired and exchange.record is not None:
            self.notify_expired(exchange.record)
        if self._context.closing and self.on_idle is not None:
            self.on_idle()

    def _own_cause(self, exchange: InboundExchange, text: str) -> Cause:
        return Cause(
            Reason.NO_LONGER_NEEDED, self._context.me, text, exchange.key.id, self._context.now
        )

    def _fulfillment_sent(self, exchange: InboundExchange) -> bool:
        """True if we fulfill, or have fulfilled, a proposal: here, or in another process."""
        out = None if exchange.record is None else exchange.record.in_progress
        sender = self._context.envelope_sender
        by_sibling = out is not None and sender.is_from_sibling((out.envelope.id,))
        return by_sibling or self._outbound.has_fulfilled(exchange.proposal_key)


@dataclass
class TablePart:
    """A part of the table that reads envelopes, with what all of these share."""

    _context: TableContext
    _outbound: OutboundTracker
    _scheduler: HandlerScheduler


def _ignore(exchange: InboundExchange, result: object) -> None:
    del exchange, result


def _stop_reading(exchange: InboundExchange) -> None:
    """Take no more frames for a handler of a stream."""
    if isinstance(exchange.work.subject, StreamBuffer):
        exchange.work.subject.close()
