"""One exchange that another participant began: its state, its names, and our answers to it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal

import msgspec

from meup_agent.causes import Cause, CauseStep, Reason, declines
from meup_agent.errors import NotExpressible
from meup_agent.protocol.exchange.effects import Key, Priority, Role, Work
from meup_agent.protocol.exchange.lifecycle import InboundState
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.proposals.record import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
)
from meup_agent.protocol.proposals.resolution import Doubt
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json, encode_leniently
from meup_agent.protocol.wire.ttl_map import PerSenderTTLMap

SETTLED_A_SENDER = 1000
"""Ended requests of one sender, to recognize late and repeated messages."""

SETTLED_SENDERS = 256
"""Senders of such requests."""

SETTLED_SECONDS = 300.0
"""Settled requests that are remembered, for cancels that come late and requests that come twice.
Each sender has a share, so that one that asks a lot does not have another's request run twice."""

MAX_QUOTED_CHARS = 100
"""Characters of a stranger's words that an error repeats."""

FAILED_WORDS = "its handler failed"
"""Words for a proposer; what the handler raised stays in its own log."""

Name = tuple[str, str]
"""A sender, and an id of its own."""


class InboundExchange(msgspec.Struct):
    """A request, a proposal or a notice that a handler of ours is for."""

    key: Key
    work: Work
    addressed: bool = True  # it names us; otherwise it is for everybody
    record: ProposalEntry | None = None
    # The proposal that a request carries out, as far as we know it.
    fulfills: ProposalEntry | None = None
    fulfillment: FulfillingRequest | None = None  # that request, as the store has it
    # The reason for which it cannot be told which proposal a request carries out.
    doubt: Doubt | None = None
    state: InboundState = InboundState.QUEUED
    cause: Cause | None = None
    withdrawal: Cause | None = None  # the cause of its proposal's withdrawal while its handler ran
    expired: bool = False  # its proposal expired while its handler ran
    sender_left_at: float | None = None  # the time since which its sender has been away
    unattended: bool = False  # its sender was not present as it came, as over HTTP
    outlasts_sender: bool = False  # its handler goes on although its sender has left
    answer_id: str | None = None  # the id of our response, once there is one
    rejected: bool = False  # we have rejected the proposal
    superseded: bool = False  # its sender used its id again, for something else
    droppable: bool = False  # it is left out where there is no room
    # A request by its envelope id, and by its JSON-RPC id where that is another (PROTOCOL 4.8).
    names: tuple[Name, Name | None] = (("", ""), None)

    @property
    def is_request(self) -> bool:
        """True if an answer is owed."""
        return self.work.role is Role.REQUEST

    @property
    def is_proposal(self) -> bool:
        """True if it is another participant's proposal."""
        return self.work.role is Role.PROPOSAL

    @property
    def proposal_key(self) -> ProposalKey:
        """The proposal's name, for one."""
        return ProposalKey(self.key.sender, self.key.id)


def cause_of_end(by: str, exchange_id: str, reason: str, text: str, now: float) -> Cause:
    return Cause(reason, by, text, exchange_id, now, (CauseStep(by, exchange_id, reason, text),))


class Settled(msgspec.Struct, frozen=True):
    """A request that has ended: its fingerprint, and the id of its answer, if it got one."""

    fingerprint: int
    answer_id: str | None


