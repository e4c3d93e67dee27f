"""Outcomes of proposals on gateways that hide what is addressed to others (PROTOCOL 2).

There a proposer sees neither the request that fulfills its proposal nor the response. So the
fulfiller sends the response on, correlated to the proposal and to the request; and the proposer
believes it if it comes from a participant that could have made that request.
"""

from __future__ import annotations

from typing import cast

from meup_agent.errors import NotExpressible
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.exchange.effects import Priority
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange
from meup_agent.protocol.exchange.proposal_store import ProposalEntry
from meup_agent.protocol.exchange.resolution import resolve
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.outcomes import Fulfillment
from meup_agent.protocol.payloads import read_response


class Relays:
    """Sends responses on to proposers, and recognizes those that are sent on to us."""

    def __init__(self, context: TableContext) -> None:
        self._context = context

    def send_response(self, exchange: OutboundExchange, response: Envelope, now: float) -> None:
        """Send the first response of a fulfilling request on to the proposer.

        Refusals, and errors that only confirm a cancel, decide nothing and are kept.
        """
        if not self._hidden_from_proposer(exchange) or exchange.fulfills is None:
            return
        payload = response.payload
        result, error = read_response(payload)
        if payloads.is_refusal(payload) or (error is not None and exchange.late):
            return
        proposal = exchange.fulfills
        body: payloads.JsonObject = {"jsonrpc": "2.0", "id": proposal.id}
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
            now=now,
            priority=Priority.ANSWER,
            to=(proposal.proposer,),
            correlation=(proposal.id, exchange.key.id),
            concerned=(proposal.proposer,),
        )

    def send_progress(
        self, exchange: OutboundExchange, done: float, total: float | None, message: str, now: float
    ) -> None:
        """Send the progress of a fulfilling request on to the proposer, if it asked for it."""
        if not self._hidden_from_proposer(exchange) or exchange.fulfills is None:
            return
        proposal, record = exchange.fulfills, exchange.record
        token = None if record is None else record.call.meta.get(payloads.PROGRESS_TOKEN)
        if not isinstance(token, int | str) or payloads.rpc_name(token) is None:
            return
        report = payloads.progress(token, done, total, message or None)
        if not self._context.roster.is_allowed(self._context.me, kinds.MCP_REQUEST, report):
            return
        self._context.envelope_sender.send(
            kinds.MCP_REQUEST,
            report,
            now=now,
            priority=Priority.TALK,
            to=(proposal.proposer,),
            correlation=(proposal.id, exchange.key.id),
        )

    def about(self, envelope: Envelope, now: float) -> ProposalEntry | None:
        """The proposal of ours whose outcome, or progress, an envelope sends on.

        Its sender must be one that we asked to decide; of a broadcast proposal, one present whose
        announced capabilities allow the fulfilling request. One that we asked needs these, too,
        where the gateway checks names: there, what it announces is what it lets through. If we have
        seen fulfilling requests, only what is about them counts.
        """
        me = self._context.me
        if envelope.sender == me or not envelope.concerns(me):
            return None
        record = resolve(envelope, self._context.proposal_store, now).record
        if record is None or record.key.proposer != me or record.fulfillments:
            return None
        asked = record.envelope.to
        if asked and envelope.sender not in asked:
            return None
        if asked and not self._context.roster.guarantees.identity_checked:
            return record
        call = record.call
        request = payloads.request(call.method, call.params, "")
        able = self._context.roster.is_allowed(envelope.sender, kinds.MCP_REQUEST, request)
        return record if able else None

    def _hidden_from_proposer(self, exchange: OutboundExchange) -> bool:
        return exchange.fulfills is not None and self._context.roster.guarantees.hidden_targets


def outcome_of_relay(record: ProposalEntry, relay: Envelope) -> Fulfillment:
    """The outcome that a relayed response tells, with the fulfiller's word on what it edited."""
    result, error = read_response(relay.payload)
    call = record.call
    edited = _says_edited(payloads.as_object(payloads.as_object(result).get(payloads.META)), call)
    executor = call.target if edited is False else None
    return Fulfillment(
        proposal_id=record.key.id,
        by=relay.sender,
        executor=executor or "",
        result=result,
        error=error,
        relayed=True,
        relay_says_edited=edited,
    )


def _with_edits(result: object, meta: payloads.JsonObject) -> object:
    """The result with the digest and edit mark of our request, where there is room for them.

    Those of the executor are left out: it is not the executor that may edit.
    """
    if not isinstance(result, dict):
        return result
    body = cast("payloads.JsonObject", result)
    names = (payloads.DIGEST, payloads.EDITED)
    given = payloads.as_object(body.get(payloads.META))
    kept = {name: value for name, value in given.items() if name not in names}
    added = {name: meta[name] for name in names if name in meta}
    return {**body, payloads.META: {**kept, **added}}


def _says_edited(meta: payloads.JsonObject, proposed: payloads.Call) -> bool | None:
    """True if a relay says that its fulfiller edited the call; ``None``: it does not say."""
    if meta.get(payloads.EDITED) is True:
        return True
    digest, own = meta.get(payloads.DIGEST), proposed.meta.get(payloads.DIGEST)
    return None if digest is None or own is None else digest != own
