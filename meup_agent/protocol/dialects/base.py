"""What dialects share: the lenient reading of a header, and the form that a dialect has here."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from meup_agent.errors import InvalidEnvelope, NotExpressible
from meup_agent.protocol import kinds
from meup_agent.protocol.envelope import EMPTY_PAYLOAD, Envelope, encode_json


class Dialect(Protocol):
    """One wire form of the envelope."""

    @property
    def name(self) -> str:
        """The dialect as ``protocol`` says it, for example ``meup/v0.1``."""
        ...

    def read(self, header: Header, frame: bytes) -> Envelope:
        """The envelope that a header of this dialect stands for.

        Raises:
            InvalidEnvelope: Something that the dialect needs is missing or has the wrong type.
        """
        ...

    def write(self, envelope: Envelope) -> bytes:
        """The envelope as a frame of this dialect, unknown fields included.

        Raises:
            NotExpressible: The dialect has no words for something in the envelope.
        """
        ...


Ids = list[str | None] | str | None
"""Names or ids as they are met: one, a list, a list with holes (PROTOCOL 1)."""


class Header(msgspec.Struct, frozen=True):
    """The header fields of every dialect, as leniently as they may be written."""

    kind: str
    payload: msgspec.Raw = msgspec.Raw(EMPTY_PAYLOAD)
    id: str | None = None
    sender: str | None = msgspec.field(name="from", default=None)
    protocol: str | None = None
    to: Ids = None
    camel_correlation: Ids = msgspec.field(name="correlationId", default=None)
    snake_correlation: Ids = msgspec.field(name="correlation_id", default=None)
    ts: str | None = None
    context: str | None = None


_decode_header = msgspec.json.Decoder(Header).decode


class _OnlyId(msgspec.Struct):
    id: str | None = None


def read_header(frame: bytes) -> Header:
    """Decode the header fields of a frame that :func:`~..limits.check_frame` has passed.

    Raises:
        InvalidEnvelope: It is no JSON, no object, has no kind, or a field has the wrong type.
    """
    try:
        return _decode_header(frame)
    except msgspec.ValidationError as error:
        raise InvalidEnvelope(
            "invalid_envelope", f"the frame is no envelope: {error}", envelope_id=_id_of(frame)
        ) from None
    # The library reports text that is cut or wrong with either of the three.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidEnvelope("invalid_json", f"the frame is no JSON: {error}") from None


def read_plain(header: Header, frame: bytes) -> Envelope:
    """Read a header whose kind and correlation stand in plain sight (all dialects but one)."""
    kind = kinds.canonical(header.kind)
    required = {"kind": kind, "from": header.sender, "id": header.id}
    missing = next((name for name, value in required.items() if not value), None)
    # Gateways are seen to send errors without sender or id (PROTOCOL 1).
    if missing is not None and kind != kinds.SYSTEM_ERROR:
        raise InvalidEnvelope(
            "invalid_envelope", f"the envelope has no {missing!r}", envelope_id=header.id or None
        )
    return Envelope(
        id=header.id or "",
        sender=header.sender or kinds.GATEWAY,
        kind=kind,
        to=_ids(header.to),
        correlation=_correlation(header),
        raw_payload=bytes(header.payload),
        ts=header.ts,
        context=header.context,
        protocol=header.protocol or "",
        frame=frame,
    )


def join_fields(known: dict[str, Any], envelope: Envelope, payload: bytes) -> bytes:
    """A frame of the known fields that have a value, then the unknown ones, then the payload."""
    fields = {name: value for name, value in known.items() if value is not None}
    for name, raw in envelope.extra:
        fields.setdefault(name, msgspec.Raw(raw))
    fields["payload"] = msgspec.Raw(payload)
    return encode_json(fields)


def one_correlation(envelope: Envelope, dialect: str) -> str | None:
    """The correlation id for a dialect that has room for one; ``None`` if there is none.

    Raises:
        NotExpressible: There are several.
    """
    if len(envelope.correlation) > 1:
        raise NotExpressible(
            f"{dialect} has one correlation id, and envelope {envelope.id} of kind "
            f"{envelope.kind!r} has {len(envelope.correlation)}"
        )
    return envelope.correlation[0] if envelope.correlation else None


def _correlation(header: Header) -> tuple[str, ...]:
    camel, snake = _ids(header.camel_correlation), _ids(header.snake_correlation)
    if not snake or not camel:
        return camel or snake
    return tuple(dict.fromkeys(camel + snake))


def _ids(value: Ids) -> tuple[str, ...]:
    if not value:
        return ()
    return (value,) if isinstance(value, str) else tuple(each for each in value if each)


def _id_of(frame: bytes) -> str | None:
    try:
        return msgspec.json.decode(frame, type=_OnlyId).id
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
