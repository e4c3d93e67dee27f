"""Payloads of the management of a space: grants, revocations, invitations, removals.

The payloads are those of the specification of ``mew/v0.4``; one reader serves the gateway, which
carries them out, and the agents that are told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

import msgspec

from meup_agent.protocol.capability.covering import stripped
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import JsonObject, PayloadReader

GRANT: Final = "capability/grant"
REVOKE: Final = "capability/revoke"
GRANT_ACK: Final = "capability/grant-ack"
INVITE: Final = "space/invite"
INVITE_ACK: Final = "space/invite-ack"
KICK: Final = "space/kick"

MAX_GRANTED: Final = 64
"""Capabilities in one grant, revocation or invitation: each is held against all that its granter
has."""

_NO_NAME: Final = ("/", "\\", "..")

UNKNOWN_PARTICIPANT: Final = "unknown_participant"
"""The error for a name that no participant of the space has (PROTOCOL 3)."""

ALREADY_EXISTS: Final = "already_exists"
"""The status of an invitation of a participant that the space has, in the published dialects."""


class Grant(msgspec.Struct, frozen=True):
    """Capabilities that one participant gave to another.

    Attributes:
        id: Names it where it is revoked: the id of the envelope that gave them.
        by: The granter.
        participant: The participant that got them.
        capabilities: The capabilities, as JSON values.
        reason: The granter's reason.
    """

    id: str
    by: str
    participant: str
    capabilities: tuple[JsonObject, ...]
    reason: str = ""


class Revocation(msgspec.Struct, frozen=True):
    """Capabilities that were taken away: those of a grant, or all that some patterns cover.

    Attributes:
        by: The participant that revoked them.
        participant: The participant that had them; empty where only the grant is named.
        grant_id: The grant that is revoked; empty where patterns say what is.
        capabilities: The patterns; none where a grant is named.
        reason: The reason of the one that revoked.
    """

    by: str
    participant: str
    grant_id: str = ""
    capabilities: tuple[JsonObject, ...] = ()
    reason: str = ""


class Invite(msgspec.Struct, frozen=True):
    """An invitation into the space; this gateway sends none to its address."""

    by: str
    participant: str
    capabilities: tuple[JsonObject, ...] = ()  # its capabilities when it comes
    email: str = ""  # an address for the invitation; this gateway sends none
    reason: str = ""


class Kick(msgspec.Struct, frozen=True):
    """A removal from the space, until the participant is invited again."""

    by: str
    participant: str
    reason: str = ""


Management = Grant | Revocation | Invite | Kick


def read_management(envelope: Envelope, payload: JsonObject) -> Management:
    """Read an envelope of one of :data:`MANAGEMENT_KINDS`.

    Raises:
        InvalidEnvelope: It lacks something, or has something else.
    """
    return _READERS[envelope.kind](_ManagementReader(envelope, payload))


def _grant(read: _ManagementReader) -> Grant:
    capabilities = read.capabilities("capabilities")
    if not capabilities:
        raise read.problem("its 'capabilities' are none; list what is granted")
    recipient, reason = read.name("recipient"), read.text("reason")
    return Grant(read.envelope.id, read.by, recipient, capabilities, reason)


def _revocation(read: _ManagementReader) -> Revocation:
    by_id = "grant_id" in read.payload
    if by_id == ("capabilities" in read.payload):
        raise read.problem("it needs either a 'grant_id' or 'capabilities'")
    capabilities = () if by_id else read.capabilities("capabilities")
    if not by_id and not capabilities:
        raise read.problem("its 'capabilities' are none; list what is revoked")
    return Revocation(
        read.by,
        "" if by_id and "recipient" not in read.payload else read.name("recipient"),
        read.name("grant_id") if by_id else "",
        capabilities,
        read.text("reason"),
    )


def _invite(read: _ManagementReader) -> Invite:
    return Invite(
        read.by,
        read.new_name("participant_id"),
        read.capabilities("initial_capabilities"),
        read.text("email"),
        read.text("reason"),
    )


def _kick(read: _ManagementReader) -> Kick:
    return Kick(read.by, read.name("participant_id"), read.text("reason"))


_READERS: Final[dict[str, Callable[[_ManagementReader], Management]]] = {
    GRANT: _grant,
    REVOKE: _revocation,
    INVITE: _invite,
    KICK: _kick,
}

MANAGEMENT_KINDS: Final = frozenset(_READERS)
"""The kinds that manage a space."""


class _ManagementReader(PayloadReader):
    """Reads what payloads of the management alone have."""

    def new_name(self, field: str) -> str:
        """A name that others may make files and addresses of."""
        value = self.payload.get(field)
        if isinstance(value, str) and (
            not value.isprintable() or any(part in value for part in _NO_NAME)
        ):
            raise self.problem(
                f"its {field!r} has invalid characters: a name has no '/', no backslash, no '..'"
                " and no control characters"
            )
        return self.name(field)

    def capabilities(self, field: str) -> tuple[JsonObject, ...]:
        value: object = self.payload.get(field, [])
        if not isinstance(value, list):
            raise self.problem(f"its {field!r} must be a list of capabilities")
        listed = cast("list[object]", value)
        if len(listed) > MAX_GRANTED:
            raise self.problem(
                f"its {field!r} lists {len(listed)}; at most {MAX_GRANTED} are taken"
            )
        if not all(isinstance(each, dict) for each in listed):
            raise self.problem(f"its {field!r} must hold objects such as {{'kind': 'chat'}}")
        return tuple(stripped(listed))
