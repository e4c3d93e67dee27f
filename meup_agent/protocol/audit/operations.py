"""Operations on a space: grants and what these rest on, invitations, kicks, acceptances."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final

import msgspec

from meup_agent.protocol.audit.records import MAX_TEXT
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.payloads import (
    JsonObject,
    read_call,
    read_response,
)
from meup_agent.protocol.space.grants import (
    GRANT_FACT,
)
from meup_agent.protocol.space.journal import Entry, facts_under
from meup_agent.protocol.timestamps import rfc3339

OPERATIONS: Final = {
    "capability/grant": "grant",
    "capability/revoke": "revoke",
    "capability/grant-ack": "grant_ack",
    "space/invite": "invite",
    "space/kick": "kick",
}
"""Operations by kind."""

MAX_OPERATION_BYTES: Final = 16 * 1024
"""Bytes of a payload that is kept whole; of a larger one only what it was."""

MAX_ASKED: Final = 1_000
"""Acceptances of tools without an answer that are followed."""

_WHOM: Final = ("recipient", "participant_id", "participant")


class SpaceOperation(msgspec.Struct, frozen=True):
    """One operation on the space."""

    seq: int
    at: int  # when the gateway accepted it, in microseconds since 1970 (UTC)
    what: str  # ``grant``, ``revoke``, ``grant_ack``, ``invite``, ``kick`` or ``accept_tools``
    by: str
    id: str  # the envelope's id; of a grant, what revocations name it by
    whom: str = ""
    grant: str = ""  # the grant that a revocation or an acknowledgement names
    reason: str = ""
    # Of a grant: the grants to its granter that it rests on; none: the configuration.
    rests_on: tuple[str, ...] = ()
    # The grants that are in force no more by it: the one that it names, and those that rested on
    # that.
    ended: tuple[str, ...] = ()
    # The payload; empty if it has more than MAX_OPERATION_BYTES.
    details: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


def read_operation(entry: Entry) -> SpaceOperation | None:
    """The operation of an entry, if it is one; its effect on grants is told by its facts."""
    envelope = entry.envelope
    what = OPERATIONS.get(envelope.kind)
    if what is None:
        return None
    payload = envelope.payload_object
    grants = dict(facts_under(dict(entry.facts), GRANT_FACT))
    given = grants.get(envelope.id) or {}
    return SpaceOperation(
        seq=entry.seq,
        at=entry.at,
        what=what,
        by=envelope.sender,
        id=envelope.id,
        whom=_whom(payload),
        grant=_grant(envelope, payload),
        reason=_text(payload.get("reason")),
        rests_on=tuple(given.get("rests_on", ())),
        ended=tuple(name for name, value in grants.items() if value is None),
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


class ToolAcceptances:
    """Follows acceptances of tools until the bridge that was asked has answered (PROTOCOL 5)."""

    def __init__(self) -> None:
        self._asked: OrderedDict[tuple[str, str], Entry] = OrderedDict()

    def note_request(self, entry: Entry) -> None:
        """Note a request to accept tools, which may be refused."""
        envelope = entry.envelope
        self._asked[envelope.id, envelope.sender] = entry
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)

    def read_answer(self, confirmed: Entry) -> SpaceOperation | None:
        """The acceptance that a response confirms, if it does."""
        answer = confirmed.envelope
        for name in answer.correlation if self._asked else ():
            for asker in answer.to:
                entry = self._asked.get((name, asker))
                if entry is None or entry.envelope.to != (answer.sender,):
                    continue
                del self._asked[name, asker]
                if read_response(answer.payload)[1] is not None:
                    return None
                params = read_call(entry.envelope.payload).params
                return SpaceOperation(
                    seq=confirmed.seq,
                    at=confirmed.at,
                    what="accept_tools",
                    by=asker,
                    id=name,
                    whom=answer.sender,
                    details={"digest": _text(params.get("digest"))},
                )
        return None


def operation_as_json(operation: SpaceOperation) -> JsonObject:
    """An operation as a JSON value."""
    return {
        "operation": operation.what,
        "id": operation.id,
        "seq": operation.seq,
        "at": rfc3339(operation.at),
        "by": operation.by,
        "whom": operation.whom or None,
        "grant": operation.grant or None,
        "reason": operation.reason or None,
        "rests_on": list(operation.rests_on),
        "ended": list(operation.ended),
        "details": operation.details,
    }
