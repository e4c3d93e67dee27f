"""Capabilities of participants: those of the configuration, and those that were granted.

A grant rests on what its granter had when it was made: its configuration, and earlier grants. So
grants are in an order in which none rests on a later one, and one walk through them in that order
finds what is left when something is taken away: no grant outlives what its granter had.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.capability.covering import covers, first_covering, kinds_of, stripped
from meup_agent.protocol.capability.reading import Reading
from meup_agent.protocol.space.journal import Entry, Fact, facts_under
from meup_agent.protocol.space.state.verdicts import Consequence
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.management_payloads import Grant
from meup_agent.protocol.wire.payloads import JsonObject, objects_in

MAX_GRANTED_TOGETHER: Final = 1_000
"""Capabilities that are granted in a space at once, over all grants: each may have to be held
against everything that its granter has when something is revoked."""

GRANT_FACT: Final = "grant/"
REVOKED_FACT: Final = "revoked/"

_WITHDRAW: dict[str, Any] = {"kind": kinds.MCP_WITHDRAW}


def member_capabilities(
    listed: Iterable[Mapping[str, Any]], *, place: str = "capabilities"
) -> Capabilities:
    """The capabilities listed (InvalidPattern names the place), and ``mcp/withdraw``."""
    own = [dict(capability) for capability in listed]
    compiled = compile_capabilities(own, place=place)
    if compiled.allow(kinds.MCP_WITHDRAW, {}):
        return compiled
    return compile_capabilities([*own, _WITHDRAW], place=place)


class HeldGrant(Grant, frozen=True, kw_only=True):
    """A grant in force."""

    number: int  # its place in the order of grants
    rests_on: tuple[str, ...] = ()  # the grants to its granter that it rests on, for the audit

    @property
    def fact(self) -> Fact:
        """The fact that outlives a restart."""
        value: JsonObject = json.loads(msgspec.json.encode(self))
        return Fact(GRANT_FACT + value.pop("id"), value)


class GrantEffect(msgspec.Struct, frozen=True):
    """The effect that an entry had on the grants of its space, as its facts tell it."""

    # Of a grant: the grants to its granter that it rests on; none: the configuration.
    rests_on: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()  # the grants that are in force no more by it

    @classmethod
    def of(cls, entry: Entry) -> GrantEffect:
        """The effect of an entry; empty for one that is about no grant."""
        grants = dict(facts_under(dict(entry.facts), GRANT_FACT))
        given = grants.get(entry.envelope.id) or {}
        ended = tuple(grant for grant, value in grants.items() if value is None)
        return cls(tuple(given.get("rests_on", ())), ended)

    def facts(self, envelope_id: str) -> tuple[Fact, ...]:
        """Facts that tell it, for an entry that is read without its own."""
        ended = (Fact(GRANT_FACT + grant, None) for grant in self.ended)
        if not self.rests_on:
            return tuple(ended)
        return (*ended, Fact(GRANT_FACT + envelope_id, {"rests_on": list(self.rests_on)}))


NO_EFFECT: Final = GrantEffect()


class ManagementResult(NamedTuple):
    """The result of a management envelope."""

    facts: tuple[Fact, ...]
    changed: tuple[str, ...] = ()  # participants whose capabilities are others now
    kicked: str = ""  # the participant that is removed; empty: none
    then: tuple[Consequence, ...] = ()


class GrantStore:
    """The capabilities of every participant of a space, present or not."""

    def __init__(self, configured: Mapping[str, Capabilities]) -> None:
        self._configured = dict(configured)
        self._revoked: dict[str, tuple[JsonObject, ...]] = {}
        self._grants: dict[str, HeldGrant] = {}
        self._compiled = dict(configured)
        self.changes = 0  # counts changes of anyone's capabilities; caches compare it

    def __contains__(self, participant: object) -> bool:
        return participant in self._configured

    def __getitem__(self, participant: str) -> Capabilities:
        """The capabilities of a participant; KeyError if the space has no such participant."""
        return self._compiled[participant]

    def __iter__(self) -> Iterator[str]:
        """The participants of the space, present or not."""
        return iter(tuple(self._configured))

    @property
    def _number(self) -> int:
        return max((held.number for held in self._grants.values()), default=0)

    def has_room(self, capabilities: Sequence[JsonObject]) -> bool:
        granted = sum(len(held.capabilities) for held in self._grants.values())
        return granted + len(capabilities) <= MAX_GRANTED_TOGETHER

    def grant(self, grant_id: str) -> Grant | None:
        return self._grants.get(grant_id)

    def configure(self, participant: str, capabilities: Capabilities) -> None:
        self._configured[participant] = capabilities
        self._compile(participant)

    def reconfigure(
        self, configured: Mapping[str, Capabilities], removed: Collection[str]
    ) -> ManagementResult:
        """Take over a configuration that was read again, and revoke what rests on it no more."""
        facts: dict[str, Fact] = {}
        other = [
            name
            for name, may in configured.items()
            if name not in self or self._configured[name].patterns != may.patterns
        ]
        for name in other:
            self._configured[name] = configured[name]
        for name in removed:
            for held in tuple(self._given_to(name)):
                self._replace(held, (), held.rests_on, facts)
        return self._settle(dict.fromkeys((*other, *removed)), facts)

    def first_lacking(self, granter: str, capabilities: Sequence[JsonObject]) -> JsonObject | None:
        own = self._own(granter, self._number + 1)
        return next((each for each in capabilities if _find_covering(each, own) is None), None)

    def check(self, participant: str, capabilities: Sequence[JsonObject]) -> None:
        """Raise InvalidPattern if a participant, present or to come, cannot hold these, too."""
        has = self._listed(participant) if participant in self else []
        compile_capabilities(list(capabilities))
        member_capabilities(_once([*has, *capabilities]))

    def give(self, grant: Grant) -> ManagementResult:
        """Add what was granted, after :meth:`first_lacking` and :meth:`check`."""
        number = self._number + 1
        own = self._own(grant.by, number)
        rests_on = _named(_find_covering(each, own) for each in grant.capabilities)
        held = HeldGrant(*msgspec.structs.astuple(grant), number=number, rests_on=rests_on)
        self._grants[grant.id] = held
        self._compile(grant.participant)
        return ManagementResult((held.fact,), (grant.participant,))

    def revoke(self, grant_id: str) -> ManagementResult:
        return self._revoke([self._grants[grant_id]])

    def revoke_all(self, participant: str) -> ManagementResult:
        return self._revoke([*self._given_to(participant)])

    def _revoke(self, given: Sequence[HeldGrant]) -> ManagementResult:
        facts: dict[str, Fact] = {}
        for held in given:
            self._replace(held, (), held.rests_on, facts)
        return self._settle([held.participant for held in given], facts)

    def covered(self, participant: str, patterns: Sequence[JsonObject]) -> bool:
        return any(_is_covered(each, patterns) for each in self._listed(participant))

    def find_broader(self, participant: str, patterns: Sequence[JsonObject]) -> JsonObject | None:
        """A capability of a participant that allows what one of some patterns does, and more."""
        for pattern in patterns:
            for each in self._listed(participant):
                if not _is_covered(each, patterns) and any(
                    covers(each, one) for one in kinds_of(pattern)
                ):
                    return each
        return None

    def revoke_covered(self, participant: str, patterns: Sequence[JsonObject]) -> ManagementResult:
        """Revoke all that a participant has and that some patterns cover, and what rests on it."""
        facts: dict[str, Fact] = {}
        configured = self._configured[participant]
        revoked = [
            each
            for each in stripped(configured.patterns)
            if each != _WITHDRAW and _is_covered(each, patterns)
        ]
        if revoked:
            known = self._revoked.get(participant, ())
            together = (*known, *(each for each in revoked if each not in known))
            self._revoked[participant] = together
            fact = Fact(REVOKED_FACT + participant, {"capabilities": list(together)})
            facts[fact.key] = fact
        for held in tuple(self._given_to(participant)):
            kept = tuple(each for each in held.capabilities if not _is_covered(each, patterns))
            self._replace(held, kept, held.rests_on, facts)
        return self._settle([participant], facts)

    def restore(self, facts: Mapping[str, JsonObject]) -> list[str]:
        """Restore facts; the ids of grants that could not be made now, and are dropped."""
        for participant, value in facts_under(facts, REVOKED_FACT):
            self._revoked[participant] = tuple(objects_in(value.get("capabilities")))
            if participant in self:
                self._compile(participant)
        read = (_held(*fact) for fact in facts_under(facts, GRANT_FACT))
        recovered = [held for held in read if held is not None]
        lost: list[str] = []
        for held in sorted(recovered, key=lambda each: each.number):
            own = self._own(held.by, held.number)
            kept = tuple(
                each for each in held.capabilities if _find_covering(each, own) is not None
            )
            if held.participant not in self or not kept:
                lost.append(held.id)
                continue
            try:
                self.check(held.participant, kept)
            except InvalidPattern:
                lost.append(held.id)
                continue
            self._grants[held.id] = msgspec.structs.replace(held, capabilities=kept)
            self._compile(held.participant)
        return lost

    # --- grants that rest on others ---------------------------------------------------------

    def _settle(self, shrunk: Iterable[str], facts: dict[str, Fact]) -> ManagementResult:
        """Revoke what rests on what some participants have no more; all that changed."""
        changed = dict.fromkeys(shrunk)
        for held in tuple(self._grants.values()):
            if held.by not in changed:
                continue
            own = self._own(held.by, held.number)
            resting = [_find_covering(each, own) for each in held.capabilities]
            pairs = zip(held.capabilities, resting, strict=True)
            kept = tuple(each for each, by in pairs if by is not None)
            self._replace(held, kept, _named(resting), facts)
            if kept != held.capabilities:
                changed[held.participant] = None
        for participant in changed:
            self._compile(participant)
        return ManagementResult(tuple(facts.values()), tuple(changed))

    def _replace(
        self,
        held: HeldGrant,
        kept: tuple[JsonObject, ...],
        rests_on: tuple[str, ...],
        facts: dict[str, Fact],
    ) -> None:
        key = GRANT_FACT + held.id
        if not kept:
            del self._grants[held.id]
            facts[key] = Fact(key, None)
        elif (kept, rests_on) != (held.capabilities, held.rests_on):
            left = msgspec.structs.replace(held, capabilities=kept, rests_on=rests_on)
            self._grants[held.id] = left
            facts[key] = left.fact

    def _own(self, participant: str, before: int) -> list[tuple[JsonObject, str]]:
        """A participant's capabilities with their grants' ids, without grants from a number on."""
        own = [(each, "") for each in self._by_configuration(participant)]
        for held in self._given_to(participant):
            if held.number < before:
                own += [(each, held.id) for each in held.capabilities]
        return own

    def _given_to(self, participant: str) -> Iterator[HeldGrant]:
        return (held for held in self._grants.values() if held.participant == participant)

    def _by_configuration(self, participant: str) -> list[JsonObject]:
        configured = self._configured.get(participant)
        if configured is None:
            return []
        revoked = self._revoked.get(participant, ())
        return [each for each in stripped(configured.patterns) if each not in revoked]

    def _listed(self, participant: str) -> list[JsonObject]:
        return [each for each, _ in self._own(participant, self._number + 1)]

    def _compile(self, participant: str) -> None:
        self.changes += 1
        if participant in self._revoked or any(self._given_to(participant)):
            self._compiled[participant] = member_capabilities(_once(self._listed(participant)))
        else:
            self._compiled[participant] = self._configured[participant]


def _find_covering(
    wanted: JsonObject, own: Sequence[tuple[JsonObject, str]]
) -> tuple[str, ...] | None:
    """The grants that cover a capability, ``""`` for a configuration; ``None``: nothing does."""
    found: list[str] = []
    for each in kinds_of(wanted):
        by = next((grant for capability, grant in own if covers(capability, each)), None)
        if by is None:
            return None
        found.append(by)
    return tuple(found)


def _named(resting: Iterable[tuple[str, ...] | None]) -> tuple[str, ...]:
    """The grants that something rests on, each once."""
    return tuple(dict.fromkeys(grant for each in resting for grant in each or () if grant))


def _is_covered(capability: JsonObject, patterns: Sequence[JsonObject]) -> bool:
    """True if some patterns to be revoked, which hold back, take a capability (PROTOCOL 7)."""
    return all(
        first_covering(patterns, each, Reading.WIDE) is not None for each in kinds_of(capability)
    )


def _once(capabilities: Iterable[JsonObject]) -> list[JsonObject]:
    """The capabilities without repetitions, which would count against the limit."""
    return list({json.dumps(each, sort_keys=True): each for each in capabilities}.values())


def _held(grant_id: str, value: JsonObject) -> HeldGrant | None:
    """A grant from its fact; ``None`` if it cannot be read."""
    try:
        held = msgspec.convert({**value, "id": grant_id}, HeldGrant)
        compile_capabilities(held.capabilities)
    except (msgspec.ValidationError, InvalidPattern):
        return None
    return held
