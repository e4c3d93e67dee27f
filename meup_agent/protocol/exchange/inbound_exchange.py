"""What a handler of ours is for, and what is remembered of it when it has ended."""

from __future__ import annotations

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.exchange.effects import Key, Role, Work
from meup_agent.protocol.exchange.proposal_store import (
    FulfillingRequest,
    ProposalEntry,
    ProposalKey,
    fingerprint_of,
)
from meup_agent.protocol.exchange.resolution import Doubt
from meup_agent.protocol.exchange.ttl_map import PerSenderTTLMap
from meup_agent.protocol.lifecycle import InboundState
from meup_agent.protocol.payloads import Call
from meup_agent.protocol.reasons import Cause, CauseStep

SETTLED_A_SENDER = 1000
SETTLED_SENDERS = 256
SETTLED_SECONDS = 300.0
"""Settled requests are remembered for cancels that come late and requests that come twice. Each
sender has a share, so that one who asks a lot does not have another's request run twice."""

Name = tuple[str, str]
"""A sender, and an id of theirs."""


class InboundExchange(msgspec.Struct):
    """A request, a proposal or a notice that a handler of ours is for.

    Attributes:
        key: Its name.
        work: What the handler is started with.
        call: The call; ``None`` for a notice.
        addressed: Whether it names us; otherwise it is for everybody.
        record: The proposal, for one.
        fulfills: The proposal that a request carries out, as far as we know it.
        fulfillment: That request, as the proposal_store has it.
        doubt: Why it cannot be told which proposal a request carries out.
        state: Where it stands.
        cause: Why it was cancelled.
        withdrawal: Why its proposal was withdrawn while its handler ran.
        sender_left_at: Since when its sender has been away.
        answer_id: The id of our response, once there is one.
        rejected: We have rejected the proposal.
        superseded: Its sender used its id again, for something else.
        droppable: It is left out where there is no room.
        names: A request by its envelope id, and by its JSON-RPC id where that is another
            (PROTOCOL 4.8).
    """

    key: Key
    work: Work
    call: Call | None = None
    addressed: bool = True
    record: ProposalEntry | None = None
    fulfills: ProposalEntry | None = None
    fulfillment: FulfillingRequest | None = None
    doubt: Doubt | None = None
    state: InboundState = InboundState.QUEUED
    cause: Cause | None = None
    withdrawal: Cause | None = None
    sender_left_at: float | None = None
    answer_id: str | None = None
    rejected: bool = False
    superseded: bool = False
    droppable: bool = False
    names: tuple[Name, Name | None] = (("", ""), None)

    def __post_init__(self) -> None:
        """Put its names together, which are looked at several times."""
        sender, envelope_id = self.key.sender, self.key.id
        rpc_name = None if self.call is None else self.call.rpc_name
        by_rpc_id = None
        if rpc_name is not None and rpc_name != envelope_id:
            by_rpc_id = (sender, rpc_name)
        self.names = ((sender, envelope_id), by_rpc_id)

    @property
    def is_request(self) -> bool:
        """Whether an answer is owed."""
        return self.work.role is Role.REQUEST

    @property
    def is_proposal(self) -> bool:
        """Whether it is somebody's proposal."""
        return self.work.role is Role.PROPOSAL

    @property
    def proposal_key(self) -> ProposalKey:
        """The proposal's name, for one."""
        return ProposalKey(self.key.sender, self.key.id)


class Settled(msgspec.Struct, frozen=True):
    """A request that has ended: what it was, and the id of its answer, if it got one."""

    fingerprint: int
    answer_id: str | None


class Requests:
    """Requests that are open or have lately been, by the names that their senders use."""

    def __init__(self) -> None:
        self._by_id: dict[Name, InboundExchange] = {}
        self._by_rpc_id: dict[Name, InboundExchange] = {}
        self._settled: PerSenderTTLMap[str, Settled] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )
        self._settled_rpc_ids: PerSenderTTLMap[str, bool] = PerSenderTTLMap(
            senders=SETTLED_SENDERS, count=SETTLED_A_SENDER, seconds=SETTLED_SECONDS
        )

    def add(self, exchange: InboundExchange) -> None:
        """A request is taken up."""
        name, by_rpc_id = exchange.names
        self._by_id[name] = exchange
        if by_rpc_id is not None:
            self._by_rpc_id[by_rpc_id] = exchange

    def settle(self, exchange: InboundExchange, now: float) -> None:
        """A request has ended, or was never taken up."""
        if exchange.superseded:
            return
        self.forget(exchange)
        name, by_rpc_id = exchange.names
        fingerprint = fingerprint_of(exchange.work.envelope)
        self._settled.put(*name, Settled(fingerprint, exchange.answer_id), now)
        if by_rpc_id is not None:
            self._settled_rpc_ids.put(*by_rpc_id, True, now)

    def forget(self, exchange: InboundExchange) -> None:
        """Nobody can mean this request any more."""
        name, by_rpc_id = exchange.names
        if self._by_id.get(name) is exchange:
            del self._by_id[name]
        if by_rpc_id is not None and self._by_rpc_id.get(by_rpc_id) is exchange:
            del self._by_rpc_id[by_rpc_id]

    def opened(self, name: Name) -> InboundExchange | None:
        """What is open under an envelope id."""
        return self._by_id.get(name)

    def settled(self, name: Name, now: float) -> Settled | None:
        """What is remembered under an envelope id."""
        return self._settled.get(*name, now)

    def meant(self, name: Name) -> InboundExchange | None:
        """What a ``requestId`` names: the JSON-RPC id, or else the envelope id (PROTOCOL 4.8)."""
        return self._by_rpc_id.get(name) or self._by_id.get(name)

    def has_ended(self, name: Name, now: float) -> bool:
        """Whether a ``requestId`` names one that has ended."""
        return (
            self._settled_rpc_ids.get(*name, now) is not None
            or self._settled.get(*name, now) is not None
        )

    def to_answer(self, response: Envelope) -> list[InboundExchange]:
        """What is open of those that a response says to answer."""
        return [
            exchange
            for (sender, envelope_id), exchange in self._by_id.items()
            if envelope_id in response.correlation and response.concerns(sender)
        ]

    def others(self, name: Name) -> bool:
        """Whether somebody else has a request open that a cancel may call so."""
        sender, request_id = name
        names = (*self._by_id, *self._by_rpc_id)
        return any(each == request_id and by != sender for by, each in names)

    def open(self) -> list[InboundExchange]:
        """Every request that is open."""
        return list(self._by_id.values())


def ended_by(by: str, exchange_id: str, reason: str, text: str, now: float) -> Cause:
    """The cause of what somebody ended: their step is the first of its chain."""
    return Cause(reason, by, text, exchange_id, now, (CauseStep(by, exchange_id, reason, text),))
