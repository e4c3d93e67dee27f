"""Verdicts of a space on a frame, and the envelopes of the gateway that follow from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from meup_agent.protocol.space.decisions import ProposalChange
from meup_agent.protocol.space.journal import Fact
from meup_agent.protocol.space.state.indexes import AcceptedEnvelope, OpenItem
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, draft, rfc3339
from meup_agent.protocol.wire.management_payloads import UNKNOWN_PARTICIPANT
from meup_agent.protocol.wire.payloads import JsonObject

if TYPE_CHECKING:
    from meup_agent.protocol.capability import Capabilities

LIMIT_EXCEEDED: Final = "limit_exceeded"
ID_IN_USE: Final = "id_in_use"

MAX_ERROR_CHARS: Final = 500
"""Characters of an error's message: it may quote the stranger's frame, which may be large."""


May = Callable[[str, JsonObject, tuple[str, ...]], bool]
"""True for a kind, a payload and addressees that a participant may send."""


class Broadcast(msgspec.Struct, frozen=True):
    """An envelope of the gateway for all; a draft without time, and mostly without id."""

    draft: Envelope
    closes: str = ""  # the id of the stream that is closed by it
    facts: tuple[Fact, ...] = ()  # facts that hold from now on, kept together with it
    changes: tuple[ProposalChange, ...] = ()  # the proposals that it ends


class Notice(msgspec.Struct, frozen=True):
    """An envelope of the gateway for one member, if it is there; a draft likewise."""

    participant: str
    draft: Envelope


class Disconnect(msgspec.Struct, frozen=True):
    """A participant whose connections are closed."""

    participant: str
    code: int
    reason: str


class TokenIssued(msgspec.Struct, frozen=True):
    """A new token of a participant, which admits it from now on."""

    participant: str
    token_sha256: str  # the token's digest, in hex, in place of one that it had before


Consequence = Broadcast | Notice | Disconnect | TokenIssued


class Acceptance(msgspec.Struct, frozen=True):
    """An envelope for every member, its sender included."""

    envelope: Envelope
    at: int  # the time of the decision, in microseconds since 1970
    facts: tuple[Fact, ...] = ()  # facts that hold from now on, kept together with the envelope
    then: tuple[Consequence, ...] = ()  # consequences, in this order, after the envelope
    before: tuple[Notice, ...] = ()  # notices to single members before they get the envelope
    # Takes the envelope's number when the journal has given it; ``None``: the envelope is not
    # recognized when it comes again.
    receipt: AcceptedEnvelope | None = None
    begun: OpenItem | None = None  # the proposal or request that begins with it; takes the number
    closes: str = ""  # the id of the stream that is closed by it
    changes: tuple[ProposalChange, ...] = ()  # the proposals that it begins or ends


class Repetition(msgspec.Struct, frozen=True):
    """An envelope that was accepted before: its sender alone gets it, with its first number."""

    envelope: Envelope  # as it came again
    receipt: AcceptedEnvelope  # has the number, once the journal has given it


class Refusal(msgspec.Struct, frozen=True):
    """An envelope that goes no further."""

    code: str  # the reason, for example ``capability_violation`` or ``invalid_json``
    error: Envelope  # the draft of the ``system/error`` for its sender
    # Seconds after which the same is taken; 0 where it is not refused for its pace.
    retry_after: float = 0.0


class Answer(msgspec.Struct, frozen=True):
    """The answer to a question of its sender, for it alone: neither is kept (PROTOCOL 3)."""

    question: Envelope
    # Writes the draft of the answer, with the number after which news follow, once all that it
    # tells of is kept.
    write: Callable[[int], Envelope]
    size: int  # its cost in bytes, as a round figure: they count in the sender's pace


class Discard(msgspec.Struct, frozen=True):
    """An envelope that goes no further, without an error."""

    kind: str


FrameVerdict = Acceptance | Repetition | Refusal | Discard | Answer


def draft_refusal(
    participant: str, code: str, message: str, *, about: str | None = None, **details: Any
) -> Refusal:
    """A refusal with the draft of its ``system/error``, about the envelope with this id."""
    payload = {"error": code, "message": message[:MAX_ERROR_CHARS], **details}
    return Refusal(code, gateway_draft(kinds.SYSTEM_ERROR, payload, to=participant, about=about))


def refuse(envelope: Envelope, code: str, message: str, **details: Any) -> Refusal:
    return draft_refusal(envelope.sender, code, message, about=envelope.id, **details)


def refuse_unknown(envelope: Envelope, participant: str) -> Refusal:
    """A refusal of an envelope about a participant that the space does not have.

    It names no other one: its reader may know fewer names than the gateway (PROTOCOL 3).
    """
    message = f"there is no participant {participant!r}; correct the name, or invite it"
    return refuse(envelope, UNKNOWN_PARTICIPANT, message, participant_id=participant)


def over_limit(envelope: Envelope, limit: str, most: float, message: str) -> Refusal:
    return refuse(envelope, LIMIT_EXCEEDED, message, limit=limit, max=shown_limit(most))


def shown_limit(most: float) -> int | float:
    """A limit as a person writes it: 1000, and not 1000.0."""
    return int(most) if most == int(most) else most


def gateway_draft(
    kind: str, payload: object, *, to: str | tuple[str, ...] = "", about: str | None = None
) -> Envelope:
    """The draft of an envelope of the gateway."""
    names = to if isinstance(to, tuple) else (to,) if to else ()
    return draft(
        kind, payload, id="", sender=kinds.GATEWAY, to=names, correlation=(about,) if about else ()
    )


def stamp(draft: Envelope, new_id: Callable[[], str], at: int) -> Envelope:
    return msgspec.structs.replace(draft, id=draft.id or new_id(), ts=rfc3339(at))


class DecisionTracer(Protocol):
    """Traces proposals and their decisions, where a gateway is asked to."""

    def accepted(
        self,
        space: str,
        envelope: Envelope,
        changes: Sequence[ProposalChange],
        begun: OpenItem | None = None,
    ) -> None:
        """Note what an accepted envelope begins, decides and ends."""


class Recorder(Protocol):
    """Records what passes through a space, where a gateway is asked to."""

    def decided(
        self,
        space: str,
        participant: str,
        frame: bytes,
        decision: FrameVerdict,
        capabilities: Capabilities,
        transport: str,
    ) -> None:
        """Record a frame of a member, and what was decided about it."""

    def delivered(self, space: str, participant: str, envelope: Envelope, frame: bytes) -> None:
        """Record that an envelope went out to a member."""
