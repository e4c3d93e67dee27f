"""One space: who is there, and what is let through (PROTOCOL 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.capability import Capabilities
from meup_agent.protocol.dialects.rpc_ids import BY_RPC_ID, RpcIds
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.guarantees import OURS, said_by
from meup_agent.protocol.limits import MAX_DEPTH, check_depth
from meup_agent.protocol.managing import GRANT_ACK
from meup_agent.protocol.reasons import read_reason
from meup_agent.protocol.space.arrival import Arrival, open_frame, usable_id
from meup_agent.protocol.space.arriving import (
    Arriving,
    Joined,
    announced,
    described,
    missed_by,
)
from meup_agent.protocol.space.decisions import (
    Accepted,
    Consequence,
    Decision,
    Dropped,
    Refused,
    Say,
    Tell,
    over_limit,
    refusal,
    said,
)
from meup_agent.protocol.space.managing import KICKED, MANAGING, Management
from meup_agent.protocol.space.open import FOLLOWED, OpenExchanges
from meup_agent.protocol.space.rates import Allowance, Bucket
from meup_agent.protocol.space.revoking import end_in_flight
from meup_agent.protocol.space.standing import Standing

IDENTITY_MISMATCH: Final = "identity_mismatch"
RESERVED_KIND: Final = "reserved_kind"
CAPABILITY_VIOLATION: Final = "capability_violation"
NOT_PROPOSER: Final = "not_proposer"

ALWAYS_ALLOWED_METHODS: Final = frozenset({kinds.CANCELLED, kinds.PROGRESS})
"""Notifications that are routed whatever the capabilities (PROTOCOL 3)."""

DROPPED_KINDS: Final = frozenset({"system/heartbeat", "system/register"})
"""What TypeScript clients send to a gateway and nobody reads (PROTOCOL 2)."""

_OF_MEMBERS = frozenset(kind.name for kind in kinds.KINDS.values() if kind.sender == "member")
_ENDS = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})


class Space:
    """The participants of a space, those who are in it, and every decision about what they send.

    Drafts that it returns have no id and no time: who sends them gives both.

    Args:
        participants: Those who are known from the beginning, and what they may send.
        allowance: How much each of them may say.
        now: Tells the time in microseconds since 1970 (UTC).
        announce_withdrawals: Everybody is told of each withdrawal that took effect.
        new_token: Makes a token that nobody can guess; ``None``: nobody can be invited.
        address: Where an invited participant dials; empty where that is not known.

    Attributes:
        open: The requests and proposals that have not ended.
    """

    def __init__(
        self,
        participants: Mapping[str, Capabilities] | None = None,
        *,
        allowance: Allowance | None = None,
        now: Callable[[], int] = lambda: 0,
        announce_withdrawals: bool = False,
        new_token: Callable[[], str] | None = None,
        address: Callable[[], str] = str,
    ) -> None:
        self.open = OpenExchanges()
        self._allowance = allowance or Allowance()
        self._shallower = self._allowance.max_depth < MAX_DEPTH
        self._now = now
        self._withdrawals: dict[str, Bucket] = {}
        self._held = Standing(participants or {})
        # In the order in which they came.
        self._present: dict[str, None] = {}
        self._management = Management(
            self._held, self._present, new_token=new_token, address=address
        )
        self._announce_withdrawals = announce_withdrawals
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
        self._held.configure(participant, capabilities)

    @property
    def digests(self) -> Mapping[str, str]:
        """Who was invited, with the SHA-256 (hex) of their token."""
        return self._management.digests

    def is_kicked(self, participant: str) -> bool:
        """Whether somebody was removed from the space, and not invited again."""
        return self._management.is_kicked(participant)

    def restore(self, facts: Mapping[str, dict[str, Any]]) -> list[str]:
        """Know again what held before a restart; the ids of grants that hold no more."""
        return self._management.restore(facts)

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
        self._present[participant] = None
        you = described(participant, self._held[participant])
        return Joined(
            self._welcome(participant, **missed_by(arriving)),
            said(
                kinds.SYSTEM_PRESENCE,
                {"event": "join", "participant": you, **announced(arriving)},
            ),
        )

    def _welcome(self, participant: str, **missed: Any) -> Envelope:
        """Who somebody is, what it may send, and who else is here; also when that has changed."""
        you = described(participant, self._held[participant])
        others = [
            described(name, self._held[name]) for name in self._present if name != participant
        ]
        payload = {"you": you, "participants": others, **missed, **said_by(OURS)}
        return said(kinds.SYSTEM_WELCOME, payload, to=participant)

    def leave(self, participant: str) -> Envelope:
        """Take a participant out; the draft of what everybody else is told."""
        del self._present[participant]
        return said(kinds.SYSTEM_PRESENCE, {"event": "leave", "participant": {"id": participant}})

    def receive(self, participant: str, frame: bytes, dialect: str) -> Decision:
        """Decide about a frame that nobody sent before; see :meth:`check` and :meth:`accept`."""
        checked = self.check(participant, frame, dialect)
        if not isinstance(checked, Arrival):
            return checked
        return self.check_new(checked) or self.accept(checked)

    def check(self, participant: str, frame: bytes, dialect: str) -> Arrival | Refused | Dropped:
        """Decide whether a frame can be from its sender; changes nothing that others could notice.

        Args:
            participant: Who sent it, as the token told; what the frame says of its sender is only
                compared with this.
            frame: One message, as it came.
            dialect: The member's.
        """
        try:
            arrival = open_frame(frame, dialect)
            if self._shallower:
                named = usable_id(arrival.envelope.id)
                check_depth(frame, self._allowance.max_depth, envelope_id=named)
        except InvalidEnvelope as invalid:
            deep = {"limit": "max_depth", "max": self._allowance.max_depth}
            return refusal(
                participant,
                invalid.problem,
                str(invalid),
                about=invalid.envelope_id,
                **(deep if invalid.problem == "too_deep" else {}),
            )
        if arrival.envelope.kind in DROPPED_KINDS:
            return Dropped(arrival.envelope.kind)
        self.speaks(dialect)
        if arrival.envelope.kind == kinds.MCP_RESPONSE and self._rpc_ids is not None:
            envelope = self._rpc_ids.heard(arrival.envelope, arrival.payload)
            arrival = arrival._replace(envelope=envelope)
        return self._not_from(participant, arrival) or arrival

    def check_new(self, arrival: Arrival) -> Refused | None:
        """Decide about what :meth:`check` let through, if the same was not accepted before.

        What is sent again, since its sender does not know that it was accepted, is not to be asked
        whether it could be accepted now: a grant cannot be made twice, and what was allowed may
        have been revoked since.
        """
        refused = self._refused(arrival.envelope.sender, arrival)
        if refused is None and arrival.envelope.kind in MANAGING:
            return self._management.check(arrival.envelope, arrival.payload)
        return refused

    def accept(self, arrival: Arrival) -> Accepted:
        """Let an envelope that was checked take effect.

        Args:
            arrival: What :meth:`check` and :meth:`check_new` let through, with nothing accepted in
                between.
        """
        envelope = arrival.envelope
        if envelope.kind in MANAGING:
            return self._managed(envelope, arrival.payload)
        if envelope.kind not in FOLLOWED:
            return Accepted(envelope)
        at = self._now()
        then: tuple[Consequence, ...] = ()
        if envelope.kind == kinds.MCP_WITHDRAW:
            self._withdrawing(envelope.sender).take(at)
            if self._announce_withdrawals:
                then = self._withdrawn(envelope, arrival.payload)
        self.remember(envelope, arrival.payload, at)
        return Accepted(envelope, then=then)

    def remember(self, envelope: Envelope, payload: dict[str, Any], at: int) -> None:
        """Know what an accepted envelope began or ended, also of one from before a restart.

        Args:
            envelope: What was accepted.
            payload: Its payload's JSON values.
            at: When, in microseconds since 1970 (UTC).
        """
        if envelope.kind in FOLLOWED:
            self.open.accepted(envelope, payload, at)
        if envelope.kind == kinds.MCP_REQUEST and self._rpc_ids is not None:
            self._rpc_ids.heard(envelope, payload)

    def _withdrawn(self, withdraw: Envelope, payload: dict[str, Any]) -> tuple[Consequence, ...]:
        """What everybody is told of a withdrawal that takes effect, where the space asks for it."""
        return tuple(
            Say(
                said(
                    kinds.SYSTEM_WITHDRAWN,
                    {
                        "proposal_id": proposal,
                        "by": withdraw.sender,
                        "reason": read_reason(payload.get("reason")),
                    },
                    about=proposal,
                )
            )
            for proposal in withdraw.correlation
            if self.open.is_open(withdraw.sender, proposal)
        )

    def _managed(self, envelope: Envelope, payload: dict[str, Any]) -> Accepted:
        """Let a word of somebody who manages the space take effect, at once and for everybody."""
        done = self._management.accept(envelope, payload)
        then: list[Consequence] = list(done.then)
        for participant in done.changed:
            if participant in self._present and participant != done.kicked:
                who = described(participant, self._held[participant])
                update = {"event": "update", "participant": who}
                then.append(Say(said(kinds.SYSTEM_PRESENCE, update)))
        for participant in dict.fromkeys((*done.changed, done.kicked)):
            then += end_in_flight(self.open, participant, partial(self._may_still, participant))
        told = tuple(
            Tell(participant, self._welcome(participant))
            for participant in done.changed
            if participant in self._present and participant != done.kicked
        )
        return Accepted(envelope, done.facts, tuple(then), told)

    def end_lapsed(self) -> list[Consequence]:
        """End what is open and may not be any more; what the gateway says of it.

        A revocation does so at once. But the gateway can end between the two, and start again with
        a configuration that allows less.
        """
        return [
            consequence
            for participant in sorted(self.open.participants)
            for consequence in end_in_flight(
                self.open, participant, partial(self._may_still, participant)
            )
        ]

    def _may_still(self, participant: str, kind: str, payload: dict[str, Any]) -> bool:
        """Whether somebody may go on with what it began."""
        if participant not in self._held or self.is_kicked(participant):
            return False
        return self._held[participant].allow(kind, payload)

    def _not_from(self, participant: str, arrival: Arrival) -> Refused | None:
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
                "you were removed from this space; ask somebody there to invite you again",
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

    def _refused(self, participant: str, arrival: Arrival) -> Refused | None:
        envelope = arrival.envelope
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
        if envelope.kind == GRANT_ACK:
            return self._management.may_acknowledge(participant, envelope.correlation)
        answers = envelope.kind == kinds.MCP_RESPONSE
        return answers and self.open.was_asked(participant, envelope.correlation)

    def _refused_withdraw(self, participant: str, withdraw: Envelope) -> Refused | None:
        """Only the proposer withdraws; unknown and late withdraws pass (PROTOCOL 3, 4.1)."""
        for proposal in withdraw.correlation:
            proposers = self.open.proposers(proposal)
            if proposers and participant not in proposers:
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


def _method(payload: dict[str, Any]) -> str:
    method = payload.get("method")
    return method if isinstance(method, str) else ""


def _is_reserved(kind: str) -> bool:
    """Whether only the gateway says this, in either writing, known or not (PROTOCOL 4.10)."""
    known = kinds.KINDS.get(kind)
    return kind.startswith(("system/", "system.")) or (
        known is not None and known.sender == "gateway"
    )
