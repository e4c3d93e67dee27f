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
from meup_agent.protocol.exchange.answers import Answers
from meup_agent.protocol.exchange.effects import (
    Cancel,
    Key,
    Role,
    Start,
    Subject,
    Withdrawal,
    Work,
)
from meup_agent.protocol.exchange.handling import Handling, Requests, ended_by
from meup_agent.protocol.exchange.ledger import (
    Fulfillment,
    ProposalKey,
    ProposalRecord,
    content_of,
)
from meup_agent.protocol.exchange.outgoing import Outgoing
from meup_agent.protocol.exchange.resolution import NONE, Resolution, resolve
from meup_agent.protocol.exchange.situation import ABSENCE_SECONDS, Situation
from meup_agent.protocol.exchange.slots import Limits, Slots
from meup_agent.protocol.lifecycle import (
    IncomingAction,
    IncomingEvent,
    IncomingState,
    ProposalEvent,
    incoming_step,
)
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Cause, Reason, cause_of_cancel

USED_AGAIN = "its sender used the id again"
"""Why something ends whose sender began something else under its id."""

_DROPPABLE = frozenset({Role.CHAT, Role.JOIN, Role.LEAVE, Role.KIND, Role.GRANT, Role.REVOKE})


class Incoming:
    """Everything that a handler of ours runs for or waits for."""

    def __init__(self, situation: Situation, outgoing: Outgoing, limits: Limits) -> None:
        self._situation = situation
        self._outgoing = outgoing
        self._answers = Answers(situation)
        self._admission = Admission(situation)
        self._slots = Slots(limits)
        self._open: dict[Key, Handling] = {}
        self._requests = Requests()
        self._proposals: dict[ProposalKey, Handling] = {}

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

    # --- arrivals ---

    def request(
        self,
        envelope: Envelope,
        call: Call,
        now: float,
        *,
        means: Resolution = NONE,
        fulfillment: Fulfillment | None = None,
    ) -> None:
        """A request that concerns us.

        Args:
            envelope: The request.
            call: What it asks for.
            now: The time.
            means: The proposal that it carries out.
            fulfillment: What the ledger has of that.
        """
        if not self._situation.mode.answers:
            return
        if self._is_repeated(envelope, now):
            return
        handling = self._taken_up(Role.REQUEST, envelope, call)
        handling.fulfills, handling.doubt = means.record, means.doubt
        handling.fulfillment = fulfillment
        denial = self._admission.denial(handling, now)
        wanted = bool(call.method) and self._situation.wants(Role.REQUEST, envelope, call)
        if self._is_cancelled_already(handling, call, now):
            self._situation.drop("cancelled_before", envelope, expected=True)
        elif fulfillment is not None and fulfillment.taken_up:
            self._situation.drop("duplicate_request", envelope, expected=True)
        elif denial is not None:
            self._deny(handling, denial, now, answered=handling.addressed or wanted)
        elif call.rpc_id is not None and call.rpc_name is None:
            if handling.addressed:
                self._answers.invalid(handling, "the request's JSON-RPC id is too long", now)
        elif not wanted:
            if handling.addressed:
                self._answers.unknown_method(handling, call.method, now)
        elif not self._make_room():
            self._answers.busy(handling, now)
        else:
            self._take_up_fulfillment(handling, now)
            self._requests.add(handling)
            self._enqueue(handling, now)
            return
        self._requests.settle(handling, now)

    def _deny(
        self, handling: Handling, denial: Denial, now: float, *, answered: bool = True
    ) -> None:
        """Say why something starts no handler, where an answer is owed."""
        self._situation.drop(denial.why, handling.work.envelope, expected=denial.expected)
        if handling.fulfills is not None and handling.fulfillment is not None:
            # Without waiting for our own words to come back, which they do not everywhere.
            self._situation.ledger.not_carried_out(handling.fulfills, handling.fulfillment)
        if handling.is_request and denial.answer and answered:
            self._answers.exchange_error(handling, payloads.REFUSED, denial.answer, now)

    def _take_up_fulfillment(self, handling: Handling, now: float) -> None:
        """Remember that we carry a proposal out, also one that we have not seen."""
        request = handling.work.envelope
        if handling.fulfillment is None and request.correlation and handling.call is not None:
            handling.fulfillment = early_fulfillment(request, handling.call)
            for name in request.correlation:
                self._situation.ledger.put_early(name, handling.fulfillment, now)
        if handling.fulfillment is not None:
            handling.fulfillment.taken_up = handling.fulfillment.running = True
        if handling.fulfills is not None:
            handling.fulfills.holders += 1

    def fulfilled_early(self, record: ProposalRecord, now: float) -> None:
        """A proposal has come; requests that carry it out may have come before it."""
        for item in self._situation.ledger.early(record.key.id, now):
            if not is_early(item, record):
                continue
            self._situation.ledger.requested(record, item, now)
            if item.carried_out:
                record.step(ProposalEvent.RESPONSE, item.by)
            for handling in self._requests.open():
                if handling.fulfillment is item:
                    handling.fulfills = record
                    record.holders += 1

    def _bind(self, handling: Handling, now: float) -> None:
        """See which proposal a request carries out whose proposals were not known as it came."""
        item = handling.fulfillment
        if handling.fulfills is not None or item is None or not item.early:
            return
        means = resolve(handling.work.envelope, self._situation.ledger, now)
        handling.fulfills, handling.doubt = means.record, means.doubt
        if means.record is not None:
            means.record.holders += 1
            if means.record.key.proposer != item.by:
                self._situation.ledger.requested(means.record, item, now)

    def _is_repeated(self, envelope: Envelope, now: float) -> bool:
        """Whether it is a request that came before: its answer is repeated, the work is not.

        Another one under the same id ends the first, which a restart of its sender has orphaned:
        an answer to the first would be taken for an answer to the second.
        """
        name = (envelope.sender, envelope.id)
        running, settled = self._requests.opened(name), self._requests.settled(name, now)
        content = content_of(envelope)
        if running is not None and content_of(running.work.envelope) != content:
            running.superseded = True
            self._requests.forget(running)
            cause = ended_by(envelope.sender, envelope.id, Reason.NO_LONGER_NEEDED, USED_AGAIN, now)
            self._apply(running, IncomingEvent.CANCEL, now, cause)
            return False
        if running is None and (settled is None or settled.content != content):
            return False
        if running is None and settled is not None and settled.answer_id is not None:
            self._situation.voice.repeat(settled.answer_id, now)
        self._situation.drop("duplicate_request", envelope, expected=True)
        return True

    def _is_cancelled_already(self, handling: Handling, call: Call, now: float) -> bool:
        tombstones = self._situation.tombstones
        if tombstones.is_empty or call.method == "initialize":
            return False
        return any(
            tombstones.get("cancelled", *name, now) is not None
            for name in handling.names
            if name is not None
        )

    def proposal(self, record: ProposalRecord, envelope: Envelope, now: float) -> None:
        """A new proposal that is broadcast or addressed to us."""
        if not self._situation.mode.answers:
            return
        call = payloads.read_proposal(envelope.payload)
        handling = self._taken_up(Role.PROPOSAL, envelope, call)
        handling.record = record
        denial = self._admission.denial(handling, now)
        if denial is not None:
            self._deny(handling, denial, now)
        elif not call.method:
            self._answers.rejection(handling, Reason.INVALID, now)
        elif not self._situation.wants(Role.PROPOSAL, envelope, call):
            # Where targets are hidden, who is to carry it out is addressed beside those who are to
            # decide, so as to see it (PROTOCOL 2): it is not asked, and would end the wait.
            if call.target != self._situation.me or len(envelope.to) < 2:
                self._answers.rejection(handling, Reason.INCAPABLE, now)
        elif self._situation.ledger.get(record.key, now) is not record or not self._make_room():
            self._answers.busy(handling, now)
        else:
            record.holders += 1
            self._proposals[record.key] = handling
            self._enqueue(handling, now)

    def notice(
        self,
        role: Role,
        envelope: Envelope,
        now: float,
        subject: Subject = None,
        *,
        droppable: bool = False,
    ) -> None:
        """Something that a handler is told of, and nobody waits for.

        Args:
            role: Which handlers it is for.
            envelope: The envelope that it is about.
            now: The time.
            subject: What the role adds to that.
            droppable: It is left out where there is no room, as notices of most roles are.
        """
        if not self._situation.mode.answers:
            return
        if self._slots.is_shut or not self._situation.wants(role, envelope, None):
            return
        droppable = droppable or role in _DROPPABLE
        if droppable and not self._make_room():
            self._situation.drop("overflow", envelope, expected=self._situation.closing)
            return
        key = Key("job", envelope.sender, f"{role}:{self._situation.voice.new_id()}")
        handling = Handling(key, Work(role, envelope, subject), droppable=droppable)
        self._enqueue(handling, now)

    def _taken_up(self, role: Role, envelope: Envelope, call: Call) -> Handling:
        key = Key("in", envelope.sender, envelope.id)
        while key in self._open:
            key = key._replace(again=key.again + 1)
        addressed = self._situation.me in envelope.to
        return Handling(key, Work(role, envelope, call=call), call, addressed)

    def _make_room(self) -> bool:
        """Whether one more is taken; if need be, the oldest chat or presence is left out for it."""
        if self._situation.closing:
            return False
        if not self._slots.is_full:
            return True
        key = self._slots.oldest_droppable()
        if key is None:
            return False
        dropped = self._open.pop(key)
        self._slots.remove(key)
        self._situation.drop("overflow", dropped.work.envelope)
        return True

    def _enqueue(self, handling: Handling, now: float) -> None:
        self._open[handling.key] = handling
        self._slots.add(handling.key, droppable=handling.droppable)
        self._start_next(now)

    def _start_next(self, now: float) -> None:
        while (key := self._slots.next()) is not None:
            handling = self._open[key]
            # Its proposal may have come, or been decided, while it waited.
            self._bind(handling, now)
            denial = self._admission.denial(handling, now)
            if denial is None:
                self._apply(handling, IncomingEvent.START, now)
            else:
                self._deny(handling, denial, now)
                self._forget(handling, now)

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
            self._situation.drop("malformed_cancel", envelope)
            return None
        name = (requester, str(request_id))
        handling = self._requests.meant(name)
        if handling is None:
            if self._requests.has_ended(name, now):
                self._situation.drop("late_cancel", envelope, expected=True)
                return None
            by_another = self._requests.others(name)
            self._situation.drop(
                "cancel_by_another" if by_another else "unknown_cancel",
                envelope,
                expected=not by_another,
            )
            return name[1]
        if handling.call is not None and handling.call.method == "initialize":
            self._situation.drop("initialize_is_not_cancelled", envelope)
            return None
        cause = cause_of_cancel(params, by=envelope.sender, exchange_id=handling.key.id, at=now)
        self._apply(handling, IncomingEvent.CANCEL, now, cause)
        return None

    def withdrawn(
        self,
        proposal: ProposalKey,
        record: ProposalRecord | None,
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
        handling = self._proposals.get(proposal)
        if handling is not None:
            if handling.state in (IncomingState.RUNNING, IncomingState.CANCELLING):
                handling.withdrawal = cause
            self._apply(handling, IncomingEvent.CANCEL, now, cause)
        elif record is not None and record.handled:
            self._tell_withdrawn(record, cause, now)
        for exchange in self._outgoing.fulfilling(proposal):
            self._outgoing.give_up(exchange.key, cause, now)

    def rejected_beside(self, record: ProposalRecord, reason: str, now: float) -> None:
        """Another process of ours has rejected a proposal: our handler has nothing left to decide.

        Unless it is fulfilling it: then rejections are only recorded (PROTOCOL 4.4).
        """
        if not record.state.is_pending or self._outgoing.fulfilling(record.key):
            return
        record.refused = record.declined = True
        handling = self._proposals.get(record.key)
        if handling is not None and not handling.rejected:
            handling.rejected = True
            self._decided_beside(handling, reason, "another process of ours rejected it", now)

    def answered_beside(self, response: Envelope, now: float) -> None:
        """Another process of ours has answered a request: our handler's answer would be a copy."""
        for handling in self._requests.to_answer(response):
            text = "another process of ours answered it"
            self._decided_beside(handling, Reason.NO_LONGER_NEEDED, text, now)

    def _decided_beside(self, handling: Handling, reason: str, text: str, now: float) -> None:
        cause = ended_by(self._situation.me, handling.key.id, reason, text, now)
        self._apply(handling, IncomingEvent.CANCEL, now, cause)

    # --- presence and connection ---

    def pause(self, now: float, *, paused: bool) -> None:
        """Begin nothing while we read what we missed: it may have been taken back long ago."""
        self._slots.is_paused = paused
        self._start_next(now)

    def participant_left(self, participant: str, now: float) -> None:
        """Somebody left: what they began goes on for the grace period."""
        for handling in self._begun_by(participant):
            self._sender_left(handling, now)

    def participant_joined(self, participant: str) -> None:
        """Somebody is back."""
        for handling in self._begun_by(participant):
            handling.sender_left_at = None

    def connection_lost(self, now: float) -> None:
        """Nobody's absence can be seen now; what runs goes on."""
        for handling in self._begun_by_others():
            handling.sender_left_at = None
            self._apply(handling, IncomingEvent.LOST, now)

    def welcomed(self, now: float) -> None:
        """Whoever is not there after a welcome has left."""
        for handling in self._begun_by_others():
            if handling.key.sender not in self._situation.roster:
                self._sender_left(handling, now)

    def look(self, key: Key, now: float) -> None:
        """A timer has rung: see whether the sender has been away for the whole grace period."""
        handling = self._open.get(key)
        if handling is None or handling.sender_left_at is None:
            return
        until = handling.sender_left_at + ABSENCE_SECONDS
        if now < until:
            self._situation.look_again(until, key)
            return
        cause = ended_by(
            key.sender, key.id, Reason.NO_LONGER_NEEDED, "its sender left the space", now
        )
        self._apply(handling, IncomingEvent.SENDER_ABSENT, now, cause)

    def _sender_left(self, handling: Handling, now: float) -> None:
        if handling.sender_left_at is None:
            handling.sender_left_at = now
            self._apply(handling, IncomingEvent.SENDER_LEFT, now)

    def _begun_by_others(self) -> list[Handling]:
        return [handling for handling in self._open.values() if handling.key.side == "in"]

    def _begun_by(self, participant: str) -> list[Handling]:
        return [item for item in self._begun_by_others() if item.key.sender == participant]

    # --- our own shutdown ---

    def shutdown(self, now: float) -> None:
        """Nothing new: what is queued is answered ``busy``."""
        for handling in list(self._open.values()):
            if handling.key.side == "in":
                self._apply(handling, IncomingEvent.SHUTDOWN, now)
            elif handling.state is IncomingState.QUEUED:
                self._close(handling, now)

    def shutdown_over(self, now: float) -> None:
        """The grace is over: what still runs is cancelled, and answered so."""
        self._slots.shut()
        for handling in list(self._open.values()):
            if handling.state is IncomingState.QUEUED:
                self._close(handling, now)
                continue
            cause = Cause(
                Reason.NO_LONGER_NEEDED,
                self._situation.me,
                "the agent shuts down",
                handling.key.id,
                now,
            )
            self._apply(handling, IncomingEvent.SHUTDOWN_OVER, now, cause)

    # --- the handler ---

    def awaits(self, key: Key, change: int, now: float) -> None:
        """A handler begins (+1) or ends (−1) to await an exchange."""
        self._slots.awaits(key, change)
        self._start_next(now)

    def returned(self, key: Key, result: object, now: float) -> None:
        """A handler has ended well; the result is a request's answer.

        Raises:
            NotExpressible: The result has no form in JSON; nothing was changed.
        """
        handling = self._open.get(key)
        if handling is None:
            return
        owes = handling.is_request and handling.state is IncomingState.RUNNING
        answer = msgspec.Raw(encode_json(result)) if owes else None
        self._apply(handling, IncomingEvent.RETURNED, now)
        if answer is not None:
            self._answers.result(handling, answer, now)
            _carried_out(handling)
        self._close(handling, now)

    def raised(self, key: Key, code: int, message: str, data: object, now: float) -> None:
        """A handler has failed, or has ended cancelled."""
        handling = self._open.get(key)
        if handling is None:
            return
        if self._apply(handling, IncomingEvent.RAISED, now) is IncomingAction.RESPOND_ERROR:
            if handling.is_request:
                self._answers.failure(handling, code, message, data, now)
                _carried_out(handling)
            elif handling.is_proposal and not self._fulfillment_sent(handling, now):
                self._answers.rejection(handling, Reason.OTHER, now)
        self._close(handling, now)

    # --- the table ---

    def _apply(
        self, handling: Handling, event: IncomingEvent, now: float, cause: Cause | None = None
    ) -> IncomingAction:
        """Take a step and do what it asks for, but for the answer at a handler's end."""
        handling.state, action = incoming_step(handling.state, event)
        match action:
            case IncomingAction.START:
                if handling.record is not None:
                    handling.record.handled = True
                self._situation.effects.append(Start(handling.key, handling.work))
                self._begin_grace(handling)
            case IncomingAction.BEGIN_GRACE:
                self._begin_grace(handling)
            case IncomingAction.ANSWER_BUSY:
                self._answers.busy(handling, now)
                self._close(handling, now)
            case IncomingAction.CANCEL_SCOPE:
                self._cancel(handling, cause, now)
            case IncomingAction.CANCEL_SCOPE_AND_ANSWER:
                self._answers.cancelled(handling, self._fulfillment_sent(handling, now), now)
                self._cancel(handling, cause, now)
            case IncomingAction.DROP:
                self._situation.drop("cancelled_in_queue", handling.work.envelope, expected=True)
                self._close(handling, now)
            case IncomingAction.COUNT_LATE:
                self._situation.drop("late_withdraw", handling.work.envelope, expected=True)
            case (
                IncomingAction.RESPOND
                | IncomingAction.RESPOND_ERROR
                | IncomingAction.DISCARD
                | IncomingAction.LOG
                | IncomingAction.KEEP
                | IncomingAction.IGNORE
            ):
                pass
        return action

    def _begin_grace(self, handling: Handling) -> None:
        if handling.sender_left_at is not None:
            until = handling.sender_left_at + ABSENCE_SECONDS
            self._situation.look_again(until, handling.key)

    def _cancel(self, handling: Handling, cause: Cause | None, now: float) -> None:
        """End the scope, and at once what the handler has open elsewhere."""
        assert cause is not None
        handling.cause = cause
        self._situation.effects.append(Cancel(handling.key, cause))
        self._outgoing.give_up_children(handling.key, cause, now)

    def _close(self, handling: Handling, now: float) -> None:
        self._forget(handling, now)
        self._start_next(now)

    def _forget(self, handling: Handling, now: float) -> None:
        key = handling.key
        del self._open[key]
        self._slots.remove(key)
        if handling.is_request:
            self._requests.settle(handling, now)
        if handling.fulfillment is not None:
            handling.fulfillment.running = False
            if handling.fulfills is not None:
                handling.fulfills.holders -= 1
        if handling.record is not None:
            handling.record.holders -= 1
            if self._proposals.get(handling.record.key) is handling:
                del self._proposals[handling.record.key]
        leftover = handling.cause or Cause(
            Reason.NO_LONGER_NEEDED, self._situation.me, "", key.id, now
        )
        self._outgoing.give_up_children(key, leftover, now)
        if handling.withdrawal is not None and handling.record is not None:
            self._tell_withdrawn(handling.record, handling.withdrawal, now)

    def _tell_withdrawn(self, record: ProposalRecord, cause: Cause, now: float) -> None:
        """A proposal that we handled was withdrawn; what we rejected is no news to us."""
        if not record.refused:
            subject = Withdrawal(record.key.id, record.key.proposer, cause)
            self.notice(Role.WITHDRAW, record.envelope, now, subject)

    def reject(self, proposal: ProposalKey, reason: str, now: float) -> Envelope:
        """Say no to a proposal.

        It is settled then: the withdraw with which its proposer answers cancels nobody, since the
        handler may still have something to put in order.
        """
        handling = self._proposals.get(proposal)
        if handling is not None:
            handling.rejected = True
            if handling.state is IncomingState.RUNNING:
                self._apply(handling, IncomingEvent.REJECTED, now)
        return self._answers.reject(proposal, reason, now)

    def _fulfillment_sent(self, handling: Handling, now: float) -> bool:
        """Whether we fulfill, or have fulfilled, a proposal: here, or in another process."""
        out = None if handling.record is None else handling.record.in_progress
        beside = out is not None and self._situation.voice.said_beside((out.envelope.id,), now)
        return beside or self._outgoing.has_fulfilled(handling.proposal_key, now)


def _carried_out(handling: Handling) -> None:
    """We have answered a request; if it fulfilled a proposal, that is done."""
    if handling.fulfillment is not None:
        handling.fulfillment.carried_out = True
