"""Dialects: the wire forms of an envelope (PROTOCOL 1).

Reading is lenient and the same for every dialect that writes its correlation and kinds in plain
sight; writing is strict and each dialect's own. A dialect is one record here, whose attributes say
what is particular to it: no other module names dialects.

A frame comes in and an :class:`~meup_agent.protocol.wire.envelope.Envelope` goes out, or the other
way.
A dialect never decides whether an envelope is allowed, and never changes a payload but as
``Dialect`` says; one that came in a dialect leaves in it byte for byte. What a dialect has no
words for is ``NotExpressible``, and never written as something else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.errors import InvalidEnvelope, NotExpressible, UsageError
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    EMPTY_PAYLOAD,
    Envelope,
    FrozenStruct,
    check_frame,
    decode_members,
    encode_leniently,
    is_list,
    is_object,
)
from meup_agent.protocol.wire.kinds import IN_MEMORY
from meup_agent.protocol.wire.membership import Guarantees

# --- base of the dialects ---

Ids = tuple[str | None, ...] | str | None
"""Names or ids as they are met: one, a list, a list with holes (PROTOCOL 1)."""


class Dialect(FrozenStruct):
    """One wire form of the envelope, and what those who speak it do."""

    name: str  # as ``protocol`` says it, for example ``meup/v0.1``
    # The envelope that a header stands for; InvalidEnvelope if it cannot be one.
    read: Callable[[Header, bytes], Envelope]
    # The envelope as a frame, unknown fields included; NotExpressible if words are missing.
    write: Callable[[Envelope], bytes]
    # Names on the wire that are read as it.
    also_read: tuple[str, ...] = ()
    # It is one of the published versions: see ``PUBLISHED``.
    is_published: bool = False
    # It has streams, and frames of streams beside envelopes (PROTOCOL 8).
    has_streams: bool = False
    # Who gets a chat acknowledges it by an envelope.
    acknowledges_chats: bool = False
    # What gateways that speak it, and say nothing of it, were seen to guarantee; such a gateway may
    # throw a newcomer out as an older connection ends. ``None``: none was seen.
    seen: Guarantees | None = None


class Header(FrozenStruct, gc=False):
    """The header fields of every dialect, as leniently as they may be written."""

    kind: str
    payload: msgspec.Raw = msgspec.Raw(EMPTY_PAYLOAD)
    id: str | None = None
    sender: str | None = msgspec.field(name="from", default=None)
    protocol: str | None = None
    to: Ids = ()
    camel_correlation: Ids = msgspec.field(name="correlationId", default=None)
    snake_correlation: Ids = msgspec.field(name="correlation_id", default=None)
    ts: str | None = None
    context: str | None = None


class KnownHeader(Header, gc=False, forbid_unknown_fields=True):
    """A header without any other field; an empty payload stands for none."""

    payload: msgspec.Raw = msgspec.Raw(b"")


decode_known_header = msgspec.json.Decoder(KnownHeader).decode
"""Decodes the header of a frame that has no field which no dialect knows."""

decode_header = msgspec.json.Decoder(Header).decode
"""Decodes the header fields of a frame; :func:`unreadable` says what its errors mean."""

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of :func:`decode_header`: text that is cut or wrong may lead to each of them."""


class _OnlyId(msgspec.Struct):
    id: str | None = None


def unreadable(error: Exception, frame: bytes) -> InvalidEnvelope:
    """Return the error for an unreadable header: no JSON, no object, no kind, a wrong type."""
    if isinstance(error, msgspec.ValidationError):
        return InvalidEnvelope(
            "invalid_envelope", f"the frame is not an envelope: {error}", envelope_id=_id_of(frame)
        )
    return InvalidEnvelope("invalid_json", f"the frame is not JSON: {error}")


