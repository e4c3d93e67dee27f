"""What is open in a space: requests and proposals, each until it ends (PROTOCOL 4.2).

The gateway needs it to limit how many proposals somebody keeps open, to end what somebody has in
flight and may no longer do, and to know who may answer or take back what. The last goes for what
has ended, too, as long as that is remembered: a request to several has several answers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.lifecycle import ProposalEvent, ProposalState, proposal_step
from meup_agent.protocol.space.issued import Issued

MAX_OPEN_REQUESTS: Final = 1_000
"""Requests of a participant that are remembered as open; the oldest is forgotten first."""

OPEN_SECONDS: Final = 3_600.0
"""How long something counts as open: some clients take back nothing that they gave up."""

MAX_OPEN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of frames and payloads that are kept of a participant, to decide about them again."""

FOLLOWED: Final = frozenset(
    {kinds.MCP_PROPOSAL, kinds.MCP_REQUEST, kinds.MCP_RESPONSE, kinds.MCP_WITHDRAW}
)
"""The kinds with which something begins or ends."""

_OPEN_MICROSECONDS: Final = round(OPEN_SECONDS * 1_000_000)


class Open(msgspec.Struct):
    """A request or a proposal that has not ended.

    Attributes:
        envelope: As it was accepted. Where it was too large to keep, :attr:`whole` is false and
            the payload is empty.
        at: When it was accepted, in microseconds since 1970 (UTC).
        rpc_name: A request's JSON-RPC id, as a cancel names it.
        fulfills: The proposals that a request fulfills.
        state: Of a proposal.
        fulfilling: Requests that are out to fulfill a proposal.
        whole: Whether the payload was kept.
    """

    envelope: Envelope
    at: int
    rpc_name: str | None = None
    fulfills: tuple[Open, ...] = ()
    state: ProposalState = ProposalState.PENDING
    fulfilling: int = 0
    whole: bool = True

    @property
    def is_proposal(self) -> bool:
        """Whether it is a proposal, and not a request."""
        return self.envelope.kind == kinds.MCP_PROPOSAL

    @property
    def size(self) -> int:
        """Bytes that are kept of it."""
        return len(self.envelope.frame) + len(self.envelope.raw_payload)

    def step(self, event: ProposalEvent) -> None:
        """Take a step of a proposal's lifecycle.

        Raises:
            IllegalStep: The lifecycle has no such step.
        """
        self.state = proposal_step(self.state, event)


class _Shelf:
    """Open envelopes of one kind by id and sender; two senders may use the same id.

    Attributes:
        ended: Those that were taken out lately.
    """

    def __init__(self) -> None:
        self.ended = Issued()
        self._by_sender: dict[str, OrderedDict[str, Open]] = {}
        self._senders: dict[str, tuple[str, ...]] = {}

    def put(self, item: Open) -> None:
        """Put something in; its sender has nothing else under its id."""
        sender, envelope_id = item.envelope.sender, item.envelope.id
        share = self._by_sender.get(sender)
        if share is None:
            share = self._by_sender[sender] = OrderedDict()
        share[envelope_id] = item
        self._senders[envelope_id] = (*self._senders.get(envelope_id, ()), sender)

    def get(self, sender: str, envelope_id: str) -> Open | None:
        share = self._by_sender.get(sender)
        return None if share is None else share.get(envelope_id)

    def take(self, sender: str, envelope_id: str) -> Open | None:
        """Take something out, if it is there."""
        share = self._by_sender.get(sender)
        item = None if share is None else share.pop(envelope_id, None)
        if share is None or item is None:
            return None
        if not share:
            del self._by_sender[sender]
        senders = self._senders[envelope_id]
        if len(senders) == 1:
            del self._senders[envelope_id]
        else:
            self._senders[envelope_id] = tuple(each for each in senders if each != sender)
        self.ended.remember(envelope_id, sender, item.envelope.to)
        return item

    def __contains__(self, envelope_id: str) -> bool:
        """Whether something has, or had, an id."""
        return envelope_id in self._senders or envelope_id in self.ended

    def senders(self, envelope_id: str) -> frozenset[str]:
        """Whose an id is, or was."""
        return self.ended.issuers(envelope_id).union(self._senders.get(envelope_id, ()))

    def addressed(self, envelope_id: str, participant: str) -> bool:
        """Whether something with that id is, or was, for a participant, by name or for all."""
        for item in self.under(envelope_id):
            if item.envelope.concerns(participant):
                return True
        return self.ended.addressed(envelope_id, participant)

    def under(self, envelope_id: str) -> tuple[Open, ...]:
        """Everything that has an id, whoever sent it."""
        senders = self._senders.get(envelope_id, ())
        return tuple([self._by_sender[sender][envelope_id] for sender in senders])

    @property
    def owners(self) -> Iterable[str]:
        return self._by_sender

    def of(self, sender: str) -> Iterator[Open]:
        """What somebody has open, the oldest first."""
        share = self._by_sender.get(sender)
        return iter(() if share is None else tuple(share.values()))

    def oldest(self, sender: str) -> Open | None:
        share = self._by_sender.get(sender)
        return next(iter(share.values()), None) if share else None

    def count(self, sender: str) -> int:
        return len(self._by_sender.get(sender, ()))


