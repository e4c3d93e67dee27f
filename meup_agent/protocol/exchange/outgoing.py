"""Our own requests and proposals: the waiting side (PROTOCOL 5, third table)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import (
    Conflict,
    Drop,
    Key,
    Priority,
    Progressed,
    Rejection,
    Unsend,
    Wake,
)
from meup_agent.protocol.exchange.ledger import Fulfillment, ProposalKey, ProposalRecord
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.exchange.situation import Situation
from meup_agent.protocol.lifecycle import (
    OutgoingAction,
    OutgoingEvent,
    OutgoingState,
    ProposalEvent,
    outgoing_step,
)
from meup_agent.protocol.outcomes import (
    Ending,
    Expired,
    Fulfilled,
    GatewayRefused,
    Gone,
    LostRace,
    Rejected,
    Responded,
    Unknown,
    Unsent,
    Withdrawn,
)
from meup_agent.protocol.reasons import Cause, Reason, read_reason

ENDED_COUNT = 1000
ENDED_SECONDS = 300.0
"""Exchanges that have ended are remembered for answers that come late."""


class Wait(StrEnum):
    """Which rejection ends the wait for a proposal (PROTOCOL 4.5)."""

    ADDRESSED = "addressed"
    """One from a participant that it was addressed to; of a broadcast one, all who could."""
    FIRST = "first"
    """Anybody's."""
    DEADLINE = "deadline"
    """Nobody's: only the deadline."""


@dataclass(slots=True)
class Exchange:
    """A request or proposal of our own."""

    key: Key
    draft: Envelope
    deadline: float | None
    parent: Key | None
    wait: Wait
    idempotent: bool
    fulfills: ProposalKey | None
    state: OutgoingState = OutgoingState.UNSENT
    ending: Ending | None = None
    left: bool = False
    lost: bool = False
    echoed: bool = False
    progress: float = float("-inf")

    @property
    def is_proposal(self) -> bool:
        return self.draft.kind == kinds.MCP_PROPOSAL

    @property
    def proposal_key(self) -> ProposalKey:
        return ProposalKey(self.draft.sender, self.draft.id)

    @property
    def is_open(self) -> bool:
        return self.state in (OutgoingState.UNSENT, OutgoingState.WAITING)


