"""Base of the dialects: the lenient reading of a header, and payloads translated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple, cast

import msgspec

from meup_agent.errors import InvalidEnvelope, NotExpressible
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import (
    EMPTY_PAYLOAD,
    Envelope,
    decode_members,
    encode_leniently,
)
from meup_agent.protocol.wire.kinds import IN_MEMORY
from meup_agent.protocol.wire.membership import Guarantees

# --- base of the dialects ---

Ids = tuple[str | None, ...] | str | None
"""Names or ids as they are met: one, a list, a list with holes (PROTOCOL 1)."""


class Dialect(msgspec.Struct, frozen=True):
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


class Header(msgspec.Struct, frozen=True, gc=False):
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


class KnownHeader(Header, frozen=True, gc=False, forbid_unknown_fields=True):
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
        frame = _with_list(frame, correlation)
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


class Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


def _with_list(frame: bytes, correlation: tuple[str, ...]) -> bytes:
    return encode_leniently({**decode_members(frame), "correlation_id": correlation})


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

DECISIONS: Final = frozenset({kinds.MCP_WITHDRAW, kinds.MCP_REJECT})
"""Kinds that name their proposal in the payload where a dialect has no correlation field."""

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
    if not isinstance(capability, dict):
        return False
    fields = cast("Members", capability)
    return fields.get("kind") == kinds.MCP_RESPONSE and "payload" not in fields


def _with_response(members: Members) -> Members:
    """A presence whose participant may answer."""
    try:
        participant = _decode_participant(members["participant"])
    except (KeyError, msgspec.DecodeError):
        return members
    said: object = participant.get("capabilities")
    if not isinstance(said, list):
        return members  # one that leaves
    listed = cast("list[object]", said)
    announced = announce_response(listed)
    if announced is listed:
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
