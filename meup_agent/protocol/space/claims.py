"""Refuses what begins an exchange under another's id, or fulfills what is decided (PROTOCOL 3).

An approval names a proposal by its id, so nobody gets a second proposal under one that another
uses. And an approval that comes too late ends here, whatever executor would have carried it out.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any, Final

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.space.decisions import ID_IN_USE, Refused, refusal
from meup_agent.protocol.space.open import OpenExchanges, is_notification

if TYPE_CHECKING:
    from meup_agent.protocol.envelope import Envelope

NOT_PENDING: Final = "not_pending"
SEVERAL_PROPOSALS: Final = "several_proposals"
RESERVED_KEY: Final = "reserved_key"


def check_beginning(
    envelope: Envelope,
    payload: dict[str, Any],
    *,
    participants: Container[str],
    exchanges: OpenExchanges,
    at: int,
) -> Refused | None:
    """Decide whether a proposal or a request may begin; notifications begin nothing.

    Args:
        envelope: The proposal or request.
        payload: Its payload's JSON values.
        participants: Everybody whom the space knows, present or not.
        exchanges: What is open, and what was decided.
        at: The time in microseconds since 1970 (UTC).
    """
    is_request = envelope.kind == kinds.MCP_REQUEST
    if is_request and is_notification(payload):
        return None
    refused = _check_id(envelope, participants, exchanges)
    if refused is not None:
        return refused
    if is_request:
        return _check_named(envelope, payload, exchanges, at) if envelope.correlation else None
    return _check_keys(envelope, payload)


def owner_by_name(envelope_id: str) -> str:
    """Whose an id of the form ``<participant>-<number>`` is; empty for any other id."""
    if "-" not in envelope_id:  # as ours are
        return ""
    name, _, number = envelope_id.rpartition("-")
    return name if number.isdecimal() and number.isascii() else ""


def _check_id(
    envelope: Envelope, participants: Container[str], exchanges: OpenExchanges
) -> Refused | None:
    sender, envelope_id = envelope.sender, envelope.id
    named = owner_by_name(envelope_id)
    claimed_by = exchanges.claimed_by(envelope_id, sender)
    if claimed_by is not None:
        # Else a newcomer finds the ids that its client counts taken for good.
        if named == sender and not exchanges.opened_by(envelope_id):
            return None
        return _refused(
            envelope,
            ID_IN_USE,
            f"{claimed_by!r} has begun something under the id {envelope_id!r}; send this under"
            " another id",
        )
    if named and named != sender and named in participants:
        # What was begun before the space knew the other may be said again.
        if sender in exchanges.opened_by(envelope_id):
            return None
        return _refused(
            envelope,
            ID_IN_USE,
            f"the id {envelope_id!r} is kept for {named!r}, who counts its own so; send this under"
            " another id",
        )
    return None


def _check_named(
    request: Envelope, payload: dict[str, Any], exchanges: OpenExchanges, at: int
) -> Refused | None:
    """Refuse a request that names a proposal which is decided, or more than one (PROTOCOL 4.4)."""
    named = exchanges.named(request.correlation, at)
    if len(named) > 1:
        return _refused(
            request,
            SEVERAL_PROPOSALS,
            f"the request names {len(named)} proposals, and a request fulfills one; name that one"
            " alone in its correlation",
        )
    for proposals in named.values():
        meant = payloads.meta_of(payload).get(payloads.PROPOSER)
        found = [each for each in proposals if each.proposer == meant] or proposals
        if any(each.state.is_pending for each in found):
            return None
        decided = found[0]
        return _refused(
            request,
            NOT_PENDING,
            f"proposal {decided.id!r} of {decided.proposer!r} is {decided.state}, so nothing may be"
            " carried out for it; leave its id out of a request that only refers to it",
            state=str(decided.state),
        )
    return None


def _check_keys(proposal: Envelope, payload: dict[str, Any]) -> Refused | None:
    """Refuse the key that tells whose proposal a request means: terminals copy ``_meta``.

    Also in a wrapper that readers here do not open, since others may.
    """
    inner = payloads.as_object(payload.get(payloads.WRAPPER))
    if not any(payloads.PROPOSER in payloads.meta_of(body) for body in (payload, inner)):
        return None
    return _refused(
        proposal,
        RESERVED_KEY,
        f"{payloads.PROPOSER!r} in '_meta' says whose proposal a request fulfills, so a proposal"
        " must not have it; leave it out",
        key=payloads.PROPOSER,
    )


def _refused(envelope: Envelope, code: str, message: str, **details: Any) -> Refused:
    return refusal(envelope.sender, code, message, about=envelope.id, **details)
