"""Words between a gateway and its members: guarantees, gaps, lists, and a token's strength."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from string import ascii_lowercase, ascii_uppercase, digits, hexdigits
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from meup_agent.errors import InvalidEnvelope, printable
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct
from meup_agent.protocol.wire.outcomes import PermitReport
from meup_agent.protocol.wire.payloads import JsonObject, as_object

# --- guarantees ---

WELCOME_KEY: Final = "dev.meup/guarantees"
"""The key of a welcome for its gateway's guarantees; readers may leave it."""

DIALECT: Final = "dialect"
"""In a participant of a welcome or presence: the dialect that it speaks, while it is present."""

ASIDE: Final = "dev.meup/aside"
"""In a participant of a welcome or presence, ``true``: it has connections beside alone, so that it
decides, and answers no request (PROTOCOL 3)."""

OBSERVING: Final = "observing"
"""In a welcome, ``true``: its reader is not present. As the code of a ``system/error``: its reader
sent something, and observers send nothing."""


class Guarantees(FrozenStruct):
    """The guarantees of one gateway.

    Those that a gateway does not state are taken from what gateways of its dialect were seen to do,
    and at their worst where nothing is known.

    Attributes:
        identity_checked: The name in ``from`` is the one that the sender's token stands for, and
            ``system/*`` comes from the gateway alone. Where it is not, each participant
            can approve, withdraw or answer in the name of any other.
        echo: Everything that we send comes back to us, in the gateway's order: so we know what it
            took, and which of two things that crossed came first.
        resume: What we miss while we are away is sent to us when we come back.
        hidden_targets: An addressed envelope is seen by its addressees alone: a proposer does not
            see the fulfillment of its proposal, nor an onlooker who approved what.
        lists_proposals: It tells which proposals are open, and which were decided lately, to each
            that asks (``space.proposals.list``).
        keeps_yeses: It keeps scoped yeses, counts their uses, and refuses the one that is too many.
    """

    identity_checked: bool = False
    echo: bool = False
    resume: bool = False
    hidden_targets: bool = False
    lists_proposals: bool = False
    keeps_yeses: bool = False


OURS: Final = Guarantees(
    identity_checked=True, echo=True, resume=True, lists_proposals=True, keeps_yeses=True
)
"""The guarantees of the gateway of this package."""


def said_by(guarantees: Guarantees) -> JsonObject:
    """The keys that a gateway adds to its welcomes."""
    return {WELCOME_KEY: msgspec.structs.asdict(guarantees)}


def may_evict(welcome: JsonObject, seen: Guarantees | None) -> bool:
    """True if a gateway may throw a new connection out as an older one of ours ends (PROTOCOL 2).

    Those that were seen to do so say nothing of what they give, and were seen to send back what we
    address to ourselves. Of any other, neither is known: waiting for such an echo might lock us
    out for good.
    """
    return WELCOME_KEY not in welcome and seen is not None


def is_eviction(refusal: JsonObject) -> bool:
    """True if a ``system/error`` shows that its gateway forgot us: we may do nothing at all."""
    return refusal.get("error") == "capability_violation" and refusal.get("your_capabilities") == []


def read_guarantees(welcome: JsonObject, seen: Guarantees | None = None) -> Guarantees:
    """The guarantees of a first welcome, else those that were seen; later ones may be forged."""
    said = welcome.get(WELCOME_KEY)
    if said is None:
        return seen or Guarantees()
    item = as_object(said)
    return Guarantees(**{name: item.get(name) is True for name in Guarantees.__struct_fields__})


# --- resuming ---
# The words of a gateway and its member about what was missed (PROTOCOL 6).

ARRIVED: Final = "dev.meup/arrived"
"""In a presence: the newcomer reads what it missed by itself. ``new``: it was not here before,
``resumed``: it gets everything, ``gap``: some of it is not known any more. Without this key it may
have missed anything, and the others say again what must not be missed (PROTOCOL 4.14)."""

NEW: Final = "new"
"""The value for a process that has just begun; one before it is gone (PROTOCOL 4.2)."""

BESIDE: Final = "beside"
"""Its value for a connection beside that resumes nothing: no process takes the place of another."""

