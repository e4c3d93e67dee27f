"""What each envelope from the wire means, and whether its sender may say it (PROTOCOL 4 and 5)."""

from __future__ import annotations

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Conflict, Priority, Role
from meup_agent.protocol.exchange.explanations import RejectExplanations
from meup_agent.protocol.exchange.handler_scheduler import USED_AGAIN, HandlerScheduler
from meup_agent.protocol.exchange.outbound_tracker import OutboundTracker
from meup_agent.protocol.exchange.proposal_store import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
)
from meup_agent.protocol.exchange.resolution import (
    MAX_NAMED,
    NO_PROPOSAL,
    Resolution,
    executors_of,
    find_answered,
    resolve,
)
from meup_agent.protocol.exchange.response_reader import ResponseReader
from meup_agent.protocol.exchange.siblings import SiblingConnections
from meup_agent.protocol.exchange.system_messages import SystemMessages
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.exchange.ttl_map import TTLMap
from meup_agent.protocol.management_payloads import (
    GRANT,
    GRANT_ACK,
    REVOKE,
    read_grant,
    read_revocation,
)
from meup_agent.protocol.payloads import Call, read_response
from meup_agent.protocol.reasons import Reason, read_reason
from meup_agent.protocol.resume import read_replayed

MAX_ID_CHARS = 256
"""Characters of an id or a sender's name: these are remembered, and the longest in use have 60."""

GRANTED_COUNT = 1_000
GRANTED_SECONDS = 30 * 24 * 3600.0
"""Grants to us that are remembered, to know a revocation that names nothing but the grant."""

SEEN_COUNT = 20_000
SEEN_SECONDS = 600.0
"""Envelopes that are remembered so that one which is delivered twice counts once."""

_EXCHANGES = frozenset(
    {
        kinds.MCP_PROPOSAL,
        kinds.MCP_WITHDRAW,
        kinds.MCP_REJECT,
        kinds.MCP_REQUEST,
        kinds.MCP_RESPONSE,
    }
)
"""What does no harm twice: the state of the exchange tells a copy from a new one."""


