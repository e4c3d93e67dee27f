"""Operations on a space: grants, invitations, kicks, acceptances, and which grant rests on which.

The gateway's configuration is in no journal. The capabilities that a participant had by it are
those that it was announced with when it first joined, less what it had been granted by then; if it
never joined, none is known.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidEnvelope, InvalidPattern
from meup_agent.protocol.audit.records import MAX_TEXT
from meup_agent.protocol.capability.compiled_capabilities import (
    compile_announced,
    compile_capabilities,
)
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.management_payloads import (
    MANAGEMENT_KINDS,
    Grant,
    Invite,
    Kick,
    Revocation,
    read_management,
)
from meup_agent.protocol.payloads import (
    JsonObject,
    as_object,
    objects_in,
    read_call,
    read_response,
)
from meup_agent.protocol.space.grants import (
    GRANT_FACT,
    MAX_GRANTED_TOGETHER,
    GrantChange,
    GrantStore,
)
from meup_agent.protocol.space.journal import Entry
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


def read_operation(entry: Entry, grants: GrantHistory) -> SpaceOperation | None:
    """The operation of an entry, if it is one."""
    envelope = entry.envelope
    what = OPERATIONS.get(envelope.kind)
    if what is None:
        return None
    payload = envelope.payload_object
    effect = grants.apply(envelope, payload)
    return SpaceOperation(
        seq=entry.seq,
        at=entry.at,
        what=what,
        by=envelope.sender,
        id=envelope.id,
        whom=_whom(payload),
        grant=_grant(envelope, payload),
        reason=_text(payload.get("reason")),
        rests_on=effect.rests_on,
        ended=effect.ended,
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


class GrantEffect(NamedTuple):
    """The effect of an operation on grants."""

    # The grants that what it gave rests on; none: on the configuration.
    rests_on: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()  # the grants that are in force no more by it


NO_EFFECT = GrantEffect()


class GrantHistory:
    """Follows the grants of a space, by the gateway's own rules."""

    def __init__(self) -> None:
        self._store = GrantStore({})
        self._given: dict[str, list[JsonObject]] = {}
        self._announced: set[str] = set()

    def note_join(self, payload: JsonObject) -> None:
        """Note the capabilities with which a participant was announced."""
        participant = as_object(payload.get("participant"))
        name = participant.get("id")
        if payload.get("event") != "join" or not isinstance(name, str) or name in self._announced:
            return
        self._announced.add(name)
        given = self._given.pop(name, [])
        announced = objects_in(participant.get("capabilities"))
        own = [each for each in announced if each not in given and _compiles(each)]
        self._store.configure(name, compile_announced(own))

    def apply(self, envelope: Envelope, payload: JsonObject) -> GrantEffect:
        """Follow an operation; what the gateway of another version did may be none of ours."""
        if envelope.kind not in MANAGEMENT_KINDS:
            return NO_EFFECT
        try:
            match read_management(envelope, payload):
                case Grant() as grant:
                    return self._give(grant)
                case Invite(by, name, capabilities, _, reason) if capabilities:
                    return self._give(Grant(envelope.id, by, name, capabilities, reason))
                case Revocation() as revocation:
                    return self._revoke(revocation)
                case Kick() as kick:
                    return _ended(self._store.revoke_all(kick.participant))
                case _:
                    return NO_EFFECT
        except (InvalidEnvelope, InvalidPattern):
            return NO_EFFECT

    def _give(self, grant: Grant) -> GrantEffect:
        full = not self._store.has_room(grant.capabilities)
        if full or self._store.grant(grant.id) is not None:
            return NO_EFFECT
        for name in (grant.participant, grant.by):
            if name not in self._store:
                self._store.configure(name, compile_announced([]))
        self._store.check(grant.participant, grant.capabilities)
        if grant.participant not in self._announced:
            given = self._given.setdefault(grant.participant, [])
            given += [each for each in grant.capabilities if each not in given]
            del given[:-MAX_GRANTED_TOGETHER]
        change = self._store.give(grant)
        values = (fact.value for fact in change.facts if fact.value is not None)
        return GrantEffect(
            rests_on=tuple(str(each) for value in values for each in value["rests_on"])
        )

    def _revoke(self, revocation: Revocation) -> GrantEffect:
        if revocation.grant_id:
            if self._store.grant(revocation.grant_id) is None:
                return NO_EFFECT
            return _ended(self._store.revoke(revocation.grant_id))
        if revocation.participant not in self._store:
            return NO_EFFECT
        patterns = revocation.capabilities
        compile_capabilities(patterns)
        return _ended(self._store.revoke_covered(revocation.participant, patterns))


def _compiles(capability: JsonObject) -> bool:
    try:
        compile_capabilities([capability])
    except InvalidPattern:
        return False
    return True


def _ended(change: GrantChange) -> GrantEffect:
    """The grants that a change has ended."""
    ended = (fact.key for fact in change.facts if fact.value is None)
    grants = (key.removeprefix(GRANT_FACT) for key in ended if key.startswith(GRANT_FACT))
    return GrantEffect(ended=tuple(grants))


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