MISSED_NOTHING: Final = frozenset({NEW, BESIDE, "resumed"})
"""The values for members to which nothing need be sent again."""

CAME_BACK: Final = frozenset({"resumed", "gap"})
"""The values for the process that was here before: it still waits for what it began."""

_LAST_FIELD: Final = b',"seq":'
_AT: Final = len(_LAST_FIELD)
_FROM_THE_END: Final = -_AT - 21
"""The earliest begin of that field: a number has 20 digits at the most, and ``}`` follows."""


class Missed(NamedTuple):
    """The first welcome's word on what the member missed."""

    resumed: bool  # we were here before, and what we missed comes now
    until: int  # its last number; what is new has a greater one
    gap: bool


class _Numbered(msgspec.Struct):
    seq: Any = None


_decode_numbered = msgspec.json.Decoder(_Numbered).decode
_decode_json = msgspec.json.Decoder().decode


def read_missed(welcome: JsonObject) -> Missed | None:
    """A welcome's word on what the member missed; ``None`` if it has none."""
    until = welcome.get("until")
    if not isinstance(until, int) or isinstance(until, bool):
        return None
    return Missed(welcome.get("resumed") is True, until, welcome.get("gap") is True)


def read_seq(frame: bytes) -> int | None:
    """The number of an envelope whose frame has been decoded before; ``None`` if it has none."""
    at = frame.rfind(_LAST_FIELD, _FROM_THE_END)
    try:
        try:
            seq = _decode_json(frame[at + _AT : -1]) if at >= 0 else _decode_numbered(frame).seq
        except msgspec.DecodeError:  # it is not the last field
            seq = _decode_numbered(frame).seq
    except msgspec.DecodeError:  # larger than any number is read
        return None
    return seq if type(seq) is int and seq >= 0 else None


def numbered(frame: bytes, seq: int) -> bytes:
    """A frame with ``seq`` as its last field, which counts if the sender wrote one, too."""
    return b'%b,"seq":%d}' % (frame.rstrip()[:-1], seq)


class AckFrame(FrozenStruct, forbid_unknown_fields=True):
    """The number under which an envelope was accepted, for the connection that sent it."""

    id: str
    seq: int


encode_ack: Final = msgspec.json.Encoder().encode
_read_ack: Final = msgspec.json.Decoder(AckFrame).decode
_ACKNOWLEDGES: Final = b'{"id":'


def read_ack(frame: bytes) -> AckFrame | None:
    """The acknowledgement that a frame is; ``None``: it is an envelope, which has more fields."""
    if not frame.startswith(_ACKNOWLEDGES):
        return None
    try:
        return _read_ack(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def add_until(welcome: Envelope, until: int) -> Envelope:
    """A welcome with the last number of what its reader missed, known when it is sent."""
    raw = b'%b,"until":%d}' % (welcome.raw_payload[:-1], until)
    return msgspec.structs.replace(welcome, raw_payload=raw)


# --- proposal query ---
# Query for proposals, open ones or lately decided ones, and a page of its answer (PROTOCOL 3).
#
# Both ends read and write them here: the gateway, which answers, and the agent, which asks.

MAX_LISTED: Final = 100
"""Proposals of a page: more than a screen shows; a reader enters them in a few milliseconds."""


class ProposalQuery(FrozenStruct, omit_defaults=True, forbid_unknown_fields=True):
    """The proposals that are asked for.

    Attributes:
        state: The open ones, or those that were decided lately.
        id: Only those with this id, or with ids that begin so; empty: all.
        proposer: Only those of this proposer; empty: all.
        tool: Only those that call a tool of this name; empty: all.
        to_me: Only those that are addressed to the asker, or to no participant.
        to_decide: Of the open ones those of others that the asker may fulfill or reject, in one
            page; of too many the newest, of each proposer as many as of the others.
        urgent: Of the open ones those that expire first, by their deadlines, in one page.
        after: The ``next`` of the page before; 0: the first page.
        limit: The most proposals of a page.
    """

    state: Literal["open", "decided"] = "open"
    id: str = ""
    proposer: str = ""
    tool: str = ""
    to_me: bool = False
    to_decide: bool = False
    urgent: bool = False
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_LISTED)] = MAX_LISTED

    def takes(self, proposal: Envelope, tool: str, to: Iterable[str], asker: str) -> bool:
        """True for a proposal that is asked for, of which the tool and the deciders are known."""
        return (
            proposal.id.startswith(self.id)
            and self.proposer in ("", proposal.sender)
            and self.tool in ("", tool)
            and (not self.to_me or not to or asker in to)
        )


