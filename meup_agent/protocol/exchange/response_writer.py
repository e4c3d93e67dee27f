"""What we say to those whose requests and proposals we handle: responses and rejections."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.effects import Priority
from meup_agent.protocol.exchange.inbound_exchange import InboundExchange
from meup_agent.protocol.exchange.proposal_store import ProposalKey
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.reasons import Reason

MAX_QUOTED_CHARS = 100
"""Characters of a stranger's words that an error repeats."""


class ResponseWriter:
    """Makes responses, at most one a request, and rejections, only where one is owed."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def result(self, exchange: InboundExchange, value: msgspec.Raw, now: float) -> None:
        """Answer with what the handler returned."""
        self._respond(exchange, "result", value, now)

    def failure(
        self, exchange: InboundExchange, code: int, message: str, data: Any, now: float
    ) -> None:
        """Answer with an error; ``data`` is left out where JSON has no form for it."""
        error: dict[str, Any] = {"code": code, "message": encodable(message)}
        if data is not None:
            with suppress(NotExpressible):
                error["data"] = msgspec.Raw(encode_json(data))
        self._respond(exchange, "error", error, now)

    def exchange_error(
        self, exchange: InboundExchange, reason: str, message: str, now: float
    ) -> None:
        """Answer ``busy``, ``cancelled`` or ``refused`` (PROTOCOL 5)."""
        self.failure(
            exchange, payloads.EXCHANGE_ERROR, f"{reason}: {message}", {"reason": reason}, now
        )

    def busy(self, exchange: InboundExchange, now: float) -> None:
        """Say that nothing more is taken; of proposals, to those that were addressed to us."""
        closing = self._context.closing
        why = "shutdown" if closing else "overflow"
        self._context.drop(why, exchange.work.envelope, expected=closing)
        if exchange.is_request:
            self.exchange_error(exchange, "busy", "too much to do at the moment", now)
        elif exchange.is_proposal:
            self.rejection(exchange, Reason.BUSY, now)

    def cancelled(self, exchange: InboundExchange, fulfillment_sent: bool, now: float) -> None:
        """Say that our own end ended it."""
        if exchange.is_request:
            self.exchange_error(exchange, "cancelled", "the agent shuts down", now)
        elif exchange.is_proposal and not fulfillment_sent:
            self.rejection(exchange, Reason.BUSY, now)

    def unknown_method(self, exchange: InboundExchange, method: str, now: float) -> None:
        """Answer that we have no such method, or that none was named."""
        if method:
            quoted = method[:MAX_QUOTED_CHARS]
            self.failure(
                exchange,
                payloads.METHOD_NOT_FOUND,
                f"there is no method {quoted!r} here",
                None,
                now,
            )
        else:
            self.invalid(exchange, "the request has no method", now)

    def invalid(self, exchange: InboundExchange, why: str, now: float) -> None:
        """Answer that the request is none."""
        self.failure(exchange, payloads.INVALID_REQUEST, why, None, now)

    def _respond(self, exchange: InboundExchange, field: str, value: Any, now: float) -> None:
        """The one place where a response is made; never for a notification."""
        call = exchange.call
        if exchange.answer_id is not None or call is None or call.is_notification:
            return
        rpc_id = call.rpc_id if call.rpc_name is not None else exchange.key.id
        # Of a fulfillment the proposer follows the response, too.
        proposal = exchange.fulfills
        proposer = () if proposal is None else (proposal.key.proposer,)
        response = self._context.envelope_sender.send(
            kinds.MCP_RESPONSE,
            {"jsonrpc": "2.0", "id": rpc_id, field: value},
            now=now,
            priority=Priority.ANSWER,
            to=(exchange.key.sender,),
            correlation=(exchange.key.id,),
            concerned=(exchange.key.sender, *proposer),
        )
        exchange.answer_id = response.id

    def rejection(self, exchange: InboundExchange, reason: str, now: float) -> None:
        """Reject on our own account: only what was addressed to us, and is not decided."""
        record = exchange.record
        pending = record is None or record.state.is_pending
        if exchange.addressed and pending and not exchange.rejected:
            exchange.rejected = True
            # Who has no handler to decide with may have the tool to carry it out with.
            declined = reason != Reason.INCAPABLE
            self.reject(exchange.proposal_key, reason, now, declined=declined)

    def reject(
        self, proposal: ProposalKey, reason: str, now: float, *, declined: bool = True
    ) -> Envelope:
        """Say no to a proposal.

        Args:
            proposal: The proposal.
            reason: The reason code.
            now: The time.
            declined: We do not carry it out for somebody else either (PROTOCOL 4.4).
        """
        record = self._context.proposal_store.get(proposal, now)
        if record is not None:
            record.refused = True
            record.declined = record.declined or declined
        return self._context.envelope_sender.send(
            kinds.MCP_REJECT,
            {"reason": reason},
            now=now,
            priority=Priority.END,
            to=(proposal.proposer,),
            correlation=(proposal.id,),
            concerned=(proposal.proposer,),
        )


def encodable(text: str) -> str:
    """The text with what UTF-8 has no form for replaced."""
    return text.encode("utf-8", "replace").decode()
