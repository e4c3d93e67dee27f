"""Base of the dialects: the interface, and the lenient reading of a header."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import EMPTY_PAYLOAD, Envelope, encode_leniently
from meup_agent.protocol.kinds import IN_MEMORY

Ids = tuple[str | None, ...] | str | None
"""Names or ids as they are met: one, a list, a list with holes (PROTOCOL 1)."""


class Dialect(msgspec.Struct, frozen=True):
    """One wire form of the envelope."""

    name: str  # as ``protocol`` says it, for example ``meup/v0.1``
    # The envelope that a header stands for; InvalidEnvelope if it cannot be one.
    read: Callable[[Header, bytes], Envelope]
    # The envelope as a frame, unknown fields included; NotExpressible if words are missing.
    write: Callable[[Envelope], bytes]


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


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _OnlyId(msgspec.Struct):
    id: str | None = None


def unreadable(error: Exception, frame: bytes) -> InvalidEnvelope:
    """Return the error for an unreadable header: no JSON, no object, no kind, a wrong type."""
    if isinstance(error, msgspec.ValidationError):
        return InvalidEnvelope(
            "invalid_envelope", f"the frame is no envelope: {error}", envelope_id=_id_of(frame)
        )
    return InvalidEnvelope("invalid_json", f"the frame is no JSON: {error}")


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
    fields = _decode_fields(frame)
    return encode_leniently({**fields, "correlation_id": correlation})


def _ids(value: Ids) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(each for each in value or () if each)


def _id_of(frame: bytes) -> str | None:
    try:
        return msgspec.json.decode(frame, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
