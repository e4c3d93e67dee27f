"""Answers to our own requests and proposals: responses, rejections, progress (PROTOCOL 4, 5)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from meup_agent.causes import Cause, Reason
from meup_agent.errors import NotExpressible
from meup_agent.protocol.exchange.effects import (
    Conflict,
    OutboundEvent,
    OutboundState,
    Priority,
    Progressed,
    Role,
)
from meup_agent.protocol.exchange.handlers import TablePart
from meup_agent.protocol.exchange.outbound import OutboundExchange, cause_of
from meup_agent.protocol.exchange.table_context import (
    Mode,
    TableContext,
)
from meup_agent.protocol.proposals import (
    Folded,
    ProposalEntry,
    ProposalEvent,
    ProposalKey,
    ProposalState,
    find_answered,
    resolve,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json, is_object
from meup_agent.protocol.wire.outcomes import (
    Ending,
    Explanation,
    Fulfillment,
    LostRace,
    Rejection,
    Responded,
)
from meup_agent.protocol.wire.payloads import JsonObject, read_response
from meup_agent.protocol.wire.ttl_map import FairTTLMap

# --- explanations ---
# The words with which senders explain their rejects and withdraws, later, in a chat (4.3).

EXPLANATION_CHARS: Final = 4_000
"""Characters of an explanation that are kept: some pages, and a stranger may have written them."""

EXPLANATION_COUNT: Final = 1_000
"""Explanations that are kept; whoever sent most of them loses the oldest first."""

EXPLANATION_SECONDS: Final = 3_600.0
"""Rejects and withdraws whose explanations are kept, for as long as proposals are. The sender of
most of them loses the oldest first."""


class _Expected(msgspec.Struct):
    """A reject or withdraw that its sender may explain."""

    proposals: tuple[str, ...]
    withdrawn: bool
    announced: bool = False
    text: str = ""


class ExplanationStore:
    """Explanations of rejects of our proposals, and of withdraws of proposals of others."""

    def __init__(self) -> None:
        self._expected: FairTTLMap[tuple[str, str], _Expected] = FairTTLMap(
            owner=lambda key: key[0],
            count=EXPLANATION_COUNT,
            seconds=EXPLANATION_SECONDS,
            size=EXPLANATION_COUNT * EXPLANATION_CHARS,
        )

    def __len__(self) -> int:
        """The number of rejects and withdraws whose words are expected, or kept."""
        return len(self._expected)

    def expect(
        self,
        by: str,
        decision_id: str,
        proposals: tuple[str, ...],
        now: float,
        *,
        withdrawn: bool = False,
        announced: bool = False,
    ) -> None:
        """Expect an explanation of a reject, which may say that it follows, or of a withdraw."""
        expected, size = _Expected(proposals, withdrawn, announced), sum(map(len, proposals))
        self._expected.put((by, decision_id), expected, now, size=size)

    def read(self, chat: Envelope, now: float) -> list[Explanation]:
        """The explanations that a chat is: of decisions of its sender that it names first."""
        found: list[Explanation] = []
        for name in chat.correlation:
            expected = self._expected.get((chat.sender, name), now)
            if expected is None or expected.text:
                continue
            expected.text = payloads.chat_text(chat.payload_object)[:EXPLANATION_CHARS]
            if not expected.text:
                break
            self._expected.grow((chat.sender, name), 4 * len(expected.text), now)
            found.append(
                Explanation(
                    expected.proposals, chat.sender, name, expected.text, expected.withdrawn
                )
            )
        return found

    def get(self, by: str, decision_id: str, now: float) -> str:
        """The words that explain a reject or withdraw; empty where none have come."""
        expected = self._expected.get((by, decision_id), now)
        return "" if expected is None else expected.text

    def is_announced(self, by: str, decision_id: str, now: float) -> bool:
        """True if a reject said that its explanation follows at once."""
        expected = self._expected.get((by, decision_id), now)
        return expected is not None and expected.announced


# --- answers to our own requests and proposals ---


@dataclass
class ResponseReader(TablePart):
    """Applies the answers of others to our exchanges and to the proposals that they carry out."""

    def __post_init__(self) -> None:
        self._relays = Relays(self._context)
        self.explanations = ExplanationStore()

    # --- responses ---

    def receive(self, envelope: Envelope) -> None:
        """Apply a response: to a proposal's record, to our wait, or as another's relay."""
        context = self._context
        # Most answer plain requests, which no proposal knows of.
        is_about_proposal = context.proposal_store.knows_any(envelope.correlation)
        completes = is_about_proposal and self._completes(envelope)
        if self._answers_request(envelope) or completes:
            return
        if is_about_proposal and self._is_relayed(envelope):
            return
        # An observer asks nothing: answers to its participant are for the agent that runs.
        is_ours = (
            context.mode is not Mode.OBSERVING
            and envelope.sender != context.me
            and envelope.concerns(context.me)
        )
        # Answers among others, or to a sibling of ours, are nothing that we leave out.
        if is_ours and not context.envelope_sender.is_from_sibling(envelope.correlation):
            context.drop("unknown_response", envelope, expected=self._is_harmless(envelope))

    def _is_harmless(self, response: Envelope) -> bool:
        """True if correct, or merely eager, participants send us such a response.

        Some answer whatever is addressed to them, our notifications too (PROTOCOL 2). And a request
        of a process of ours before this one is answered once more as we join (PROTOCOL 4.14).
        """
        return self._context.is_older_than_us(response) or any(
            self._context.envelope_sender.is_own(name) for name in response.correlation
        )

    def _completes(self, envelope: Envelope) -> bool:
        """Complete the proposal of the request that it answers, if that was carried out."""
        found = find_answered(envelope, self._context.proposal_store, self._context.now)
        if found is None:
            return False
        record, fulfillment = found
        was_pending = record.state.is_pending
        self._context.folded = Folded(record, fulfillment, was_pending=was_pending)
        payload = envelope.payload
        is_refusal = payloads.is_refusal(payload)
        if not is_refusal:
            self._order_unechoed(record)
        if not self._context.fold.complete(record, fulfillment, envelope.sender, payload):
            if is_refusal and not fulfillment.live:
                self.note_fulfillment_ended(record)
            return False
        answer, exchange = read_response(payload), None
        if record.key.proposer == self._context.me:
            exchange = self._outbound.find_own_proposal(record)
        if exchange is not None:
            request, to = fulfillment.envelope, fulfillment.envelope.to
            executor = to[0] if len(to) == 1 else envelope.sender
            edits = payloads.changes(record.call, payloads.read_call(request.payload), executor)
            outcome = Fulfillment(record.key.id, fulfillment.by, executor, *answer, edits)
            self._end_with(exchange, envelope, outcome)
        return True

    def _answers_request(self, envelope: Envelope) -> bool:
        """End our request that a response answers; true if there is one."""
        for exchange_id in envelope.correlation:
            exchange = self._outbound.find(exchange_id)
            if exchange is None or exchange.is_proposal:
                continue
            if not exchange.answerable_by(envelope, self._context.me):
                # An onlooker sees the answers to others that used the same id.
                if envelope.concerns(self._context.me):
                    self._context.drop("foreign_response", envelope)
                    return True
                continue
            result, error = read_response(envelope.payload)
            relays = exchange.fulfilling is not None and not exchange.is_answered
            self._note_answer(exchange, envelope, Responded(envelope.sender, result, error))
            if relays:
                self._relays.send_response(exchange, envelope)
            return True
        return False

    def _is_relayed(self, envelope: Envelope) -> bool:
        """End our wait for a proposal that its fulfiller relays; true if there is one."""
        record = self._relays.about(envelope)
        exchange = None if record is None else self._outbound.find_own_proposal(record)
        if record is None or exchange is None:
            return False
        if payloads.is_refusal(envelope.payload):
            return True
        if not exchange.is_answered:
            self._order_unechoed(record)
            record.step(ProposalEvent.RESPONSE, envelope.sender)
        self._end_with(exchange, envelope, outcome_of_relay(record, envelope))
        return True

    def _end_with(
        self, exchange: OutboundExchange, envelope: Envelope, outcome: Fulfillment
    ) -> None:
        """End the wait for a proposal; if we had given it up, tell handlers of a conflict."""
        if self._note_answer(exchange, envelope, outcome):
            conflict = Conflict(outcome.proposal_id, outcome, exchange.ending)
            self._scheduler.notify(Role.CONFLICT, envelope, conflict)

    def _note_answer(self, exchange: OutboundExchange, envelope: Envelope, ending: Ending) -> bool:
        """Apply an answer; ``True`` if it is the first for something that we had given up."""
        if exchange.is_answered:
            self._context.drop("duplicate_response", envelope, expected=True)
            return False
        self._outbound.note_left(exchange)
        exchange.late = exchange.state is OutboundState.GIVEN_UP
        self._outbound.apply(exchange, OutboundEvent.RESPONSE, ending)
        if exchange.late:
            self._context.drop("late_response", envelope, expected=True)
        return exchange.late

    def _order_unechoed(self, record: ProposalEntry) -> None:
        """Order our withdraw before an answer on a gateway without echoes (PROTOCOL 4.13)."""
        exchange = self._outbound.find_own_proposal(record)
        given_up = exchange is not None and exchange.state is OutboundState.GIVEN_UP
        if exchange is not None and given_up and not exchange.echoed:
            reason = cause_of(exchange.ending).code
            record.step(ProposalEvent.WITHDRAWAL, self._context.me, reason)

    # --- rejections ---

    def rejection(self, record: ProposalEntry, rejection: Rejection, envelope: Envelope) -> None:
        """Apply a rejection of our proposal, and tell handlers while a caller waits for it."""
        self.explanations.expect(
            rejection.by,
            rejection.id,
            (record.key.id,),
            self._context.now,
            announced=payloads.announces_explanation(envelope.payload),
        )
        exchange = self._outbound.find_own_proposal(record)
        if exchange is None or not exchange.is_open:
            return
        self._outbound.note_left(exchange)
        counts = self._outbound.reconsider(exchange, record)
        if not counts:  # of all that were asked, fewer are left
            self._outbound.watch_absence(exchange)
        self._scheduler.notify(Role.REJECT, envelope, replace(rejection, counts=counts))

    # --- fulfillments ---

    def note_fulfillment(self, record: ProposalEntry) -> None:
        """See what a fulfilling request changes for us: it may beat ours, or begin our proposal."""
        first, me = record.in_progress, self._context.me
        if first is not None:
            for exchange in self._outbound.open_fulfillments(record.key):
                if (first.by, first.envelope.id) != (me, exchange.key.id):
                    cause = Cause(Reason.DUPLICATE, by=me, id=exchange.key.id, at=self._context.now)
                    lost = LostRace(first.by)
                    self._outbound.apply(exchange, OutboundEvent.GIVE_UP, lost, cause=cause)
        if record.key.proposer == me:
            own = self._outbound.find_own_proposal(record)
            if own is not None and own.is_open:
                self._outbound.watch_absence(own)

    def note_fulfillment_ended(self, record: ProposalEntry) -> None:
        """Let the rejections recorded meanwhile decide: a fulfillment came to nothing."""
        exchange = self._outbound.find_own_proposal(record)
        if exchange is not None and exchange.is_open:
            self._outbound.reconsider(exchange, record)
            self._outbound.watch_absence(exchange)

    # --- progress ---

    def receive_progress(self, envelope: Envelope, params: JsonObject) -> None:
        """Report the progress of an exchange of ours; it only increases (PROTOCOL 4.9).

        Of a proposal that nobody carries out yet, several may tell: new words count as well.
        """
        done = payloads.number(params.get("progress"))
        meta = payloads.as_object(params.get(payloads.META))
        words = payloads.as_text(params.get("message"))
        is_new = self._note_told(envelope, words, meta)
        if isinstance(meta.get(payloads.LEFT_TO_OTHERS), bool):
            return  # no progress: nobody does anything
        exchange = self._reported(envelope, params.get(payloads.PROGRESS_TOKEN))
        if exchange is None or done is None or (done <= exchange.progress and not is_new):
            return
        exchange.note_progress(done, self._context.now)
        total = payloads.number(params.get("total"))
        text = payloads.as_text(params.get("message"))
        self._context.effects.append(Progressed(exchange.key, done, total, text))
        self._relays.send_progress(exchange, done, total, text)

    def _note_told(self, envelope: Envelope, words: str, meta: JsonObject) -> bool:
        """Keep what a participant that may decide a proposal says of it while it waits.

        Of ours, one whose handler failed, or that leaves it to others, is waited for no longer, and
        others still are.
        """
        context = self._context
        record = resolve(envelope, context.proposal_store, context.now).record
        if record is None or record.state is not ProposalState.PENDING:
            return False
        deciders, sender = record.deciders, envelope.sender
        if sender == record.proposer or (deciders and sender not in deciders):
            return False
        request, to = payloads.fulfilling_request(record.call)
        able = context.roster.is_allowed(sender, kinds.MCP_REQUEST, request, to)
        if not able:
            return False
        has_failed = meta.get(payloads.HANDLER_FAILED) is True
        left = meta.get(payloads.LEFT_TO_OTHERS)
        if left is False:
            record.left_by -= {sender}
        if not deciders and (has_failed or left is True):
            if has_failed:
                record.failed_handlers |= {sender}
            else:
                record.left_by |= {sender}
            self.note_fulfillment_ended(record)
        return record.note_told(sender, words)

    def _reported(self, envelope: Envelope, token: object) -> OutboundExchange | None:
        """The exchange that a progress is about: our request, or our proposal in progress."""
        exchange = self._outbound.find_open(token) if isinstance(token, str) else None
        if exchange is not None and not exchange.is_proposal:
            if exchange.answerable_by(envelope, self._context.me):
                return exchange
            if envelope.concerns(self._context.me):
                self._context.drop("foreign_progress", envelope)
                return None
        found = find_answered(envelope, self._context.proposal_store, self._context.now)
        record = found[0] if found is not None else self._relays.about(envelope)
        proposal = None if record is None else self._outbound.find_own_proposal(record)
        return proposal if proposal is not None and proposal.is_open else None


@dataclass
class Relays:
    """Sends responses on to proposers, and recognizes those that are sent on to us.

    On a gateway that hides what is addressed to others (PROTOCOL 2) a proposer sees neither the
    request that fulfills its proposal nor the response. So the fulfiller sends the response on,
    correlated to both; and the proposer believes a participant that could have made that request.
    """

    _context: TableContext

    def send_response(self, exchange: OutboundExchange, response: Envelope) -> None:
        """Send the first response of a fulfilling request on; what decides nothing is kept."""
        proposal = self._unseen_by_proposer(exchange)
        if proposal is None:
            return
        payload = response.payload
        result, error = read_response(payload)
        if payloads.is_refusal(payload) or (error is not None and exchange.late):
            return
        body: JsonObject = {"jsonrpc": "2.0", "id": proposal.id}
        if error is not None:
            body["error"] = error
        else:
            body["result"] = _with_edits(result, exchange.call.meta)
        try:
            payload = encode_json(body)
        except NotExpressible as unsayable:  # a number that gateways which hide requests let pass
            payload = encode_json(
                payloads.error(proposal.id, payloads.INTERNAL_ERROR, str(unsayable))
            )
        self._context.envelope_sender.send(
            kinds.MCP_RESPONSE,
            payload,
            priority=Priority.ANSWER,
            to=(proposal.proposer,),
            correlation=(proposal.id, exchange.key.id),
            concerned=(proposal.proposer,),
        )

    def send_progress(
        self, exchange: OutboundExchange, done: float, total: float | None, message: str
    ) -> None:
        """Send the progress of a fulfilling request on to the proposer, if it asked for it."""
        proposal, record = self._unseen_by_proposer(exchange), exchange.record
        if proposal is None or record is None:
            return
        token = record.call.meta.get(payloads.PROGRESS_TOKEN)
        if not isinstance(token, int | str) or payloads.rpc_name(token) is None:
            return
        report = payloads.progress(token, done, total, message or None)
        if not self._context.roster.is_allowed(
            self._context.me, kinds.MCP_REQUEST, report, (proposal.proposer,)
        ):
            return
        self._context.envelope_sender.send(
            kinds.MCP_REQUEST,
            report,
            priority=Priority.TALK,
            to=(proposal.proposer,),
            correlation=(proposal.id, exchange.key.id),
        )

    def about(self, envelope: Envelope) -> ProposalEntry | None:
        """The proposal of ours whose outcome, or progress, an envelope sends on.

        Its sender must be one that we asked to decide; of a broadcast proposal, one present whose
        announced capabilities allow the fulfilling request. One that we asked needs these, too,
        where the gateway checks names: there, what it announces is what it lets through. If we have
        seen fulfilling requests, only what is about them counts.
        """
        me = self._context.me
        if envelope.sender == me or not envelope.concerns(me):
            return None
        record = resolve(envelope, self._context.proposal_store, self._context.now).record
        if record is None or record.key.proposer != me or record.fulfillments:
            return None
        asked = record.envelope.to
        if asked and envelope.sender not in asked:
            return None
        if asked and not self._context.roster.guarantees.identity_checked:
            return record
        request, to = payloads.fulfilling_request(record.call)
        able = self._context.roster.is_allowed(envelope.sender, kinds.MCP_REQUEST, request, to)
        return record if able else None

    def _unseen_by_proposer(self, exchange: OutboundExchange) -> ProposalKey | None:
        return exchange.fulfills if self._context.roster.guarantees.hidden_targets else None


def outcome_of_relay(record: ProposalEntry, relay: Envelope) -> Fulfillment:
    """The outcome that a relayed response tells, with the fulfiller's word on what it edited."""
    result, error = read_response(relay.payload)
    meta = payloads.as_object(payloads.as_object(result).get(payloads.META))
    edited = _says_edited(meta, record.call)
    return Fulfillment(
        proposal_id=record.key.id,
        by=relay.sender,
        executor=(record.call.target if edited is False else None) or "",
        response=result,
        error=error,
        relayed=True,
        relay_says_edited=edited,
    )


def _with_edits(result: object, meta: JsonObject) -> object:
    """The result with our request's digest and edit mark, not those of the executor."""
    if not is_object(result):
        return result
    names = (payloads.DIGEST, payloads.EDITED)
    given = payloads.as_object(result.get(payloads.META))
    kept = {name: value for name, value in given.items() if name not in names}
    added = {name: meta[name] for name in names if name in meta}
    return {**result, payloads.META: {**kept, **added}}


def _says_edited(meta: JsonObject, proposed: payloads.Call) -> bool | None:
    """True if a relay says that its fulfiller edited the call; ``None``: it does not say."""
    if meta.get(payloads.EDITED) is True:
        return True
    digest, own = meta.get(payloads.DIGEST), proposed.meta.get(payloads.DIGEST)
    return None if digest is None or own is None else digest != own