class Outgoing:
    """Every request and proposal of our own that is open, or has ended lately."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._open: dict[str, Exchange] = {}
        self._ended: Memory[str, Exchange] = Memory(count=ENDED_COUNT, seconds=ENDED_SECONDS)

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def opened(self, key: Key) -> Exchange | None:
        """An exchange that is open."""
        return self._open.get(key.id)

    def children(self, parent: Key) -> list[Exchange]:
        """What a handler has open."""
        return [exchange for exchange in self._open.values() if exchange.parent == parent]

    def fulfilling(self, proposal: ProposalKey) -> list[Exchange]:
        """Our open requests that fulfill a proposal."""
        return [exchange for exchange in self._open.values() if exchange.fulfills == proposal]

    def has_fulfilled(self, proposal: ProposalKey, now: float) -> bool:
        """Whether a fulfilling request of ours has left, and went through."""
        exchanges = [*self._open.values(), *self._ended.values(now)]
        return any(
            exchange.fulfills == proposal
            and exchange.left
            and not isinstance(exchange.ending, GatewayRefused | LostRace)
            for exchange in exchanges
        )

    # --- our own steps -----------------------------------------------------------------------

    def open(self, exchange: Exchange, now: float) -> None:
        """Begin a request or proposal.

        Raises:
            AlreadyInProgress: It would fulfill what somebody else, or we, are fulfilling.
            AlreadyDecided: It would fulfill what is no longer pending.
        """
        if exchange.fulfills is not None:
            self._check_undecided(exchange.fulfills, now)
        self._open[exchange.key.id] = exchange
        if exchange.is_proposal:
            self._situation.ledger.add(exchange.draft, now)
        self._situation.voice.send(exchange.draft, Priority.OPEN, now)
        self._situation.look_again(exchange.deadline, exchange.key)
        self._watch_absence(exchange, now)

    def _check_undecided(self, proposal: ProposalKey, now: float) -> None:
        record = self._situation.ledger.get(proposal, now)
        if record is not None:
            if not record.state.is_pending:
                raise AlreadyDecided(proposal.id, record.state)
            by = record.in_progress_by
            if by is not None:
                raise AlreadyInProgress(proposal.id, by)
        if self._situation.tombstones.get(proposal.proposer, proposal.id, now) is not None:
            raise AlreadyDecided(proposal.id, "withdrawn")
        if self.fulfilling(proposal):
            raise AlreadyInProgress(proposal.id, self._situation.me)

    def sent(self, envelope_id: str, now: float) -> None:
        """The transport has taken it."""
        exchange = self._open.get(envelope_id)
        if exchange is not None:
            self._apply(exchange, OutgoingEvent.SENT, now)

    def give_up(self, key: Key, cause: Cause, now: float) -> None:
        """The caller stops waiting."""
        exchange = self._open.get(key.id)
        if exchange is not None:
            self._apply(exchange, OutgoingEvent.GIVE_UP, now, Withdrawn(key.id, cause))

    def give_up_all(self, cause: Cause, now: float) -> None:
        """We end: everything that is open ends with us."""
        for exchange in list(self._open.values()):
            self.give_up(exchange.key, cause, now)

    def give_up_children(self, parent: Key, cause: Cause, now: float) -> None:
        """A handler has been cancelled or has ended: what it has open ends with it."""
        for exchange in self.children(parent):
            self.give_up(exchange.key, cause, now)

    # --- the connection ------------------------------------------------------------------------

    def connection_lost(self, now: float) -> None:
        """Note for every wait that something may have been missed."""
        for exchange in list(self._open.values()):
            self._apply(exchange, OutgoingEvent.LOST, now)

    def welcomed(self, now: float) -> None:
        """Send again what is idempotent; begin to count who is absent anew."""
        for exchange in list(self._open.values()):
            self._apply(exchange, OutgoingEvent.WELCOME, now)
            self._watch_absence(exchange, now)

    def presence_changed(self, now: float) -> None:
        """Somebody came or went: see whose absence begins to count."""
        for exchange in self._open.values():
            self._watch_absence(exchange, now)

    def stopped(self, why: str, now: float) -> None:
        """There will be no further connection: every wait ends."""
        for exchange in list(self._open.values()):
            ending = Unsent(why) if exchange.state is OutgoingState.UNSENT else Unknown(why)
            self._apply(exchange, OutgoingEvent.STOPPED, now, ending)

    def look(self, key: Key, now: float) -> None:
        """A timer has rung: see whether the deadline has passed, or everybody is gone."""
        exchange = self._open.get(key.id)
        if exchange is None:
            return
        if exchange.deadline is not None and now >= exchange.deadline:
            self._apply(exchange, OutgoingEvent.DEADLINE, now, self._expiry(exchange))
            return
        addressees = self._addressees(exchange, now)
        gone_at = (
            self._situation.absent_for_good(addressees, now) if self._situation.connected else None
        )
        if gone_at is None or exchange.state is not OutgoingState.WAITING:
            return
        if now >= gone_at:
            self._apply(exchange, OutgoingEvent.GONE, now, Gone(key.id, addressees))
        else:
            self._situation.look_again(gone_at, key)

    def _watch_absence(self, exchange: Exchange, now: float) -> None:
        if self._situation.connected:
            gone_at = self._situation.absent_for_good(self._addressees(exchange, now), now)
            self._situation.look_again(gone_at, exchange.key)

    def _addressees(self, exchange: Exchange, now: float) -> tuple[str, ...]:
        """Who could still answer: for a proposal in progress, whoever fulfills it."""
        if exchange.is_proposal:
            record = self._situation.ledger.get(exchange.proposal_key, now)
            if record is not None and record.in_progress_by is not None:
                return tuple({item.by for item in record.fulfillments.values() if item.live})
        return exchange.draft.to

    def _expiry(self, exchange: Exchange) -> Ending:
        if exchange.lost:
            return Unknown(
                "the connection was lost while it was open, and nothing came until its deadline"
            )
        return Expired(exchange.key.id, sent=exchange.state is not OutgoingState.UNSENT)

    # --- what others say -----------------------------------------------------------------------

    def echoed(self, envelope_id: str) -> None:
        """The gateway has ordered an envelope of ours."""
        exchange = self._open.get(envelope_id)
        if exchange is not None:
            exchange.echoed = True

    def refused(self, envelope_id: str, payload: dict[str, Any], now: float) -> bool:
        """The gateway refused an envelope; whether it was one that somebody waits for."""
        exchange = self._open.get(envelope_id)
        if exchange is None:
            return False
        error = payload.get("error")
        code = error if isinstance(error, str) else "error"
        said = payload.get("message")
        message = f"the gateway refused {exchange.draft.kind} {envelope_id}: {code}"
        if isinstance(said, str) and said:
            message = f"{message} ({said})"
        if exchange.state is OutgoingState.UNSENT:
            self._apply(exchange, OutgoingEvent.SENT, now)
        self._apply(exchange, OutgoingEvent.REFUSAL, now, GatewayRefused(code, message, payload))
        return True

    def rival_requested(self, record: ProposalRecord, now: float) -> None:
        """Somebody's fulfilling request was ordered; ours, if it comes later, has lost."""
        winner = record.in_progress_by
        if winner is None or winner == self._situation.me:
            return
        for exchange in self.fulfilling(record.key):
            if exchange.echoed:
                continue
            cause = Cause(Reason.DUPLICATE, by=self._situation.me, id=exchange.key.id, at=now)
            self._apply(exchange, OutgoingEvent.GIVE_UP, now, LostRace(winner), cause=cause)

    def response(self, envelope: Envelope, now: float) -> bool:
        """A response came; whether it was one to a request of ours."""
        for exchange_id in envelope.correlation:
            exchange = self._open.get(exchange_id) or self._ended.get(exchange_id, now)
            if exchange is None or exchange.is_proposal:
                continue
            if exchange.draft.to and envelope.sender not in exchange.draft.to:
                self._drop("foreign_response", envelope)
                return True
            result, error = _read_response(envelope)
            ending = Responded(envelope.sender, result, error)
            self._answered(exchange, envelope, ending, now)
            return True
        return False

    def fulfilled(
        self, record: ProposalRecord, fulfillment: Fulfillment, envelope: Envelope, now: float
    ) -> Conflict | None:
        """The response to a fulfilling request of our proposal; a conflict if it is too late."""
        exchange = self._open.get(record.key.id) or self._ended.get(record.key.id, now)
        if exchange is None or exchange.proposal_key != record.key:
            return None
        result, error = _read_response(envelope)
        request = payloads.read_call(fulfillment.envelope.payload)
        to = fulfillment.envelope.to
        executor = to[0] if len(to) == 1 else envelope.sender
        ending = Fulfilled(
            proposal_id=record.key.id,
            by=fulfillment.by,
            executor=executor,
            result=result,
            error=error,
            changes=payloads.changes(record.call, request, executor),
        )
        if not self._answered(exchange, envelope, ending, now):
            return None
        after = exchange.ending
        assert after is not None
        return Conflict(record.key.id, ending, after)

    def _answered(self, exchange: Exchange, envelope: Envelope, ending: Ending, now: float) -> bool:
        """Apply an answer; ``True`` if it came for something that we had given up."""
        if exchange.state is OutgoingState.DONE:
            self._drop("duplicate_response", envelope, expected=True)
            return False
        if exchange.state is OutgoingState.UNSENT:
            # Somebody answers what we believe unsent: it was sent on a connection that broke.
            self._apply(exchange, OutgoingEvent.SENT, now)
        late = exchange.state is OutgoingState.GIVEN_UP
        self._apply(exchange, OutgoingEvent.RESPONSE, now, ending)
        if late:
            self._drop("late_response", envelope, expected=True)
        return late

    def rejection(self, envelope: Envelope, record: ProposalRecord, now: float) -> Rejection | None:
        """A rejection of a proposal of ours; ``None`` if it is none of ours."""
        reason = read_reason(envelope.payload_object.get("reason"))
        exchange = self._open.get(record.key.id) or self._ended.get(record.key.id, now)
        if exchange is None or exchange.proposal_key != record.key:
            return None
        counts = exchange.is_open and self._counts(exchange, record, envelope.sender, now)
        if counts:
            if exchange.state is OutgoingState.UNSENT:
                self._apply(exchange, OutgoingEvent.SENT, now)
            ending = Rejected(record.key.id, reason, envelope.sender, envelope.id)
            self._apply(exchange, OutgoingEvent.REJECTION, now, ending)
        return Rejection(record.key.id, reason, envelope.sender, envelope.id, counts)

    def _counts(self, exchange: Exchange, record: ProposalRecord, by: str, now: float) -> bool:
        """Whether a rejection ends the wait (PROTOCOL 4.4, 4.5)."""
        if record.in_progress_by is not None or exchange.wait is Wait.DEADLINE:
            return False
        if exchange.wait is Wait.FIRST or by in exchange.draft.to:
            return True
        if exchange.draft.to:
            return False
        call = record.call
        fulfilling = payloads.request(call.method, call.params, "")
        able = [
            participant.id
            for participant in self._situation.roster.participants()
            if participant.id != self._situation.me
            and self._situation.roster.may(participant.id, kinds.MCP_REQUEST, fulfilling)
        ]
        return bool(able) and all(participant in record.rejections for participant in able)

    def progress(self, envelope: Envelope, now: float) -> Progressed | None:
        """Progress of something that we wait for (PROTOCOL 4.9)."""
        params = payloads.read_call(envelope.payload).params
        token = params.get(payloads.PROGRESS_TOKEN)
        exchange = self._open.get(token) if isinstance(token, str) else None
        if exchange is None or exchange.is_proposal:
            exchange = self._proposal_in_progress(envelope, now) or exchange
        done = params.get("progress")
        if exchange is None or isinstance(done, bool) or not isinstance(done, int | float):
            return None
        if not self._may_report(exchange, envelope, now):
            self._drop("foreign_progress", envelope)
            return None
        if not exchange.is_open or done <= exchange.progress:
            return None
        exchange.progress = done
        total, message = params.get("total"), params.get("message")
        return Progressed(
            exchange.key,
            float(done),
            float(total) if isinstance(total, int | float) else None,
            message if isinstance(message, str) else "",
        )

    def _proposal_in_progress(self, envelope: Envelope, now: float) -> Exchange | None:
        found = self._situation.ledger.responded(envelope, now)
        exchange = None if found is None else self._open.get(found[0].key.id)
        return exchange if exchange is not None and exchange.is_proposal else None

    def _may_report(self, exchange: Exchange, envelope: Envelope, now: float) -> bool:
        if exchange.is_proposal:
            return self._situation.ledger.responded(envelope, now) is not None
        return not exchange.draft.to or envelope.sender in exchange.draft.to

    # --- the table -------------------------------------------------------------------------------

    def _apply(
        self,
        exchange: Exchange,
        event: OutgoingEvent,
        now: float,
        ending: Ending | None = None,
        *,
        cause: Cause | None = None,
    ) -> None:
        state, action = outgoing_step(exchange.state, event)
        match action:
            case OutgoingAction.KEEP | OutgoingAction.IGNORE:
                pass
            case OutgoingAction.NOTE_SENT:
                exchange.left = True
            case OutgoingAction.NOTE_LOST:
                exchange.lost = True
            case OutgoingAction.SEND_AGAIN:
                if exchange.idempotent:
                    exchange.lost = False
                    self._situation.voice.send(exchange.draft, Priority.OPEN, now, again=True)
            case OutgoingAction.DROP | OutgoingAction.DROP_TIMEOUT | OutgoingAction.NOT_SENT:
                self._situation.effects.append(Unsend(exchange.key.id))
                self._step_own(exchange, ending, now)
            case (
                OutgoingAction.RESULT
                | OutgoingAction.REFUSED
                | OutgoingAction.UNKNOWN
                | OutgoingAction.LATE
            ):
                self._step_own(exchange, ending, now)
            case (
                OutgoingAction.END
                | OutgoingAction.REJECTED_AND_END
                | OutgoingAction.GONE_AND_END
                | OutgoingAction.EXPIRED_AND_END
            ):
                self._step_own(exchange, ending, now)
                self._end(exchange, cause or _cause_of(ending), now)
        exchange.state = state
        if not exchange.is_open and exchange.ending is None:
            exchange.ending = ending
            self._open.pop(exchange.key.id, None)
            self._ended.put(exchange.key.id, exchange, now)
            if ending is not None:
                self._situation.effects.append(Wake(exchange.key, ending))

    def _step_own(self, exchange: Exchange, ending: Ending | None, now: float) -> None:
        """Keep the record of our own proposal: it says *rejected* where others say *withdrawn*."""
        record = (
            self._situation.ledger.get(exchange.proposal_key, now) if exchange.is_proposal else None
        )
        if record is None:
            return
        match ending:
            case Rejected():
                record.step(ProposalEvent.REJECTION, ending.by, ending.reason)
            case Expired() | Unknown():
                record.step(ProposalEvent.EXPIRY, self._situation.me, Reason.TIMEOUT)
            case Withdrawn() if exchange.state is OutgoingState.UNSENT:
                # No gateway will order what never left.
                record.step(ProposalEvent.WITHDRAWAL, self._situation.me, ending.reason)
            case Gone() | Unsent() | GatewayRefused():
                record.step(ProposalEvent.WITHDRAWAL, self._situation.me, Reason.NO_LONGER_NEEDED)
            case _:
                pass

    def _end(self, exchange: Exchange, cause: Cause, now: float) -> None:
        """Say that we gave up: a withdraw for a proposal, a cancel for a request."""
        request = exchange.draft
        present = [item.id for item in self._situation.roster.participants()]
        if exchange.is_proposal:
            record = self._situation.ledger.get(exchange.proposal_key, now)
            fulfillers = [] if record is None else [i.by for i in record.fulfillments.values()]
            to = tuple(dict.fromkeys([*request.to, *fulfillers])) if request.to else ()
            self._situation.voice.say(
                kinds.MCP_WITHDRAW,
                {"reason": cause.code},
                now=now,
                priority=Priority.END,
                to=to,
                correlation=(request.id,),
                concerned=[*(fulfillers or to or present)],
            )
        elif payloads.read_call(request.payload).method != "initialize":
            self._situation.voice.say(
                kinds.MCP_REQUEST,
                payloads.cancelled(request.id, cause.ended(self._situation.me, request.id, now)),
                now=now,
                priority=Priority.END,
                to=request.to,
                correlation=(request.id,),
                concerned=request.to or present,
            )

    def _drop(self, why: str, envelope: Envelope, *, expected: bool = False) -> None:
        self._situation.effects.append(Drop(why, envelope, expected))


def _cause_of(ending: Ending | None) -> Cause:
    """Why we end an exchange, where nobody chose a reason (PROTOCOL 4.12)."""
    match ending:
        case Withdrawn():
            return ending.cause
        case Expired() | Unknown():
            return Cause(Reason.TIMEOUT)
        case _:
            return Cause(Reason.NO_LONGER_NEEDED)


def _read_response(envelope: Envelope) -> tuple[Any, dict[str, Any] | None]:
    """Result and error of a response, also of bare results and string codes (PROTOCOL 1)."""
    payload = envelope.payload
    body = payloads.as_object(payload)
    error = body.get("error")
    if error is not None:
        return None, error if isinstance(error, dict) else {"code": "error", "message": str(error)}
    return (body["result"] if "result" in body else payload), None