class RequestIndex:
    """Requests that are open or have lately been, by the names that their senders use."""

    def __init__(self) -> None:
        self._by_id: dict[Name, InboundExchange] = {}
        self._by_rpc_id: dict[Name, InboundExchange] = {}
        self._settled: PerSenderTTLMap[str, Settled] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )
        self._settled_rpc_ids: PerSenderTTLMap[str, bool] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )
        # Approvals whose id their sender used for another request since (PROTOCOL 6).
        self._replaced: PerSenderTTLMap[int, bool] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )

    def add(self, exchange: InboundExchange) -> None:
        """Enter a request that is taken up."""
        name, by_rpc_id = exchange.names
        self._by_id[name] = exchange
        if by_rpc_id is not None:
            self._by_rpc_id[by_rpc_id] = exchange

    def settle(self, exchange: InboundExchange, now: float) -> None:
        """Remember a request that has ended, or was never taken up."""
        if exchange.superseded:
            return
        self.remove(exchange)
        name, by_rpc_id = exchange.names
        fingerprint = fingerprint_of(exchange.work.envelope)
        self._settled.put(*name, Settled(fingerprint, exchange.answer_id), now)
        if by_rpc_id is not None:
            self._settled_rpc_ids.put(*by_rpc_id, True, now)

    def remove(self, exchange: InboundExchange) -> None:
        """Take a request out: its names mean another one, or none, from here on."""
        name, by_rpc_id = exchange.names
        if self._by_id.get(name) is exchange:
            del self._by_id[name]
        if by_rpc_id is not None and self._by_rpc_id.get(by_rpc_id) is exchange:
            del self._by_rpc_id[by_rpc_id]

    def find(self, name: Name, now: float) -> InboundExchange | Settled | None:
        """The request under an envelope id, open or ended lately."""
        return self._by_id.get(name) or self._settled.get(*name, now)

    def note_replaced(self, sender: str, approval: int, now: float) -> None:
        """Note that another request has the id of one that carries a proposal out."""
        self._replaced.put(sender, approval, True, now)

    def was_replaced(self, sender: str, approval: int, now: float) -> bool:
        return self._replaced.get(sender, approval, now) is not None

    def find_named(self, name: Name) -> InboundExchange | None:
        """The open request that a ``requestId`` names, by either id (PROTOCOL 4.8)."""
        return self._by_rpc_id.get(name) or self._by_id.get(name)

    def has_ended(self, name: Name, now: float) -> bool:
        """True if a ``requestId`` names one that has ended."""
        return (
            self._settled_rpc_ids.get(*name, now) is not None
            or self._settled.get(*name, now) is not None
        )

    def is_anothers(self, name: Name) -> bool:
        """True if a ``requestId`` names an open request of another sender."""
        sender, request_id = name
        names = (*self._by_id, *self._by_rpc_id)
        return any(each == request_id and by != sender for by, each in names)

    def answered_by(self, response: Envelope) -> list[InboundExchange]:
        """The open requests that a response answers."""
        return [
            exchange
            for (sender, envelope_id), exchange in self._by_id.items()
            if envelope_id in response.correlation and response.concerns(sender)
        ]

    def open(self) -> list[InboundExchange]:
        return list(self._by_id.values())


