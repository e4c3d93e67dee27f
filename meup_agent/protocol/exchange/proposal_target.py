"""The addressee of a proposal: its decider, or in the published dialects its executor (4.4).

By itself, since only proposals that come from or go into the published dialects need it.
"""

from __future__ import annotations

from typing import cast

from meup_agent.protocol import payloads
from meup_agent.protocol.dialects import PUBLISHED
from meup_agent.protocol.envelope import Envelope, encode_leniently
from meup_agent.protocol.payloads import JsonObject, as_object


def as_broadcast(proposal: Envelope, sender: str, own: str) -> Envelope | None:
    """A proposal as one to everybody, with its addressee as executor; ``None``: it decides.

    ``sender`` and ``own`` are the dialects of its sender and of this connection. What came
    translated into a published dialect names its target in ``to``, whoever sent it.
    """
    if len(proposal.to) != 1 or not (sender in PUBLISHED or own in PUBLISHED):
        return None
    (executor,) = proposal.to
    payload = proposal.payload_object
    target = payloads.read_proposal(payload).target
    if target == executor:
        return proposal.replace(to=())
    if target is not None or sender not in PUBLISHED:
        return None
    body = with_target(payloads.unwrapped(payload), executor)
    return proposal.replace(to=(), raw_payload=encode_leniently(body))


def with_target(body: JsonObject, executor: str) -> JsonObject:
    """A call that names its executor."""
    params: object = body.get("params", {})
    if not isinstance(params, dict):
        return body
    named = as_object(cast("object", params))
    meta = {**as_object(named.get(payloads.META)), payloads.TARGET: executor}
    return {**body, "params": {**named, payloads.META: meta}}
