"""What was done to a space itself: grants, revocations, invitations, kicks."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from meup_agent.protocol.audit.chains import Chains
from meup_agent.protocol.audit.records import MAX_TEXT
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.journal import Entry

OPERATIONS: Final = {
    "capability/grant": "grant",
    "capability/revoke": "revoke",
    "capability/grant-ack": "grant_ack",
    "space/invite": "invite",
    "space/kick": "kick",
}
"""What a kind does to the space, by its name in memory."""

MAX_OPERATION_BYTES: Final = 16 * 1024
"""Bytes of a payload that is kept whole; of a larger one only what it was."""

_WHOM: Final = ("recipient", "participant_id", "participant")


class Operation(msgspec.Struct, frozen=True):
    """One thing that was done to the space.

    Attributes:
        seq: The number of the entry.
        at: When the gateway accepted it, in microseconds since 1970 (UTC).
        what: ``grant``, ``revoke``, ``grant_ack``, ``invite`` or ``kick``.
        by: Who did it.
        id: The envelope's id; of a grant, what revocations name it by.
        whom: To whom it was done.
        grant: The grant that a revocation or an acknowledgement names.
        reason: What was given as the reason.
        rests_on: Of a grant: the grants to its granter that it rests on; none: the configuration.
        ended: The grants that are in force no more by it: the one that it names, and those that
            rested on that.
        details: The payload as JSON values; empty if it has more than
            :data:`MAX_OPERATION_BYTES`.
    """

    seq: int
    at: int
    what: str
    by: str
    id: str
    whom: str = ""
    grant: str = ""
    reason: str = ""
    rests_on: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def read_operation(entry: Entry, chains: Chains) -> Operation | None:
    """What an entry did to the space, if it did anything.

    Args:
        entry: The entry.
        chains: Follows the grants.
    """
    envelope = entry.envelope
    what = OPERATIONS.get(envelope.kind)
    if what is None:
        return None
    payload = envelope.payload_object
    link = chains.take(envelope, payload)
    return Operation(
        seq=entry.seq,
        at=entry.at,
        what=what,
        by=envelope.sender,
        id=envelope.id,
        whom=_whom(payload),
        grant=_grant(envelope, payload),
        reason=_text(payload.get("reason")),
        rests_on=link.rests_on,
        ended=link.ended,
        details=payload if len(envelope.raw_payload) <= MAX_OPERATION_BYTES else {},
    )


def _whom(payload: dict[str, Any]) -> str:
    return next((name for key in _WHOM if (name := _text(payload.get(key)))), "")


def _grant(envelope: Envelope, payload: dict[str, Any]) -> str:
    named = _text(payload.get("grant_id"))
    if named or envelope.kind != "capability/grant-ack":
        return named
    return envelope.correlation[0] if envelope.correlation else ""


def _text(value: object) -> str:
    return value[:MAX_TEXT] if isinstance(value, str) else ""
