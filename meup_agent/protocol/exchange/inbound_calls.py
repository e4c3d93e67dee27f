"""Requests and proposals of others, what ends them, and words of the gateway, up to a handler.

PROTOCOL 4.1 to 4.5 for proposals, withdraws and rejects, 4.4 and 4.7 for requests and cancels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

import msgspec

from meup_agent.causes import USED_AGAIN, Cause, Reason, cause_of_cancel, declines, read_reason
from meup_agent.errors import InvalidEnvelope, NotExpressible, Refused
from meup_agent.protocol.dialects import PUBLISHED, as_broadcast, decode
from meup_agent.protocol.exchange.effects import CaughtUp, Conflict, Leave, Priority, Role
from meup_agent.protocol.exchange.handlers import (
    InboundExchange,
    Settled,
    TablePart,
    cause_of_end,
    early_fulfillment,
    is_early,
)
from meup_agent.protocol.exchange.responses import ResponseReader
from meup_agent.protocol.exchange.streams import StreamTable
from meup_agent.protocol.exchange.table_context import CONTROL, Mode
from meup_agent.protocol.proposals import (
    NOTHING,
    Folded,
    ProposalEntry,
    ProposalEvent,
    ProposalKey,
    ProposalState,
    executors_of,
    fingerprint_of,
)
from meup_agent.protocol.roster import UPDATE, Presence
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    Envelope,
    draft,
    encode_json,
    encode_leniently,
    is_object,
    read_moment,
)
from meup_agent.protocol.wire.membership import (
    ARRIVED,
    CAME_BACK,
    MAX_LISTED,
    MISSED_NOTHING,
    ListedProposal,
    ProposalPage,
    read_guarantees,
    read_missed,
)
from meup_agent.protocol.wire.payloads import (
    ANSWERS,
    COMPACT_DONE,
    HELD_KINDS,
    REQUEST_STATUS,
    RESUME,
    STATUS,
    Call,
    Clear,
    Compact,
    CompactDone,
    Control,
    Forget,
    JsonObject,
    ParticipantStatus,
    Pause,
    Restart,
    Resumption,
    Shutdown,
    StatusRequest,
    as_object,
    outlasts,
    read_control,
    read_pause,
)

# --- inbound calls ---


@dataclass
class InboundRequests(TablePart):
    """Enters each request in the proposal that it carries out, and hands ours to a handler."""

    _reader: ResponseReader

    # --- a request ---

    def receive(self, envelope: Envelope, call: Call) -> None:
        """Apply a request: a record in every table, work for its executors."""
        # Most are part of no other exchange.
        folded = self.enter(envelope, call) if envelope.correlation else NOTHING
        if self._is_for_us(envelope, folded.record) and self._is_answered_here(
            envelope, call, folded
        ):
            self._queue_request(envelope, call, folded)

    def enter(self, envelope: Envelope, call: Call, *, cancelled: bool = False) -> Folded:
        """Enter a request in the proposal that it carries out, if it does.

        One that was cancelled before we came counts only if a result comes all the same.
        """
        context = self._context
        # Ours takes no request after the deadline: what it took was in time.
        is_checked = context.roster.guarantees.identity_checked
        folded = context.folded = context.fold.request(
            envelope,
            call,
            context.now,
            None if is_checked else context.moment(),
            live=not cancelled,
            unattended=envelope.sender not in context.roster,
        )
        if folded.record is not None and envelope.sender != folded.record.key.proposer:
            self._reader.note_fulfillment(folded.record)
        return folded

    def _is_for_us(self, envelope: Envelope, record: ProposalEntry | None) -> bool:
        me = self._context.me
        asked = envelope.to if record is None else executors_of(record, envelope)
        return me in asked if asked or envelope.sender == me else True

    def _is_answered_here(self, request: Envelope, call: Call, means: Folded) -> bool:
        """True if this connection of ours answers a request (PROTOCOL 3).

        What belongs to an exchange of ours is for the connection that began it, and so is a permit;
        what else carries a proposal out is for the one that answers, whoever proposed it.
        """
        if means.record is not None and means.record.asks_permit:
            return self._outbound.knows(means.record.key.id)
        if means.record is not None or means.doubt is not None:
            return self._context.mode.answers
        names = payloads.exchanges_of(request.correlation, call.meta)
        if not names:
            return self._context.mode.answers
        if any(self._outbound.knows(name) for name in names):
            return True
        # A call that is not ours was made by another connection, perhaps before we came.
        is_question = len(names) > len(request.correlation)
        by_sibling = self._context.envelope_sender.is_begun_by_sibling(names)
        return self._context.mode.answers and not is_question and not by_sibling

    def _queue_request(
        self,
        envelope: Envelope,
        call: Call,
        folded: Folded,
    ) -> None:
        """Queue a handler for a request, or answer why none starts."""
        if self._is_repeated(envelope):
            return
        context, scheduler, responses = self._context, self._scheduler, self._scheduler.responses
        handler = context.find_handler(Role.REQUEST, envelope, call) if call.method else None
        exchange = scheduler.new_exchange(Role.REQUEST, envelope, call, handler)
        fulfillment = exchange.fulfillment = folded.fulfillment
        exchange.fulfills, exchange.doubt = folded.record, folded.doubt
        denial = scheduler.admission.denial(exchange)
        if self._is_cancelled_already(exchange, call):
            context.drop("cancelled_before", envelope, expected=True)
        elif fulfillment is not None and fulfillment.taken_up:
            context.drop("duplicate_request", envelope, expected=True)
        elif denial is not None:
            scheduler.deny(exchange, denial, answered=exchange.addressed or bool(handler))
        elif call.rpc_id is not None and call.rpc_name is None:
            if exchange.addressed:
                responses.invalid(exchange, "the request's JSON-RPC id is too long")
        elif not handler:
            if exchange.addressed:
                responses.unknown_method(exchange, call.method)
        elif scheduler.turns_away(exchange):
            responses.busy(exchange, held=scheduler.limiter.is_held)
        else:
            if envelope.correlation:
                self._take_up_fulfillment(exchange, call)
            scheduler.enqueue(exchange)
            return
        scheduler.requests.settle(exchange, context.now)

    def refuse(self, envelope: Envelope, problem: str) -> None:
        """Answer a malformed request to us; it is entered nowhere, and no handler sees it."""
        scheduler = self._scheduler
        call = payloads.read_call(envelope.payload)
        is_ours = self._is_answered_here(envelope, call, NOTHING)
        if not is_ours or self._is_repeated(envelope):
            return
        exchange = scheduler.new_exchange(Role.REQUEST, envelope, call, None)
        if exchange.addressed:
            scheduler.responses.failure(exchange, payloads.INVALID_PARAMS, problem, None)
        scheduler.requests.settle(exchange, self._context.now)

    def _is_repeated(self, envelope: Envelope) -> bool:
        """True if a request came before: its answer is sent again, the work is not done again.

        Another one under the same id, or the same made a second time (PROTOCOL 6), ends the first,
        which a restart of its sender has orphaned: an answer to the first would be taken for an
        answer to the second.
        """
        now = self._context.now
        name, requests = (envelope.sender, envelope.id), self._scheduler.requests
        found = requests.find(name, now)
        if found is None:
            return False
        # One that names a proposal is an approval: used once, also if its id is used again.
        is_approval = bool(envelope.correlation)
        is_made_anew = self._context.is_new and not is_approval
        fingerprint = fingerprint_of(envelope)
        if isinstance(found, Settled):
            known = found.fingerprint
        else:
            known = fingerprint_of(found.work.envelope)
        if known == fingerprint and not is_made_anew:
            if isinstance(found, Settled) and found.answer_id is not None:
                self._context.envelope_sender.resend(found.answer_id)
        elif not (is_approval and requests.replaced.get(envelope.sender, fingerprint, now)):
            requests.replaced.put(envelope.sender, known, True, now)
            if not isinstance(found, Settled):
                found.superseded = True
                requests.remove(found)
                cause = cause_of_end(*name, Reason.NO_LONGER_NEEDED, USED_AGAIN, now)
                self._scheduler.cancel(found, cause)
            return False
        self._context.drop("duplicate_request", envelope, expected=True)
        return True

    def _is_cancelled_already(self, exchange: InboundExchange, call: Call) -> bool:
        """True if the cancel of a request came before it."""
        tombstones = self._context.tombstones
        if tombstones.is_empty or call.method == "initialize":
            return False
        return any(
            tombstones.get("cancelled", *name, self._context.now) is not None
            for name in exchange.names
            if name is not None
        )

    # --- the proposal that it carries out ---

    def _take_up_fulfillment(self, exchange: InboundExchange, call: Call) -> None:
        """Remember that we carry a proposal out, also one that we have not seen."""
        request = exchange.work.envelope
        if exchange.fulfillment is None:
            exchange.fulfillment = early_fulfillment(request, call)
            for name in request.correlation:
                self._context.proposal_store.put_early(
                    name, exchange.fulfillment, self._context.now
                )
        exchange.fulfillment.taken_up = exchange.fulfillment.running = True
        if exchange.fulfills is not None:
            exchange.fulfills.holders += 1

    def bind_early(self, record: ProposalEntry) -> None:
        """Enter in a new proposal the requests that carry it out and came before it."""
        now = self._context.now
        for item in self._context.proposal_store.early(record.key.id, now):
            if not is_early(item, record):
                continue
            self._context.proposal_store.requested(record, item, now)
            if item.carried_out:
                record.step(ProposalEvent.RESPONSE, item.by)
            for exchange in self._scheduler.requests.open():
                if exchange.fulfillment is item:
                    exchange.fulfills = record
                    record.holders += 1

    # --- a cancel ---

    def receive_cancel(self, envelope: Envelope, call: Call) -> None:
        """Apply ``notifications/cancelled``: the requester's, or the gateway's in its place."""
        context, named = self._context, call.params.get("requestId")
        is_ours = envelope.sender == context.me
        concerns = context.me in envelope.to if is_ours else envelope.concerns(context.me)
        if isinstance(named, bool) or not isinstance(named, int | str):
            if concerns:
                context.drop("malformed_cancel", envelope)
            return
        requester, request_id = context.on_behalf_of(envelope, call.params), str(named)
        cause = cause_of_cancel(
            call.params, by=envelope.sender, exchange_id=request_id, at=context.now
        )
        names = (request_id, *envelope.correlation)
        record = context.fold.cancel(requester, names, context.now, cause)
        if record is not None:
            self._reader.note_fulfillment_ended(record)
        if requester != envelope.sender:
            self._outbound.end_by_gateway(requester, request_id, cause.code)
        if concerns:
            self._cancel_handler(envelope, call, (requester, request_id))

    def _cancel_handler(self, envelope: Envelope, call: Call, name: tuple[str, str]) -> None:
        """Cancel the handler of a request; one that comes first is kept (PROTOCOL 4.7)."""
        now = self._context.now
        context, requests = self._context, self._scheduler.requests
        exchange = requests.find_named(name)
        if exchange is not None:
            asked = exchange.work.call
            if asked is not None and asked.method == "initialize":
                context.drop("initialize_is_not_cancelled", envelope)
                return
            cause = cause_of_cancel(
                call.params, by=envelope.sender, exchange_id=exchange.key.id, at=now
            )
            self._scheduler.cancel(exchange, cause)
        elif requests.has_ended(name, now):
            context.drop("late_cancel", envelope, expected=True)
        else:
            by_another = requests.is_anothers(name)
            why = "cancel_by_another" if by_another else "unknown_cancel"
            context.drop(why, envelope, expected=not by_another)
            context.tombstones.put("cancelled", *name, Reason.NO_LONGER_NEEDED, now)


@dataclass
class InboundProposals(TablePart):
    """Enters each proposal, and its end, in the store; hands those for us to a handler."""

    _reader: ResponseReader
    _requests: InboundRequests

    # --- a proposal ---

    def receive(self, envelope: Envelope) -> None:
        """Apply a proposal."""
        context = self._context
        envelope = self._as_broadcast(envelope) or envelope
        record = self._take(envelope)
        if record is None:
            return
        is_ours = not self._named_executor(record) or self._may_fulfill(record)
        starts_nothing = record.copied or not record.state.is_pending
        if is_ours and (starts_nothing or envelope.concerns(context.me)) and context.mode.answers:
            self._queue_proposal(record, envelope)

    def enter(self, envelope: Envelope, listed: ListedProposal) -> None:
        """Enter an open proposal of before we came as a record, also one of another of ours.

        It takes the place of an older one under its id, whose end a gap has hidden.
        """
        context, expires_at = self._context, read_moment(listed.expires_at)
        envelope = self._as_broadcast(envelope) or envelope
        known = context.proposal_store.get(ProposalKey(envelope.sender, envelope.id), context.now)
        if known is not None and known.fingerprint == fingerprint_of(envelope):
            return
        if envelope.sender != context.me:
            taken = self._take(envelope, expires_at)
            left = read_moment(listed.proposer_left)
            if taken is not None and left is not None:
                self._note_proposer_left(taken, left)
        elif known is None:
            context.envelope_sender.note_sibling(envelope)
            record = context.proposal_store.add(envelope, context.now)
            if expires_at is not None:
                context.proposal_store.set_deadline(record, expires_at)

    def _take(self, envelope: Envelope, expires_at: int | None = None) -> ProposalEntry | None:
        """Enter a proposal of another's; ``None``: it is known, or our own."""
        context = self._context
        if envelope.sender == context.me:
            return None
        folded = context.folded = context.fold.propose(
            envelope, context.now, context.moment(), is_new=context.is_new, expires_at=expires_at
        )
        record = folded.record
        assert record is not None
        if folded.dropped:
            context.drop(folded.dropped, envelope, expected=True)
            return None
        if folded.replaced is not None:
            cause = cause_of_end(*record.key, Reason.NO_LONGER_NEEDED, USED_AGAIN, context.now)
            self._end(record.key, folded.replaced, cause)
        self._requests.bind_early(record)
        if record.copied:
            self._notify_copied(record, envelope)
        return record

    def offer(self, record: ProposalEntry) -> None:
        """Queue a handler for an open proposal of before we came, unless one has looked at it."""
        context, key = self._context, record.key
        running = self._scheduler.find_proposal(key)  # perhaps of an older one under its id
        looked_at = record.handled or (running is not None and running.record is record)
        starts_nothing = record.copied or record.state is not ProposalState.PENDING
        if (
            not (looked_at or starts_nothing or context.has_declined(record))
            and key.proposer != context.me
            and (not self._named_executor(record) or self._may_fulfill(record))
            and record.envelope.concerns(context.me)
            and context.mode.answers
        ):
            self._queue_proposal(record, record.envelope)

    def refuse(self, envelope: Envelope) -> None:
        """Reject a malformed proposal to us; it is entered nowhere, and no handler sees it."""
        if self._context.mode.answers:
            call = payloads.read_proposal(envelope.payload)
            exchange = self._scheduler.new_exchange(Role.PROPOSAL, envelope, call, None)
            self._scheduler.responses.rejection(exchange, Reason.INVALID)

    def note_own_rejection(self, record: ProposalEntry, reason: str) -> None:
        """Note that another process of ours has rejected it, before we came or in a gap."""
        reason = read_reason(reason)
        record.rejected(self._context.me, reason)
        self._scheduler.end_rejected(record, reason)

    def _note_proposer_left(self, record: ProposalEntry, at: int) -> None:
        """Note when the proposer left, before we came, in the gateway's microseconds since 1970."""
        now = self._context.now
        moment = self._context.moment()
        if moment is None:
            return
        told = now - max(moment - at, 0) / 1_000_000
        # It may be told more than once, and by a clock that does not go as ours.
        left = self._context.roster.note_left(record.key.proposer, told, now)
        if left is not None:
            record.seen_at = min(record.seen_at, left)

    def _queue_proposal(self, record: ProposalEntry, envelope: Envelope) -> None:
        """Queue a handler for a proposal, or reject it where it was addressed to us."""
        context, scheduler, responses = self._context, self._scheduler, self._scheduler.responses
        call = payloads.read_proposal(envelope.payload)
        handler = context.find_handler(Role.PROPOSAL, envelope, call)
        exchange = scheduler.new_exchange(Role.PROPOSAL, envelope, call, handler)
        exchange.record = record
        denial = scheduler.admission.denial(exchange)
        if denial is not None:
            scheduler.deny(exchange, denial)
        elif not handler:
            # Where targets are hidden, the executor is addressed beside the deciders, so as to see
            # the proposal (PROTOCOL 2): it is not asked, and its reject would end the wait.
            is_asked = call.target != context.me or len(envelope.to) < 2
            # Nor is it, where a person decides what no handler does.
            if is_asked and not context.inboxes:
                responses.rejection(exchange, Reason.INCAPABLE)
        elif context.proposal_store.get(
            record.key, context.now
        ) is not record or scheduler.turns_away(exchange):
            responses.busy(exchange, held=scheduler.limiter.is_held)
        else:
            scheduler.enqueue(exchange)

    def _as_broadcast(self, proposal: Envelope) -> Envelope | None:
        """A proposal whose ``to`` names its executor, as a broadcast (PROTOCOL 4.4)."""
        roster = self._context.roster
        if roster.guarantees.hidden_targets:
            return None  # nobody else sees it (PROTOCOL 2)
        return as_broadcast(proposal, roster.dialect_of(proposal.sender), roster.dialect)

    def _named_executor(self, record: ProposalEntry) -> bool:
        """True if ``to`` of a proposal named its executor, before it was translated."""
        roster, envelope = self._context.roster, record.envelope
        if envelope.to or record.call.target is None:
            return False
        if roster.dialect in PUBLISHED:
            return not roster.guarantees.hidden_targets  # here, as a broadcast
        return roster.dialect_of(envelope.sender) in PUBLISHED  # by our gateway

    def _may_fulfill(self, record: ProposalEntry) -> bool:
        """True if our capabilities, as announced, allow the request that fulfills a proposal."""
        roster = self._context.roster
        request, to = payloads.fulfilling_request(record.call)
        able = roster.is_allowed(roster.me, kinds.MCP_REQUEST, request, to)
        return able or not roster.my_capabilities

    def _notify_copied(self, record: ProposalEntry, envelope: Envelope) -> None:
        """Tell handlers that a proposal has the id of another participant's."""
        named = self._context.proposal_store.under(record.key.id, self._context.now)
        first = next((each.key.proposer for each in named if not each.copied), "")
        conflict = Conflict(record.key.id, copied_by=envelope.sender, proposer=first)
        self._scheduler.notify(Role.CONFLICT, envelope, conflict, droppable=True)

    # --- a renewal ---

    def receive_renewal(self, envelope: Envelope) -> None:
        """Apply a renewal: the proposer's, of one pending proposal (PROTOCOL 4.17)."""
        context, store = self._context, self._context.proposal_store
        # Ours takes no renewal that is too late: what it took was in time, however late it is read.
        at = None if context.roster.guarantees.identity_checked else context.moment()
        known = store.get(ProposalKey(envelope.sender, envelope.correlation[0]), context.now)
        before = None if known is None else known.expires_at
        until = payloads.read_renewal(envelope.payload_object)
        if envelope.sender == context.me and before == until is not None:
            return  # our own, which took effect as it was said
        folded = context.folded = context.fold.renew(envelope, context.now, at)
        if folded.dropped:
            expected = folded.dropped in ("late_renew", "unknown_renew")
            context.drop(folded.dropped, envelope, expected=expected)
        elif folded.record is not None and before is not None:
            assert folded.record.expires_at is not None
            seconds = (folded.record.expires_at - before) / 1_000_000
            self._outbound.renewals.postpone(folded.record, seconds)

    # --- a report ---

    def receive_report(self, envelope: Envelope) -> None:
        """Apply the word of a permit's executor on what came of it (PROTOCOL 4.20)."""
        context = self._context
        folded = context.folded = context.fold.report(envelope, context.now)
        if folded.dropped:
            expected = folded.dropped in ("late_report", "unknown_report")
            context.drop(folded.dropped, envelope, expected=expected)

    # --- a withdraw ---

    def receive_withdraw(self, envelope: Envelope) -> None:
        """Apply a withdraw: the proposer's, or the gateway's in its place (PROTOCOL 4.1, 4.2)."""
        now = self._context.now
        context, payload = self._context, envelope.payload_object
        reason = read_reason(payload.get("reason"))
        proposer = context.on_behalf_of(envelope, payload)
        moment = context.moment()
        at = read_moment(envelope.ts) if moment is None else moment
        ended: list[str] = []
        for proposal_id in envelope.correlation:
            key = ProposalKey(proposer, proposal_id)
            folded = context.fold.withdraw(key, payload, now, at)
            record = folded.record
            if context.folded.record is None:
                context.folded = folded
            if folded.dropped:
                is_late = record is not None
                context.drop(folded.dropped, envelope, expected=is_late)
                if is_late:
                    continue
            elif record is not None:
                ended.append(proposal_id)
            cause = cause_of_end(envelope.sender, proposal_id, reason, "", now)
            self._end(key, record, cause)
            if proposer != envelope.sender:
                self._outbound.end_by_gateway(proposer, proposal_id, reason)
        # Only handlers are told of explanations, and most agents have none.
        is_theirs = bool(ended) and proposer == envelope.sender != context.me
        if is_theirs and context.find_handler(Role.EXPLANATION, envelope, None):
            self._reader.explanations.expect(
                proposer, envelope.id, tuple(ended), now, withdrawn=True
            )

    def _end(self, proposal: ProposalKey, record: ProposalEntry | None, cause: Cause) -> None:
        """Cancel our handler of a proposal that its proposer ended, and our fulfillments of it."""
        exchange = self._scheduler.find_proposal(proposal)
        if record is not None and record.state is ProposalState.EXPIRED:
            self._scheduler.end_expired(record, cause)
        elif exchange is not None:
            self._scheduler.withdraw(exchange, cause)
        elif record is not None and record.handled:
            self._scheduler.notify_withdrawn(record, cause)
        for request in self._outbound.open_fulfillments(proposal):
            self._outbound.give_up(request.key, cause)

    # --- a reject ---

    def receive_reject(self, envelope: Envelope) -> None:
        """Apply a reject of another participant's, to the record and to our wait (PROTOCOL 4.5)."""
        context = self._context
        folded = context.folded = context.fold.reject(envelope, context.now)
        record = folded.record
        if folded.dropped:
            expected = folded.dropped in ("unknown_reject", "duplicate_reject")
            context.drop(folded.dropped, envelope, expected=expected)
        elif record is not None and record.key.proposer == context.me:
            rejection = record.rejections[envelope.sender]
            self._reader.rejection(record, rejection, envelope)

    def reject(self, proposal: ProposalKey, reason: str, meta: JsonObject | None) -> Envelope:
        """Reject a proposal, as its handler or our user wishes."""
        exchange = self._scheduler.find_proposal(proposal)
        if exchange is not None:
            self._scheduler.settle_rejected(exchange)
        return self._scheduler.responses.reject(proposal, reason, meta=meta)


