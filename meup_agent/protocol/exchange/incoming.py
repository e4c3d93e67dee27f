"""What others began and we handle (PROTOCOL 5, first and second table), and the queue for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import (
    Cancel,
    Drop,
    Key,
    Priority,
    Role,
    Start,
    Subject,
    Withdrawal,
    Work,
)
from meup_agent.protocol.exchange.ledger import ProposalKey
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.exchange.outgoing import Outgoing
from meup_agent.protocol.exchange.situation import ABSENCE_SECONDS, Situation
from meup_agent.protocol.exchange.slots import Limits, Slots
from meup_agent.protocol.lifecycle import (
    IncomingAction,
    IncomingEvent,
    IncomingState,
    incoming_step,
)
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Cause, Link, Reason, cause_of_cancel

SETTLED_COUNT = 1000
SETTLED_SECONDS = 300.0
"""Settled requests are remembered for cancels that come late and requests that come twice."""

_DROPPABLE = frozenset({Role.CHAT, Role.JOIN, Role.LEAVE, Role.KIND})


@dataclass(slots=True)
class Handling:
    """A request, a proposal or a notice that a handler of ours is for."""

    key: Key
    work: Work
    call: Call | None
    addressed: bool
    state: IncomingState = IncomingState.QUEUED
    cause: Cause | None = None
    withdrawn: bool = False
    sender_gone_at: float | None = None
    answer_id: str | None = None

    @property
    def is_request(self) -> bool:
        return self.work.role is Role.REQUEST

    @property
    def is_proposal(self) -> bool:
        return self.work.role is Role.PROPOSAL

    @property
    def proposal_key(self) -> ProposalKey:
        return ProposalKey(self.key.sender, self.key.id)


class Incoming:
    """Everything that a handler of ours runs for, waits for, or lately ran for."""

    def __init__(self, situation: Situation, outgoing: Outgoing, limits: Limits) -> None:
        self._situation = situation
        self._outgoing = outgoing
        self._limits = limits
        self._slots = Slots(limits)
        self._open: dict[Key, Handling] = {}
        self._settled: Memory[Key, Handling] = Memory(count=SETTLED_COUNT, seconds=SETTLED_SECONDS)
        self._by_rpc_id: dict[tuple[str, str], Key] = {}

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended."""
        return self._slots.running

    @property
    def queued(self) -> int:
        """What waits for a handler to begin."""
        return self._slots.queued

    def handling(self, key: Key) -> Handling | None:
        """What is open under a key."""
        return self._open.get(key)

    # --- arrivals ------------------------------------------------------------------------------

    def request(self, envelope: Envelope, now: float) -> None:
        """A request that concerns us."""
        call = payloads.read_call(envelope.payload)
        key = Key("in", envelope.sender, envelope.id)
        addressed = self._situation.me in envelope.to
        settled = self._settled.get(key, now)
        if key in self._open or settled is not None:
            # The same request again: the answer is repeated, the work is not.
            if settled is not None and settled.answer_id is not None:
                self._situation.voice.repeat(settled.answer_id, now)
            self._drop("duplicate_request", envelope, expected=True)
            return
        cause = self._tombstone(envelope, call, now)
        if cause is not None:
            self._drop("cancelled_before", envelope, expected=True)
            return
        work = Work(Role.REQUEST, envelope)
        handling = Handling(key, work, call, addressed)
        if not call.method:
            if addressed:
                self._refuse(handling, payloads.INVALID_REQUEST, "the request has no method", now)
        elif not self._situation.wants(Role.REQUEST, envelope):
            if addressed:
                message = f"there is no method {call.method!r} here"
                self._refuse(handling, payloads.METHOD_NOT_FOUND, message, now)
        elif self._situation.closing or (self._slots.is_full and not self._make_room()):
            self._answer_busy(handling, now)
        else:
            self._enqueue(handling, now)

    def _tombstone(self, envelope: Envelope, call: Call, now: float) -> object | None:
        tombstones = self._situation.tombstones
        found = tombstones.get(envelope.sender, envelope.id, now)
        if found is None and call.rpc_id is not None:
            found = tombstones.get(envelope.sender, str(call.rpc_id), now)
        return found

    def duplicate_fulfillment(self, envelope: Envelope, reason: str, now: float) -> None:
        """A request that fulfills what we have carried out already, or what was withdrawn."""
        key = Key("in", envelope.sender, envelope.id)
        call = payloads.read_call(envelope.payload)
        handling = Handling(key, Work(Role.REQUEST, envelope), call, addressed=True)
        self._answer_exchange_error(handling, payloads.REFUSED, reason, now)

    def proposal(self, envelope: Envelope, now: float) -> None:
        """A proposal that is broadcast or addressed to us."""
        key = Key("in", envelope.sender, envelope.id)
        if key in self._open or self._settled.get(key, now) is not None:
            self._drop("duplicate_proposal", envelope, expected=True)
            return
        call = payloads.read_call(envelope.payload)
        addressed = self._situation.me in envelope.to
        handling = Handling(key, Work(Role.PROPOSAL, envelope), call, addressed)
        if not call.method:
            self._reject(handling, Reason.INVALID, now)
        elif not self._situation.wants(Role.PROPOSAL, envelope):
            self._reject(handling, Reason.INCAPABLE, now)
        elif self._situation.closing or (self._slots.is_full and not self._make_room()):
            self._drop("overflow", envelope)
            self._reject(handling, Reason.BUSY, now)
        else:
            self._enqueue(handling, now)

    def notice(self, role: Role, envelope: Envelope, now: float, subject: Subject = None) -> None:
        """Something that a handler is told of, and nobody waits for."""
        if not self._situation.wants(role, envelope):
            return
        droppable = role in _DROPPABLE
        if droppable and (
            self._situation.closing or (self._slots.is_full and not self._make_room())
        ):
            self._drop("overflow", envelope)
            return
        key = Key("job", envelope.sender, f"{role}:{self._situation.voice.new_id()}")
        self._enqueue(Handling(key, Work(role, envelope, subject), None, addressed=True), now)

    def _make_room(self) -> bool:
        """Leave the oldest chat or presence out; ``False`` if none is queued."""
        key = self._slots.oldest_droppable()
        if key is None:
            return False
        dropped = self._open.pop(key)
        self._slots.remove(key)
        self._drop("overflow", dropped.work.envelope)
        return True

    def _enqueue(self, handling: Handling, now: float) -> None:
        self._open[handling.key] = handling
        if handling.call is not None and handling.call.rpc_id is not None:
            self._by_rpc_id[handling.key.sender, str(handling.call.rpc_id)] = handling.key
        self._slots.add(handling.key, droppable=handling.work.role in _DROPPABLE)
        self._start_next(now)

    def _start_next(self, now: float) -> None:
        while (key := self._slots.next()) is not None:
            handling = self._open[key]
            self._apply(handling, IncomingEvent.START, now)
            if handling.key.side == "in" and self._situation.connected:
                since = self._situation.roster.absent_since(key.sender, now)
                if since is not None:
                    self._begin_grace(handling, since + ABSENCE_SECONDS)

    # --- ends that others bring -------------------------------------------------------------------

    def cancel(self, envelope: Envelope, params: dict[str, Any], now: float) -> bool:
        """``notifications/cancelled``; ``False`` if it names nothing that we know (PROTOCOL 4.7)."""
        request_id = params.get("requestId")
        if isinstance(request_id, bool) or not isinstance(request_id, int | str):
            self._drop("malformed_cancel", envelope)
            return True
        name = str(request_id)
        key = self._by_rpc_id.get((envelope.sender, name)) or Key("in", envelope.sender, name)
        handling = self._open.get(key)
        if handling is None and self._settled.get(key, now) is not None:
            self._drop("late_cancel", envelope, expected=True)
            return True
        if handling is None or not handling.is_request:
            return False
        if handling.call is not None and handling.call.method == "initialize":
            self._drop("initialize_is_not_cancelled", envelope)
            return True
        cause = cause_of_cancel(params, by=envelope.sender, exchange_id=name, at=now)
        self._apply(handling, IncomingEvent.CANCEL, now, cause)
        return True

    def withdrawn(self, proposal: ProposalKey, reason: str, now: float) -> None:
        """A proposer took its proposal back: our handler, and our fulfillment of it, end."""
        link = Link(proposal.proposer, proposal.id, reason)
        cause = Cause(reason, proposal.proposer, "", proposal.id, now, (link,))
        handling = self._open.get(Key("in", *proposal))
        if handling is not None and handling.is_proposal:
            handling.withdrawn = True
            self._apply(handling, IncomingEvent.CANCEL, now, cause)
        for exchange in self._outgoing.fulfilling(proposal):
            self._outgoing.give_up(exchange.key, cause, now)

    # --- presence and connection ----------------------------------------------------------------

    def participant_left(self, participant: str, now: float) -> None:
        """Somebody left: what they began goes on for the grace period."""
        for handling in self._begun_by(participant):
            self._apply(handling, IncomingEvent.SENDER_LEFT, now)

    def participant_joined(self, participant: str) -> None:
        """Somebody is back."""
        for handling in self._begun_by(participant):
            handling.sender_gone_at = None

    def connection_lost(self, now: float) -> None:
        """Nobody's absence can be seen now; what runs goes on."""
        for handling in list(self._open.values()):
            handling.sender_gone_at = None
            if handling.key.side == "in":
                self._apply(handling, IncomingEvent.LOST, now)

    def welcomed(self, now: float) -> None:
        """Whoever is not there after a welcome has left."""
        for handling in list(self._open.values()):
            if handling.key.side == "in" and handling.key.sender not in self._situation.roster:
                self._apply(handling, IncomingEvent.SENDER_LEFT, now)

    def look(self, key: Key, now: float) -> None:
        """A timer has rung: see whether the sender has been away for the whole grace period."""
        handling = self._open.get(key)
        if handling is None or handling.sender_gone_at is None:
            return
        if now >= handling.sender_gone_at:
            handling.sender_gone_at = None
            link = Link(key.sender, key.id, Reason.NO_LONGER_NEEDED, "its sender left the space")
            cause = Cause(link.reason, key.sender, link.text, key.id, now, (link,))
            self._apply(handling, IncomingEvent.SENDER_ABSENT, now, cause)
        else:
            self._situation.look_again(handling.sender_gone_at, key)

    def _begun_by(self, participant: str) -> list[Handling]:
        return [
            handling
            for handling in self._open.values()
            if handling.key.side == "in" and handling.key.sender == participant
        ]

    def _begin_grace(self, handling: Handling, until: float) -> None:
        handling.sender_gone_at = until
        self._situation.look_again(until, handling.key)

    # --- our own shutdown ---------------------------------------------------------------------------

    def shutdown(self, now: float) -> None:
        """Nothing new: what is queued is answered ``busy``."""
        for key in self._slots.keys():
            handling = self._open[key]
            if key.side == "in":
                self._apply(handling, IncomingEvent.SHUTDOWN, now)
            elif handling.state is IncomingState.QUEUED:
                self._close(handling, now)

    def shutdown_over(self, now: float) -> None:
        """The grace is over: what still runs is cancelled, and answered so."""
        for handling in list(self._open.values()):
            if handling.state is IncomingState.QUEUED:
                continue
            cause = Cause(
                Reason.NO_LONGER_NEEDED,
                self._situation.me,
                "the agent shuts down",
                handling.key.id,
                now,
            )
            self._apply(handling, IncomingEvent.SHUTDOWN_OVER, now, cause)

    # --- the handler ---------------------------------------------------------------------------------

    def awaits(self, key: Key, change: int, now: float) -> None:
        """A handler begins (+1) or ends (−1) to await an exchange."""
        self._slots.awaits(key, change)
        self._start_next(now)

    def returned(self, key: Key, result: Any, now: float) -> None:
        """A handler has ended well; the result is a request's answer."""
        handling = self._open.get(key)
        if handling is not None:
            self._apply(handling, IncomingEvent.RETURNED, now, answer=result)

    def raised(self, key: Key, code: int, message: str, data: Any, now: float) -> None:
        """A handler has failed, or has ended cancelled."""
        handling = self._open.get(key)
        if handling is not None:
            error = {"code": code, "message": message, "data": data}
            self._apply(handling, IncomingEvent.RAISED, now, answer=error)

    # --- the table -------------------------------------------------------------------------------------

    def _apply(
        self,
        handling: Handling,
        event: IncomingEvent,
        now: float,
        cause: Cause | None = None,
        *,
        answer: Any = None,
    ) -> None:
        handling.state, action = incoming_step(handling.state, event)
        match action:
            case IncomingAction.START:
                self._situation.effects.append(Start(handling.key, handling.work))
            case IncomingAction.RESPOND:
                if handling.is_request:
                    self._answer(handling, "result", answer, now)
            case IncomingAction.RESPOND_ERROR:
                self._answer_failure(handling, answer, now)
            case IncomingAction.ANSWER_BUSY:
                self._answer_busy(handling, now)
            case IncomingAction.CANCEL_SCOPE:
                self._cancel(handling, cause, now)
            case IncomingAction.CANCEL_SCOPE_AND_ANSWER:
                self._answer_cancelled(handling, now)
                self._cancel(handling, cause, now)
            case IncomingAction.BEGIN_GRACE:
                self._begin_grace(handling, now + ABSENCE_SECONDS)
            case IncomingAction.DROP:
                self._drop("cancelled_in_queue", handling.work.envelope, expected=True)
            case (
                IncomingAction.DISCARD
                | IncomingAction.LOG
                | IncomingAction.COUNT_LATE
                | IncomingAction.KEEP
                | IncomingAction.IGNORE
            ):
                pass
        if handling.state is IncomingState.SETTLED:
            self._close(handling, now)

    def _cancel(self, handling: Handling, cause: Cause | None, now: float) -> None:
        """End the scope, and at once what the handler has open elsewhere."""
        assert cause is not None
        handling.cause = cause
        self._situation.effects.append(Cancel(handling.key, cause))
        self._outgoing.give_up_children(handling.key, cause, now)

    def _close(self, handling: Handling, now: float) -> None:
        key = handling.key
        del self._open[key]
        self._slots.remove(key)
        if key.side == "in":
            self._settled.put(key, handling, now)
            if handling.call is not None and handling.call.rpc_id is not None:
                rpc_key = (key.sender, str(handling.call.rpc_id))
                if self._by_rpc_id.get(rpc_key) == key:
                    del self._by_rpc_id[rpc_key]
        leftover = handling.cause or Cause(
            Reason.NO_LONGER_NEEDED, self._situation.me, "", key.id, now
        )
        self._outgoing.give_up_children(key, leftover, now)
        if handling.withdrawn and handling.cause is not None:
            subject = Withdrawal(key.id, key.sender, handling.cause)
            self.notice(Role.WITHDRAW, handling.work.envelope, now, subject)
        self._start_next(now)

    # --- answers -----------------------------------------------------------------------------------------

    def _answer_failure(self, handling: Handling, error: dict[str, Any], now: float) -> None:
        if handling.is_request:
            if error["data"] is None:
                error = {"code": error["code"], "message": error["message"]}
            self._answer(handling, "error", error, now)
        elif handling.is_proposal and not self._fulfillment_sent(handling, now):
            self._reject(handling, Reason.OTHER, now)

    def _answer_busy(self, handling: Handling, now: float) -> None:
        self._drop("overflow", handling.work.envelope)
        if handling.is_request:
            self._answer_exchange_error(handling, "busy", "too much to do at the moment", now)
        elif handling.is_proposal:
            self._reject(handling, Reason.BUSY, now)

    def _answer_cancelled(self, handling: Handling, now: float) -> None:
        if handling.is_request:
            self._answer_exchange_error(handling, "cancelled", "the agent shuts down", now)
        elif handling.is_proposal and not self._fulfillment_sent(handling, now):
            self._reject(handling, Reason.BUSY, now)

    def _answer_exchange_error(
        self, handling: Handling, reason: str, message: str, now: float
    ) -> None:
        error = {
            "code": payloads.EXCHANGE_ERROR,
            "message": f"{reason}: {message}",
            "data": {"reason": reason},
        }
        self._answer(handling, "error", error, now)

    def _refuse(self, handling: Handling, code: int, message: str, now: float) -> None:
        self._answer(handling, "error", {"code": code, "message": message}, now)

    def _answer(self, handling: Handling, field: str, value: Any, now: float) -> None:
        """The one place where a response is made; never for a notification."""
        call = handling.call
        if handling.answer_id is not None or call is None or call.is_notification:
            return
        rpc_id = call.rpc_id if call.rpc_id is not None else handling.key.id
        response = self._situation.voice.say(
            kinds.MCP_RESPONSE,
            {"jsonrpc": "2.0", "id": rpc_id, field: value},
            now=now,
            priority=Priority.ANSWER,
            to=(handling.key.sender,),
            correlation=(handling.key.id,),
            concerned=(handling.key.sender,),
        )
        handling.answer_id = response.id

    def _reject(self, handling: Handling, reason: str, now: float) -> None:
        """Reject on our own account: only what was addressed to us."""
        record = self._situation.ledger.get(handling.proposal_key, now)
        if handling.addressed and (record is None or record.state.is_pending):
            self.reject(handling.proposal_key, reason, now)

    def reject(self, proposal: ProposalKey, reason: str, now: float) -> Envelope:
        """Say no to a proposal."""
        return self._situation.voice.say(
            kinds.MCP_REJECT,
            {"reason": reason},
            now=now,
            priority=Priority.END,
            to=(proposal.proposer,),
            correlation=(proposal.id,),
            concerned=(proposal.proposer,),
        )

    def _fulfillment_sent(self, handling: Handling, now: float) -> bool:
        """Whether a fulfilling request of ours has left, and was not refused."""
        return self._outgoing.has_fulfilled(handling.proposal_key, now)

    def _drop(self, why: str, envelope: Envelope, *, expected: bool = False) -> None:
        self._situation.effects.append(Drop(why, envelope, expected))
