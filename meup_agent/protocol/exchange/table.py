"""The exchange table: the only owner of the state of one participant's exchanges.

Every event goes through it (a frame, a handler's end, a deadline, a caller who gives up, a lost
connection, a welcome, a shutdown) and comes out as effects for the session to carry out. It has no
clock, no tasks and no random numbers, so every race is a sequence of calls on one object.

Times are seconds of one monotonic clock, handed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Drop, Effect, Key, Priority, Role
from meup_agent.protocol.exchange.incoming import Incoming
from meup_agent.protocol.exchange.ledger import Fulfillment, Ledger, ProposalKey, ProposalRecord
from meup_agent.protocol.exchange.memory import Memory
from meup_agent.protocol.exchange.outgoing import Exchange, Outgoing, Wait
from meup_agent.protocol.exchange.roster import Roster
from meup_agent.protocol.exchange.situation import Situation, Wants
from meup_agent.protocol.exchange.slots import Limits
from meup_agent.protocol.exchange.voice import Voice
from meup_agent.protocol.lifecycle import ProposalState
from meup_agent.protocol.reasons import Cause, Reason, read_reason

SEEN_COUNT = 20_000
SEEN_SECONDS = 600.0
"""Envelopes that are remembered so that one which is delivered twice counts once."""


class ExchangeTable:
    """Every open exchange of one participant, and what each event does to it (PROTOCOL 4 and 5).

    Each method applies one event and returns the effects, in the order in which they must happen.

    Args:
        new_id: Draws an id that nobody used before.
        wants: Tells whether we have a handler for an envelope in a role.
        limits: How much is handled at once.
    """

    def __init__(
        self, *, new_id: Callable[[], str], wants: Wants, limits: Limits | None = None
    ) -> None:
        self._effects: list[Effect] = []
        self._voice = Voice(new_id, self._effects)
        self._situation = Situation(self._voice, wants, self._effects)
        self._outgoing = Outgoing(self._situation)
        self._incoming = Incoming(self._situation, self._outgoing, limits or Limits())
        self._seen: Memory[tuple[str, str, int], bool] = Memory(
            count=SEEN_COUNT, seconds=SEEN_SECONDS
        )
        self._welcomed_before = False

    # --- what can be looked at ------------------------------------------------------------------

    @property
    def me(self) -> str:
        """Our own name, as the last welcome said it; empty before the first."""
        return self._situation.me

    @property
    def roster(self) -> Roster:
        """Who is present."""
        return self._situation.roster

    @property
    def ledger(self) -> Ledger:
        """The proposals seen."""
        return self._situation.ledger

    @property
    def connected(self) -> bool:
        """Whether we have been welcomed on the present connection."""
        return self._situation.connected

    @property
    def running(self) -> int:
        """Handlers that have begun and not ended."""
        return self._incoming.running

    @property
    def queued(self) -> int:
        """What waits for a handler to begin."""
        return self._incoming.queued

    @property
    def waiting(self) -> int:
        """Requests and proposals of our own that are open."""
        return len(self._outgoing)

    def is_open(self, key: Key) -> bool:
        """Whether an exchange has not ended yet."""
        if key.side == "out":
            return self._outgoing.opened(key) is not None
        return self._incoming.handling(key) is not None

    def next_deadline(self) -> float | None:
        """When :meth:`tick` has something to look at; too early does no harm."""
        return self._situation.timers[0][0] if self._situation.timers else None

    # --- our own verbs ----------------------------------------------------------------------------

    def new_id(self) -> str:
        """An id for an envelope of ours."""
        return self._voice.new_id()

    def open(
        self,
        draft: Envelope,
        *,
        now: float,
        deadline: float | None,
        parent: Key | None = None,
        wait: Wait = Wait.ADDRESSED,
        idempotent: bool = False,
        fulfills: ProposalKey | None = None,
    ) -> tuple[Key, list[Effect]]:
        """Begin a request or a proposal of our own.

        Args:
            draft: The request or proposal; its id becomes the exchange's.
            now: The time.
            deadline: When the wait ends by itself.
            parent: The handler that it is part of, and ends with.
            wait: Which rejection ends the wait for a proposal.
            idempotent: Send it again after a reconnect, under the same id.
            fulfills: The proposal that this request carries out.

        Raises:
            AlreadyInProgress: Somebody is fulfilling that proposal already.
            AlreadyDecided: That proposal is no longer pending.
        """
        key = Key("out", self._situation.me, draft.id)
        exchange = Exchange(key, draft, deadline, parent, wait, idempotent, fulfills)
        self._outgoing.open(exchange, now)
        return key, self._flush()

    def give_up(self, key: Key, cause: Cause, now: float) -> list[Effect]:
        """The caller stops waiting: a proposal is withdrawn, a request cancelled."""
        self._outgoing.give_up(key, cause, now)
        return self._flush()

    def reject(
        self, proposal: ProposalKey, reason: str, now: float
    ) -> tuple[Envelope, list[Effect]]:
        """Say no to somebody's proposal; the reject, and what to do."""
        return self._incoming.reject(proposal, reason, now), self._flush()

    def say(
        self,
        kind: str,
        payload: Any,
        *,
        now: float,
        to: tuple[str, ...] = (),
        correlation: tuple[str, ...] = (),
    ) -> tuple[Envelope, list[Effect]]:
        """Send something that begins no exchange: chat, progress, any other kind."""
        said = self._voice.say(
            kind, payload, now=now, priority=Priority.TALK, to=to, correlation=correlation
        )
        return said, self._flush()

    def awaits(self, handler: Key, change: int, now: float) -> list[Effect]:
        """A handler begins (+1) or ends (−1) to await an exchange, and gives its place free."""
        self._incoming.awaits(handler, change, now)
        return self._flush()

    # --- handlers ----------------------------------------------------------------------------------

    def returned(self, key: Key, result: Any, now: float) -> list[Effect]:
        """A handler has ended well; the result is the answer to a request."""
        self._incoming.returned(key, result, now)
        return self._flush()

    def raised(self, key: Key, code: int, message: str, data: Any, now: float) -> list[Effect]:
        """A handler has failed, or has ended because it was cancelled."""
        self._incoming.raised(key, code, message, data, now)
        return self._flush()

    # --- the connection, the clock, our own end ------------------------------------------------------

    def sent(self, envelope_id: str, now: float) -> list[Effect]:
        """The transport has taken an envelope of ours."""
        self._outgoing.sent(envelope_id, now)
        return self._flush()

    def connection_lost(self, now: float) -> list[Effect]:
        """The connection has ended; there will be another."""
        self._situation.connected = False
        self._outgoing.connection_lost(now)
        self._incoming.connection_lost(now)
        return self._flush()

    def stopped(self, why: str, now: float) -> list[Effect]:
        """The connection has ended and there will be no other: every wait ends."""
        self._situation.connected = False
        self._outgoing.stopped(why, now)
        return self._flush()

    def tick(self, now: float) -> list[Effect]:
        """Look at everything whose time has come."""
        timers = self._situation.timers
        while timers and timers[0][0] <= now:
            _, key = heapq.heappop(timers)
            if key.side == "out":
                self._outgoing.look(key, now)
            else:
                self._incoming.look(key, now)
        return self._flush()

    def shutdown(self, now: float) -> list[Effect]:
        """Take nothing new; what is queued is answered ``busy``."""
        self._situation.closing = True
        self._incoming.shutdown(now)
        return self._flush()

    def shutdown_over(self, now: float) -> list[Effect]:
        """The grace is over: cancel what still runs, and answer so."""
        self._incoming.shutdown_over(now)
        return self._flush()

    def close(self, cause: Cause, now: float) -> list[Effect]:
        """Give up everything of our own that is open."""
        self._outgoing.give_up_all(cause, now)
        return self._flush()

    # --- what comes from the wire ----------------------------------------------------------------------

    def receive(self, envelope: Envelope, now: float) -> list[Effect]:
        """An envelope has come."""
        if envelope.kind.startswith("system/"):
            self._system(envelope, now)
        elif envelope.sender == self._situation.me:
            self._own(envelope, now)
        elif self._is_new(envelope, now):
            self._others(envelope, now)
        return self._flush()

    def _is_new(self, envelope: Envelope, now: float) -> bool:
        """Whether it was not delivered before; ids may come again after a restart of theirs."""
        content = hash((envelope.ts, envelope.kind, envelope.raw_payload))
        mark = (envelope.sender, envelope.id, content)
        if self._seen.get(mark, now) is None:
            self._seen.put(mark, True, now)
            return True
        if envelope.kind == kinds.MCP_REQUEST and self._situation.me in envelope.to:
            return True
        self._drop("duplicate", envelope, expected=True)
        return False

    def _own(self, envelope: Envelope, now: float) -> None:
        """An echo: the gateway has ordered what we said (PROTOCOL 4.11)."""
        if not self._voice.said(envelope.id, now):
            self._drop("not_ours", envelope)
            return
        self._outgoing.echoed(envelope.id)
        self._note(envelope, now)
        if self._situation.me not in envelope.to:
            return
        if envelope.kind == kinds.MCP_REQUEST:
            self._request(envelope, now)
        elif envelope.kind == kinds.MCP_RESPONSE:
            self._outgoing.response(envelope, now)

    def _others(self, envelope: Envelope, now: float) -> None:
        concerned = envelope.concerns(self._situation.me)
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                known = self._situation.tombstones.get(envelope.sender, envelope.id, now)
                self._note(envelope, now)
                if known is not None:
                    self._drop("withdrawn_before", envelope, expected=True)
                elif concerned:
                    self._incoming.proposal(envelope, now)
            case kinds.MCP_WITHDRAW:
                self._withdraw(envelope, now)
            case kinds.MCP_REJECT:
                self._reject(envelope, now)
            case kinds.MCP_REQUEST:
                self._request(envelope, now)
            case kinds.MCP_RESPONSE:
                self._response(envelope, now)
            case kinds.CHAT if concerned:
                self._incoming.notice(Role.CHAT, envelope, now)
            case _:
                pass
        self._incoming.notice(Role.KIND, envelope, now)

    def _note(self, envelope: Envelope, now: float) -> None:
        """Keep the ledger: what any onlooker learns from an envelope of ours."""
        ledger = self._situation.ledger
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                record = ledger.add(envelope, now)
                reason = self._situation.tombstones.get(envelope.sender, envelope.id, now)
                if reason is not None and record.state is ProposalState.PENDING:
                    ledger.withdrawn(record.key, str(reason), now)
            case kinds.MCP_WITHDRAW:
                reason = read_reason(envelope.payload_object.get("reason"))
                for proposal_id in envelope.correlation:
                    ledger.withdrawn(ProposalKey(envelope.sender, proposal_id), reason, now)
            case kinds.MCP_REJECT:
                record = ledger.named(envelope.correlation, now)
                if record is not None:
                    reason = read_reason(envelope.payload_object.get("reason"))
                    record.rejections[envelope.sender] = reason
            case kinds.MCP_REQUEST:
                call = payloads.read_call(envelope.payload)
                if call.method == kinds.CANCELLED:
                    request_id = str(call.params.get("requestId"))
                    ledger.request_cancelled(envelope.sender, request_id, now)
                else:
                    ledger.requested(envelope, now)
            case kinds.MCP_RESPONSE:
                self._note_response(envelope, now)
            case _:
                pass

    def _withdraw(self, envelope: Envelope, now: float) -> None:
        """Only the proposer withdraws, and only what is pending (PROTOCOL 4.1, 4.2)."""
        reason = read_reason(envelope.payload_object.get("reason"))
        for proposal_id in envelope.correlation:
            key = ProposalKey(envelope.sender, proposal_id)
            if self._situation.ledger.get(key, now) is None:
                if self._situation.ledger.named((proposal_id,), now) is not None:
                    self._drop("withdraw_by_another", envelope)
                else:
                    self._situation.tombstones.put(*key, reason, now)
            elif self._situation.ledger.withdrawn(key, reason, now):
                self._incoming.withdrawn(key, reason, now)
            else:
                self._drop("late_withdraw", envelope, expected=True)

    def _reject(self, envelope: Envelope, now: float) -> None:
        record = self._situation.ledger.named(envelope.correlation, now)
        if record is None:
            self._drop("unknown_reject", envelope, expected=True)
            return
        if envelope.sender == record.key.proposer:
            self._drop("reject_of_own_proposal", envelope)
            return
        self._note(envelope, now)
        if record.key.proposer == self._situation.me:
            rejection = self._outgoing.rejection(envelope, record, now)
            if rejection is not None:
                self._incoming.notice(Role.REJECT, envelope, now, rejection)

    def _request(self, envelope: Envelope, now: float) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method == kinds.CANCELLED:
            self._cancel(envelope, call, now)
        elif call.method == kinds.PROGRESS:
            progressed = self._outgoing.progress(envelope, now)
            if progressed is not None:
                self._effects.append(progressed)
        elif not call.is_notification:
            refusal = self._refusal_of_fulfillment(envelope, now)
            if envelope.sender != self._situation.me:
                record = self._situation.ledger.requested(envelope, now)
                if record is not None:
                    self._outgoing.rival_requested(record, now)
            if not envelope.concerns(self._situation.me):
                return
            if refusal is not None:
                self._drop("fulfillment_refused", envelope)
                self._incoming.duplicate_fulfillment(envelope, refusal, now)
            else:
                self._incoming.request(envelope, now)

    def _refusal_of_fulfillment(self, envelope: Envelope, now: float) -> str | None:
        """Why we, as the executor, do not carry a fulfilling request out.

        What was withdrawn never runs, and what we run or ran for somebody else's fulfillment of
        the same proposal is not run twice.
        """
        record = self._situation.ledger.named(envelope.correlation, now)
        if (
            record is None
            or self._situation.me not in envelope.to
            or envelope.id in record.fulfillments
        ):
            return None
        if record.state is ProposalState.WITHDRAWN:
            return f"proposal {record.key.id} was withdrawn"
        for fulfillment in record.fulfillments.values():
            ours = self._situation.me in fulfillment.envelope.to
            if ours and (fulfillment.live or record.state is ProposalState.FULFILLED):
                return f"proposal {record.key.id} is fulfilled by {fulfillment.by!r}"
        return None

    def _cancel(self, envelope: Envelope, call: payloads.Call, now: float) -> None:
        """``notifications/cancelled``: for a handler of ours, or early, or nothing to us."""
        request_id = call.params.get("requestId")
        known = self._incoming.cancel(envelope, call.params, now)
        self._situation.ledger.request_cancelled(envelope.sender, str(request_id), now)
        if not known and envelope.concerns(self._situation.me):
            self._situation.tombstones.put(
                envelope.sender, str(request_id), Reason.NO_LONGER_NEEDED, now
            )

    def _note_response(
        self, envelope: Envelope, now: float
    ) -> tuple[ProposalRecord, Fulfillment] | None:
        """What a response means for a proposal: its end, unless the executor refused."""
        found = self._situation.ledger.responded(envelope, now)
        if found is None:
            return None
        if payloads.is_refusal(envelope.payload):
            self._situation.ledger.not_carried_out(*found)
            return None
        self._situation.ledger.complete(*found)
        return found

    def _response(self, envelope: Envelope, now: float) -> None:
        found = self._note_response(envelope, now)
        if found is not None and found[0].key.proposer == self._situation.me:
            conflict = self._outgoing.fulfilled(*found, envelope, now)
            if conflict is not None:
                self._incoming.notice(Role.CONFLICT, envelope, now, conflict)
        if not self._outgoing.response(envelope, now) and found is None:
            self._drop("unknown_response", envelope, expected=not envelope.concerns(self.me))

    # --- the gateway's own words ---------------------------------------------------------------------

    def _system(self, envelope: Envelope, now: float) -> None:
        if envelope.sender not in kinds.GATEWAY_NAMES:
            self._drop("forged_system", envelope)
            return
        payload = envelope.payload_object
        match envelope.kind:
            case kinds.SYSTEM_WELCOME:
                self._welcome(envelope, payload, now)
            case kinds.SYSTEM_PRESENCE:
                self._presence(envelope, payload, now)
            case kinds.SYSTEM_ERROR:
                if not any(
                    [self._outgoing.refused(name, payload, now) for name in envelope.correlation]
                ):
                    self._drop("refused_by_gateway", envelope)
            case _:
                pass
        self._incoming.notice(Role.KIND, envelope, now)

    def _welcome(self, envelope: Envelope, payload: dict[str, Any], now: float) -> None:
        """We are in; or, on a connection that was welcomed before, our capabilities changed."""
        if envelope.to and self._situation.me and self._situation.me not in envelope.to:
            self._drop("foreign_welcome", envelope)
            return
        update = self._situation.connected
        self._situation.roster.welcome(payload, now)
        self._voice.me = self._situation.me
        if update:
            return
        self._situation.connected = True
        self._incoming.welcomed(now)
        self._outgoing.welcomed(now)
        if self._welcomed_before:
            # Whoever is here may have missed what we said before the connection broke.
            present = [participant.id for participant in self._situation.roster.participants()]
            self._voice.say_again(present, now)
        self._welcomed_before = True

    def _presence(self, envelope: Envelope, payload: dict[str, Any], now: float) -> None:
        update = self._situation.roster.update(payload, now)
        if update is None:
            return
        event, participant = update
        self._outgoing.presence_changed(now)
        if participant.id == self._situation.me:
            return
        if event == "join":
            self._incoming.participant_joined(participant.id)
            self._voice.say_again([participant.id], now)
            self._incoming.notice(Role.JOIN, envelope, now)
        else:
            self._incoming.participant_left(participant.id, now)
            self._incoming.notice(Role.LEAVE, envelope, now)

    def _drop(self, why: str, envelope: Envelope, *, expected: bool = False) -> None:
        self._effects.append(Drop(why, envelope, expected))

    def _flush(self) -> list[Effect]:
        effects = self._effects[:]
        self._effects.clear()
        return effects
