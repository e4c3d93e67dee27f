"""Our own requests and proposals: the waiting side (PROTOCOL 5, third table)."""

from __future__ import annotations

from meup_agent.errors import AlreadyDecided, AlreadyInProgress
from meup_agent.protocol import payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import (
    Conflict,
    Key,
    Priority,
    Progressed,
    Rejection,
    Unsend,
    Wake,
)
from meup_agent.protocol.exchange.ends import cause_of, say_end, step_own
from meup_agent.protocol.exchange.ledger import (
    MAX_PROPOSALS,
    Fulfillment,
    ProposalKey,
    ProposalRecord,
)
from meup_agent.protocol.exchange.memory import Memory, size_of
from meup_agent.protocol.exchange.own import (
    Exchange,
    read_response,
    verdict,
)
from meup_agent.protocol.exchange.relaying import Relays, outcome_of_relay
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
from meup_agent.protocol.reasons import Cause, Reason

ENDED_COUNT = 1000
ENDED_SECONDS = 300.0
ENDED_SIZE = 64 * 1024 * 1024
"""Exchanges that have ended are remembered for answers that come late."""


class Outgoing:
    """Every request and proposal of our own that is open, or has ended lately."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation
        self._relays = Relays(situation)
        self._open: dict[str, Exchange] = {}
        self._ended: Memory[str, Exchange] = Memory(
            count=ENDED_COUNT, seconds=ENDED_SECONDS, size=ENDED_SIZE
        )
        self._fulfilled: Memory[ProposalKey, bool] = Memory(
            count=MAX_PROPOSALS, seconds=float("inf")
        )

    def __len__(self) -> int:
        """How many are open."""
        return len(self._open)

    def opened(self, key: Key) -> Exchange | None:
        """An exchange that is open."""
        return self._open.get(key.id)

    def fulfilling(self, proposal: ProposalKey) -> list[Exchange]:
        """Our open requests that fulfill a proposal."""
        return [exchange for exchange in self._open.values() if exchange.fulfills == proposal]

    def has_fulfilled(self, proposal: ProposalKey, now: float) -> bool:
        """Whether a fulfilling request of ours has left, and the gateway let it through."""
        return self._fulfilled.get(proposal, now) is not None

    # --- our own steps ---

    def open(self, exchange: Exchange, now: float) -> None:
        """Begin a request or proposal.

        Raises:
            AlreadyInProgress: It would fulfill what somebody else, or we, are fulfilling.
            AlreadyDecided: It would fulfill what is no longer pending.
        """
        if exchange.fulfills is not None:
            exchange.record = self._check_undecided(exchange.fulfills, now)
            if exchange.record is not None:
                exchange.record.holders += 1
        elif exchange.is_proposal:
            exchange.record = self._situation.ledger.add(exchange.draft, now, holders=1)
        self._open[exchange.key.id] = exchange
        self._situation.voice.send(exchange.draft, Priority.OPEN, now)
        self._situation.look_again(exchange.deadline, exchange.key)

    def _check_undecided(self, proposal: ProposalKey, now: float) -> ProposalRecord | None:
        record = self._situation.ledger.get(proposal, now)
        if record is not None:
            if not record.state.is_pending:
                raise AlreadyDecided(proposal.id, record.state)
            if record.in_progress_by is not None:
                raise AlreadyInProgress(proposal.id, record.in_progress_by)
        if self._situation.tombstones.get("withdrawn", *proposal, now) is not None:
            raise AlreadyDecided(proposal.id, "withdrawn")
        if self.fulfilling(proposal):
            raise AlreadyInProgress(proposal.id, self._situation.me)
        return record

    def sent(self, envelope_id: str, now: float) -> None:
        """The transport has taken it."""
        self._situation.voice.sent(envelope_id, now)
        exchange = self._open.get(envelope_id)
        if exchange is not None:
            self._apply(exchange, OutgoingEvent.SENT, now)

    def give_up(self, key: Key, cause: Cause, now: float) -> None:
        """The caller stops waiting."""
        exchange = self._open.get(key.id)
        if exchange is not None:
            self._apply(exchange, OutgoingEvent.GIVE_UP, now, Withdrawn(key.id, cause))

    def ended_beside(self, exchange_id: str, kind: str, cause: Cause, now: float) -> None:
        """Another process of ours has withdrawn a proposal of ours, or cancelled a request."""
        exchange = self._open.get(exchange_id)
        if exchange is None or exchange.draft.kind != kind or exchange.call.method == "initialize":
            return
        self._has_left(exchange, now)
        self._apply(exchange, OutgoingEvent.ENDED_BESIDE, now, Withdrawn(exchange_id, cause))

    def give_up_all(self, cause: Cause, now: float) -> None:
        """We end: everything that is open ends with us."""
        for exchange in list(self._open.values()):
            self.give_up(exchange.key, cause, now)

    def give_up_children(self, parent: Key, cause: Cause, now: float) -> None:
        """A handler has been cancelled or has ended: what it has open ends with it."""
        for exchange in [item for item in self._open.values() if item.parent == parent]:
            self.give_up(exchange.key, cause, now)

    # --- the connection ---

    def connection_lost(self, now: float) -> None:
        """Note for every wait that something may have been missed."""
        for exchange in list(self._open.values()):
            self._apply(exchange, OutgoingEvent.LOST, now)

    def welcomed(self, now: float) -> None:
        """Send again what is idempotent; begin to count who is absent anew."""
        for exchange in list(self._open.values()):
            exchange.missed |= exchange.lost
            self._apply(exchange, OutgoingEvent.WELCOME, now)
        self.presence_changed(now)

    def caught_up(self, now: float) -> None:
        """We have read all that we missed: what the gateway has taken is where it would be."""
        for exchange in list(self._open.values()):
            # What it has not taken is sent again, and is so from then on.
            exchange.lost = exchange.lost and not exchange.echoed
        self.presence_changed(now)

    def presence_changed(self, now: float) -> None:
        """Somebody came or went: see whose rejection is missing, and whose absence counts."""
        for exchange in list(self._open.values()):
            if exchange.proposal is not None and not exchange.draft.to:
                self._reconsider(exchange, exchange.proposal, now)
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
            self._apply(exchange, OutgoingEvent.DEADLINE, now, exchange.expiry())
            return
        gone_at = self._gone_at(exchange, now)
        if gone_at is not None and now >= gone_at:
            ending = Gone(key.id, self._awaited(exchange))
            self._apply(exchange, OutgoingEvent.GONE, now, ending)
        else:
            self._situation.look_again(gone_at, key)

    def _watch_absence(self, exchange: Exchange, now: float) -> None:
        self._situation.look_again(self._gone_at(exchange, now), exchange.key)

    def _gone_at(self, exchange: Exchange, now: float) -> float | None:
        """When the wait ends for want of anybody who could answer (PROTOCOL 4.6)."""
        if exchange.state is not OutgoingState.WAITING or not self._situation.connected:
            return None
        return self._situation.absent_for_good(self._awaited(exchange), now)

    def _awaited(self, exchange: Exchange) -> tuple[str, ...]:
        """Who could still answer: for a proposal in progress, whoever fulfills it."""
        record = exchange.proposal
        if record is not None and record.in_progress_by is not None:
            return tuple(dict.fromkeys(item.by for item in record.fulfillments if item.live))
        return exchange.draft.to

    # --- what others say ---

    def knows(self, envelope_id: str, now: float) -> bool:
        """Whether this is a request or proposal of ours that is open, or has ended lately."""
        return envelope_id in self._open or self._ended.get(envelope_id, now) is not None

    def echoed(self, envelope_id: str) -> ProposalKey | None:
        """The gateway has ordered an envelope of ours; the proposal that it fulfills, if any."""
        exchange = self._open.get(envelope_id) or self._ended.peek(envelope_id)
        if exchange is None:
            return None
        exchange.echoed = True
        return exchange.fulfills

    def refused(self, envelope_id: str, payload: dict[str, object], now: float) -> bool:
        """The gateway refused an envelope; whether somebody waits, or waited, for its answer."""
        exchange = self._open.get(envelope_id)
        if exchange is None:
            return self._ended.get(envelope_id, now) is not None
        error, said = payload.get("error"), payload.get("message")
        code = error if isinstance(error, str) else "error"
        message = f"the gateway refused {exchange.draft.kind} {envelope_id}: {code}"
        if isinstance(said, str) and said:
            message = f"{message} ({said})"
        self._has_left(exchange, now)
        self._apply(exchange, OutgoingEvent.REFUSAL, now, GatewayRefused(code, message, payload))
        return True

    def rival_requested(self, record: ProposalRecord, now: float) -> None:
        """A fulfilling request was ordered; ours, if it is another and comes later, has lost."""
        first, me = record.in_progress, self._situation.me
        if first is None:
            return
        for exchange in self.fulfilling(record.key):
            if (first.by, first.envelope.id) == (me, exchange.key.id):
                continue
            cause = Cause(Reason.DUPLICATE, by=me, id=exchange.key.id, at=now)
            self._apply(exchange, OutgoingEvent.GIVE_UP, now, LostRace(first.by), cause=cause)

    def response(self, envelope: Envelope, now: float) -> bool:
        """A response came; whether it was one to a request of ours."""
        for exchange_id in envelope.correlation:
            exchange = self._open.get(exchange_id) or self._ended.get(exchange_id, now)
            if exchange is None or exchange.is_proposal:
                continue
            if not exchange.answerable_by(envelope, self._situation.me):
                # An onlooker sees the answers to others who used the same id.
                if envelope.concerns(self._situation.me):
                    self._situation.drop("foreign_response", envelope)
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
        self, record: ProposalRecord, fulfillment: Fulfillment, envelope: Envelope, now: float
    ) -> Conflict | None:
        """The response to a fulfilling request of our proposal; a conflict if it is too late."""
        exchange = self._of_proposal(record, now)
        if exchange is None:
            return None
        result, error = read_response(envelope.payload)
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
        return self._conflict(exchange, envelope, ending, now)

    def relayed(self, envelope: Envelope, now: float) -> tuple[bool, Conflict | None]:
        """A response that may be the outcome of a proposal of ours, which its fulfiller sent on.

        Returns:
            Whether it was, and the conflict if it is too late.
        """
        record = self._relays.about(envelope, now)
        exchange = None if record is None else self._of_proposal(record, now)
        if record is None or exchange is None:
            return False, None
        if payloads.is_refusal(envelope.payload):
            return True, None
        if not exchange.is_answered:
            self.order_unechoed(record, now)
            record.step(ProposalEvent.RESPONSE, envelope.sender)
        return True, self._conflict(exchange, envelope, outcome_of_relay(record, envelope), now)

    def _conflict(
        self, exchange: Exchange, envelope: Envelope, ending: Fulfilled, now: float
    ) -> Conflict | None:
        """Apply the outcome of a proposal; a conflict if we had given it up."""
        if not self._answered(exchange, envelope, ending, now):
            return None
        assert exchange.ending is not None  # it had been given up
        return Conflict(ending.proposal_id, ending, exchange.ending)

    def order_unechoed(self, record: ProposalRecord, now: float) -> None:
        """On a gateway without echoes, our withdraw came when we said it (PROTOCOL 4.13)."""
        exchange = self._of_proposal(record, now)
        if (
            exchange is not None
            and exchange.state is OutgoingState.GIVEN_UP
            and not exchange.echoed
        ):
            reason = cause_of(exchange.ending).code
            record.step(ProposalEvent.WITHDRAWAL, self._situation.me, reason)

    def _of_proposal(self, record: ProposalRecord, now: float) -> Exchange | None:
        exchange = self._open.get(record.key.id) or self._ended.get(record.key.id, now)
        return exchange if exchange is not None and exchange.proposal is record else None

    def _answered(self, exchange: Exchange, envelope: Envelope, ending: Ending, now: float) -> bool:
        """Apply an answer; ``True`` if it is the first for something that we had given up."""
        if exchange.is_answered:
            self._situation.drop("duplicate_response", envelope, expected=True)
            return False
        self._has_left(exchange, now)
        exchange.late = exchange.state is OutgoingState.GIVEN_UP
        self._apply(exchange, OutgoingEvent.RESPONSE, now, ending)
        if exchange.late:
            self._situation.drop("late_response", envelope, expected=True)
        return exchange.late

    def _has_left(self, exchange: Exchange, now: float) -> None:
        """Somebody speaks of what we believe unsent: a connection that broke took it along."""
        if exchange.state is OutgoingState.UNSENT:
            self._apply(exchange, OutgoingEvent.SENT, now)

    def rejection(self, record: ProposalRecord, rejected: Rejected, now: float) -> Rejection | None:
        """A rejection of a proposal of ours; ``None`` if nobody waits for it any more."""
        exchange = self._of_proposal(record, now)
        if exchange is None or not exchange.is_open:
            return None
        self._has_left(exchange, now)
        counts = self._reconsider(exchange, record, now)
        return Rejection(record.key.id, rejected.reason, rejected.by, rejected.rejection_id, counts)

    def no_longer_in_progress(self, record: ProposalRecord, now: float) -> None:
        """A fulfillment came to nothing: what was said meanwhile may decide."""
        exchange = self._of_proposal(record, now)
        if exchange is not None and exchange.is_open:
            self._reconsider(exchange, record, now)
            self._watch_absence(exchange, now)

    def _reconsider(self, exchange: Exchange, record: ProposalRecord, now: float) -> bool:
        ending = verdict(exchange, record, self._situation.roster)
        if ending is not None:
            self._apply(exchange, OutgoingEvent.REJECTION, now, ending)
        return ending is not None

    def in_progress(self, record: ProposalRecord, now: float) -> None:
        """Somebody's fulfilling request for a proposal of ours is out: it is they who must stay."""
        exchange = self._of_proposal(record, now)
        if exchange is not None and exchange.is_open:
            self._watch_absence(exchange, now)

    def progress(self, envelope: Envelope, params: payloads.JsonObject, now: float) -> None:
        """Progress of something that we wait for (PROTOCOL 4.9)."""
        done = payloads.number(params.get("progress"))
        exchange = self._reported(envelope, params.get(payloads.PROGRESS_TOKEN), now)
        if exchange is None or done is None or done <= exchange.progress:
            return
        exchange.progress = done
        total, message = payloads.number(params.get("total")), params.get("message")
        text = message if isinstance(message, str) else ""
        self._situation.effects.append(Progressed(exchange.key, done, total, text))
        self._relays.send_progress(exchange, done, total, text, now)

    def _reported(self, envelope: Envelope, token: object, now: float) -> Exchange | None:
        """What a progress is about: our request, or our proposal that somebody carries out."""
        exchange = self._open.get(token) if isinstance(token, str) else None
        if exchange is not None and not exchange.is_proposal:
            if exchange.answerable_by(envelope, self._situation.me):
                return exchange
            if envelope.concerns(self._situation.me):
                self._situation.drop("foreign_progress", envelope)
                return None
        found = self._situation.ledger.responded(envelope, now)
        record = found[0] if found is not None else self._relays.about(envelope, now)
        proposal = None if record is None else self._of_proposal(record, now)
        return proposal if proposal is not None and proposal.is_open else None

    # --- the table ---

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
            case OutgoingAction.KEEP | OutgoingAction.IGNORE | OutgoingAction.LATE:
                pass
            case OutgoingAction.NOTE_SENT:
                exchange.lost = False
                if exchange.fulfills is not None:
                    self._fulfilled.put(exchange.fulfills, True, now)
                    self._note_unseen(exchange, now)
            case OutgoingAction.NOTE_LOST:
                exchange.lost = True
            case OutgoingAction.SEND_AGAIN:
                if exchange.idempotent:
                    exchange.lost = exchange.missed = False
                    self._situation.voice.send(exchange.draft, Priority.OPEN, now, again=True)
            case OutgoingAction.DROP | OutgoingAction.DROP_TIMEOUT | OutgoingAction.NOT_SENT:
                self._situation.effects.append(Unsend(exchange.key.id))
                step_own(exchange, ending, self._situation.me)
            case OutgoingAction.RESULT | OutgoingAction.UNKNOWN:
                pass
            case OutgoingAction.REFUSED:
                step_own(exchange, ending, self._situation.me)
                if exchange.fulfills is not None:
                    self._fulfilled.pop(exchange.fulfills)
                    self._note_unseen(exchange, now, ended=True)
            case (
                OutgoingAction.END
                | OutgoingAction.REJECTED_AND_END
                | OutgoingAction.GONE_AND_END
                | OutgoingAction.EXPIRED_AND_END
            ):
                guarantees = self._situation.roster.guarantees
                step_own(exchange, ending, self._situation.me, echo=guarantees.echo)
                say_end(self._situation.voice, exchange, cause or cause_of(ending), now)
                self._note_unseen(exchange, now, ended=True)
        exchange.state = state
        if action is OutgoingAction.NOTE_SENT:
            self._watch_absence(exchange, now)
        if not exchange.is_open and exchange.ending is None:
            self._close(exchange, ending, now)

    def _note_unseen(self, exchange: Exchange, now: float, *, ended: bool = False) -> None:
        """Enter our own fulfilling request, or its end, where the gateway hides it from us, too.

        Elsewhere its echo does that, in the gateway's order. Without either the proposal would seem
        to be pending for good, and could be fulfilled a second time.
        """
        if exchange.fulfills is None or not self._situation.roster.guarantees.hidden_targets:
            return
        ledger = self._situation.ledger
        if ended:
            ledger.request_cancelled(self._situation.me, exchange.key.id, now)
        else:
            ledger.requested(exchange.draft, now, fulfills=exchange.fulfills)

    def _close(self, exchange: Exchange, ending: Ending | None, now: float) -> None:
        assert ending is not None
        exchange.ending = ending
        if exchange.record is not None:
            exchange.record.holders -= 1
        del self._open[exchange.key.id]
        self._ended.put(exchange.key.id, exchange, now, size=size_of(exchange.draft))
        self._situation.effects.append(Wake(exchange.key, ending))