# --- listed proposals ---
# The open proposals of before we came, asked for at a welcome and entered as they are listed.


@dataclass
class ListedProposals(TablePart):
    """Asks which proposals are open that we may decide, and enters each page for us (PROTOCOL 4.6).

    A page is entered whoever of us asked for it. Those of our own question are offered to handlers.
    """

    _proposals: InboundProposals
    _requests: InboundRequests
    _is_sound: Callable[[Envelope], bool]  # false for what no reader may take, as where it is heard
    _question: str = ""  # the id of our own; it is sent again with all that was not answered

    def ask(self) -> None:
        """Ask for what we may decide, in place of what we have not heard."""
        context = self._context
        if context.mode is not Mode.OBSERVING and context.roster.guarantees.lists_proposals:
            asked = {"to_decide": True}
            if self._question:
                context.envelope_sender.take_back(self._question)
            said = context.envelope_sender.send(
                kinds.LIST_PROPOSALS, asked, priority=Priority.ANSWER
            )
            self._question = said.id

    def receive(self, answer: Envelope) -> None:
        """Enter the open proposals of a page."""
        context = self._context
        is_told = context.roster.guarantees.lists_proposals and answer.concerns(context.me)
        if answer.sender not in kinds.GATEWAY_NAMES or not is_told:
            context.drop("forged_list", answer)
            return
        try:
            page = msgspec.json.decode(answer.raw_payload, type=ProposalPage)
        except (msgspec.DecodeError, RecursionError):
            context.drop("malformed_list", answer)
            return
        context.is_new = False
        is_ours = bool(self._question) and self._question in answer.correlation
        for listed in page.proposals[:MAX_LISTED]:
            if listed.decision is None:
                try:
                    self._enter(listed, offered=is_ours)
                except (InvalidEnvelope, ValueError):
                    context.drop("malformed_list", answer)

    def offer(self, record: ProposalEntry) -> None:
        """Queue a handler for an open proposal, unless one has looked at it."""
        self._proposals.offer(record)

    def _enter(self, listed: ListedProposal, *, offered: bool) -> None:
        proposal, store = decode(bytes(listed.envelope)), self._context.proposal_store
        if proposal.kind != kinds.MCP_PROPOSAL or not self._is_sound(proposal):
            return
        key = ProposalKey(proposal.sender, proposal.id)
        self._proposals.enter(proposal, listed)
        record = store.get(key, self._context.now)
        if record is None:
            return
        for each in listed.rejections:
            if each.by == self._context.me and declines(each.reason):
                self._proposals.note_own_rejection(record, each.reason)
            elif each.by not in record.rejections:
                rejection = draft(
                    kinds.MCP_REJECT,
                    payloads.build_end(each.reason),
                    id=each.id,
                    sender=each.by,
                    to=(proposal.sender,),
                    correlation=(proposal.id,),
                )
                self._proposals.receive_reject(rejection)
        for by, words in (listed.told or {}).items():
            if by not in (record.told or {}):  # what was heard is newer
                record.note_told(by, words)
        for request in listed.requests:
            said = decode(bytes(request.envelope))
            if said.kind == kinds.MCP_REQUEST and self._is_sound(said):
                call = payloads.read_call(said.payload)
                self._requests.enter(said, call, cancelled=request.cancelled)
        if offered:
            self.offer(record)


