"""Ends what somebody has in flight and may no longer do (PROTOCOL 5, the gateway's word)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import JsonObject
from meup_agent.protocol.reasons import Reason
from meup_agent.protocol.space.decisions import Consequence, Say, Tell, refusal, said
from meup_agent.protocol.space.open import OpenExchanges
from meup_agent.protocol.space.shelf import Open

REVOKED = str(Reason.REVOKED)


def end_in_flight(
    exchanges: OpenExchanges,
    participant: str,
    may: Callable[[str, JsonObject], bool],
) -> Iterator[Consequence]:
    """End what a participant has open and may not do any more; what the gateway says of it.

    A request is cancelled and a proposal withdrawn, in the gateway's name, and the participant is
    told that it waits in vain. What was too large to be kept is ended, too: nobody can tell.

    Args:
        exchanges: What is open.
        participant: Whose.
        may: Whether it may still send a kind with a payload.
    """
    for item in exchanges.of(participant):
        envelope = item.envelope
        payload = envelope.payload_object
        if item.is_proposal:
            payload = payloads.unwrapped(payload)
        if item.whole and may(envelope.kind, payload):
            continue
        exchanges.end(item, withdrawn=item.is_proposal)
        what = "proposal" if item.is_proposal else "request"
        told = refusal(
            participant,
            REVOKED,
            f"your {what} {envelope.id} was ended: what allowed it was revoked",
            about=envelope.id,
        )
        yield Tell(participant, told.error)
        yield Say(_withdrawal(item) if item.is_proposal else _cancel(item))


def _cancel(item: Open) -> Envelope:
    envelope = item.envelope
    cancel = payloads.cancelled_by_gateway(envelope.id, REVOKED, envelope.sender)
    return said(kinds.MCP_REQUEST, cancel, to=envelope.to, about=envelope.id)


def _withdrawal(item: Open) -> Envelope:
    envelope = item.envelope
    payload = {"reason": REVOKED, payloads.META: {payloads.BEGUN_BY: envelope.sender}}
    return said(kinds.MCP_WITHDRAW, payload, to=envelope.to, about=envelope.id)