class InboundDispatcher:
    """Applies what arrives to the proposal store and to both sides of the table."""

    def __init__(
        self, context: TableContext, outbound: OutboundTracker, scheduler: HandlerScheduler
    ) -> None:
        self._context = context
        self._outbound = outbound
        self._response_reader = ResponseReader(context, outbound)
        self._scheduler = scheduler
        self._siblings = SiblingConnections(context, outbound, scheduler)
        self._seen: TTLMap[int, bool] = TTLMap(count=SEEN_COUNT, seconds=SEEN_SECONDS)
        self._granted: TTLMap[str, bool] = TTLMap(count=GRANTED_COUNT, seconds=GRANTED_SECONDS)
        self.explanations = RejectExplanations()
        self._system_messages = SystemMessages(context, outbound, scheduler)

    def take(self, envelope: Envelope, now: float, seq: int | None = None) -> None:
        """An envelope has come.

        Args:
            envelope: The envelope.
            now: The time.
            seq: Its number, where the gateway gives it one (PROTOCOL 6).
        """
        context = self._context
        if seq is None or not context.connected:
            self._take(envelope, now, seq)
            return
        cursor = context.cursor
        if cursor.until is not None and seq > cursor.until:
            self._system_messages.caught_up(now)
        if cursor.takes(seq, now) or self._has_no_number_of_its_own(envelope, now):
            self._take(envelope, now, seq)
        else:
            self._of_before(envelope, now)
        if cursor.until == seq:
            self._system_messages.caught_up(now)

    def _of_before(self, envelope: Envelope, now: float) -> None:
        """What is not new: we have read it, or it is an open proposal of before we came.

        A request that fulfills such a proposal is for whoever heard it first: here it is a record.
        """
        in_progress = read_replayed(envelope.extra)
        if in_progress is None or not self._is_readable(envelope):
            self._context.drop("duplicate", envelope, expected=True)
        elif envelope.kind == kinds.MCP_PROPOSAL:
            self._proposal(envelope, now, begins=not in_progress)
        elif envelope.kind == kinds.MCP_REQUEST:
            self._fulfillment(envelope, now)

    def _has_no_number_of_its_own(self, envelope: Envelope, now: float) -> bool:
        """Whether it is the gateway's word to us alone, or its answer to what we sent again."""
        if envelope.sender in kinds.GATEWAY_NAMES:
            return envelope.kind != kinds.SYSTEM_PRESENCE
        return self._is_own(envelope) and self._said_here(envelope.id, now)

    def _take(self, envelope: Envelope, now: float, seq: int | None) -> None:
        if not self._is_readable(envelope):
            self._context.drop("name_too_long", envelope)
            return
        # A request with more ids is refused, so it keeps them all (PROTOCOL 4.4).
        if len(envelope.correlation) > MAX_NAMED and envelope.kind != kinds.MCP_REQUEST:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if envelope.kind.startswith("system/"):
            self._system_messages.take(envelope, now, seq)
        elif self._is_own(envelope):
            self._own(envelope, now)
        else:
            self._others(envelope, now)

    def _is_readable(self, envelope: Envelope) -> bool:
        return max(len(envelope.id), len(envelope.sender)) <= MAX_ID_CHARS

    def _others(self, envelope: Envelope, now: float) -> None:
        watcher = self._context.find_handler(Role.KIND, envelope, None)
        is_exchange = envelope.kind in _EXCHANGES
        # Of exchanges, only who watches them cares whether they came before.
        is_new = (is_exchange and not watcher) or self._is_new(envelope, now)
        if is_exchange:
            self._exchange(envelope, now)
        elif not is_new:
            self._context.drop("duplicate", envelope, expected=True)
        elif envelope.kind == kinds.CHAT and envelope.concerns(self._context.me):
            if envelope.correlation:
                self.explanations.heard(envelope, now)
            self._scheduler.notice(Role.CHAT, envelope, now)
        elif envelope.kind in (GRANT, REVOKE):
            self._standing(envelope, now)
        if watcher and is_new:
            self._scheduler.notice(Role.KIND, envelope, now, handler=watcher)

    def _is_new(self, envelope: Envelope, now: float) -> bool:
        """Whether it was not delivered before; ids may come again after a restart of theirs."""
        mark = hash((envelope.sender, envelope.id, fingerprint_of(envelope)))
        if self._seen.get(mark, now) is not None:
            return False
        self._seen.put(mark, True, now)
        return True

    def _own(self, envelope: Envelope, now: float) -> None:
        """An echo: the gateway has ordered what we said (PROTOCOL 4.11).

        It reaches no handler of ours, except a request that names us, with its cancel and response.
        """
        if not self._said_here(envelope.id, now):
            self._said_elsewhere(envelope, now)
            return
        self._outbound.echoed(envelope.id)
        if envelope.kind in _EXCHANGES and not self._says_nothing_to_us(envelope):
            self._exchange(envelope, now)

    def _said_here(self, envelope_id: str, now: float) -> bool:
        """Whether an envelope in our name is of this process."""
        known = self._context.envelope_sender.is_own(envelope_id, now)
        return known or self._outbound.knows(envelope_id, now)

    def _said_elsewhere(self, envelope: Envelope, now: float) -> None:
        """Somebody speaks under our name, on another connection than ours (PROTOCOL 5).

        Where nobody checks who speaks, it may be anybody.
        """
        if not self._context.roster.guarantees.identity_checked:
            self._context.drop("not_ours", envelope)
            return
        self._siblings.begins(envelope, now)
        if envelope.kind in _EXCHANGES:
            self._exchange(envelope, now)
            self._siblings.ends(envelope, now)

    def _says_nothing_to_us(self, echo: Envelope) -> bool:
        """Whether it is a request of ours to others that is about no other exchange, as most."""
        return (
            echo.kind == kinds.MCP_REQUEST
            and not echo.correlation
            and self._context.me not in echo.to
        )

    def _exchange(self, envelope: Envelope, now: float) -> None:
        if not envelope.correlation and kinds.KINDS[envelope.kind].correlated:
            self._context.drop(f"malformed_{envelope.kind.removeprefix('mcp/')}", envelope)
            return
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._proposal(envelope, now)
            case kinds.MCP_WITHDRAW:
                self._withdraw(envelope, now)
            case kinds.MCP_REJECT:
                self._reject(envelope, now)
            case kinds.MCP_RESPONSE:
                self._response(envelope, now)
            case _:
                self._request_or_notification(envelope, now)

    def _request_or_notification(self, envelope: Envelope, now: float) -> None:
        call = payloads.read_call(envelope.payload)
        if not call.is_notification:
            self._request(envelope, call, now)
            return
        if len(envelope.correlation) > MAX_NAMED:
            envelope = envelope.replace(correlation=envelope.correlation[:MAX_NAMED])
        if call.method == kinds.CANCELLED:
            self._cancel(envelope, call, now)
        elif call.method == kinds.PROGRESS:
            self._response_reader.progress(envelope, call.params, now)

    def _standing(self, envelope: Envelope, now: float) -> None:
        """We were granted something, which we acknowledge, or it was taken away from us."""
        if not self._context.mode.answers:
            return
        me, payload = self._context.me, envelope.payload_object
        try:
            if envelope.kind == GRANT:
                grant = read_grant(envelope, payload)
                if grant.participant == me:
                    self._granted.put(grant.id, True, now)
                    self._context.envelope_sender.send(
                        GRANT_ACK,
                        {"status": "accepted"},
                        now=now,
                        priority=Priority.TALK,
                        to=(grant.by,),
                        correlation=(grant.id,),
                    )
                    self._scheduler.notice(Role.GRANT, envelope, now, grant)
            else:
                revocation = read_revocation(envelope, payload)
                ours = self._granted.get(revocation.grant_id, now) is not None
                if me == revocation.participant or (ours and not revocation.participant):
                    self._scheduler.notice(Role.REVOKE, envelope, now, revocation)
        except InvalidEnvelope:
            self._context.drop("malformed_grant", envelope)

    # --- proposals ---

    def _proposal(self, envelope: Envelope, now: float, *, begins: bool = True) -> None:
        key = ProposalKey(envelope.sender, envelope.id)
        known = self._context.proposal_store.get(key, now)
        if self._is_own(envelope):
            return  # it stands in the proposal store since we began it
        if known is not None:
            if known.fingerprint == fingerprint_of(envelope):
                self._context.drop("duplicate_proposal", envelope, expected=True)
                return
            # Its proposer began to count anew: nobody will ask for the older one.
            if self._context.proposal_store.withdrawn(key, Reason.NO_LONGER_NEEDED, now):
                self._scheduler.withdrawn(key, known, Reason.NO_LONGER_NEEDED, now, USED_AGAIN)
        record = self._context.proposal_store.add(envelope, now)
        reason = self._context.tombstones.get("withdrawn", *key, now)
        if reason is not None:
            self._context.proposal_store.withdrawn(key, reason, now)
        self._scheduler.fulfilled_early(record, now)
        if record.copied:
            self._copied(record, envelope, now)
        starts_nothing = record.copied or not record.state.is_pending
        if begins and (starts_nothing or envelope.concerns(self._context.me)):
            self._scheduler.proposal(record, envelope, now)

    def _copied(self, record: ProposalEntry, envelope: Envelope, now: float) -> None:
        """Another proposer's proposal has this id: nobody may take one for the other."""
        named = self._context.proposal_store.under(record.key.id, now)
        first = next((each.key.proposer for each in named if not each.copied), "")
        conflict = Conflict(record.key.id, copied_by=envelope.sender, proposer=first)
        self._scheduler.notice(Role.CONFLICT, envelope, now, conflict, droppable=True)

    def _withdraw(self, envelope: Envelope, now: float) -> None:
        """Only the proposer withdraws, and only what is pending (PROTOCOL 4.1, 4.2).

        Or the gateway in its place, when the proposer may not make it any more.
        """
        payload = envelope.payload_object
        reason = read_reason(payload.get("reason"))
        proposer = self._on_behalf_of(envelope, payload)
        for proposal_id in envelope.correlation:
            key = ProposalKey(proposer, proposal_id)
            record = self._context.proposal_store.get(key, now)
            if record is not None and not record.state.is_pending:
                self._context.drop("late_withdraw", envelope, expected=True)
                continue
            if record is None:
                if self._context.proposal_store.under(proposal_id, now):
                    self._context.drop("withdraw_by_another", envelope)
                # Two proposers may use the same id, and this one's proposal may be still to come.
                self._context.tombstones.put("withdrawn", *key, reason, now)
            self._context.proposal_store.withdrawn(key, reason, now)
            self._scheduler.withdrawn(key, record, reason, now, by=envelope.sender)
            if proposer != envelope.sender:
                self._ended_by_gateway(proposer, proposal_id, reason, now)

    def _on_behalf_of(self, envelope: Envelope, said: payloads.JsonObject) -> str:
        """Whose exchange an end is about: its sender's, or that of whom the gateway names."""
        checked = self._context.roster.guarantees.identity_checked
        return payloads.on_behalf_of(envelope.sender, said) if checked else envelope.sender

    def _ended_by_gateway(self, by: str, exchange_id: str, reason: str, now: float) -> None:
        """If it is ours, nobody will answer it; the error that says so may have been lost."""
        if by == self._context.me:
            self._outbound.refused(exchange_id, {"error": reason}, now)

    def _reject(self, envelope: Envelope, now: float) -> None:
        means = resolve(envelope, self._context.proposal_store, now)
        record = means.record
        if record is None:
            unknown = means.doubt is None
            why = "unknown_reject" if unknown else "ambiguous_reject"
            self._context.drop(why, envelope, expected=unknown)
            return
        if envelope.sender == record.key.proposer:
            self._context.drop("reject_of_own_proposal", envelope)
            return
        rejected = record.rejected(envelope, read_reason(envelope.payload_object.get("reason")))
        if rejected is None:
            self._context.drop("duplicate_reject", envelope, expected=True)
            return
        if record.key.proposer == self._context.me:
            self.explanations.rejected(rejected.by, rejected.id, now)
            rejection = self._response_reader.rejection(record, rejected, now)
            if rejection is not None:
                self._scheduler.notice(Role.REJECT, envelope, now, rejection)

    # --- requests ---

    def _request(self, envelope: Envelope, call: Call, now: float) -> None:
        means, fulfillment = self._fulfillment(envelope, now)
        if self._is_for_us(envelope, means.record):
            self._scheduler.request(envelope, call, now, means=means, fulfillment=fulfillment)

    def _fulfillment(
        self, envelope: Envelope, now: float
    ) -> tuple[Resolution, FulfillingRequest | None]:
        """Which proposal a request means, and its entry there, if it carries that out."""
        proposal_store = self._context.proposal_store
        means = NO_PROPOSAL if not envelope.correlation else resolve(envelope, proposal_store, now)
        record, fulfillment = means.record, None
        if record is not None and envelope.sender != record.key.proposer:
            fulfillment = self._fulfills(record, envelope, now)
            self._response_reader.rival_requested(record, now)
            if record.key.proposer == self._context.me:
                self._response_reader.in_progress(record, now)
        return means, fulfillment

    def _fulfills(
        self, record: ProposalEntry, envelope: Envelope, now: float
    ) -> FulfillingRequest | None:
        """The entry of a fulfilling request; another one under its id takes its place."""
        known = record.fulfillment(envelope.sender, envelope.id)
        if known is not None and fingerprint_of(known.envelope) == fingerprint_of(envelope):
            return known
        if known is not None:
            self._context.proposal_store.not_carried_out(record, known)
        fulfillment = FulfillingRequest(envelope.replace(), executors_of(record, envelope))
        return self._context.proposal_store.requested(record, fulfillment, now)

    def _is_for_us(self, envelope: Envelope, record: ProposalEntry | None) -> bool:
        """Whether we carry a request out: one that names us, or one that names nobody.

        Of the latter, one that carries a proposal out begins where that says so (PROTOCOL 4.4).
        """
        me = self._context.me
        asked = envelope.to if record is None else executors_of(record, envelope)
        return me in asked if asked or self._is_own(envelope) else True

    def _cancel(self, envelope: Envelope, call: Call, now: float) -> None:
        """``notifications/cancelled``: for a handler of ours, or early, or nothing to us."""
        request_id = call.params.get("requestId")
        requester = self._on_behalf_of(envelope, call.params)
        if isinstance(request_id, int | str) and not isinstance(request_id, bool):
            names = (str(request_id), *envelope.correlation)
            self._fulfillment_cancelled(requester, names, now)
            if requester != envelope.sender:
                self._ended_by_gateway(requester, str(request_id), Reason.REVOKED, now)
        me = self._context.me
        if me in envelope.to if self._is_own(envelope) else envelope.concerns(me):
            unknown = self._scheduler.cancel(envelope, call.params, now, requester=requester)
            if unknown is not None:
                self._context.tombstones.put(
                    "cancelled", requester, unknown, Reason.NO_LONGER_NEEDED, now
                )

    def _fulfillment_cancelled(self, requester: str, names: tuple[str, ...], now: float) -> None:
        for name in names:
            record = self._context.proposal_store.request_cancelled(requester, name, now)
            if record is not None:
                self._response_reader.no_longer_in_progress(record, now)
                return

    # --- responses ---

    def _response(self, envelope: Envelope, now: float) -> None:
        found = self._complete(envelope, now)
        if found is not None and found[0].key.proposer == self._context.me:
            conflict = self._response_reader.fulfilled(*found, envelope, now)
            if conflict is not None:
                self._scheduler.notice(Role.CONFLICT, envelope, now, conflict)
        if self._response_reader.response(envelope, now) or found is not None:
            return
        taken, conflict = self._response_reader.relayed(envelope, now)
        if conflict is not None:
            self._scheduler.notice(Role.CONFLICT, envelope, now, conflict)
        # An observer asks nothing: what is answered to its participant is for the running agent.
        is_ours = (
            self._context.mode.speaks
            and not self._is_own(envelope)
            and envelope.concerns(self._context.me)
        )
        asked_by_sibling = self._context.envelope_sender.is_from_sibling(envelope.correlation, now)
        # What others answer each other, or another process of ours, is nothing that we leave out.
        if not taken and is_ours and not asked_by_sibling:
            expected = self._is_harmless(envelope, now)
            self._context.drop("unknown_response", envelope, expected=expected)

    def _is_harmless(self, response: Envelope, now: float) -> bool:
        """Whether correct, or merely eager, participants send us such a response.

        Some answer whatever is addressed to them, our notifications too (PROTOCOL 2). And what
        another process of ours had asked for before us is answered once more as we join (4.14).
        """
        return self._context.is_older_than_us(response) or any(
            self._context.envelope_sender.is_own(name, now) for name in response.correlation
        )

    def _complete(
        self, envelope: Envelope, now: float
    ) -> tuple[ProposalEntry, FulfillingRequest] | None:
        """What a response means for a proposal: its end, unless it was not carried out."""
        found = find_answered(envelope, self._context.proposal_store, now)
        if found is None:
            return None
        record, fulfillment = found
        payload = envelope.payload
        if payloads.is_refusal(payload):
            if self._context.proposal_store.refused(record, fulfillment, envelope.sender):
                self._response_reader.no_longer_in_progress(record, now)
            return None
        self._response_reader.order_unechoed(record, now)
        is_error = read_response(payload)[1] is not None
        if not self._context.proposal_store.complete(record, fulfillment, is_error=is_error):
            return None
        return found

    def _is_own(self, envelope: Envelope) -> bool:
        return envelope.sender == self._context.me
