"""Which grant rests on which, and what a revocation took along, as the gateway has decided it.

The gateway's configuration is in no journal. What somebody had by it is what they were announced
with when they first joined, less what they had been granted by then; if they never did, it is
nothing that is known.
"""

from __future__ import annotations

from typing import NamedTuple

from meup_agent.errors import InvalidEnvelope, InvalidPattern
from meup_agent.protocol import management_payloads
from meup_agent.protocol.capability.capabilities import compile_announced, compile_capabilities
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.management_payloads import Grant
from meup_agent.protocol.payloads import JsonObject, as_object, objects_in
from meup_agent.protocol.space.grants import (
    GRANT_FACT,
    MAX_GRANTED_TOGETHER,
    GrantChange,
    GrantStore,
)


class Link(NamedTuple):
    """What an operation has to do with grants.

    Attributes:
        rests_on: The grants that what it gave rests on; none: on the configuration.
        ended: The grants that are in force no more by it.
    """

    rests_on: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()


NO_LINK = Link()


class Chains:
    """Follows the grants of a space."""

    def __init__(self) -> None:
        self._standing = GrantStore({})
        self._given: dict[str, list[JsonObject]] = {}
        self._announced: set[str] = set()

    def joined(self, payload: JsonObject) -> None:
        """Somebody was announced, with all that they may send."""
        participant = as_object(payload.get("participant"))
        name = participant.get("id")
        if payload.get("event") != "join" or not isinstance(name, str) or name in self._announced:
            return
        self._announced.add(name)
        given = self._given.pop(name, [])
        announced = objects_in(participant.get("capabilities"))
        own = [each for each in announced if each not in given and _compiles(each)]
        self._standing.configure(name, compile_announced(own))

    def take(self, envelope: Envelope, payload: JsonObject) -> Link:
        """Follow an operation; what the gateway of another version did may be none of ours."""
        try:
            match envelope.kind:
                case management_payloads.GRANT:
                    return self._give(management_payloads.read_grant(envelope, payload))
                case management_payloads.INVITE:
                    invite = management_payloads.read_invite(envelope, payload)
                    if not invite.capabilities:
                        return NO_LINK
                    name, given = invite.participant, invite.capabilities
                    return self._give(Grant(envelope.id, invite.by, name, given, invite.reason))
                case management_payloads.REVOKE:
                    return self._revoke(envelope, payload)
                case management_payloads.KICK:
                    kick = management_payloads.read_kick(envelope, payload)
                    return _ended(self._standing.revoke_all(kick.participant))
                case _:
                    return NO_LINK
        except (InvalidEnvelope, InvalidPattern):
            return NO_LINK

    def _give(self, grant: Grant) -> Link:
        full = not self._standing.has_room(grant.capabilities)
        if full or self._standing.grant(grant.id) is not None:
            return NO_LINK
        for name in (grant.participant, grant.by):
            if name not in self._standing:
                self._standing.configure(name, compile_announced([]))
        self._standing.check(grant.participant, grant.capabilities)
        if grant.participant not in self._announced:
            given = self._given.setdefault(grant.participant, [])
            given += [each for each in grant.capabilities if each not in given]
            del given[:-MAX_GRANTED_TOGETHER]
        change = self._standing.give(grant)
        values = (fact.value for fact in change.facts if fact.value is not None)
        return Link(rests_on=tuple(str(each) for value in values for each in value["rests_on"]))

    def _revoke(self, envelope: Envelope, payload: JsonObject) -> Link:
        revocation = management_payloads.read_revocation(envelope, payload)
        if revocation.grant_id:
            if self._standing.grant(revocation.grant_id) is None:
                return NO_LINK
            return _ended(self._standing.take(revocation.grant_id))
        if revocation.participant not in self._standing:
            return NO_LINK
        patterns = revocation.capabilities
        compile_capabilities(patterns)
        return _ended(self._standing.revoke_covered(revocation.participant, patterns))


def _compiles(capability: JsonObject) -> bool:
    try:
        compile_capabilities([capability])
    except InvalidPattern:
        return False
    return True


def _ended(change: GrantChange) -> Link:
    """The grants that a change has ended."""
    ended = (fact.key for fact in change.facts if fact.value is None)
    grants = (key.removeprefix(GRANT_FACT) for key in ended if key.startswith(GRANT_FACT))
    return Link(ended=tuple(grants))
