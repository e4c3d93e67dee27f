"""How we end an exchange of our own: what others are told, and what our own record says."""

from __future__ import annotations

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.exchange.effects import Priority
from meup_agent.protocol.exchange.envelope_sender import EnvelopeSender
from meup_agent.protocol.exchange.outbound_exchange import OutboundExchange
from meup_agent.protocol.lifecycle import OutboundState, ProposalEvent
from meup_agent.protocol.outcomes import (
    Ending,
    Expiry,
    GatewayRefused,
    Rejection,
    Unknown,
    Withdrawal,
)
from meup_agent.protocol.reasons import Cause, Reason


def cause_of(ending: Ending | None) -> Cause:
    """Why we end an exchange, where nobody chose a reason (PROTOCOL 4.12)."""
    match ending:
        case Withdrawal():
            return ending.cause
        case Expiry() | Unknown():
            return Cause(Reason.TIMEOUT)
        case _:
            return Cause(Reason.NO_LONGER_NEEDED)


def step_own(
    exchange: OutboundExchange, ending: Ending | None, me: str, *, echo: bool = True
) -> None:
    """Keep the record of our own proposal: it says *rejected* where others say *withdrawn*.

    What was given up while it was out there becomes withdrawn when the gateway says so, or at once
    where it says nothing of the kind (PROTOCOL 4.13); what never left, or was refused, no gateway
    will order.
    """
    record = exchange.proposal
    if record is None:
        return
    match ending:
        case Rejection():
            record.step(ProposalEvent.REJECTION, ending.by, ending.reason)
        case Expiry() | Unknown():
            record.step(ProposalEvent.EXPIRY, me, Reason.TIMEOUT)
        case GatewayRefused():
            record.step(ProposalEvent.WITHDRAWAL, me, Reason.NO_LONGER_NEEDED)
        case _ if exchange.state is OutboundState.UNSENT or not (echo or exchange.echoed):
            record.step(ProposalEvent.WITHDRAWAL, me, cause_of(ending).code)
        case _:
            pass


def say_end(sender: EnvelopeSender, exchange: OutboundExchange, cause: Cause, now: float) -> None:
    """Say that we gave up: a withdraw for a proposal, a cancel for a request (PROTOCOL 4.8)."""
    request = exchange.draft
    if exchange.is_proposal:
        found = exchange.record.fulfillments if exchange.record is not None else []
        fulfillers = [item.by for item in found]
        to = tuple(dict.fromkeys([*request.to, *fulfillers])) if request.to else ()
        sender.send(
            kinds.MCP_WITHDRAW,
            {"reason": cause.code},
            now=now,
            priority=Priority.END,
            to=to,
            correlation=(request.id,),
            concerned=to,
        )
    elif (call := exchange.call).method != "initialize":
        name = str(call.rpc_id if call.rpc_id is not None else request.id)
        sender.send(
            kinds.MCP_REQUEST,
            payloads.cancelled(name, cause.ended(sender.me, request.id, now)),
            now=now,
            priority=Priority.END,
            to=request.to,
            correlation=(request.id,),
            concerned=request.to,
        )
