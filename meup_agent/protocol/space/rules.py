"""Who may say what in a space (PROTOCOL 3)."""

from __future__ import annotations

from typing import Any, Final

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.managing import GRANT_ACK
from meup_agent.protocol.space.arrival import Arrival
from meup_agent.protocol.space.claims import check_beginning
from meup_agent.protocol.space.decisions import Refused, over_limit, refusal
from meup_agent.protocol.space.departures import Departures
from meup_agent.protocol.space.managing import KICKED, REMOVED, Management
from meup_agent.protocol.space.open import OpenExchanges
from meup_agent.protocol.space.rates import Allowance
from meup_agent.protocol.space.standing import Standing

IDENTITY_MISMATCH: Final = "identity_mismatch"
RESERVED_KIND: Final = "reserved_kind"
CAPABILITY_VIOLATION: Final = "capability_violation"
NOT_PROPOSER: Final = "not_proposer"

ALWAYS_ALLOWED_METHODS: Final = frozenset({kinds.CANCELLED, kinds.PROGRESS})
"""Notifications that are routed whatever the capabilities (PROTOCOL 3)."""

_OF_MEMBERS = frozenset(kind.name for kind in kinds.KINDS.values() if kind.sender == "member")
_ENDS = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})
_BEGINNINGS = frozenset({kinds.MCP_PROPOSAL, kinds.MCP_REQUEST})


LOOK_SECONDS: Final = 1.0
"""How often it is looked, for a participant that has no room, for proposals nobody waits for."""

_LOOK_MICROSECONDS: Final = round(LOOK_SECONDS * 1_000_000)


class Rules:
    """What is refused, and why; nothing is changed by asking.

    Args:
        held: What everybody may send.
        management: Who was removed, and who was granted what.
        exchanges: What is open.
        allowance: How much each of them may say.
        departures: Which processes of participants are gone.
    """

    def __init__(
        self,
        held: Standing,
        management: Management,
        exchanges: OpenExchanges,
        allowance: Allowance,
        departures: Departures,
    ) -> None:
        self._departures = departures
        self._looked: dict[str, int] = {}
        self._held = held
        self._management = management
        self._open = exchanges
        self._allowance = allowance

    def not_from(self, participant: str, arrival: Arrival) -> Refused | None:
        """Why somebody cannot have said an envelope, whatever they may say."""
        envelope = arrival.envelope
        if envelope.sender != participant:
            return refusal(
                participant,
                IDENTITY_MISMATCH,
                f"you are {participant!r}, and the envelope says that it is from"
                f" {envelope.sender!r}; send as yourself",
                about=envelope.id,
            )
        if self._management.is_kicked(participant):
            return refusal(
                participant,
                KICKED,
                REMOVED,
                about=envelope.id,
            )
        if envelope.kind not in _OF_MEMBERS and _is_reserved(envelope.kind):
            return refusal(
                participant,
                RESERVED_KIND,
                f"{arrival.kind_as_sent!r} comes only from the gateway",
                about=envelope.id,
            )
        return None

    def not_allowed(self, arrival: Arrival) -> Refused | None:
        """Why an envelope of its sender goes no further."""
        envelope = arrival.envelope
        participant = envelope.sender
        if not self._may(participant, arrival):
            return refusal(
                participant,
                CAPABILITY_VIOLATION,
                f"none of your capabilities allows this {arrival.kind_as_sent!r}",
                about=envelope.id,
                attempted_kind=arrival.kind_as_sent,
                your_capabilities=list(self._held[participant].patterns),
            )
        if envelope.kind in _ENDS and not envelope.correlation:
            return refusal(
                participant,
                "invalid_envelope",
                f"the {arrival.kind_as_sent!r} names no proposal; put the proposal's id into its"
                " correlation",
                about=envelope.id,
            )
        if envelope.kind == kinds.MCP_WITHDRAW:
            return self._refused_withdraw(participant, envelope)
        if envelope.kind in _BEGINNINGS:
            refused = check_beginning(
                envelope,
                arrival.payload,
                participants=self._held,
                exchanges=self._open,
                at=arrival.at,
            )
            if refused is None and envelope.kind == kinds.MCP_PROPOSAL:
                return self._refused_proposal(participant, envelope, arrival.at)
            return refused
        return None

    def _may(self, participant: str, arrival: Arrival) -> bool:
        """Whether a member may send an envelope, by its capabilities or whatever they are."""
        envelope, payload = arrival.envelope, arrival.payload
        if envelope.kind == kinds.MCP_PROPOSAL:
            payload = payloads.unwrapped(payload)
        if self._held[participant].allow(envelope.kind, payload):
            return True
        if envelope.kind == kinds.MCP_REQUEST:
            return _method(payload) in ALWAYS_ALLOWED_METHODS
        if envelope.kind == GRANT_ACK:
            return self._management.may_acknowledge(participant, envelope.correlation)
        answers = envelope.kind == kinds.MCP_RESPONSE
        return answers and self._open.was_asked(participant, envelope.correlation)

    def _refused_withdraw(self, participant: str, withdraw: Envelope) -> Refused | None:
        """Only the proposer withdraws; unknown and late withdraws pass (PROTOCOL 3, 4.1)."""
        for proposal in withdraw.correlation:
            proposers = self._open.proposers(proposal)
            if proposers and participant not in proposers:
                return refusal(
                    participant,
                    NOT_PROPOSER,
                    f"proposal {proposal} is not yours; only its proposer withdraws it",
                    about=withdraw.id,
                )
        return None

    def _refused_proposal(self, participant: str, proposal: Envelope, at: int) -> Refused | None:
        """Nobody keeps more proposals open than the others can be asked to look at."""
        most = self._allowance.max_open_proposals
        if self._has_room(participant, most, at):
            return None
        if self._open.is_open(participant, proposal.id):
            return None  # sent again, or in place of the other
        return over_limit(
            participant,
            "max_open_proposals",
            most,
            f"you have {most} open proposals, as many as are taken; withdraw some",
            about=proposal.id,
        )

    def _has_room(self, participant: str, most: int, at: int) -> bool:
        """Whether a participant may propose more; looks for ghosts before it says no."""
        if self._open.open_proposals(participant, at) < most:
            return True
        if not 0 <= at - self._looked.get(participant, -_LOOK_MICROSECONDS) < _LOOK_MICROSECONDS:
            self._looked[participant] = at
            self._open.forget_ghosts(participant, at, self._departures.gone_until(participant, at))
        return self._open.open_proposals(participant, at) < most


def _method(payload: dict[str, Any]) -> str:
    method = payload.get("method")
    return method if isinstance(method, str) else ""


def _is_reserved(kind: str) -> bool:
    """Whether only the gateway says this, in either writing, known or not (PROTOCOL 4.10)."""
    known = kinds.KINDS.get(kind)
    return kind.startswith(("system/", "system.")) or (
        known is not None and known.sender == "gateway"
    )
