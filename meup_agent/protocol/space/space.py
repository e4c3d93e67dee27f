"""One space: who is there, and what is let through (PROTOCOL 3)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import Capabilities, compile_capabilities
from meup_agent.protocol.dialects.rpc_ids import BY_RPC_ID, RpcIds
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.guarantees import OURS, said_by
from meup_agent.protocol.limits import check_depth
from meup_agent.protocol.space.arrival import Arrival, open_frame
from meup_agent.protocol.space.decisions import (
    Accepted,
    Decision,
    Dropped,
    Refused,
    over_limit,
    refusal,
    said,
)
from meup_agent.protocol.space.issued import Issued
from meup_agent.protocol.space.open import FOLLOWED, OpenExchanges
from meup_agent.protocol.space.rates import Allowance, Bucket

IDENTITY_MISMATCH: Final = "identity_mismatch"
RESERVED_KIND: Final = "reserved_kind"
CAPABILITY_VIOLATION: Final = "capability_violation"
NOT_PROPOSER: Final = "not_proposer"

ALWAYS_ALLOWED_METHODS: Final = frozenset({kinds.CANCELLED, kinds.PROGRESS})
"""Notifications that are routed whatever the capabilities (PROTOCOL 3)."""

ARRIVED: Final = "dev.meup/arrived"
"""In a presence: the newcomer reads what it missed by itself. ``new``: it was not here before,
``resumed``: it gets everything, ``gap``: some of it is not known any more. Without this key it may
have missed anything, and the others say again what must not be missed (PROTOCOL 4.14)."""

DROPPED_KINDS: Final = frozenset({"system/heartbeat", "system/register"})
"""What TypeScript clients send to a gateway and nobody reads (PROTOCOL 2)."""

_NOTIFICATION = "notifications/"
_WITHDRAW: dict[str, Any] = {"kind": kinds.MCP_WITHDRAW}


class Arriving(msgspec.Struct, frozen=True):
    """How a member comes in, as far as it missed something (PROTOCOL 6).

    Attributes:
        until: What it missed has numbers up to this one, and comes before anything new.
        gap: Some of what it missed is not known here any more.
        resumed: It was here before, and comes back.
    """

    until: int
    gap: bool = False
    resumed: bool = False


class Joined(NamedTuple):
    """What a participant's arrival makes the gateway say; both are drafts.

    Attributes:
        welcome: For the newcomer alone.
        presence: For everybody, the newcomer included.
    """

    welcome: Envelope
    presence: Envelope


def member_capabilities(
    listed: Iterable[Mapping[str, Any]], *, place: str = "capabilities"
) -> Capabilities:
    """The capabilities of a member: those listed, and ``mcp/withdraw``, which everybody has.

    Args:
        listed: As they are configured.
        place: Where they are configured, for the error.

    Raises:
        InvalidPattern: One does not compile.
    """
    own = [dict(capability) for capability in listed]
    compiled = compile_capabilities(own, place=place)
    if compiled.allow(kinds.MCP_WITHDRAW, {}):
        return compiled
    return compile_capabilities([*own, _WITHDRAW], place=place)


class Space:
    """The participants of a space, those who are in it, and every decision about what they send.

    Drafts that it returns have no id and no time: who sends them gives both.

    Args:
        participants: Those who are known from the beginning, and what they may send.
        allowance: How much each of them may say.
        now: Tells the time in microseconds since 1970 (UTC).

    Attributes:
        open: The requests and proposals that have not ended.
    """

    def __init__(
        self,
        participants: Mapping[str, Capabilities] | None = None,
        *,
        allowance: Allowance | None = None,
        now: Callable[[], int] = lambda: 0,
    ) -> None:
        self.open = OpenExchanges()
        self._allowance = allowance or Allowance()
        self._now = now
        self._withdrawals: dict[str, Bucket] = {}
        self._held: dict[str, Capabilities] = dict(participants or {})
        # In the order in which they came.
        self._present: dict[str, None] = {}
        self._requests = Issued()
        self._proposals = Issued()
        # Only where somebody may say by a JSON-RPC id what a response answers.
        self._rpc_ids: RpcIds | None = None

    def __contains__(self, participant: object) -> bool:
        """Whether a participant is in the space."""
        return participant in self._present

    @property
    def present(self) -> tuple[str, ...]:
        """Who is in the space, in the order in which they came."""
        return tuple(self._present)

    def capabilities(self, participant: str) -> Capabilities:
        """What a participant may send at this moment, present or not.

        Raises:
            KeyError: Nobody knows this participant here.
        """
        return self._held[participant]

    def admit(self, participant: str, capabilities: Capabilities) -> None:
        """Let somebody be a participant of the space, or change what they may send."""
        self._held[participant] = capabilities

    def speaks(self, dialect: str) -> None:
        """Know that somebody speaks a dialect here, from now on.

        In one of them a response names its request by an id that only the request itself tells, so
        requests are remembered from the first who speaks it on. What it answers of those that came
        before passes with the JSON-RPC id for a correlation, as it came.
        """
        if dialect == BY_RPC_ID and self._rpc_ids is None:
            self._rpc_ids = RpcIds()

    def join(self, participant: str, arriving: Arriving | None = None) -> Joined:
        """Take a participant in, or take in a newer connection of one who is there.

        A newer connection is announced as a ``join`` without a ``leave`` before it. The
        participant did not go away, so nobody's time limit for an absent one starts to run. But
        what went to the older connection may have been lost with it, and a ``join`` is what makes
        the others say again what must not be missed (PROTOCOL 4.14).

        Args:
            participant: Who joins; must be a participant of the space.
            arriving: What it missed, if it asked for that; ``None``: it did not.
        """
        others = [
            _described(name, self._held[name]) for name in self._present if name != participant
        ]
        self._present[participant] = None
        you = _described(participant, self._held[participant])
        return Joined(
            said(
                kinds.SYSTEM_WELCOME,
                {"you": you, "participants": others, **_missed(arriving), **said_by(OURS)},
                to=participant,
            ),
            said(
                kinds.SYSTEM_PRESENCE,
                {"event": "join", "participant": you, **_arrival(arriving)},
            ),
        )

    def leave(self, participant: str) -> Envelope:
        """Take a participant out; the draft of what everybody else is told."""
        del self._present[participant]
        return said(kinds.SYSTEM_PRESENCE, {"event": "leave", "participant": {"id": participant}})

    def receive(self, participant: str, frame: bytes, dialect: str) -> Decision:
        """Decide about a frame that nobody sent before; see :meth:`check` and :meth:`accept`."""
        checked = self.check(participant, frame, dialect)
        return self.accept(checked) if isinstance(checked, Arrival) else checked

    def check(self, participant: str, frame: bytes, dialect: str) -> Arrival | Refused | Dropped:
        """Decide whether a frame is let through; changes nothing that others could notice.

        Args:
            participant: Who sent it, as the token told; what the frame says of its sender is only
                compared with this.
            frame: One message, as it came.
            dialect: The member's.
        """
        try:
            arrival = open_frame(frame, dialect)
            check_depth(frame, self._allowance.max_depth)
        except InvalidEnvelope as invalid:
            return refusal(participant, invalid.problem, str(invalid), about=invalid.envelope_id)
        if arrival.envelope.kind in DROPPED_KINDS:
            return Dropped(arrival.envelope.kind)
        self.speaks(dialect)
        if arrival.envelope.kind == kinds.MCP_RESPONSE and self._rpc_ids is not None:
            envelope = self._rpc_ids.heard(arrival.envelope, arrival.payload)
            arrival = arrival._replace(envelope=envelope)
        return self._refused(participant, arrival) or arrival

    def accept(self, arrival: Arrival) -> Accepted:
        """Let an envelope that was checked take effect.

        Args:
            arrival: What :meth:`check` returned, with nothing accepted in between.
        """
        envelope = arrival.envelope
        if envelope.kind in FOLLOWED:
            at = self._now()
            self.open.accepted(envelope, arrival.payload, at)
            if envelope.kind == kinds.MCP_WITHDRAW:
                self._withdrawing(envelope.sender).take(at)
        if envelope.kind == kinds.MCP_REQUEST and not _method(arrival.payload).startswith(
            _NOTIFICATION
        ):
            self._requests.remember(envelope.id, envelope.sender, envelope.to)
            if self._rpc_ids is not None:
                self._rpc_ids.heard(envelope, arrival.payload)
        elif envelope.kind == kinds.MCP_PROPOSAL:
            self._proposals.remember(envelope.id, envelope.sender, envelope.to)
        return Accepted(envelope)

    def _refused(self, participant: str, arrival: Arrival) -> Refused | None:
        envelope = arrival.envelope
        if envelope.sender != participant:
            return refusal(
                participant,
                IDENTITY_MISMATCH,
                f"you are {participant!r}, and the envelope says that it is from"
                f" {envelope.sender!r}; send as yourself",
                about=envelope.id,
            )
        if _is_reserved(envelope.kind):
            return refusal(
                participant,
                RESERVED_KIND,
                f"{arrival.kind_as_sent!r} comes only from the gateway",
                about=envelope.id,
            )
        if not self._may(participant, arrival):
            return refusal(
                participant,
                CAPABILITY_VIOLATION,
                f"none of your capabilities allows this {arrival.kind_as_sent!r}",
                about=envelope.id,
                attempted_kind=arrival.kind_as_sent,
                your_capabilities=list(self._held[participant].patterns),
            )
        if envelope.kind == kinds.MCP_WITHDRAW:
            return self._refused_withdraw(participant, envelope)
        if envelope.kind == kinds.MCP_PROPOSAL:
            return self._refused_proposal(participant, envelope)
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
        return envelope.kind == kinds.MCP_RESPONSE and any(
            self._requests.addressed(request, participant) for request in envelope.correlation
        )

    def _refused_withdraw(self, participant: str, withdraw: Envelope) -> Refused | None:
        """Only the proposer withdraws; unknown and late withdraws pass (PROTOCOL 3, 4.1)."""
        for proposal in withdraw.correlation:
            issuers = self._proposals.issuers(proposal)
            if issuers and participant not in issuers:
                return refusal(
                    participant,
                    NOT_PROPOSER,
                    f"proposal {proposal} is not yours; only its proposer withdraws it",
                    about=withdraw.id,
                )
        if not self._withdrawing(participant).has(self._now()):
            limit, most = "withdrawals_per_second", self._allowance.withdrawals_per_second
            refused = over_limit(
                participant,
                limit,
                most,
                f"at most {most:g} withdrawals a second are taken; this one is not, nor any more"
                " until you are slower",
                about=withdraw.id,
            )
            return msgspec.structs.replace(refused, flood=limit)
        return None

    def _refused_proposal(self, participant: str, proposal: Envelope) -> Refused | None:
        """Nobody keeps more proposals open than the others can be asked to look at."""
        most = self._allowance.max_open_proposals
        if self.open.open_proposals(participant, self._now()) < most:
            return None
        if self.open.is_open(participant, proposal.id):
            return None  # sent again, or in place of the other
        return over_limit(
            participant,
            "max_open_proposals",
            most,
            f"you have {most} open proposals, as many as are taken; withdraw some",
            about=proposal.id,
        )

    def _withdrawing(self, participant: str) -> Bucket:
        bucket = self._withdrawals.get(participant)
        if bucket is None:
            allowed = self._allowance
            bucket = Bucket(allowed.withdrawals_per_second, allowed.withdrawals_burst)
            self._withdrawals[participant] = bucket
        return bucket


def _missed(arriving: Arriving | None) -> dict[str, Any]:
    """What a welcome says of what its reader missed (PROTOCOL 6)."""
    if arriving is None:
        return {}
    return {"resumed": arriving.resumed, "until": arriving.until, "gap": arriving.gap}


def _arrival(arriving: Arriving | None) -> dict[str, Any]:
    """What everybody is told of what a newcomer missed: nothing has to be said again to most."""
    if arriving is None:
        return {}
    return {ARRIVED: "gap" if arriving.gap else "resumed" if arriving.resumed else "new"}


def _described(participant: str, capabilities: Capabilities) -> dict[str, Any]:
    return {"id": participant, "capabilities": list(capabilities.patterns)}


def _method(payload: dict[str, Any]) -> str:
    method = payload.get("method")
    return method if isinstance(method, str) else ""


def _is_reserved(kind: str) -> bool:
    """Whether only the gateway says this, in either writing, known or not (PROTOCOL 4.10)."""
    known = kinds.KINDS.get(kind)
    return kind.startswith(("system/", "system.")) or (
        known is not None and known.sender == "gateway"
    )