def read_plain(header: Header, frame: bytes) -> Envelope:
    """Read a header whose kind and correlation stand in plain sight (all dialects but one)."""
    kind = header.kind
    kind = IN_MEMORY.get(kind, kind)
    id = header.id
    sender = header.sender
    # Gateways are seen to send errors without sender or id (PROTOCOL 1).
    if not (id and sender and kind) and kind != kinds.SYSTEM_ERROR:
        missing = next(
            name for name, value in (("kind", kind), ("from", sender), ("id", id)) if not value
        )
        raise InvalidEnvelope(
            "invalid_envelope", f"the envelope has no {missing!r}", envelope_id=id or None
        )
    named, camel, snake = header.to, header.camel_correlation, header.snake_correlation
    # Of all that may stand there, names in a list and one id, or a list of ids, usually do.
    if isinstance(named, tuple) and all(named):
        to: tuple[str, ...] = named  # type: ignore[assignment]  # no name in it is None
    else:
        to = _ids(named)
    if isinstance(camel, str) and camel and snake is None:
        correlation: tuple[str, ...] = (camel,)
    elif camel is None and snake is None:
        correlation = ()
    elif camel and snake:
        correlation = tuple(dict.fromkeys(_ids(camel) + _ids(snake)))
    else:
        correlation = _ids(camel or snake)
    if isinstance(snake, str) and correlation:
        # Readers of the dialects that have this field find a list, whoever wrote it.
        frame = encode_leniently({**decode_members(frame), "correlation_id": correlation})
    return Envelope(
        id=id or "",
        sender=sender or kinds.GATEWAY,
        kind=kind,
        to=to,
        correlation=correlation,
        raw_payload=bytes(header.payload),
        ts=header.ts,
        context=header.context,
        protocol=header.protocol or "",
        frame=frame,
    )


class Fields(FrozenStruct, kw_only=True, omit_defaults=True):
    """The fields of a frame, in our order; a struct takes a third of the time of a dictionary."""

    protocol: str
    id: str
    ts: str | None = None
    sender: str = msgspec.field(name="from")
    to: tuple[str, ...] = ()
    kind: str
    camel_correlation: str | None = msgspec.field(name="correlationId", default=None)
    snake_correlation: tuple[str, ...] = msgspec.field(name="correlation_id", default=())
    context: str | None = None
    payload: msgspec.Raw


def write_frame(
    envelope: Envelope,
    protocol: str,
    kind: str,
    payload: bytes,
    camel: str | None,
    snake: tuple[str, ...],
) -> bytes:
    """A frame of the known fields that have a value, then the envelope's unknown ones."""
    fields = Fields(
        protocol=protocol,
        id=envelope.id,
        ts=envelope.ts,
        sender=envelope.sender,
        to=envelope.to,
        kind=kind,
        camel_correlation=camel,
        snake_correlation=snake,
        context=envelope.context,
        payload=msgspec.Raw(payload),
    )
    frame = encode_leniently(fields)
    unknown = envelope.extra
    if not unknown:
        return frame
    more = encode_leniently({name: msgspec.Raw(raw) for name, raw in unknown})
    return b"%b,%b" % (frame[:-1], more[1:])


