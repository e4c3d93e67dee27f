"""The way in: each envelope from the wire, told apart by sender and kind (PROTOCOL 4 and 5)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meup_agent.causes import Cause, Reason, cause_of_cancel, read_reason
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.dialects import ACKNOWLEDGING
from meup_agent.protocol.exchange.effects import Priority, Role
from meup_agent.protocol.exchange.handlers import TablePart
from meup_agent.protocol.exchange.inbound_calls import (
    InboundProposals,
    InboundRequests,
    ListedProposals,
)
from meup_agent.protocol.exchange.inbound_exchange import cause_of_end
from meup_agent.protocol.exchange.responses import ResponseReader
from meup_agent.protocol.exchange.streams import StreamTable
from meup_agent.protocol.exchange.system_messages import ControlMessages, SystemMessages
from meup_agent.protocol.proposals.fold import NOTHING
from meup_agent.protocol.proposals.record import ProposalKey, fingerprint_of
from meup_agent.protocol.proposals.resolution import MAX_NAMED, resolve
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.control_payloads import CONTROL_KINDS, read_acknowledgement
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.management_payloads import (
    GRANT,
    GRANT_ACK,
    REVOKE,
    Grant,
    Revocation,
    read_management,
)
from meup_agent.protocol.wire.payloads import Call
from meup_agent.protocol.wire.ttl_map import TTLMap

MAX_ID_CHARS = 256
"""Characters of an id or a sender's name: these are remembered, and the longest in use have 60."""

GRANTED_COUNT = 1_000
"""Grants to us, to recognize a revocation by its id alone."""

GRANTED_SECONDS = 30 * 24 * 3600.0
"""Grants to us that are remembered, to know a revocation that names nothing but the grant."""

SEEN_COUNT = 20_000
"""Envelopes seen, to recognize one that comes twice."""

SEEN_SECONDS = 600.0
"""Envelopes that are remembered so that one which is delivered twice counts once."""

MALFORMED_CALL: Final = "malformed_call"
"""The counter of calls that are refused before any reader sees them."""

_EXCHANGES: Final = frozenset(
    {
        kinds.MCP_PROPOSAL,
        kinds.MCP_WITHDRAW,
        kinds.MCP_REJECT,
        kinds.MCP_RENEW,
        kinds.MCP_REPORT,
        kinds.MCP_REQUEST,
        kinds.MCP_RESPONSE,
    }
)
"""The kinds that do no harm twice: the state of the exchange tells a copy from a new one."""