class ListedRequest(msgspec.Struct, omit_defaults=True):
    """A request that is out to fulfill a listed proposal, or was cancelled."""

    envelope: msgspec.Raw
    cancelled: bool = False


class ListedRejection(msgspec.Struct, omit_defaults=True):
    """A rejection of a listed proposal; of each participant, the first."""

    by: str
    id: str
    reason: str
    rule: str = ""


class ListedDecision(msgspec.Struct, omit_defaults=True):
    """The end of a listed proposal."""

    state: str
    at: str  # RFC 3339
    by: str = ""  # the participant that decided it; empty: it expired
    reason: str = ""
    rule: str = ""
    report: PermitReport | None = None  # of a permit, what came of it, where that was told
    # To its proposer alone, of one that outlives its process: the request that carried it out, and
    # the answer to that.
    carried_out: list[msgspec.Raw] = []
    # It was fulfilled, by an answer that is an error, or its permit's report says so.
    failed: bool = False


class ListedProposal(msgspec.Struct, omit_defaults=True):
    """A proposal of a page."""

    envelope: msgspec.Raw  # as it was accepted, in the dialect of the asker
    seq: int
    expires_at: str | None = None  # its deadline, as far as the gateway knows one
    proposer_left: str | None = None  # the time at which its proposer left, while that is away
    rejections: list[ListedRejection] = []
    requests: list[ListedRequest] = []
    decision: ListedDecision | None = None  # ``None`` while it is open
    # The last words of each that considers or queues it, while it is open.
    told: dict[str, str] | None = None


class ProposalPage(msgspec.Struct, omit_defaults=True):
    """A page of the answer.

    Attributes:
        proposals: The proposals, open ones in the order of their acceptance, decided ones in the
            order of their decisions.
        seq: The number after which news follow.
        next: Where the next page begins; ``None``: this is the last one.
        left: Proposals of that state behind this page, or beside the only one, before any other
            condition.
        omitted: Proposals that have no place in an answer, since they are too large.
    """

    proposals: list[ListedProposal] = []
    seq: int = 0
    next: int | None = None
    left: int = 0
    omitted: int = 0


Q = TypeVar("Q")


def read_query(question: Envelope, payload: JsonObject, form: type[Q], what: str) -> Q:
    """The query of a question; InvalidEnvelope if it has other fields, or other values."""
    try:
        return msgspec.convert(payload, form)
    except msgspec.ValidationError as error:
        problem = f"{what} cannot be listed: {printable(str(error))}; correct its payload"
        raise InvalidEnvelope("invalid_envelope", problem, envelope_id=question.id) from None


STRONG_TOKEN_BITS: Final = 128
"""Bits from which on a token cannot be guessed, however often it is tried."""

_READ_CHARS: Final = 64
"""The last characters, which are read: a prefix or a header says nothing of what follows."""


def is_guessable(token: str) -> bool:
    """True if a token has fewer than 128 bits, as far as its characters tell.

    Random characters have as many bits as their alphabet. Letters of one case without a digit are
    taken for words, and what repeats itself has next to none.
    """
    read = token[-_READ_CHARS:]
    repeats = 2 * len(set(pairwise(read))) < len(read) - 1
    return repeats or len(read) * _bits_per_char(set(read)) < STRONG_TOKEN_BITS


def _bits_per_char(chars: set[str]) -> float:
    if chars <= {*digits}:
        return 3.3
    if not (chars.isdisjoint(ascii_lowercase) or chars.isdisjoint(ascii_uppercase)):
        return 6
    if chars.isdisjoint(digits):
        return 2
    return 4 if chars <= {*hexdigits} else 5
