"""Indexes by sender and id of requests, proposals and accepted envelopes; and verdicts on them.

An id alone names nothing: two participants may use the same one. Each participant has a share of
its own in every index, so that none can push out what is remembered of another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from math import inf
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from meup_agent.causes import Reason
from meup_agent.protocol.dialects import Addressees
from meup_agent.protocol.proposals import ProposalKey, ProposalProgress, ProposalState
from meup_agent.protocol.space.journal import Fact, ProposalChange
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, draft, rfc3339
from meup_agent.protocol.wire.outcomes import PermitReport
from meup_agent.protocol.wire.payloads import UNKNOWN_PARTICIPANT, JsonObject

if TYPE_CHECKING:
    from meup_agent.protocol.capability import Capabilities


MAX_DECIDED: Final = 4_096
"""Proposals of a participant that are remembered after their end, as many as an agent remembers:
each proposer has a share of its own."""


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
    failed: bool = False  # it was fulfilled, by an answer that is an error


_NOBODY: Final[Mapping[str, Reason]] = MappingProxyType({})


OVER_HTTP: Final = 0
"""Number for what was begun over HTTP, which leaves no connection beside."""

BEFORE_RESTART: Final = -1
"""Number for what a connection beside, or one over HTTP, began before the gateway did."""

LOST: Final = -2
"""Number for what a session in the process of a gateway before this one proposed: it ended with
that, and does not come back."""


class OpenItem(ProposalProgress[NotedRejection], eq=False):
    """A request or a proposal that has not ended; of a proposal, how far it has come."""

    # As it was accepted. Where it was too large to keep, :attr:`whole` is false and the payload is
    # empty.
    envelope: Envelope
    at: int  # the time of its acceptance, in microseconds since 1970 (UTC)
    number: int = 0  # its place in the order in which things began in the space
    rpc_name: str | None = None  # a request's JSON-RPC id, as a cancel names it
    fulfills: OpenItem | None = None  # the proposal that a request fulfills
    refused_by: frozenset[str] = frozenset()  # the addressees that refused to carry a request out
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
    # OVER_HTTP, BEFORE_RESTART or LOST. None: the connection that answers for its sender.
    beside: int | None = None
    orphaned: bool = False  # the process that began it is gone for good
    outlives: bool = False  # a proposal that is wanted also when that is so
    asks_permit: bool = False  # a proposal whose proposer runs the call itself
    report: PermitReport | None = None  # what came of that
    # Of one that outlives its process, or is a permit: the request that carried it out, and the
    # answer to that.
    carried_out: tuple[Envelope, Envelope] | None = None

    @property
    def is_proposal(self) -> bool:
        return self.envelope.kind == kinds.MCP_PROPOSAL

    @property
    def was_refused(self) -> bool:
        """True for a request that each of its addressees has refused to carry out."""
        to = self.envelope.to
        return bool(to) and self.refused_by.issuperset(to)

    @property
    def size(self) -> int:
        """Bytes that are kept of it."""
        return len(self.envelope.frame) + len(self.envelope.raw_payload)

    @property
    def key(self) -> ProposalKey:
        """Its sender and its id: its name while it is open."""
        return ProposalKey(self.envelope.sender, self.envelope.id)

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


class EndedItem(msgspec.Struct):
    """A request or a proposal after its end."""

    proposer: str  # its sender
    to: tuple[str, ...]
    # Of a proposal, its last; pending: it was forgotten, or its id was used again. Then a request
    # may mean it still.
    state: ProposalState
    fulfills: int  # the number of the proposal that a request fulfilled; 0: it fulfilled none
    listing: str | None  # as that of :class:`OpenItem`, as are the next ones
    called: tuple[str, str] = ("", "")
    addressees: Addressees = Addressees()
    declined: Mapping[str, Reason] = _NOBODY
    asks_permit: bool = False
    number: int = 0
    is_reported: bool = False  # its agent has told what came of it
    is_taken: bool = False  # its agent was away, and has come back for its permit
    call: payloads.Call = payloads.Call("", {})  # it is not kept
    earlier: tuple[EndedItem, ...] = ()

    def state_at(self, at: int | None) -> ProposalState:
        """Its state at any time, as that of :class:`OpenItem`."""
        return self.state

    def concerns(self, participant: str) -> bool:
        return not self.to or participant in self.to


KnownItem = OpenItem | EndedItem

MAX_ORIGINS: Final = 1_000
"""Requests that are remembered of each participant after they have ended, and grants that it made.
Each participant has a share of its own."""

V = TypeVar("V")

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class SenderIndex(Generic[V]):
    """Values by id and sender; beyond a limit, the oldest of a sender is forgotten first."""

    def __init__(self, limit: float = MAX_ORIGINS) -> None:
        self._limit = limit
        # Only to be read; those of a sender are in order, the oldest first.
        self.by_id: dict[str, dict[str, V]] = {}
        self.by_sender: dict[str, OrderedDict[str, V]] = {}

    def put(self, sender: str, envelope_id: str, value: V) -> None:
        """Enter a value as the newest of its sender, in place of an older one under its id."""
        share = self.by_sender.get(sender)
        if share is None:
            share = self.by_sender[sender] = OrderedDict()
        share[envelope_id] = value
        share.move_to_end(envelope_id)
        senders = self.by_id.get(envelope_id)
        if senders is None:
            self.by_id[envelope_id] = {sender: value}
        else:
            senders[sender] = value
        if len(share) > self._limit:
            self.pop(sender, next(iter(share)))

    def pop(self, sender: str, envelope_id: str) -> None:
        """Forget a value that is there."""
        share, senders = self.by_sender[sender], self.by_id[envelope_id]
        del share[envelope_id], senders[sender]
        if not share:
            del self.by_sender[sender]
        if not senders:
            del self.by_id[envelope_id]

    def under(self, envelope_id: str) -> Mapping[str, V]:
        """The values under an id, by sender; none if it is unknown or forgotten."""
        return self.by_id.get(envelope_id, _NOTHING)

    def of(self, sender: str) -> Mapping[str, V]:
        """The values of a sender by id, the oldest first."""
        return self.by_sender.get(sender, _NOTHING)


class ItemIndex:
    """Requests, or proposals, by id and sender: the open ones, and those that ended lately."""

    def __init__(self, remembered: int) -> None:
        self.open: SenderIndex[OpenItem] = SenderIndex(inf)
        self.ended: SenderIndex[EndedItem] = SenderIndex(remembered)

    def get(self, key: tuple[str, str], now: float = 0.0) -> OpenItem | None:
        """The open item of a sender under an id."""
        # Here and below without a further call: they are asked several times for each message.
        senders = self.open.by_id.get(key[1])
        return None if senders is None else senders.get(key[0])

    def under(self, exchange_id: str, now: float = 0.0) -> tuple[OpenItem, ...]:
        """The open items with an id."""
        senders = self.open.by_id.get(exchange_id)
        return () if senders is None else tuple(senders.values())

    def of(self, sender: str) -> tuple[OpenItem, ...]:
        """The open items of a sender, the oldest first."""
        return tuple(self.open.of(sender).values())

    def known(self, envelope_id: str) -> Mapping[str, KnownItem]:
        """The latest item of each sender under an id: the open ones, then those that ended."""
        opened = self.open.by_id.get(envelope_id, _NOTHING)
        ended = self.ended.by_id.get(envelope_id)
        return {**opened, **ended, **opened} if ended else opened

    def every(self, envelope_id: str) -> Iterator[KnownItem]:
        """All items under an id, also those in whose place there is another of their sender."""
        opened = self.open.by_id.get(envelope_id, _NOTHING)
        ended = self.ended.by_id.get(envelope_id, _NOTHING)
        return chain(opened.values(), ended.values())

    def end(self, item: OpenItem) -> None:
        """Note the end of an open item."""
        sender, envelope_id = item.envelope.sender, item.envelope.id
        self.open.pop(sender, envelope_id)
        fulfills = 0 if item.fulfills is None else item.fulfills.number
        ended = EndedItem(sender, item.envelope.to, item.state, fulfills, item.listing)
        ended.number, ended.asks_permit = item.number, item.asks_permit
        if item.state.is_pending:  # of what is decided no request passes
            ended.called, ended.addressees = item.called, item.addressees
            ended.declined = item.declined
        self.ended.put(sender, envelope_id, ended)

    def round_robin(self) -> Iterator[OpenItem]:
        """The open items in turns, the newest of each sender first; none may be added meanwhile."""
        senders = [reversed(share.values()) for share in self.open.by_sender.values()]
        while senders:
            left: list[Iterator[OpenItem]] = []
            for items in senders:
                item = next(items, None)
                if item is not None:
                    left.append(items)
                    yield item
            senders = left


class UndecidedProposals:
    """The proposals of an index that are open, or were forgotten before they were decided."""

    def __init__(self, index: ItemIndex) -> None:
        self._index = index

    def under(self, exchange_id: str, now: float) -> list[KnownItem]:
        """Those with an id."""
        # Of one that was decided the call is not kept.
        return [each for each in self._index.known(exchange_id).values() if each.called[0]]

    def get(self, key: ProposalKey, now: float) -> OpenItem | None:
        return self._index.get(key)


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


LIMIT_EXCEEDED: Final = "limit_exceeded"
ID_IN_USE: Final = "id_in_use"

MAX_ERROR_CHARS: Final = 500
"""Characters of an error's message: it may quote the stranger's frame, which may be large."""


May = Callable[[str, JsonObject, tuple[str, ...]], bool]
"""True for a kind, a payload and addressees that a participant may send."""


class Broadcast(FrozenStruct):
    """An envelope of the gateway for all; a draft without time, and mostly without id."""

    draft: Envelope
    closes: str = ""  # the id of the stream that is closed by it
    facts: tuple[Fact, ...] = ()  # facts that hold from now on, kept together with it
    changes: tuple[ProposalChange, ...] = ()  # the proposals that it ends


class Notice(FrozenStruct):
    """An envelope of the gateway for one member, if it is there; a draft likewise."""

    participant: str
    draft: Envelope


class Disconnect(FrozenStruct):
    """A participant whose connections are closed."""

    participant: str
    code: int
    reason: str


class TokenIssued(FrozenStruct):
    """A new token of a participant, which admits it from now on."""

    participant: str
    token_sha256: str  # the token's digest, in hex, in place of one that it had before


Consequence = Broadcast | Notice | Disconnect | TokenIssued


class Acceptance(FrozenStruct):
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


class Repetition(FrozenStruct):
    """An envelope that was accepted before: its sender alone gets it, with its first number."""

    envelope: Envelope  # as it came again
    receipt: AcceptedEnvelope  # has the number, once the journal has given it


class Refusal(FrozenStruct):
    """An envelope that goes no further."""

    code: str  # the reason, for example ``capability_violation`` or ``invalid_json``
    error: Envelope  # the draft of the ``system/error`` for its sender
    # Seconds after which the same is taken; 0 where it is not refused for its pace.
    retry_after: float = 0.0


class Answer(FrozenStruct):
    """The answer to a question of its sender, for it alone: neither is kept (PROTOCOL 3)."""

    question: Envelope
    # Writes the draft of the answer, with the number after which news follow, once all that it
    # tells of is kept.
    write: Callable[[int], Envelope]
    size: int  # its cost in bytes, as a round figure: they count in the sender's pace


class Discard(FrozenStruct):
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