@dataclass
class InboundDispatcher(TablePart):
    """Hands each envelope to the part of the table that it is for."""

    def __post_init__(self) -> None:
        shared = (self._context, self._outbound, self._scheduler)
        self.reader = ResponseReader(*shared)
        self._requests = InboundRequests(*shared, self.reader)
        self.proposals = InboundProposals(*shared, self.reader, self._requests)
        self.control = ControlMessages(*shared)
        self.streams = StreamTable(self._context, self._scheduler)
        self._listed = ListedProposals(*shared, self.proposals, self._requests, _is_sound)
        self._system_messages = SystemMessages(*shared, self.control, self.streams, self._listed)
        self._seen: TTLMap[int, bool] = TTLMap(count=SEEN_COUNT, seconds=SEEN_SECONDS)
        self._granted: TTLMap[str, bool] = TTLMap(count=GRANTED_COUNT, seconds=GRANTED_SECONDS)

    # --- by number ---

    def receive(self, envelope: Envelope, seq: int | None = None) -> None:
        """Apply an envelope, with its number where the gateway gives it one (PROTOCOL 6)."""
        context = self._context
        context.is_new, context.folded = False, NOTHING
        if seq is None or not context.connected:
            self._dispatch(envelope, seq)
            return
        cursor, guarantees = context.cursor, context.roster.guarantees
        if cursor.until is not None and seq > cursor.until:
            self._system_messages.caught_up()
        is_unread = cursor.advance(seq, context.now)
        context.is_new = is_unread and guarantees.resume and guarantees.identity_checked
        if is_unread or self._has_no_number_of_its_own(envelope):
            self._dispatch(envelope, seq)
        else:
            context.drop("duplicate", envelope, expected=True)
        if cursor.until == seq:
            self._system_messages.caught_up()

    def _has_no_number_of_its_own(self, envelope: Envelope) -> bool:
        """True if it is the gateway's word to us alone, or its answer to what we sent again."""
        if envelope.sender in kinds.GATEWAY_NAMES:
            return envelope.kind != kinds.SYSTEM_PRESENCE
        return envelope.sender == self._context.me and self._is_sent_here(envelope.id)

    # --- by sender ---

    def _dispatch(self, envelope: Envelope, seq: int | None) -> None:
        if not _is_readable(envelope):
            self._context.drop("name_too_long", envelope)
            return
        # A request with more ids is refused, so it keeps them all (PROTOCOL 4.4).
        if len(envelope.correlation) > MAX_NAMED and envelope.kind != kinds.MCP_REQUEST:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if envelope.kind.startswith("system/"):
            self._system_messages.receive(envelope, seq)
        elif envelope.sender != self._context.me:
            self._from_others(envelope)
        elif self._is_sent_here(envelope.id):
            self._echo(envelope)
        else:
            self._from_sibling(envelope)

    def _from_others(self, envelope: Envelope) -> None:
        call: Call | None = None
        if envelope.kind in (kinds.MCP_REQUEST, kinds.MCP_PROPOSAL):
            payload = envelope.payload
            if problem := _problem(envelope, payload):
                self._refuse_call(envelope, problem)
                return
            call = payloads.read_call(payload)
        watcher = self._context.find_handler(Role.KIND, envelope, None)
        is_exchange = envelope.kind in _EXCHANGES
        # Only a watcher cares whether an envelope of an exchange came before.
        is_new = (is_exchange and not watcher) or self._is_new(envelope)
        if is_exchange:
            self._exchange(envelope, call)
        elif not is_new:
            self._context.drop("duplicate", envelope, expected=True)
        elif envelope.kind == kinds.CHAT and envelope.concerns(self._context.me):
            if envelope.correlation:
                for explanation in self.reader.explanations.read(envelope, self._context.now):
                    self._scheduler.notify(Role.EXPLANATION, envelope, explanation)
            self._scheduler.notify(Role.CHAT, envelope)
            self._acknowledge(envelope)
        elif envelope.kind == kinds.CHAT_CANCEL and envelope.concerns(self._context.me):
            self._cancel_chat(envelope)
        elif envelope.kind == kinds.CHAT_ACKNOWLEDGE and envelope.concerns(self._context.me):
            self._scheduler.notify(
                Role.ACKNOWLEDGE, envelope, read_acknowledgement(envelope), droppable=True
            )
        elif envelope.kind in CONTROL_KINDS:
            self.control.receive(envelope)
        elif envelope.kind in (GRANT, REVOKE):
            self._grant_or_revoke(envelope)
        elif envelope.kind == kinds.PROPOSALS:
            self._listed.receive(envelope)
        elif envelope.kind.startswith("stream/"):
            self.streams.receive(envelope)
        if watcher and is_new:
            self._scheduler.notify(Role.KIND, envelope, handler=watcher)

    def _is_new(self, envelope: Envelope) -> bool:
        """True if it was not delivered before; ids may come again after a restart of a sender."""
        now = self._context.now
        mark = hash((envelope.sender, envelope.id, fingerprint_of(envelope)))
        if self._seen.get(mark, now) is not None:
            return False
        self._seen.put(mark, True, now)
        return True

    def _is_sent_here(self, envelope_id: str) -> bool:
        known = self._context.envelope_sender.is_own(envelope_id)
        return known or self._outbound.knows(envelope_id)

    def _echo(self, envelope: Envelope) -> None:
        """Apply an echo of ours: the gateway has ordered it (PROTOCOL 4.11)."""
        self._outbound.note_echo(envelope.id)
        # Most are requests to others about no other exchange: the copy changes nothing here.
        says_nothing = (
            envelope.kind == kinds.MCP_REQUEST
            and not envelope.correlation
            and self._context.me not in envelope.to
        )
        if envelope.kind in _EXCHANGES and not says_nothing:
            self._exchange(envelope)

    def _from_sibling(self, envelope: Envelope) -> None:
        """Apply what another connection sent in our name; unchecked, the name may be forged.

        Where the gateway checks names it is our own (PROTOCOL 5): one beside, a person who acts
        over HTTP with our token, or a process before this one. All other participants take it for
        us, and so do we.
        """
        if not self._context.roster.guarantees.identity_checked:
            self._context.drop("not_ours", envelope)
            return
        # No caller here waits for the answers.
        self._context.envelope_sender.note_sibling(envelope)
        store, key = self._context.proposal_store, ProposalKey(envelope.sender, envelope.id)
        if envelope.kind == kinds.MCP_PROPOSAL and store.get(key, self._context.now) is None:
            store.add(envelope, self._context.now)
        if envelope.kind in _EXCHANGES:
            self._exchange(envelope)
            self._end_decided(envelope)
        elif envelope.kind.startswith("stream/"):
            self.streams.receive(envelope)

    def _end_decided(self, envelope: Envelope) -> None:
        """End here what a sibling withdrew, rejected, answered or cancelled."""
        me, now = self._context.me, self._context.now
        match envelope.kind:
            case kinds.MCP_WITHDRAW:
                reason = read_reason(envelope.payload_object.get("reason"))
                for name in envelope.correlation:
                    cause = Cause(reason, by=me, id=name, at=now)
                    self._outbound.end_by_sibling(name, kinds.MCP_PROPOSAL, cause)
            case kinds.MCP_REJECT:
                record = resolve(envelope, self._context.proposal_store, now).record
                if record is not None:
                    reason = read_reason(envelope.payload_object.get("reason"))
                    self._scheduler.end_rejected(record, reason)
            case kinds.MCP_RESPONSE:
                # Our handler's answer would be a copy.
                for exchange in self._scheduler.requests.answered_by(envelope):
                    text = "another process of ours answered it"
                    cause = cause_of_end(me, exchange.key.id, Reason.NO_LONGER_NEEDED, text, now)
                    self._scheduler.cancel(exchange, cause)
            case kinds.MCP_REQUEST:
                call = payloads.read_call(envelope.payload)
                request_id = call.params.get("requestId")
                if call.method == kinds.CANCELLED and isinstance(request_id, int | str):
                    name = str(request_id)
                    cause = cause_of_cancel(call.params, by=me, exchange_id=name, at=now)
                    self._outbound.end_by_sibling(name, kinds.MCP_REQUEST, cause)
            case _:
                pass

    def _refuse_call(self, envelope: Envelope, problem: str) -> None:
        """Refuse a call that its readers would read differently, before any of them sees it."""
        self._context.drop(MALFORMED_CALL, envelope)
        if envelope.kind == kinds.MCP_PROPOSAL:
            self.proposals.refuse(envelope)
        else:
            self._requests.refuse(envelope, problem)

    # --- by kind ---

    def _exchange(self, envelope: Envelope, call: Call | None = None) -> None:
        """Apply an envelope of an exchange; ``call`` is that of a request, where it is read."""
        if not envelope.correlation and envelope.kind in kinds.CORRELATED:
            self._context.drop(f"malformed_{envelope.kind.removeprefix('mcp/')}", envelope)
            return
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self.proposals.receive(envelope)
            case kinds.MCP_WITHDRAW:
                self.proposals.receive_withdraw(envelope)
            case kinds.MCP_REJECT:
                self.proposals.receive_reject(envelope)
            case kinds.MCP_RENEW:
                self.proposals.receive_renewal(envelope)
            case kinds.MCP_REPORT:
                self.proposals.receive_report(envelope)
            case kinds.MCP_RESPONSE:
                self.reader.receive(envelope)
            case _:
                call = call or payloads.read_call(envelope.payload)
                if call.is_notification:
                    self._notification(envelope, call)
                else:
                    self._requests.receive(envelope, call)

    def _notification(self, envelope: Envelope, call: Call) -> None:
        if len(envelope.correlation) > MAX_NAMED:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if call.method == kinds.CANCELLED:
            self._requests.receive_cancel(envelope, call)
        elif call.method == kinds.PROGRESS:
            self.reader.receive_progress(envelope, call.params)

    def _acknowledge(self, chat: Envelope) -> None:
        """Acknowledge a chat that names us, to a sender whose dialect has acknowledgements."""
        context, sender = self._context, chat.sender
        payload = {"status": "received"}
        if (
            context.mode.answers
            and context.me in chat.to
            and context.roster.dialect_of(sender) in ACKNOWLEDGING
            and context.find_handler(Role.CHAT, chat, None)
            and context.roster.is_allowed(context.me, kinds.CHAT_ACKNOWLEDGE, payload, (sender,))
        ):
            context.envelope_sender.send(
                kinds.CHAT_ACKNOWLEDGE,
                payload,
                priority=Priority.TALK,
                to=(sender,),
                correlation=(chat.id,),
            )

    def _cancel_chat(self, cancel: Envelope) -> None:
        """End the handlers of a chat: its sender, and no other participant, takes it back."""
        if not cancel.correlation:
            self._context.drop("malformed_chat_cancel", cancel)
            return
        reason = read_reason(cancel.payload_object.get("reason"))
        for exchange in self._scheduler.chats(cancel.correlation):
            chat = exchange.work.envelope
            if chat.sender == cancel.sender:
                cause = cause_of_end(cancel.sender, chat.id, reason, "", self._context.now)
                self._scheduler.cancel(exchange, cause)
            else:
                self._context.drop("chat_cancel_by_another", cancel)

    def _grant_or_revoke(self, envelope: Envelope) -> None:
        """Acknowledge a grant to us; tell handlers of it, or of its revocation."""
        now = self._context.now
        if not self._context.mode.answers:
            return
        me, payload = self._context.me, envelope.payload_object
        try:
            read = read_management(envelope, payload)
            if isinstance(read, Grant):
                if read.participant == me:
                    self._granted.put(read.id, True, now)
                    self._context.envelope_sender.send(
                        GRANT_ACK,
                        {"status": "accepted"},
                        priority=Priority.TALK,
                        to=(read.by,),
                        correlation=(read.id,),
                    )
                    self._scheduler.notify(Role.GRANT, envelope, read)
            elif isinstance(read, Revocation):
                ours = self._granted.get(read.grant_id, now) is not None
                if me == read.participant or (ours and not read.participant):
                    self._scheduler.notify(Role.REVOKE, envelope, read)
        except InvalidEnvelope:
            self._context.drop("malformed_grant", envelope)


def _problem(envelope: Envelope, payload: object) -> str:
    """The reason for which a call is not one that every reader reads alike (PROTOCOL 1)."""
    if envelope.kind == kinds.MCP_PROPOSAL:
        return payloads.proposal_problem(payload, envelope.raw_payload)
    return payloads.request_problem(payload)


def _is_sound(call: Envelope) -> bool:
    """True for a request or proposal that every reader reads alike."""
    return _is_readable(call) and not _problem(call, call.payload)


def _is_readable(envelope: Envelope) -> bool:
    """True if its id and its sender's name are short enough to be remembered."""
    return max(len(envelope.id), len(envelope.sender)) <= MAX_ID_CHARS
