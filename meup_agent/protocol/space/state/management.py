"""Carries out the management of a space: grant, revoke, invite and kick (PROTOCOL 3, 7)."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final, Protocol

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import Capabilities, compile_capabilities, refuse_reserved
from meup_agent.protocol.dialects import PUBLISHED, spoken
from meup_agent.protocol.space.journal import Fact, facts_under
from meup_agent.protocol.space.state.grants import (
    GRANT_FACT,
    MAX_GRANTED_TOGETHER,
    GrantStore,
    ManagementResult,
    member_capabilities,
)
from meup_agent.protocol.space.state.indexes import SenderIndex
from meup_agent.protocol.space.state.verdicts import (
    ID_IN_USE,
    Broadcast,
    Consequence,
    Disconnect,
    Notice,
    Refusal,
    TokenIssued,
    gateway_draft,
    over_limit,
    refuse,
    refuse_unknown,
)
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.management_payloads import (
    ALREADY_EXISTS,
    INVITE_ACK,
    Grant,
    Invite,
    Kick,
    Revocation,
    read_management,
)
from meup_agent.protocol.wire.payloads import JsonObject
from meup_agent.protocol.wire.shown_text import NameSet

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
        ack: dict[str, Any] = {"status": "created", "participant_id": name}
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
