"""Indexes by sender and id: open requests and proposals, ended ones, and accepted envelopes.

An id alone names nothing: two participants may use the same one. Each participant has a share of
its own in every index, so that none can push out what is remembered of another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from meup_agent.causes import Reason
from meup_agent.protocol.dialects.base import Addressees
from meup_agent.protocol.proposals.lifecycle import ProposalState
from meup_agent.protocol.proposals.record import ProposalKey, ProposalProgress
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope

MAX_DECIDED: Final = 4_096
"""Proposals of a participant that are remembered after their end, as many as an agent remembers:
each proposer has a share of its own."""


class OpenItemKey(NamedTuple):
    """Names a proposal in the memory of a request that fulfills it."""

    proposer: str
    id: str
    number: int  # distinguishes it from a later one of the same proposer and id


class NotedRejection(NamedTuple):
    """A rejection of a proposal, as far as it is kept."""

    id: str
    reason: str
    rule: str  # the rule that it names; empty: none


class ItemDecision(NamedTuple):
    """The end of a proposal."""

    number: int  # its place in the order of the decisions
    at: int  # in microseconds since 1970 (UTC)
    rule: str  # that by which it was decided; empty: none


_NOBODY: Final[Mapping[str, Reason]] = MappingProxyType({})


OVER_HTTP: Final = 0
"""Number for what was begun over HTTP, which leaves no connection beside."""


class OpenItem(ProposalProgress[NotedRejection], eq=False):
    """A request or a proposal that has not ended; of a proposal, how far it has come."""

    # As it was accepted. Where it was too large to keep, :attr:`whole` is false and the payload is
    # empty.
    envelope: Envelope
    at: int  # the time of its acceptance, in microseconds since 1970 (UTC)
    number: int = 0  # its place in the order in which things began in the space
    rpc_name: str | None = None  # a request's JSON-RPC id, as a cancel names it
    fulfills: OpenItem | None = None  # the proposal that a request fulfills
    refused_by: tuple[str, ...] = ()  # the addressees that refused to carry a request out
    # The cursor of a request for a list of tools; ``None``: it asks for something else.
    listing: str | None = None
    # Its method, and its tool (or prompt).
    called: tuple[str, str] = ("", "")
    addressees: Addressees = Addressees()  # of a proposal
    seq: int = 0  # its number; 0 until the journal has given it
    rule: str = ""  # the rule by which a fulfilling request says to be made
    decision: ItemDecision | None = None  # of a proposal; ``None`` while it is open
    # The participants that have decided to reject a proposal, each with its reason.
    declined: Mapping[str, Reason] = _NOBODY
    # Requests that are out to fulfill a proposal, by number.
    fulfilling: dict[int, OpenItem] = {}  # noqa: RUF012  # a struct copies it
    # Requests that were to fulfill it and were cancelled: a result may still come.
    cancelled: dict[int, OpenItem] = {}  # noqa: RUF012
    whole: bool = True  # false if the payload was too large to keep
    # The number of the connection beside that began it, since a reference would keep that alive; or
    # OVER_HTTP. None: the connection that answers for its sender.
    beside: int | None = None
    orphaned: bool = False  # the process that began it is gone for good

    @property
    def is_proposal(self) -> bool:
        return self.envelope.kind == kinds.MCP_PROPOSAL

    @property
    def executor(self) -> str:
        """The participant that carries a proposal out if a request says none; empty: any (4.4)."""
        deciders, executor = self.addressees
        return executor or (deciders[0] if len(deciders) == 1 else "")

    @property
    def was_refused(self) -> bool:
        """True for a request that each of its addressees has refused to carry out."""
        to = self.envelope.to
        return bool(to) and all(name in self.refused_by for name in to)

    @property
    def size(self) -> int:
        """Bytes that are kept of it."""
        return len(self.envelope.frame) + len(self.envelope.raw_payload)

    @property
    def key(self) -> OpenItemKey:
        """Its name after its end."""
        return OpenItemKey(self.envelope.sender, self.envelope.id, self.number)

    @property
    def proposer(self) -> str:
        return self.envelope.sender

    def concerns(self, participant: str) -> bool:
        return self.envelope.concerns(participant)

    @property
    def call(self) -> payloads.Call:
        """The call that a proposal proposes; an empty one where that was too large to keep."""
        return payloads.read_proposal(self.envelope.payload)

    @property
    def earlier(self) -> tuple[OpenItem, ...]:
        """Those of its proposer under this id before, which have ended."""
        return ()

    def is_carried_out_by(self, call: payloads.Call) -> bool:
        """True if a request asks for what is proposed: the same method, and the same tool."""
        return is_call_of(self.called, call)

    @property
    def deciders(self) -> tuple[str, ...]:
        """The participants that decide a proposal; empty: all that may."""
        return self.addressees.deciders


MAX_CANCELLED_BYTES: Final = 256 * 1024
"""Bytes of a participant's cancelled requests that are kept for those who come later; the oldest is
forgotten first. One that is answered all the same is mostly answered at once."""


class CancelledRequests:
    """Keeps the cancelled requests of open proposals, of each sender the newest."""

    def __init__(self) -> None:
        self._by_sender: dict[str, OrderedDict[int, OpenItem]] = {}
        self._bytes: dict[str, int] = {}

    def keep(self, request: OpenItem, proposal: OpenItem) -> None:
        """Keep a request, as long as its proposal is open and its sender's share has room."""
        sender = request.envelope.sender
        share = self._by_sender.setdefault(sender, OrderedDict())
        share[request.number] = proposal.cancelled[request.number] = request
        self._bytes[sender] = self._bytes.get(sender, 0) + request.size
        while self._bytes.get(sender, 0) > MAX_CANCELLED_BYTES:
            self._forget(next(iter(share.values())))

    def forget_all_of(self, proposal: OpenItem) -> None:
        for request in tuple(proposal.cancelled.values()):
            self._forget(request)

    def _forget(self, request: OpenItem) -> None:
        sender = request.envelope.sender
        share = self._by_sender[sender]
        del share[request.number]
        self._bytes[sender] -= request.size
        if not share:
            del self._by_sender[sender], self._bytes[sender]
        if request.fulfills is not None:
            del request.fulfills.cancelled[request.number]

    def __len__(self) -> int:
        """The number of requests that are kept, over all participants."""
        return sum(map(len, self._by_sender.values()))


