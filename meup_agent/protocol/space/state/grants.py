"""Capabilities of participants: configured, granted, and managed by envelopes.

A grant rests on what its granter had when it was made: its configuration, and earlier grants. So
grants are in an order in which none rests on a later one, and one walk through them in that order
finds what is left when something is taken away: no grant outlives what its granter had.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import Capabilities, compile_capabilities, refuse_reserved
from meup_agent.protocol.capability.patterns import (
    Reading,
    covers,
    first_covering,
    kinds_of,
    stripped,
)
from meup_agent.protocol.dialects import PUBLISHED, spoken
from meup_agent.protocol.space.journal import Entry, Fact, facts_under
from meup_agent.protocol.space.state.indexes import (
    ID_IN_USE,
    Broadcast,
    Consequence,
    Disconnect,
    Notice,
    Refusal,
    SenderIndex,
    TokenIssued,
    gateway_draft,
    over_limit,
    refuse,
    refuse_unknown,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct
from meup_agent.protocol.wire.payloads import (
    ALREADY_EXISTS,
    INVITE_ACK,
    Grant,
    Invite,
    JsonObject,
    Kick,
    Revocation,
    objects_in,
    read_management,
)
from meup_agent.protocol.wire.shown_text import NameSet

MAX_GRANTED_TOGETHER: Final = 1_000
"""Capabilities that are granted in a space at once, over all grants: each may have to be held
against everything that its granter has when something is revoked."""

GRANT_FACT: Final = "grant/"
REVOKED_FACT: Final = "revoked/"

_WITHDRAW: JsonObject = {"kind": kinds.MCP_WITHDRAW}


def member_capabilities(
    listed: Iterable[Mapping[str, Any]], *, place: str = "capabilities"
) -> Capabilities:
    """The capabilities listed (InvalidPattern names the place), and ``mcp/withdraw``."""
    own = [dict(capability) for capability in listed]
    compiled = compile_capabilities(own, place=place)
    if compiled.allow(kinds.MCP_WITHDRAW, {}):
        return compiled
    return compile_capabilities([*own, _WITHDRAW], place=place)


class HeldGrant(Grant, kw_only=True):
    """A grant in force."""

    number: int  # its place in the order of grants
    rests_on: tuple[str, ...] = ()  # the grants to its granter that it rests on, for the audit

    @property
    def fact(self) -> Fact:
        """The fact that outlives a restart."""
        value: JsonObject = json.loads(msgspec.json.encode(self))
        return Fact(GRANT_FACT + value.pop("id"), value)


class GrantEffect(FrozenStruct):
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


INVALID_CAPABILITY: Final = "invalid_capability"
CAPABILITY_LACKING: Final = "capability_lacking"
UNKNOWN_GRANT: Final = "unknown_grant"
NOTHING_TO_REVOKE: Final = "nothing_to_revoke"
PARTICIPANT_EXISTS: Final = "participant_exists"
LOOK_ALIKE: Final = "look_alike"
NO_INVITATIONS: Final = "no_invitations"
KICKED: Final = "kicked"

KICKED_CODE: Final = 4403
"""Close code for a participant that was removed from the space (PROTOCOL 3)."""

REMOVED: Final = "you were removed from this space; ask a participant there to invite you again"

NO_TOKEN_CODE: Final = 4401
"""Close code for a connection whose token is not known any more (PROTOCOL 3)."""

UNCONFIGURED: Final = (
    "your token is not known here any more: the gateway has read its configuration again"
)

MAX_INVITED: Final = 1_000
"""Participants of a space that were invited: each is kept, with its token's digest, for good."""

INVITE_FACT: Final = "invite/"
KICKED_FACT: Final = "kicked/"

_SHOWN_CHARS: Final = 200


class InviteIssuer(Protocol):
    """Issues the tokens of invited participants."""

    def new_token(self) -> str:
        """A token that cannot be guessed."""
        ...

    def admit(self, participant: str, token_sha256: str) -> None:
        """Admit a participant with a token of this digest, and with no earlier one of this kind."""

    def address(self) -> str:
        """The address of the space; empty where that is not known."""
        ...