class OpenExchanges:
    """Every open request and proposal of a space, followed from the envelopes that are accepted.

    What its end cannot see, since the proposer alone knows it, is an expiry without a withdrawal:
    that counts as open until it is :data:`OPEN_SECONDS` old.
    """

    def __init__(self) -> None:
        self._requests = _Shelf()
        self._proposals = _Shelf()
        self._kept_bytes: dict[str, int] = {}

    @property
    def participants(self) -> frozenset[str]:
        """Who has something open."""
        return frozenset((*self._requests.owners, *self._proposals.owners))

    def of(self, participant: str) -> tuple[Open, ...]:
        """What a participant has open: its requests, then its proposals, the oldest first."""
        return (*self._requests.of(participant), *self._proposals.of(participant))

    def proposers(self, proposal: str) -> frozenset[str]:
        """Who has, or had, a proposal of this id."""
        return self._proposals.senders(proposal)

    def was_asked(self, participant: str, requests: tuple[str, ...]) -> bool:
        """Whether a participant was asked by one of some ids, and nobody but others by another."""
        asked = False
        for request in requests:
            if request in self._requests:
                if not self._requests.addressed(request, participant):
                    return False
                asked = True
        return asked

    def is_open(self, proposer: str, proposal: str) -> bool:
        """Whether somebody has a proposal of this id open."""
        return self._proposals.get(proposer, proposal) is not None

    def open_proposals(self, participant: str, at: int) -> int:
        """How many proposals a participant has open; those that are too old are forgotten.

        Args:
            participant: Whose.
            at: The time in microseconds since 1970 (UTC).
        """
        self._forget_old(self._proposals, participant, at)
        return self._proposals.count(participant)

    def accepted(self, envelope: Envelope, payload: dict[str, Any], at: int) -> None:
        """Follow an accepted envelope: something begins, or something ends.

        Args:
            envelope: What was accepted, of one of the kinds in :data:`FOLLOWED`.
            payload: Its payload's JSON values.
            at: When, in microseconds since 1970 (UTC).
        """
        match envelope.kind:
            case kinds.MCP_PROPOSAL:
                self._begin(self._proposals, Open(envelope, at))
            case kinds.MCP_REQUEST:
                self._requested(envelope, payload, at)
            case kinds.MCP_RESPONSE:
                self._responded(envelope)
            case kinds.MCP_WITHDRAW:
                # The gateway's own words come here only when they are read from the journal again.
                by = payloads.on_behalf_of(envelope.sender, payload)
                for proposal in envelope.correlation:
                    self._withdrawn(by, proposal)
            case _:
                pass

    def end(self, item: Open) -> None:
        """Forget something that has ended; another one under its id stays."""
        shelf = self._proposals if item.is_proposal else self._requests
        sender, envelope_id = item.envelope.sender, item.envelope.id
        if shelf.get(sender, envelope_id) is item:
            self._take(shelf, sender, envelope_id)

    def _requested(self, envelope: Envelope, payload: dict[str, Any], at: int) -> None:
        method = payload.get("method")
        if method == kinds.CANCELLED:
            params = payloads.read_call(payload).params
            by = payloads.on_behalf_of(envelope.sender, params)
            self._cancelled(by, params.get("requestId"))
        elif not (isinstance(method, str) and method.startswith(payloads.NOTIFICATION)):
            fulfills: tuple[Open, ...] = ()
            if envelope.correlation:
                fulfills = tuple(
                    proposal
                    for each in envelope.correlation
                    for proposal in self._proposals.under(each)
                )
                for proposal in fulfills:
                    proposal.step(ProposalEvent.REQUEST)
                    proposal.fulfilling += 1
            rpc_name = payloads.rpc_name(payload.get("id"))
            self._begin(self._requests, Open(envelope, at, rpc_name, fulfills))

    def _cancelled(self, sender: str, request: object) -> None:
        """End the request that a cancel names: by its JSON-RPC id, or by its own (PROTOCOL 4.8)."""
        if not isinstance(request, int | str):
            return
        name = str(request)
        by_id = self._requests.get(sender, name)
        if by_id is None or by_id.rpc_name != name:
            named = (item for item in self._requests.of(sender) if item.rpc_name == name)
            by_id = next(named, by_id)
        if by_id is not None:
            self._take(self._requests, sender, by_id.envelope.id)

    def _withdrawn(self, sender: str, envelope_id: str) -> None:
        proposal = self._proposals.get(sender, envelope_id)
        if proposal is not None:
            proposal.step(ProposalEvent.WITHDRAWAL)
            self.end(proposal)

    def _responded(self, response: Envelope) -> None:
        """End the requests that a response answers, and the proposals that these fulfilled."""
        for correlated in response.correlation:
            for request in self._requests.under(correlated):
                if not request.envelope.concerns(response.sender):
                    continue
                for proposal in request.fulfills:
                    if proposal.state.is_pending:
                        proposal.step(ProposalEvent.RESPONSE)
                        self.end(proposal)
                self.end(request)

    def _begin(self, shelf: _Shelf, item: Open) -> None:
        envelope = item.envelope
        sender = envelope.sender
        self._take(shelf, sender, envelope.id)
        if shelf is self._requests and shelf.count(sender) >= MAX_OPEN_REQUESTS:
            oldest = shelf.oldest(sender)
            if oldest is not None:
                self.end(oldest)
        kept = self._kept_bytes.get(sender, 0) + item.size
        if kept > MAX_OPEN_BYTES:
            self._forget_old(shelf, sender, item.at)
            kept = self._kept_bytes.get(sender, 0) + item.size
        if kept > MAX_OPEN_BYTES:
            kept -= item.size
            item.whole = False
            item.envelope = msgspec.structs.replace(envelope, frame=b"", raw_payload=b"{}")
            kept += item.size
        self._kept_bytes[sender] = kept
        shelf.put(item)

    def _take(self, shelf: _Shelf, sender: str, envelope_id: str) -> None:
        item = shelf.take(sender, envelope_id)
        if item is None:
            return
        left = self._kept_bytes[sender] - item.size
        if left:
            self._kept_bytes[sender] = left
        else:
            del self._kept_bytes[sender]
        for proposal in item.fulfills:
            proposal.fulfilling -= 1
            if not proposal.fulfilling and proposal.state is ProposalState.IN_PROGRESS:
                proposal.step(ProposalEvent.REQUEST_CANCELLED)

    def _forget_old(self, shelf: _Shelf, sender: str, at: int) -> None:
        oldest = shelf.oldest(sender)
        too_old = at - _OPEN_MICROSECONDS
        while oldest is not None and oldest.at < too_old:
            self.end(oldest)
            oldest = shelf.oldest(sender)