def one_and_all(correlation: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The first id, for a field with room for one; and all, for one beside it, if several."""
    if len(correlation) > 1:
        return correlation[0], correlation
    return (correlation[0] if correlation else None), ()


def _ids(value: Ids) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(each for each in value or () if each)


def _id_of(frame: bytes) -> str | None:
    try:
        return msgspec.json.decode(frame, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# --- translation of payloads between dialects ---
# Chat, the proposal's wrapper, `proposalId`.
#
# Everything else stays byte for byte (PROTOCOL 1, *forward unchanged*).

Members = dict[str, Any]

_decode_participant = msgspec.json.Decoder(dict[str, Any]).decode
_PLAIN: Final = encode_leniently("plain")


def with_proposal_id(envelope: Envelope, dialect: str, proposal_id: str) -> bytes:
    """The payload of a decision for a dialect that names the proposal in it."""
    members = members_of(envelope.raw_payload)
    if members is None:
        raise NotExpressible(
            f"{dialect} names the proposal in the payload, and that of {envelope.kind!r} "
            f"{envelope.id} is not an object"
        )
    return encode_leniently({"proposalId": proposal_id} | _without_proposal_id(members))


Translation = Mapping[str, Callable[[Members], Members]]
"""The change of the payload of each kind that a dialect writes in another way."""


def translated(envelope: Envelope, dialect: str, changes: Translation) -> bytes:
    """The payload for a dialect; one that came in it stays as it is."""
    change = None if envelope.protocol == dialect else changes.get(envelope.kind)
    members = None if change is None else members_of(envelope.raw_payload)
    if change is None or members is None:
        return envelope.raw_payload
    changed = change(members)
    return envelope.raw_payload if changed is members else encode_leniently(changed)


def to_executor(proposal: Envelope) -> Envelope:
    """A proposal for the published dialects, where ``to`` names the executor (PROTOCOL 4.4)."""
    target = payloads.read_proposal(proposal.payload).target
    if target is None or proposal.to == (target,):
        return proposal
    return msgspec.structs.replace(proposal, to=(target,))


def announce_response(capabilities: list[Any]) -> list[Any]:
    """Capabilities as existing gateways announce them: every participant may answer.

    Their agents ask only those for tools of whom this kind is announced, whatever wildcards allow.
    """
    if any(map(_is_response, capabilities)):
        return capabilities
    return [*capabilities, {"id": "mcp-response", "kind": kinds.MCP_RESPONSE}]


def _is_response(capability: object) -> bool:
    return (
        is_object(capability)
        and capability.get("kind") == kinds.MCP_RESPONSE
        and "payload" not in capability
    )


def _with_response(members: Members) -> Members:
    """A presence whose participant may answer."""
    try:
        participant = _decode_participant(members["participant"])
    except (KeyError, msgspec.DecodeError):
        return members
    said: object = participant.get("capabilities")
    if not is_list(said):
        return members  # one that leaves
    announced = announce_response(said)
    if announced is said:
        return members
    return {**members, "participant": {**participant, "capabilities": announced}}


def members_of(raw: bytes | msgspec.Raw) -> Members | None:
    """The members of an object as raw JSON; ``None`` if it is not an object."""
    try:
        return decode_members(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _text_to_message(members: Members) -> Members:
    if "text" not in members or "message" in members:
        return members
    plain = bytes(members.get("format", _PLAIN)) == _PLAIN
    left_out = {"text", "format"} if plain else {"text"}
    rest = {name: raw for name, raw in members.items() if name not in left_out}
    return {"message": members["text"]} | rest


def _message_to_text(members: Members) -> Members:
    if "message" not in members or "text" in members:
        return members
    rest = {name: raw for name, raw in members.items() if name != "message"}
    return {"text": members["message"], "format": msgspec.Raw(_PLAIN)} | rest


def unwrap_members(members: Members) -> Members:
    """As :func:`~meup_agent.protocol.wire.payloads.unwrapped`, of raw members."""
    if not payloads.is_wrapper(members):
        return members
    inner = members_of(members[payloads.WRAPPER])
    return members if inner is None or payloads.is_wrapper(inner) else inner


def _without_proposal_id(members: Members) -> Members:
    if "proposalId" not in members:
        return members
    return {name: raw for name, raw in members.items() if name != "proposalId"}


WITH_MESSAGE: Final[Translation] = {
    kinds.MCP_PROPOSAL: unwrap_members,
    kinds.MCP_WITHDRAW: _without_proposal_id,
    kinds.MCP_REJECT: _without_proposal_id,
    kinds.CHAT: _text_to_message,
}
"""For a dialect whose chat has ``message``."""

WITH_TEXT: Final[Translation] = {
    **WITH_MESSAGE,
    kinds.CHAT: _message_to_text,
    kinds.SYSTEM_PRESENCE: _with_response,
}
"""For a dialect whose chat has ``text`` and ``format``."""


# --- executors ---
# The executor of a proposal, and of the request that fulfills it (PROTOCOL 4.4).
#
# `to` of a proposal names its deciders, but in the published dialects its executor. Agents,
# gateway and audit all read it here.


class Addressees(NamedTuple):
    """The participants that a proposal names."""

    deciders: tuple[str, ...] = ()  # those that decide it; empty: all that may
    executor: str | None = None  # the participant that should carry it out; ``None``: none is named

    def as_kept(self) -> Addressees:
        """The same, as it is kept by the thousand."""
        return self._replace(executor=self.executor and payloads.kept_name(self.executor))


def read_addressees(proposal: Envelope, call: payloads.Call) -> Addressees:
    published = proposal.protocol in NAMING_EXECUTORS
    executor = _named_executor(proposal.to, call.target, published, published)
    return Addressees(proposal.to, call.target) if executor is None else Addressees((), executor)


def as_broadcast(proposal: Envelope, sender: str | None = None, own: str = "") -> Envelope | None:
    """A proposal as a broadcast, with its addressee as executor; ``None``: it decides.

    ``sender`` and ``own`` are the dialects of its sender, by default what it says, and of this
    connection. What came translated into a published dialect names its target in ``to``, from any
    sender.
    """
    sender = proposal.protocol if sender is None else sender
    by_published = sender in NAMING_EXECUTORS
    is_published = by_published or own in NAMING_EXECUTORS
    if len(proposal.to) != 1 or not is_published:
        return None  # before the payload is decoded
    target = payloads.read_proposal(proposal.payload).target
    executor = _named_executor(proposal.to, target, by_published, is_published)
    if executor is None:
        return None
    if target == executor:
        return proposal.replace(to=())
    return proposal.replace(to=(), raw_payload=_with_target(proposal.raw_payload, executor))


def choose_executors(proposal: Addressees, fulfiller: str) -> tuple[str, ...]:
    """The executors of a fulfilling request without ``to``; empty: the proposal names none."""
    if proposal.executor is not None:
        return (proposal.executor,)
    # A decider does not carry it out: a request to oneself names oneself (PROTOCOL 4.11).
    asked = tuple(name for name in proposal.deciders if name != fulfiller)
    return asked if len(asked) == 1 else ()


def _named_executor(
    to: tuple[str, ...], target: str | None, by_published: bool, is_published: bool
) -> str | None:
    """The executor that ``to`` of a proposal names; ``None``: it names who decides."""
    if len(to) != 1 or not is_published:
        return None
    (executor,) = to
    return executor if target == executor or (target is None and by_published) else None


def _with_target(payload: bytes, executor: str) -> bytes:
    """A proposal's payload that names its executor; all else of the call is as it was written."""
    members = unwrap_members(members_of(payload) or {})
    params = members_of(members.get("params", b"")) or {}
    meta = members_of(params.get(payloads.META, b"")) or {}
    meta[payloads.TARGET] = msgspec.Raw(encode_leniently(executor))
    params = {**params, payloads.META: msgspec.Raw(encode_leniently(meta))}
    return encode_leniently({**members, "params": params})


# --- plain dialects ---
# Each part of the header has a field (PROTOCOL 1). The first has kinds with dots and one
# correlation id, the others kinds with slashes and a list.


def _write_dots(envelope: Envelope) -> bytes:
    if envelope.kind == kinds.MCP_PROPOSAL:
        envelope = as_broadcast(envelope) or envelope
    first, all_ids = one_and_all(envelope.correlation)
    payload = translated(envelope, "meup/v0.1", WITH_MESSAGE)
    kind = kinds.dotted(envelope.kind)
    return write_frame(envelope, "meup/v0.1", kind, payload, first, all_ids)


def _write_slashes(name: str, envelope: Envelope) -> bytes:
    names_deciders = envelope.protocol and envelope.protocol not in NAMING_EXECUTORS
    if envelope.kind == kinds.MCP_PROPOSAL and names_deciders:
        envelope = to_executor(envelope)
    payload = translated(envelope, name, WITH_TEXT)
    return write_frame(envelope, name, envelope.kind, payload, None, envelope.correlation)


PLAIN_DIALECTS: Final = (
    Dialect("meup/v0.1", read_plain, _write_dots, has_streams=True),
    Dialect(
        "meup/v0.2",
        read_plain,
        partial(_write_slashes, "meup/v0.2"),
        is_published=True,
        seen=Guarantees(hidden_targets=True),
    ),
    Dialect(
        "mew/v0.4",
        read_plain,
        partial(_write_slashes, "mew/v0.4"),
        also_read=("mew/v0.3",),
        is_published=True,
        has_streams=True,
        acknowledges_chats=True,
        seen=Guarantees(echo=True),
    ),
)

NAMING_EXECUTORS: Final = frozenset(
    name for each in PLAIN_DIALECTS if each.is_published for name in (each.name, *each.also_read)
)
"""Names on the wire of the published dialects, in which ``to`` of a proposal is its executor."""


# --- mcpx v01 ---

NAME: Final = "mcpx/v0.1"

MCP: Final = "mcp"

_TO_WIRE: Final = {
    kinds.MCP_REQUEST: MCP,
    kinds.MCP_RESPONSE: MCP,
    kinds.MCP_PROPOSAL: "proposal",
    kinds.MCP_WITHDRAW: "proposal/withdraw",
    kinds.MCP_REJECT: "proposal/reject",
}
_FROM_WIRE: Final = {wire: kind for kind, wire in _TO_WIRE.items() if wire != MCP}


_MCPX_ONLY: Final = frozenset({MCP, *_FROM_WIRE})


class _Rpc(NamedTuple):
    """Members of an MCP message that refer to others, checked."""

    has_method: bool  # true for a request, false for a response
    id: str | None  # the JSON-RPC id as a name, where it is one
    proposal_id: str | None


_NULL: Final = msgspec.Raw(b"null")

_decode_name = msgspec.json.Decoder(str | int | None).decode


def _read(header: Header, frame: bytes) -> Envelope:
    envelope = read_plain(header, frame)
    rpc = _rpc(envelope.raw_payload)
    kind = _FROM_WIRE.get(envelope.kind, envelope.kind)
    if kind == MCP:
        kind = kinds.MCP_REQUEST if rpc.has_method else kinds.MCP_RESPONSE
    told = _referenced_id(kind, rpc)
    correlation = envelope.correlation or ((told,) if told else ())
    return msgspec.structs.replace(envelope, kind=kind, correlation=correlation)


def _write(envelope: Envelope) -> bytes:
    if envelope.kind == kinds.MCP_PROPOSAL:
        envelope = as_broadcast(envelope) or envelope
    correlation, all_ids = one_and_all(envelope.correlation)
    if envelope.kind in _MCPX_ONLY:
        raise NotExpressible(f"{NAME} has another meaning for the kind {envelope.kind!r}")
    # It names the proposal in the payload where a dialect has no correlation field.
    if envelope.kind in kinds.DECISIONS and correlation is not None:
        payload = with_proposal_id(envelope, NAME, correlation)
    else:
        payload = translated(envelope, NAME, WITH_MESSAGE)
    rpc = _rpc(payload)
    if envelope.kind == kinds.MCP_REQUEST and not rpc.has_method:
        raise NotExpressible(f"{NAME} tells a request by its method, and there is none")
    if envelope.kind == kinds.MCP_RESPONSE and rpc.has_method:
        raise NotExpressible(f"{NAME} tells a response by its having no method")
    said = _referenced_id(envelope.kind, rpc)
    kind = _TO_WIRE.get(envelope.kind, envelope.kind)
    camel = None if correlation == said else correlation
    return write_frame(envelope, NAME, kind, payload, camel, all_ids)


def _rpc(payload: bytes) -> _Rpc:
    members = members_of(payload) or {}
    method, rpc_id = members.get("method", _NULL), members.get("id", _NULL)
    has_method = bytes(method) != b"null"
    return _Rpc(has_method, _name(rpc_id), _name(members.get("proposalId", _NULL)))


def _name(raw: msgspec.Raw) -> str | None:
    """An id, where it is one; what else stands there changes nothing of the message's meaning."""
    try:
        found = _decode_name(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return None if found is None else str(found)


def _referenced_id(kind: str, rpc: _Rpc) -> str | None:
    """Return the id to which the payload itself refers."""
    if kind == kinds.MCP_RESPONSE:
        return rpc.id
    if kind in kinds.DECISIONS:
        return rpc.proposal_id
    return None


_MCPX_V01: Final = Dialect(NAME, _read, _write)


# --- rpc ids ---
# Envelope ids for JSON-RPC ids, by which `mcpx/v0.1` names the request of a response.
#
# There a response names its request by the JSON-RPC id that the requester gave it, and two
# requesters may give the same. Everything else here goes by envelope ids, so a receiver of such a
# response has to remember which requester gave which id (PROTOCOL 1).

BY_RPC_ID: Final = _MCPX_V01.name
"""The dialect whose responses may name their request by its JSON-RPC id alone."""

MAX_RPC_IDS: Final = 1_000
"""Requests that are remembered of each sender: more than a participant has open at once."""

MAX_SENDERS: Final = 1_000
"""Senders whose requests are remembered; the one that was first heard of goes first."""


class _RememberedRequest(FrozenStruct, gc=False):
    id: str
    to: tuple[str, ...]


class RpcIds:
    """A bounded memory of (sender, JSON-RPC id) and the envelope that had it."""

    def __init__(self) -> None:
        self._by_sender: OrderedDict[str, OrderedDict[str, _RememberedRequest]] = OrderedDict()

    def heard(self, envelope: Envelope, payload: object, *, dialect: str = "") -> Envelope:
        """Remember a request; tell what a response answers; in the order of the wire.

        A response in ``mcpx/v0.1`` that names its request by a JSON-RPC id alone is returned with
        the request's envelope id as its correlation, its frame as it came.
        """
        said = envelope.protocol or dialect
        if envelope.kind == kinds.MCP_REQUEST:
            call = payloads.read_call(payload)
            if call.rpc_name is not None and not call.is_notification:
                self._remember(envelope, call.rpc_name)
        elif envelope.kind == kinds.MCP_RESPONSE:
            name = payloads.read_call(payload).rpc_name
            if name is None:
                return envelope
            request = self._request(envelope, name) if said == BY_RPC_ID else None
            if request is not None:
                envelope = msgspec.structs.replace(envelope, correlation=(request,))
            self._answered(envelope, name)
        return envelope

    def _remember(self, request: Envelope, name: str) -> None:
        share = self._by_sender.get(request.sender)
        if share is None:
            share = self._by_sender[request.sender] = OrderedDict()
            if len(self._by_sender) > MAX_SENDERS:
                self._by_sender.popitem(last=False)
        share[name] = _RememberedRequest(request.id, request.to)
        share.move_to_end(name)
        if len(share) > MAX_RPC_IDS:
            share.popitem(last=False)

    def _answered(self, response: Envelope, name: str) -> None:
        """Forget what has its answer before what still waits for one."""
        for requester in response.to:
            request = self._asked(requester, response, name)
            if request is not None and request.id in response.correlation:
                self._by_sender[requester].move_to_end(name, last=False)

    def _request(self, response: Envelope, name: str) -> str | None:
        """The envelope id of the only request that a response can answer."""
        # An id beside the JSON-RPC id is an envelope's already.
        if response.correlation != (name,):
            return None
        asked = (self._asked(each, response, name) for each in response.to or self._by_sender)
        found = {request.id for request in asked if request is not None}
        return found.pop() if len(found) == 1 else None

    def _asked(self, requester: str, response: Envelope, name: str) -> _RememberedRequest | None:
        """The request of a requester that asked the sender of a response."""
        share = self._by_sender.get(requester)
        request = None if share is None else share.get(name)
        asked = request is not None and (not request.to or response.sender in request.to)
        return request if asked else None

    def __len__(self) -> int:
        """Count the remembered requests of all senders."""
        return sum(len(share) for share in self._by_sender.values())


DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect for dialect in (_MCPX_V01, *PLAIN_DIALECTS)
}
"""Every dialect that can be read and written, by its name on the wire."""


def _names(wanted: Callable[[Dialect], bool]) -> frozenset[str]:
    return frozenset(name for name, each in DIALECTS.items() if wanted(each))


PUBLISHED: Final = _names(lambda each: each.is_published)
"""The two published versions, which existing gateways and TypeScript participants speak.

Their correlation is a list. A gateway fills in their ``ts``, describes participants to them in
their words, takes one for the other, and refuses an invitation of a participant that is there by an
acknowledgement. An agent addresses its proposals to the executor, and ends several by one withdraw.
"""

STREAMING: Final = _names(lambda each: each.has_streams)
"""The dialects that have streams, and frames of streams beside envelopes (PROTOCOL 8)."""

ACKNOWLEDGING: Final = _names(lambda each: each.acknowledges_chats)
"""The dialects in which who gets a chat acknowledges it."""

ALSO_READ: Final = {other: name for name, each in DIALECTS.items() for other in each.also_read}
"""Names on the wire that are read as another dialect's."""

_READERS: Final = DIALECTS | {name: DIALECTS[read_as] for name, read_as in ALSO_READ.items()}

DEFAULT_DIALECT: Final = "meup/v0.1"


def spoken(protocol: str) -> str | None:
    """The newest known form of a dialect, to write to its speakers; ``None``: it is unknown."""
    name = ALSO_READ.get(protocol, protocol)
    return name if name in DIALECTS else None


def decode(
    frame: bytes | str, dialect: str | None = None, *, unnamed: str = DEFAULT_DIALECT
) -> Envelope:
    """Decode the header of a frame; the payload stays raw.

    Args:
        frame: One message, JSON in UTF-8.
        dialect: The dialect that it must be in; ``None``: the one that its ``protocol`` names.
        unnamed: Where ``dialect`` is ``None``: the dialect of a frame that names none.

    Raises:
        InvalidEnvelope: The frame is too large, too deep, no UTF-8, no JSON or no envelope.
        UsageError: ``dialect`` is none that this package knows.
    """
    if isinstance(frame, str):
        try:
            frame = frame.encode()
        except UnicodeEncodeError:
            raise InvalidEnvelope("invalid_utf8", "the frame holds a lone surrogate") from None
    check_frame(frame)
    try:
        header = decode_header(frame)
    except UNREADABLE as error:
        raise unreadable(error, frame) from None
    return _read_envelope(header, frame, dialect, unnamed)


def decode_known(frame: bytes, dialect: str) -> Envelope | None:
    """As :func:`decode`, of a frame without other fields than those some dialect knows.

    Then all that is left to look at is the payload, which is empty if there is none. ``None``:
    there are other fields, or the frame is not an envelope, which :func:`decode` tells.
    """
    check_frame(frame)
    try:
        header = decode_known_header(frame)
    except UNREADABLE:
        return None
    return _read_envelope(header, frame, dialect, dialect)


def _read_envelope(header: Header, frame: bytes, dialect: str | None, unnamed: str) -> Envelope:
    """The envelope that a header stands for in its dialect."""
    said = header.protocol
    if dialect is None:
        reader = _READERS.get(said or unnamed)
        if reader is None:
            raise InvalidEnvelope(
                "invalid_envelope",
                f"the protocol {said!r} is none of {', '.join(DIALECTS)}",
                envelope_id=header.id,
            )
    else:
        reader = DIALECTS.get(dialect) or _named(dialect)
        if said != dialect and said and ALSO_READ.get(said) != dialect:
            raise InvalidEnvelope(
                "invalid_envelope",
                f"the envelope says protocol {said!r}, not {dialect!r}",
                envelope_id=header.id,
            )
    return reader.read(header, frame)


def encode(envelope: Envelope, dialect: str) -> bytes:
    """Encode an envelope; one that came in the same dialect leaves byte for byte as it came."""
    if envelope.frame and envelope.protocol == dialect:
        return envelope.frame
    return _named(dialect).write(envelope)


def _named(dialect: str) -> Dialect:
    found = DIALECTS.get(dialect)
    if found is None:
        raise UsageError(f"the dialect {dialect!r} is none of {', '.join(DIALECTS)}")
    return found