class ForgottenProposal(NamedTuple):
    """A proposal that may still be pending, as far as the executor of its call depends on it."""

    proposer: str
    called: tuple[str, str]  # the method, and the tool (or prompt)
    addressees: Addressees
    call: payloads.Call = payloads.Call("", {})
    earlier: tuple[ForgottenProposal, ...] = ()

    def is_carried_out_by(self, call: payloads.Call) -> bool:
        """True if a request asks for what is proposed: the same method, and the same tool."""
        return is_call_of(self.called, call)


def is_call_of(called: tuple[str, str], call: payloads.Call) -> bool:
    return called == (payloads.kept_name(call.method), payloads.kept_name(call.name))


class EndedItem(NamedTuple):
    """A request or a proposal after its end."""

    to: tuple[str, ...]
    # Of a proposal, its last; pending: it was forgotten, or its id was used again.
    state: ProposalState
    fulfills: OpenItemKey | None  # the proposal that a request fulfilled
    executor: str  # as of an :class:`OpenItem`
    declined: Mapping[str, Reason]
    listing: str | None = None  # as that of :class:`OpenItem`
    forgotten: ForgottenProposal | None = None

    def concerns(self, participant: str) -> bool:
        return not self.to or participant in self.to


_NONE_OPEN: Final[Mapping[str, OpenItem]] = MappingProxyType({})