# --- control messages ---
# What an agent does when it is paused, asked for its status, shut down.
#
# See PROTOCOL 5, control. Each is done at once, whatever else waits, and answered to its sender.

SHUTDOWN_SECONDS: Final = 5.0
"""Grace of what runs when an agent is shut down; then it is cancelled."""

MAX_STATUS_BYTES: Final = 64 * 1024
"""Bytes of what an author adds to a status; more is left out."""

_DONE: Final[dict[Role, str]] = {
    Role.FORGET: "forgotten",
    Role.CLEAR: "cleared",
    Role.RESTART: "restarted",
    Role.COMPACT: "compacted",
    Role.SHUTDOWN: "shutting_down",
}
"""The words of a status after each."""


class ActivePause(NamedTuple):
    """The pause in force, until a time of the table's clock where it has one."""

    pause: Pause
    until: float | None


@dataclass
class ControlMessages(TablePart):
    """Obeys control messages, and answers them; tells handlers."""

    def __post_init__(self) -> None:
        self._held: ActivePause | None = None
        self._began: float | None = None
        self._added: JsonObject = {}
        self._shutdown: tuple[Shutdown, Envelope, float] | None = None
        self._scheduler.on_control_end = self._answered
        self._scheduler.on_idle = self._leave_if_idle

    @property
    def pause(self) -> Pause | None:
        return None if self._held is None else self._held.pause

    def check_held(self, kind: str) -> None:
        """Raise Refused for what begins something while we are paused."""
        if self._held is not None and kind in HELD_KINDS:
            pause = self._held.pause
            because = f": {pause.reason}" if pause.reason else ""
            said = f"the {kind} was not sent: {pause.by!r} has paused us{because}"
            raise Refused("paused", said, {"id": pause.id, "by": pause.by, "reason": pause.reason})

    # --- in ---

    def welcomed(self, you: JsonObject) -> None:
        """Take the pause that a welcome tells; our own gateway knows, others do not tell."""
        self._began = self._context.now if self._began is None else self._began
        if self._context.mode.answers and self._is_ours:
            pause = read_pause(you)
            if pause is None:
                self._lift()
            else:
                self._hold(pause)

    def receive(self, envelope: Envelope) -> None:
        """Apply a control message that concerns us; all but requests of a status must name us."""
        context, me = self._context, self._context.me
        if not context.mode.answers or not envelope.concerns(me):
            return
        payload = envelope.payload_object
        try:
            control = read_control(envelope, payload)
        except InvalidEnvelope:
            context.drop("malformed_control", envelope)
            return
        if isinstance(control, ParticipantStatus):
            self._scheduler.notify(Role.STATUS, envelope, control)
        elif isinstance(control, CompactDone):
            self._scheduler.notify(Role.COMPACT_DONE, envelope, control)
        elif isinstance(control, Resumption) and self._held is None:
            pass  # a participant that we paused tells that it goes on
        elif not self._may_control(envelope, payload):
            context.drop("control_not_allowed", envelope)
        elif me in envelope.to or envelope.kind == REQUEST_STATUS:
            self._obey(control, envelope)

    def _may_control(self, envelope: Envelope, payload: JsonObject) -> bool:
        """True if its sender may control us, as far as we know what it may."""
        roster, sender = self._context.roster, envelope.sender
        if sender not in roster:
            return self._is_ours  # it asks over HTTP, and the gateway has looked
        return roster.is_allowed(sender, envelope.kind, payload, envelope.to)

    def _obey(self, control: Control, envelope: Envelope) -> None:
        # The welcome after our absence has told what became of the pauses meanwhile.
        told = self._is_ours and self._context.cursor.until is not None
        match control:
            case Pause():
                if not told and self._hold(control):
                    self._answer_status("paused", envelope)
                    self._notify(Role.PAUSE, envelope, control)
            case Resumption():
                held = self._held
                if not told and held and control.pauses in ((), (held.pause.id,)):
                    self._lift()
                    self._answer_status("active", envelope)
                    self._notify(Role.RESUME, envelope, control)
            case StatusRequest():
                if not self._notify(Role.STATUS_REQUEST, envelope, control):
                    self._answer_status(self._word, envelope, control.fields)
            case Forget() | Clear():
                role = Role.FORGET if isinstance(control, Forget) else Role.CLEAR
                self._carry_out(role, control, envelope)
            case Compact():
                if self._notify(Role.COMPACT, envelope, control):
                    self._answer_status("compacting", envelope)
                else:
                    self._compacted({"skipped": True, "status": "skipped"}, envelope)
            case Restart():
                text = control.reason or "it was restarted"
                cause = cause_of_end(
                    envelope.sender,
                    envelope.id,
                    Reason.NO_LONGER_NEEDED,
                    text,
                    self._context.now,
                )
                self._scheduler.restart(cause)
                self._outbound.give_up_all(cause)
                self._carry_out(Role.RESTART, control, envelope)
            case Shutdown():
                self._shut_down(control, envelope)
            case _:
                pass

    def _carry_out(self, role: Role, control: Control, envelope: Envelope) -> None:
        if not self._notify(role, envelope, control):
            self._answer_status(_DONE[role], envelope)

    def _notify(self, role: Role, envelope: Envelope, control: Control) -> bool:
        return self._scheduler.notify_control(role, envelope, control)

    # --- a pause ---

    def _hold(self, pause: Pause) -> bool:
        """Begin a pause; ``False`` if another participant's, which ends later, goes on."""
        until = None if pause.seconds is None else self._context.now + pause.seconds
        held = self._held
        if (
            held is not None
            and held.pause.id != pause.id
            and outlasts((held.pause.by, held.until), (pause.by, until))
        ):
            return False
        self._held = ActivePause(pause, until)
        self._scheduler.hold(held=True)
        self._context.look_again(until, CONTROL)
        return True

    def _lift(self) -> None:
        if self._held is not None:
            self._held = None
            self._scheduler.hold(held=False)

    def _time_is_over(self, held: ActivePause) -> None:
        """Resume by ourselves, and tell the one that paused us."""
        pause, me = held.pause, self._context.me
        self._lift()
        self._answer(STATUS, self._status("active"), pause.by, pause.id)
        self._answer(RESUME, {"reason": "timeout"}, pause.by, pause.id)
        told = Envelope(id=pause.id, sender=me, kind=RESUME)
        self._notify(Role.RESUME, told, Resumption(me, "timeout", (pause.id,)))

    # --- the end ---

    def _shut_down(self, control: Shutdown, envelope: Envelope) -> None:
        """Take nothing new, and leave when what runs has ended."""
        if self._shutdown is not None:
            return
        until = self._context.now + SHUTDOWN_SECONDS
        self._shutdown = (control, envelope, until)
        self._answer_status(_DONE[Role.SHUTDOWN], envelope)
        self._notify(Role.SHUTDOWN, envelope, control)
        self._context.closing = True
        self._scheduler.shutdown()
        self._context.look_again(until, CONTROL)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        """Leave, if we were shut down and nothing runs any more."""
        if self._shutdown is None or not self._scheduler.limiter.is_idle:
            return
        control, envelope, _ = self._shutdown
        self._shutdown = None
        self._context.effects.append(Leave(control.by, control.reason, envelope.id))

    def check_deadlines(self) -> None:
        """End a pause whose time is over, and the grace of a shutdown."""
        now = self._context.now
        held = self._held
        if held is not None and held.until is not None:
            if now >= held.until:
                self._time_is_over(held)
            else:
                self._context.look_again(held.until, CONTROL)
        if self._shutdown is not None:
            if now >= self._shutdown[2]:
                self._scheduler.shutdown_over()
            else:
                self._context.look_again(self._shutdown[2], CONTROL)

    # --- answers ---

    @property
    def _is_ours(self) -> bool:
        """True at a gateway that holds participants to their pauses."""
        given = self._context.roster.guarantees
        return given.identity_checked and given.resume

    @property
    def _word(self) -> str:
        if self._context.closing:
            return _DONE[Role.SHUTDOWN]
        return "active" if self._held is None else "paused"

    def _status(self, word: str) -> JsonObject:
        limiter = self._scheduler.limiter
        pause = self.pause
        return {
            "messages_in_context": 0,
            **({"paused_by": pause.by, "paused_for": pause.reason} if pause else {}),
            "handlers": limiter.running,
            "queued": limiter.queued,
            "waiting": len(self._outbound),
            **self._added,
            "status": word,
        }

    def _answer_status(self, word: str, about: Envelope, fields: tuple[str, ...] = ()) -> None:
        status = self._status(word)
        if self._began is not None:
            status["uptime_seconds"] = round(self._context.now - self._began, 3)
        if fields:
            always = ("status", "messages_in_context")
            status = {key: value for key, value in status.items() if key in (*always, *fields)}
        self._answer(STATUS, status, about.sender, about.id)

    def _compacted(self, done: JsonObject, about: Envelope) -> None:
        self._answer(COMPACT_DONE, done, about.sender, about.id)
        self._answer_status(_DONE[Role.COMPACT], about)

    def _answer(self, kind: str, payload: JsonObject, to: str, about: str) -> None:
        """Answer what we were asked, unless our gateway asks for a capability that we lack."""
        context = self._context
        free = self._is_ours and kind in ANSWERS
        if free or context.roster.is_allowed(context.me, kind, payload, (to,)):
            context.envelope_sender.send(
                kind, payload, priority=Priority.ANSWER, to=(to,), correlation=(about,)
            )

    def _answered(self, exchange: InboundExchange, result: object) -> None:
        """Answer when the handler has ended; what it returns is added to the status."""
        envelope, role = exchange.work.envelope, exchange.work.role
        added = _object(result)
        if added is not None:
            self._added = {**self._added, **added} if role is Role.STATUS_REQUEST else self._added
        if role is Role.STATUS_REQUEST:
            asked = cast("StatusRequest", exchange.work.subject)
            self._answer_status(self._word, envelope, asked.fields)
        elif role is Role.COMPACT:
            self._compacted({"status": "compacted", **(added or {})}, envelope)
        elif role in _DONE and role is not Role.SHUTDOWN:
            self._answer_status(_DONE[role], envelope)