class ResponseWriter:
    """Makes responses, at most one a request, and rejections, only where one is owed."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    # --- responses ---

    def failure(self, exchange: InboundExchange, code: int, message: str, data: Any) -> None:
        """Answer with an error; ``data`` is left out where JSON has no form for it."""
        # Without characters that UTF-8 has no form for.
        text = message.encode("utf-8", "replace").decode()
        error: dict[str, Any] = {"code": code, "message": text}
        if data is not None:
            with suppress(NotExpressible):
                error["data"] = msgspec.Raw(encode_json(data))
        self.respond(exchange, "error", encode_leniently(error))

    def exchange_error(self, exchange: InboundExchange, reason: str, message: str) -> None:
        """Answer ``busy``, ``cancelled`` or ``refused`` (PROTOCOL 5)."""
        self.failure(exchange, payloads.EXCHANGE_ERROR, f"{reason}: {message}", {"reason": reason})

    def unknown_method(self, exchange: InboundExchange, method: str) -> None:
        """Answer that we have no such method, or that none was named."""
        if not method:
            self.invalid(exchange, "the request has no method")
            return
        message = f"there is no method {method[:MAX_QUOTED_CHARS]!r} here"
        self.failure(exchange, payloads.METHOD_NOT_FOUND, message, None)

    def invalid(self, exchange: InboundExchange, why: str) -> None:
        """Answer that the request is malformed."""
        self.failure(exchange, payloads.INVALID_REQUEST, why, None)

    def respond(
        self,
        exchange: InboundExchange,
        field: Literal["result", "error"],
        raw: bytes | msgspec.Raw,
    ) -> None:
        """Send a response, with the JSON of a result or an error: the one place that does."""
        call = exchange.work.call
        if exchange.answer_id is not None or call is None:
            return
        rpc_id = call.rpc_id if call.rpc_name is not None else exchange.key.id
        # Put together, not encoded: the result may be long, and is JSON already.
        payload = b'{"jsonrpc":"2.0","id":%b,"%b":%b}' % (
            encode_leniently(rpc_id),
            field.encode(),
            raw,
        )
        # The proposer follows the response to a fulfillment, too.
        proposal = exchange.fulfills
        proposer = () if proposal is None else (proposal.key.proposer,)
        response = self._context.envelope_sender.send(
            kinds.MCP_RESPONSE,
            payload,
            priority=Priority.ANSWER,
            to=(exchange.key.sender,),
            correlation=(exchange.key.id,),
            concerned=(exchange.key.sender, *proposer),
        )
        exchange.answer_id = response.id

    # --- responses or rejections ---

    def busy(self, exchange: InboundExchange, *, held: bool = False) -> None:
        """Say that nothing more is taken; of proposals, to those that were addressed to us."""
        closing = self._context.closing
        why = "shutdown" if closing else "paused" if held else "overflow"
        self._context.drop(why, exchange.work.envelope, expected=closing or held)
        if exchange.is_request:
            said = "paused for now" if held else "too much to do at the moment"
            self.exchange_error(exchange, "busy", said)
        elif exchange.is_proposal:
            self.rejection(exchange, Reason.BUSY)

    def cancelled(self, exchange: InboundExchange, fulfillment_sent: bool, why: str) -> None:
        """Say that our own end, or a restart of ours, ended it."""
        if exchange.is_request:
            self.exchange_error(exchange, "cancelled", why)
        elif exchange.is_proposal and not fulfillment_sent:
            self.rejection(exchange, Reason.BUSY)

    # --- rejections ---

    def rejection(self, exchange: InboundExchange, reason: str) -> None:
        """Reject on our own account: only what was addressed to us, and is not decided."""
        record = exchange.record
        pending = record is None or record.state.is_pending
        if exchange.addressed and pending and not exchange.rejected:
            exchange.rejected = True
            self.reject(exchange.proposal_key, reason)

    def told_failure(self, exchange: InboundExchange) -> None:
        """Tell the proposer of what all may decide that our handler failed: others still may."""
        record, envelope, context = exchange.record, exchange.work.envelope, self._context
        if record is None or not record.state.is_pending or record.refused:
            return
        # Without a token of its proposer's the id stands for it: the words are for people.
        token = payloads.read_proposal(envelope.payload).meta.get(payloads.PROGRESS_TOKEN)
        if not isinstance(token, int | str) or payloads.rpc_name(token) is None:
            token = envelope.id
        said = payloads.progress(token, 0, None, FAILED_WORDS, failed=True)
        to = (record.proposer,)
        if context.roster.is_allowed(context.me, kinds.MCP_REQUEST, said, to):
            context.envelope_sender.send(
                kinds.MCP_REQUEST,
                said,
                priority=Priority.TALK,
                to=to,
                correlation=(envelope.id,),
                concerned=to,
            )

    def reject(
        self,
        proposal: ProposalKey,
        reason: str,
        *,
        meta: payloads.JsonObject | None = None,
    ) -> Envelope:
        """Reject a proposal; nor do we carry it out for another, if that decides it (4.4)."""
        record = self._context.proposal_store.get(proposal, self._context.now)
        if record is not None:
            record.refused = True
            if declines(reason):  # not every gateway echoes it
                record.declined_by.add(self._context.me)
        return self._context.envelope_sender.send(
            kinds.MCP_REJECT,
            payloads.build_end(reason, meta),
            priority=Priority.END,
            to=(proposal.proposer,),
            correlation=(proposal.id,),
            concerned=(proposal.proposer,),
        )