class OpenIndex:
    """Envelopes of one kind by id and sender; two senders may use the same id."""

    def __init__(self, remembered: int) -> None:
        # Those that were removed lately.
        self.ended: OriginIndex[EndedItem] = OriginIndex(remembered)
        self._by_sender: dict[str, OrderedDict[str, OpenItem]] = {}
        # The senders that have something open under each id; only to be read.
        self.senders_by_id: dict[str, tuple[str, ...]] = {}

    def put(self, item: OpenItem) -> None:
        """Add an item; its sender has no other under its id."""
        sender, envelope_id = item.envelope.sender, item.envelope.id
        share = self._by_sender.get(sender)
        if share is None:
            share = self._by_sender[sender] = OrderedDict()
        share[envelope_id] = item
        self.senders_by_id[envelope_id] = (*self.senders_by_id.get(envelope_id, ()), sender)

    def get(self, sender: str, envelope_id: str) -> OpenItem | None:
        return self._by_sender.get(sender, _NONE_OPEN).get(envelope_id)

    def pop(self, sender: str, envelope_id: str) -> OpenItem | None:
        """Remove an item, if it is there, and remember its end."""
        share = self._by_sender.get(sender)
        item = None if share is None else share.pop(envelope_id, None)
        if share is None or item is None:
            return None
        if not share:
            del self._by_sender[sender]
        senders = self.senders_by_id[envelope_id]
        if len(senders) == 1:
            del self.senders_by_id[envelope_id]
        else:
            self.senders_by_id[envelope_id] = tuple(each for each in senders if each != sender)
        fulfilled = None if item.fulfills is None else item.fulfills.key
        # Of what is decided no request passes.
        declined = item.declined if item.state.is_pending else _NOBODY
        is_forgotten = item.is_proposal and item.state.is_pending
        ended = EndedItem(
            item.envelope.to,
            item.state,
            fulfilled,
            item.executor,
            declined,
            item.listing,
            ForgottenProposal(sender, item.called, item.addressees) if is_forgotten else None,
        )
        self.ended.remember(envelope_id, sender, ended)
        return item

    def decline(self, envelope_id: str, participant: str, reason: Reason) -> None:
        """Note a participant's rejection of the proposals of an id, forgotten ones included."""
        said = {participant: reason}
        for item in self.under(envelope_id):
            item.declined = {**said, **item.declined}
        for sender, ended in self.ended.of(envelope_id).items():
            if ended.state.is_pending:
                declined = {**said, **ended.declined}
                self.ended.replace(envelope_id, sender, ended._replace(declined=declined))

    def withdraw_forgotten(self, sender: str, envelope_id: str) -> None:
        """Note a withdrawal of a proposal that was forgotten as too old, and not as decided."""
        ended = self.ended.of(envelope_id).get(sender)
        if ended is not None and ended.state.is_pending:
            withdrawn = ended._replace(state=ProposalState.WITHDRAWN)
            self.ended.replace(envelope_id, sender, withdrawn)

    def __contains__(self, envelope_id: str) -> bool:
        return envelope_id in self.senders_by_id or envelope_id in self.ended

    def senders(self, envelope_id: str) -> frozenset[str]:
        return frozenset((*self.ended.of(envelope_id), *self.senders_by_id.get(envelope_id, ())))

    def opened_by(self, envelope_id: str) -> tuple[str, ...]:
        return self.senders_by_id.get(envelope_id, ())

    def addressed(self, envelope_id: str, participant: str) -> bool:
        """True if an item with that id is, or was, for a participant, by name or for all."""
        known: Iterable[OpenItem | EndedItem] = chain(
            self.under(envelope_id), self.ended.of(envelope_id).values()
        )
        return any(item.concerns(participant) for item in known)

    def under(self, envelope_id: str) -> tuple[OpenItem, ...]:
        senders = self.senders_by_id.get(envelope_id, ())
        return tuple([self._by_sender[sender][envelope_id] for sender in senders])

    def round_robin(self) -> Iterator[OpenItem]:
        """The open items in turns, the newest of each sender first; none may be added meanwhile."""
        senders = [reversed(share.values()) for share in self._by_sender.values()]
        while senders:
            left: list[Iterator[OpenItem]] = []
            for items in senders:
                item = next(items, None)
                if item is not None:
                    left.append(items)
                    yield item
            senders = left

    @property
    def owners(self) -> Iterable[str]:
        """The senders that have something open."""
        return self._by_sender

    def of(self, sender: str) -> Iterator[OpenItem]:
        """The open items of a sender, the oldest first."""
        return iter(tuple(self._by_sender.get(sender, _NONE_OPEN).values()))

    def oldest(self, sender: str) -> OpenItem | None:
        """The oldest open item of a sender."""
        return next(iter(self._by_sender.get(sender, _NONE_OPEN).values()), None)

    def count(self, sender: str) -> int:
        return len(self._by_sender.get(sender, _NONE_OPEN))


class OpenProposals:
    """The open proposals of an index, for the rule of which one is meant (PROTOCOL 4.4)."""

    def __init__(self, index: OpenIndex) -> None:
        self._index = index

    def under(self, exchange_id: str, now: float) -> tuple[OpenItem, ...]:
        return self._index.under(exchange_id)

    def get(self, key: ProposalKey, now: float) -> OpenItem | None:
        return self._index.get(*key)


class UndecidedProposals:
    """The same, and those that were forgotten before they were decided."""

    def __init__(self, index: OpenIndex) -> None:
        self._index = index

    def under(self, exchange_id: str, now: float) -> list[OpenItem | ForgottenProposal]:
        """Those with an id."""
        found: dict[str, OpenItem | ForgottenProposal] = {
            item.proposer: item for item in self._index.under(exchange_id)
        }
        for ended in self._index.ended.of(exchange_id).values():
            if ended.forgotten is not None:
                found.setdefault(ended.forgotten.proposer, ended.forgotten)
        return list(found.values())

    def get(self, key: ProposalKey, now: float) -> OpenItem | None:
        return self._index.get(*key)


MAX_ORIGINS: Final = 1_000
"""Requests that are remembered of each participant after they have ended, and grants that it made.
Each participant has a share of its own."""

V = TypeVar("V")

_NO_ORIGINS: Final[Mapping[str, Any]] = MappingProxyType({})