@dataclass(slots=True, eq=False)
class SpaceManager:
    """The grants, invitations and removals of a space."""

    _grants: GrantStore
    _present: Container[str]
    _invites: InviteIssuer | None
    # To whom each grant was made.
    _granted: SenderIndex[str] = field(default_factory=SenderIndex[str])
    _invited: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    _kicked: dict[str, JsonObject] = field(default_factory=dict[str, JsonObject])
    # That a configuration had, which was read again: known by name alone.
    _gone: frozenset[str] = frozenset()
    _names: NameSet = field(init=False)

    def __post_init__(self) -> None:
        """Begin with the names of the configuration."""
        self._names = NameSet(self._grants)

    @property
    def digests(self) -> Mapping[str, str]:
        """The invited participants, with the SHA-256 (hex) of their tokens."""
        return {name: str(fact.get("token_sha256")) for name, fact in self._invited.items()}

    def is_kicked(self, participant: str) -> bool:
        """True for a participant that was removed, and not invited again."""
        return participant in self._kicked

    @property
    def gone(self) -> frozenset[str]:
        """Participants that the configuration had, and has no more."""
        return self._gone

    def may_acknowledge(self, participant: str, grants: tuple[str, ...]) -> bool:
        return any(participant in self._granted.under(grant).values() for grant in grants)

    def restore(self, facts: Mapping[str, JsonObject]) -> list[str]:
        """Restore the facts of before a restart; the ids of grants that hold no more."""
        for name, value in facts_under(facts, INVITE_FACT):
            self._invited[name] = value
            self._names.add(name)
            if name not in self._grants:
                self._grants.configure(name, member_capabilities([]))
        self._kicked.update(facts_under(facts, KICKED_FACT))
        for grant, value in facts_under(facts, GRANT_FACT):
            self._granted.put(str(value.get("by")), grant, str(value.get("participant")))
        return self._grants.restore(facts)

    def check(
        self, envelope: Envelope, payload: JsonObject, *, answers: bool = False
    ) -> Refusal | None:
        """Check that an envelope, whose sender may send it, can be carried out; changes nothing.

        Where the gateway ``answers`` the sender alone, as over HTTP, it need not be present to be
        told a token.

        Raises:
            InvalidEnvelope: Its payload cannot be read.
        """
        match read_management(envelope, payload):
            case Grant() as grant:
                return self._check_grant(envelope, grant)
            case Revocation() as revocation:
                return self._check_revocation(envelope, revocation)
            case Invite() as invite:
                return self._check_invite(envelope, invite, answers=answers)
            case Kick() as kick:
                return self._check_known(envelope, kick.participant)

    def accept(self, envelope: Envelope, payload: JsonObject) -> ManagementResult:
        """Carry out what :meth:`check` let through, with nothing accepted in between."""
        match read_management(envelope, payload):
            case Grant() as grant:
                return self._grant(grant)
            case Revocation() as revocation:
                return self._revoke(revocation)
            case Invite() as invite:
                return self._invite(envelope, invite)
            case Kick() as kick:
                return self._kick(envelope, kick)

    def reconfigure(self, participants: Mapping[str, Capabilities]) -> ManagementResult:
        """Take over the participants of a configuration that was read again.

        One that it has no more may do nothing from now on, and its connections are closed; its name
        is known until the gateway restarts, and may be invited. Who was invited stays, and who was
        removed stays out.
        """
        nothing = member_capabilities([])
        known = [*self._grants]
        gone = [name for name in known if name not in participants and name not in self._invited]
        done = self._grants.reconfigure({**dict.fromkeys(known, nothing), **participants}, gone)
        for name in participants:
            self._names.add(name)
        self._gone = frozenset(gone)
        closed = (Disconnect(name, NO_TOKEN_CODE, UNCONFIGURED) for name in gone)
        return done._replace(then=tuple(closed))

    # --- grants -----------------------------------------------------------------------------

    def _check_grant(self, envelope: Envelope, grant: Grant) -> Refusal | None:
        return self._check_known(envelope, grant.participant) or self._check_given(
            envelope, grant.participant, grant.capabilities, "capabilities"
        )

    def _check_given(
        self, envelope: Envelope, participant: str, capabilities: tuple[JsonObject, ...], place: str
    ) -> Refusal | None:
        """Check that the sender may give these, and that the participant can hold them."""
        try:
            self._grants.check(participant, capabilities)
            refuse_reserved(capabilities, place=place)
        except InvalidPattern as error:
            return refuse(envelope, INVALID_CAPABILITY, f"this cannot be granted: {error}")
        lacking = self._grants.first_lacking(envelope.sender, capabilities)
        if lacking is not None:
            return refuse(
                envelope,
                CAPABILITY_LACKING,
                f"you cannot give {_shown(lacking)} away: none of your own capabilities covers it;"
                " give what you have, or less",
                capability=lacking,
            )
        if self._grants.grant(envelope.id) is not None:
            return refuse(
                envelope,
                ID_IN_USE,
                f"a grant {envelope.id} is in force, and a grant is named by its id; send this one"
                " under another",
            )
        if not self._grants.has_room(capabilities):
            return over_limit(
                envelope,
                "max_granted",
                MAX_GRANTED_TOGETHER,
                f"more than {MAX_GRANTED_TOGETHER} capabilities would be granted in this space;"
                " revoke some, or grant fewer with a pattern that covers them",
            )
        return None

    def _grant(self, grant: Grant) -> ManagementResult:
        self._granted.put(grant.by, grant.id, grant.participant)
        return self._grants.give(grant)

    def _check_revocation(self, envelope: Envelope, revocation: Revocation) -> Refusal | None:
        if revocation.participant:
            unknown = self._check_known(envelope, revocation.participant)
            if unknown is not None:
                return unknown
        if revocation.grant_id:
            grant = self._grants.grant(revocation.grant_id)
            if grant is None or revocation.participant not in ("", grant.participant):
                whose = f" to {revocation.participant!r}" if revocation.participant else ""
                return refuse(
                    envelope,
                    UNKNOWN_GRANT,
                    f"no grant {revocation.grant_id}{whose} is in force here",
                )
            return None
        return self._check_patterns(envelope, revocation.participant, revocation.capabilities)

    def _check_patterns(
        self, envelope: Envelope, participant: str, patterns: tuple[JsonObject, ...]
    ) -> Refusal | None:
        try:
            compile_capabilities(patterns)
        except InvalidPattern as error:
            return refuse(envelope, INVALID_CAPABILITY, f"this cannot be revoked: {error}")
        broader = self._grants.find_broader(participant, patterns)
        if broader is not None:
            return refuse(
                envelope,
                NOTHING_TO_REVOKE,
                f"{participant!r} has {_shown(broader)}, which allows this and more; revoke that"
                " one, and grant again what it is to keep",
                capability=broader,
            )
        if not self._grants.covered(participant, patterns):
            return refuse(
                envelope,
                NOTHING_TO_REVOKE,
                f"{participant!r} has no capability that these patterns cover",
                capabilities=list(self._grants[participant].patterns),
            )
        return None

    def _revoke(self, revocation: Revocation) -> ManagementResult:
        if revocation.grant_id:
            return self._grants.revoke(revocation.grant_id)
        return self._grants.revoke_covered(revocation.participant, revocation.capabilities)

    # --- invitations and removals -----------------------------------------------------------

    def _check_known(self, envelope: Envelope, participant: str) -> Refusal | None:
        if participant in self._grants:
            return None
        return refuse_unknown(envelope, participant)

    def _check_invite(self, envelope: Envelope, invite: Invite, *, answers: bool) -> Refusal | None:
        name = invite.participant
        if name in kinds.GATEWAY_NAMES:
            return refuse(envelope, PARTICIPANT_EXISTS, f"{name!r} is the gateway's name")
        if name in self._grants and name not in self._kicked and name not in self._gone:
            return _exists(envelope, name)
        if name not in self._grants and (problem := self._names.problem(name)):
            return refuse(envelope, LOOK_ALIKE, problem)
        if self._needs_token(name):
            refused = self._check_token(envelope, answers=answers)
            if refused is not None:
                return refused
        return self._check_given(envelope, name, invite.capabilities, "initial_capabilities")

    def _needs_token(self, name: str) -> bool:
        """True unless the configuration has a token for a participant that is invited."""
        return name not in self._grants or name in self._invited or name in self._gone

    def _check_token(self, envelope: Envelope, *, answers: bool) -> Refusal | None:
        """Check that a token can be made, and told to the sender alone."""
        if self._invites is None:
            return refuse(envelope, NO_INVITATIONS, "this space takes no invitations")
        if envelope.sender not in self._present and not answers:
            return refuse(
                envelope,
                NO_INVITATIONS,
                "the token of an invitation is told on your connection alone, and you have none;"
                " join, and invite again",
            )
        if len(self._invited) >= MAX_INVITED:
            return over_limit(
                envelope,
                "max_invited",
                MAX_INVITED,
                f"this space has {MAX_INVITED} invited participants, as many as it takes",
            )
        return None

    def _invite(self, envelope: Envelope, invite: Invite) -> ManagementResult:
        name = invite.participant
        facts: list[Fact] = []
        then: list[Consequence] = []
        ack: JsonObject = {"status": "created", "participant_id": name}
        if self._kicked.pop(name, None) is not None:
            facts.append(Fact(KICKED_FACT + name, None))
            ack["status"] = "restored"
        if self._needs_token(name):
            assert self._invites is not None  # check() said so
            token = self._invites.new_token()
            digest = sha256(token.encode()).hexdigest()
            fact = {"by": invite.by, "id": envelope.id, "token_sha256": digest}
            self._invited[name] = fact
            self._gone -= {name}
            self._names.add(name)
            facts.append(Fact(INVITE_FACT + name, fact))
            if name not in self._grants:
                self._grants.configure(name, member_capabilities([]))
            then.append(TokenIssued(name, digest))
            ack["token"] = token
        if self._invites is not None and (address := self._invites.address()):
            ack["connection_url"] = address
        if invite.email:
            ack["email_sent"] = False
        changed: tuple[str, ...] = ()
        if invite.capabilities:
            given = Grant(envelope.id, invite.by, name, invite.capabilities, invite.reason)
            done = self._grant(given)
            facts += done.facts
            changed = done.changed
        then.append(
            Notice(invite.by, gateway_draft(INVITE_ACK, ack, to=invite.by, about=envelope.id))
        )
        invited = {"id": name, "capabilities": list(self._grants[name].patterns)}
        then.append(
            Broadcast(
                gateway_draft(kinds.SYSTEM_PRESENCE, {"event": "invited", "participant": invited})
            )
        )
        return ManagementResult(tuple(facts), changed, then=tuple(then))

    def _kick(self, envelope: Envelope, kick: Kick) -> ManagementResult:
        fact = {"by": kick.by, "id": envelope.id, "reason": kick.reason}
        self._kicked[kick.participant] = fact
        change = self._grants.revoke_all(kick.participant)
        why = f"removed by {kick.by}" + (f": {kick.reason}" if kick.reason else "")
        return ManagementResult(
            (Fact(KICKED_FACT + kick.participant, fact), *change.facts),
            change.changed,
            kick.participant,
            (Disconnect(kick.participant, KICKED_CODE, why),),
        )


def _exists(invitation: Envelope, name: str) -> Refusal:
    """The refusal of an invitation; in the published dialects an acknowledgement says it."""
    said = f"{name!r} is a participant of this space already"
    if spoken(invitation.protocol) not in PUBLISHED:
        return refuse(invitation, PARTICIPANT_EXISTS, said)
    ack = {"status": ALREADY_EXISTS, "participant_id": name, "message": said}
    sender = invitation.sender
    draft = gateway_draft(INVITE_ACK, ack, to=sender, about=invitation.id)
    return Refusal(ALREADY_EXISTS, draft)


def _shown(capability: JsonObject) -> str:
    written = json.dumps(capability)
    return written if len(written) <= _SHOWN_CHARS else written[:_SHOWN_CHARS] + "…"
