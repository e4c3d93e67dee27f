"""The proposal of a call, with what its proposer says of it."""

from __future__ import annotations

from datetime import datetime

from meup_agent.protocol import payloads
from meup_agent.protocol.payloads import JsonObject


def proposal_of(
    method: str,
    params: JsonObject,
    *,
    target: str | None,
    expires: datetime | None,
    progress_token: str | None = None,
) -> JsonObject:
    """The payload of a proposal.

    Args:
        method: The MCP method.
        params: Its parameters.
        target: Who should carry it out.
        expires: When its proposer will wait no more; ``None``: it waits as long as it takes.
        progress_token: By what progress is told; ``None``: none is wanted.
    """
    meta = dict(payloads.as_object(params.get(payloads.META)))
    if target is not None:
        meta[payloads.TARGET] = target
    own_digest = payloads.digest(method, params, target)
    if own_digest is not None:
        meta[payloads.DIGEST] = own_digest
    if expires is not None:
        meta[payloads.EXPIRES_AT] = expires.isoformat(timespec="milliseconds")
    if progress_token is not None:
        meta[payloads.PROGRESS_TOKEN] = progress_token
    return payloads.proposal(method, {**params, payloads.META: meta} if meta else params)