class OriginIndex(Generic[V]):
    """Envelopes of one kind by id and issuer; the oldest of a participant is forgotten first."""

    def __init__(self, limit: int = MAX_ORIGINS) -> None:
        self._limit = limit
        # The remembered values by id and issuer; only to be read.
        self.by_id: dict[str, dict[str, V]] = {}
        self._in_order: dict[str, OrderedDict[str, None]] = {}

    def remember(self, envelope_id: str, issuer: str, value: V) -> None:
        """Remember an envelope, and forget the issuer's oldest if these are too many."""
        share = self._in_order.get(issuer)
        if share is None:
            share = self._in_order[issuer] = OrderedDict()
        if envelope_id in share:
            share.move_to_end(envelope_id)
        share[envelope_id] = None
        issuers = self.by_id.get(envelope_id)
        if issuers is None:
            self.by_id[envelope_id] = {issuer: value}
        else:
            issuers[issuer] = value
        if len(share) > self._limit:
            oldest, _ = share.popitem(last=False)
            issuers = self.by_id[oldest]
            del issuers[issuer]
            if not issuers:
                del self.by_id[oldest]

    def replace(self, envelope_id: str, issuer: str, value: V) -> None:
        """Remember something else of an envelope that is remembered, and not for longer."""
        self.by_id[envelope_id][issuer] = value

    def of(self, envelope_id: str) -> Mapping[str, V]:
        """The values under an id, by issuer; none if it is unknown or forgotten."""
        return self.by_id.get(envelope_id, _NO_ORIGINS)

    def __contains__(self, envelope_id: str) -> bool:
        return envelope_id in self.by_id

    def __len__(self) -> int:
        """The number of remembered envelopes, over all participants."""
        return sum(len(share) for share in self._in_order.values())


REMEMBERED_SECONDS: Final = 600.0
"""Time for which an accepted envelope is recognized when it comes again (PROTOCOL 6)."""

MAX_REMEMBERED: Final = 10_000
"""Envelopes that are remembered of each sender. What a member sends again is what had not come
back to it when its connection ended, which is less than its outbox holds."""

SWEEP_INTERVAL: Final = 16
"""Envelopes after which one sender's are swept for those that are too old."""

_MICROSECONDS: Final = 1_000_000


class AcceptedEnvelope(msgspec.Struct, gc=False):
    """An accepted envelope, to recognize it when it comes again."""

    content: int
    # Its content without ``to``, which the gateway may have filled in (PROTOCOL 4.4).
    unaddressed: int
    at: int  # the time of its acceptance, in microseconds since 1970 (UTC)
    seq: int = 0  # its number; 0 until the journal has given it


_REMEMBERED_AGE: Final = round(REMEMBERED_SECONDS * _MICROSECONDS)


class Deduplicator:
    """A bounded memory of accepted envelopes by sender and id."""

    def __init__(self) -> None:
        self._remembered = 0
        # The sender that was swept the longest ago comes first.
        self._by_sender: OrderedDict[str, OrderedDict[str, AcceptedEnvelope]] = OrderedDict()

    def remember(self, envelope: Envelope, at: int, seq: int = 0) -> AcceptedEnvelope:
        """Remember an accepted envelope; now and then, forget a sender's that are too old."""
        share = self._by_sender.get(envelope.sender)
        if share is None:
            share = self._by_sender[envelope.sender] = OrderedDict()
        content = unaddressed = _content(envelope)
        if envelope.kind == kinds.MCP_REQUEST and envelope.to and envelope.correlation:
            unaddressed = _content(envelope, ())
        receipt = share[envelope.id] = AcceptedEnvelope(content, unaddressed, at, seq)
        share.move_to_end(envelope.id)
        if len(share) > MAX_REMEMBERED:
            share.popitem(last=False)
        self._remembered += 1
        if self._remembered % SWEEP_INTERVAL == 0:
            self._forget(at)
        return receipt

    def find(self, envelope: Envelope, at: int) -> AcceptedEnvelope | None:
        """The receipt of the same envelope; another content under a known id is a new one."""
        share = self._by_sender.get(envelope.sender)
        known = None if share is None else share.get(envelope.id)
        if known is None or at - known.at > _REMEMBERED_AGE:
            return None
        content = _content(envelope)
        return known if content in (known.content, known.unaddressed) else None

    def __len__(self) -> int:
        """The number of remembered envelopes."""
        return sum(map(len, self._by_sender.values()))

    def _forget(self, at: int) -> None:
        """Forget the too old envelopes of one sender, another one each time."""
        sender, share = self._by_sender.popitem(last=False)
        while share and at - next(iter(share.values())).at > _REMEMBERED_AGE:
            share.popitem(last=False)
        if share:
            self._by_sender[sender] = share


def _content(envelope: Envelope, to: tuple[str, ...] | None = None) -> int:
    # Python's hash is keyed anew in each process, so no sender can make two contents look alike.
    to = envelope.to if to is None else to
    return hash((envelope.kind, to, envelope.correlation, envelope.context, envelope.raw_payload))