def _object(result: object) -> JsonObject | None:
    """The value of a handler, where it can stand in a status."""
    try:
        if is_object(result) and len(encode_json(result)) <= MAX_STATUS_BYTES:
            return result
    except NotExpressible:
        pass
    return None


# --- system messages ---

_SAID_BY_MEMBERS = frozenset({"system/heartbeat", "system/register"})
"""Kinds without meaning that existing clients send although only the gateway may (PROTOCOL 2)."""


@dataclass
class SystemMessages(TablePart):
    """Applies welcomes, presence and errors to the roster and to both sides of the table."""

    _control: ControlMessages
    _streams: StreamTable
    _listed: ListedProposals
    _welcomed_before: bool = False
    _last_welcome: Envelope | None = None

    def receive(self, envelope: Envelope, seq: int | None) -> None:
        """Apply a message of a kind that only the gateway may send."""
        if envelope.sender not in kinds.GATEWAY_NAMES:
            expected = envelope.kind in _SAID_BY_MEMBERS
            self._context.drop("forged_system", envelope, expected=expected)
            return
        payload = envelope.payload_object
        match envelope.kind:
            case kinds.SYSTEM_WELCOME:
                self._welcome(envelope, payload, seq)
            case kinds.SYSTEM_PRESENCE:
                self._presence(envelope, payload)
            case kinds.SYSTEM_ERROR if envelope.concerns(self._context.me):
                names = envelope.correlation
                known = [self._outbound.refused(name, payload) for name in names]
                known.append(self._streams.refused(names, payload))
                if self._context.roster.shows_eviction(payload):
                    # No participant got it, so it is sent again when we are in again.
                    envelope_sender = self._context.envelope_sender
                    known += [envelope_sender.resend_once(name) for name in names]
                if not any(known) and not self._context.envelope_sender.is_from_sibling(names):
                    self._context.drop("refused_by_gateway", envelope)
            case _:
                pass
        self._scheduler.notify(Role.KIND, envelope)

    def _welcome(self, envelope: Envelope, payload: JsonObject, seq: int | None) -> None:
        """Apply the welcome of a connection; a further one on it changes capabilities."""
        context = self._context
        if envelope.to and context.me and context.me not in envelope.to:
            context.drop("foreign_welcome", envelope)
            return
        update = context.connected
        missed = read_missed(payload) if read_guarantees(payload).resume else None
        back = missed is not None and missed.resumed and context.cursor.seq is not None
        changed = context.roster.apply_welcome(
            payload,
            context.now,
            update=update,
            dialect=envelope.protocol,
            later=back and not update,
        )
        if changed is None:
            context.drop("malformed_welcome", envelope)
            return
        context.me = context.envelope_sender.me = context.roster.me
        context.connected = True
        context.read_clock(envelope)
        self._control.welcomed(as_object(payload.get("you")))
        if update:
            for participant in changed.left:
                self._scheduler.participant_left(participant)
            for participant in changed.joined:
                self._scheduler.participant_joined(participant)
            self._outbound.presence_changed()
            # While we read what we missed, it is known only at the end what others may have missed.
            if context.cursor.until is None:
                context.envelope_sender.resend_to(changed.joined)
            self._notify_changes(envelope, changed)
            return
        cursor = context.cursor
        cursor.begin(missed, seq, context.now, context.time_of_day())
        self._streams.welcomed(payload)
        context.envelope_sender.copies_get_new_ids = cursor.seq is not None
        self._last_welcome = envelope
        self._scheduler.pause(paused=back)
        if cursor.gap is not None:
            self._scheduler.notify(Role.GAP, envelope, cursor.gap)
        if not back:
            self._enter(envelope, changed)
            self._scheduler.expire()
        elif cursor.until is None:
            self.caught_up()

    def caught_up(self) -> None:
        """End the replay: from here on, what comes is new (PROTOCOL 6)."""
        context, welcome = self._context, self._last_welcome
        cursor = context.cursor
        cursor.until = None
        context.effects.append(CaughtUp(cursor.missed, cursor.away, cursor.gap))
        assert welcome is not None  # it said that there is something to read
        changed = context.roster.settle(context.now)
        self._enter(welcome, changed, complete=cursor.gap is None)
        # Before anything begins: what expired while we were away may be the next to be asked for.
        self._scheduler.expire()
        self._scheduler.pause(paused=False)

    def _enter(self, welcome: Envelope, changed: Presence, *, complete: bool = False) -> None:
        """Put in order what a lost connection has left; ``complete``: nothing was missed."""
        self._scheduler.welcomed()
        if complete:
            self._outbound.caught_up()
        else:
            self._outbound.welcomed()
            self._listed.ask()
        self._streams.settle(welcome, complete=complete)
        if self._welcomed_before:
            if not complete:
                # Those present may have missed what we sent before the connection broke.
                present = [item.id for item in self._context.roster.participants()]
                self._context.envelope_sender.resend_to(present)
            self._notify_changes(welcome, changed)
        self._welcomed_before = True

    def _notify_changes(self, welcome: Envelope, changed: Presence) -> None:
        """Tell handlers of the participants that came and went unseen, as of all others."""
        events = (("leave", Role.LEAVE, changed.left), ("join", Role.JOIN, changed.joined))
        for event, role, names in events:
            handler = self._context.find_handler(role, welcome, None) if names else None
            if not handler:
                continue
            for name in names:
                if name == self._context.me:
                    continue
                participant = {
                    "id": name,
                    "capabilities": self._context.roster.capabilities_of(name),
                }
                payload = {"event": event, "participant": participant}
                presence = welcome.replace(
                    kind=kinds.SYSTEM_PRESENCE, to=(), raw_payload=encode_leniently(payload)
                )
                self._scheduler.notify(role, presence, handler=handler)

    def _presence(self, envelope: Envelope, payload: JsonObject) -> None:
        update = self._context.roster.apply_presence(payload, self._context.now)
        if update is None:
            return
        if self._context.cursor.until is None:
            self._context.read_clock(envelope)  # it may have been set since the welcome
        event, participant = update
        joined = event == "join"
        is_begun = joined and payload.get(ARRIVED) not in CAME_BACK
        self._outbound.presence_changed(joined=joined, begun=participant.id if is_begun else "")
        if participant.id == self._context.me or event == UPDATE:
            return
        if joined:
            self._scheduler.participant_joined(participant.id)
            if payload.get(ARRIVED) in CAME_BACK:
                for record in self._scheduler.take_undecided(participant.id):
                    self._listed.offer(record)
            if not self._missed_nothing(payload):
                self._context.envelope_sender.resend_to([participant.id])
            self._scheduler.notify(Role.JOIN, envelope)
        else:
            self._scheduler.participant_left(participant.id)
            self._streams.participant_left(participant.id)
            self._scheduler.notify(Role.LEAVE, envelope)

    def _missed_nothing(self, presence: JsonObject) -> bool:
        """True if a newcomer needs nothing sent again, or gets it after our own gap (4.14)."""
        cursor = self._context.cursor
        if cursor.until is not None and cursor.gap is not None:
            return True
        resumes = self._context.roster.guarantees.resume
        return resumes and presence.get(ARRIVED) in MISSED_NOTHING
