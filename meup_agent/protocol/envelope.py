"""The envelope: a decoded header around a payload that stays raw until it is read.

Most envelopes that a participant sees are not for it, and a gateway forwards without change, so
decoding the payload is left to its reader.
"""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from meup_agent.errors import NotExpressible
from meup_agent.protocol.numbers import fits_double, is_finite

_decode_json = msgspec.json.Decoder().decode
_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode_json = msgspec.json.Encoder().encode

EMPTY_PAYLOAD = b"{}"

HEADER_FIELDS = frozenset(
    {
        "protocol",
        "id",
        "ts",
        "from",
        "to",
        "kind",
        "correlationId",
        "correlation_id",
        "context",
        "payload",
    }
)
"""The header fields that some dialect knows."""


def encode_json(value: object) -> bytes:
    """JSON bytes of plain values (dict, list, str, numbers, bool, None) and msgspec structs.

    Raises:
        NotExpressible: Something has no JSON form that every reader takes: a lone surrogate, NaN,
            an infinity, an integer beyond the range of a double.
    """
    raw = encode_leniently(value)
    # NaN and the infinities come out as null, so where there is none, there were none of them.
    if b"null" in raw and not is_finite(value):
        raise NotExpressible(
            "a value cannot be written as JSON: it holds a number that is not finite (NaN or an "
            "infinity); put null or a text in its place"
        )
    if not fits_double(raw, value):
        raise NotExpressible(
            "a value cannot be written as JSON: it holds an integer beyond the range of a double "
            "(±1.797e308); send its digits as a text"
        )
    return raw


def encode_leniently(value: object) -> bytes:
    """As :func:`encode_json` of what others said: NaN becomes ``null``, and any integer passes."""
    try:
        return _encode_json(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotExpressible(f"a value cannot be written as JSON: {error}") from None


class Envelope(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message of a space.

    Attributes:
        id: The sender's id for it, unique for that sender. Empty where a gateway left it out.
        sender: Its sender (``from`` on the wire).
        kind: The kind with slashes, for example ``mcp/request``.
        to: The addressees; empty: all.
        correlation: Ids of the envelopes that it refers to.
        raw_payload: The payload as JSON bytes, exactly as it came.
        ts: The time of sending (RFC 3339), where the sender gave it.
        context: The id of the context it belongs to, where it has one.
        protocol: The dialect it came in; empty for one that has not been encoded yet.
        frame: The whole frame that it was decoded from; empty for one of our own making.
        added: Header fields that no dialect knows, of an envelope without a frame; read
            :attr:`extra` instead.
    """

    id: str
    sender: str
    kind: str
    to: tuple[str, ...] = ()
    correlation: tuple[str, ...] = ()
    raw_payload: bytes = EMPTY_PAYLOAD
    ts: str | None = None
    context: str | None = None
    protocol: str = ""
    frame: bytes = b""
    added: tuple[tuple[str, bytes], ...] = ()

    @property
    def payload(self) -> Any:
        """The payload as plain JSON values, decoded anew at each reading."""
        try:
            return _decode_json(self.raw_payload)
        except msgspec.ValidationError:
            # JSON has numbers that are too large for a float. Most readers take them for infinite;
            # refusing them only here would let a stranger's number stop the readers of a payload.
            return json.loads(self.raw_payload, parse_int=_int)

    @property
    def payload_object(self) -> dict[str, Any]:
        """The payload where it is a JSON object, otherwise an empty one."""
        payload = self.payload
        return cast("dict[str, Any]", payload) if isinstance(payload, dict) else {}

    @property
    def extra(self) -> tuple[tuple[str, bytes], ...]:
        """Header fields that no dialect knows, as pairs of name and raw JSON; they are kept."""
        if not self.frame:
            return self.added
        fields = _decode_fields(self.frame)
        if fields.keys() <= HEADER_FIELDS:  # as most are
            return ()
        return tuple(
            (name, bytes(raw)) for name, raw in fields.items() if name not in HEADER_FIELDS
        )

    def concerns(self, participant: str) -> bool:
        """True if it is addressed to the participant, or to all."""
        return not self.to or participant in self.to

    def replace(self, **changes: Any) -> Envelope:
        """A copy of our own making, with some fields changed; unknown fields are kept."""
        changes.setdefault("added", self.extra)
        return msgspec.structs.replace(self, frame=b"", **changes)


def _int(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # more digits than Python converts
        return float(digits)


def draft(
    kind: str,
    payload: object,
    *,
    id: str,
    sender: str,
    to: tuple[str, ...] = (),
    correlation: tuple[str, ...] = (),
    context: str | None = None,
    ts: str | None = None,
) -> Envelope:
    """An envelope of our own, not yet in any dialect; bytes as its payload are JSON already."""
    return Envelope(
        id=id,
        sender=sender,
        kind=kind,
        to=to,
        correlation=correlation,
        raw_payload=payload if isinstance(payload, bytes) else encode_json(payload),
        context=context,
        ts=ts,
    )
