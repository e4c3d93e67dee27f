"""Decoding of a frame from a member, the checks of its form, and what is filled in (PROTOCOL 3).

Of what a sender leaves out, all that is missing, or null, or an empty text, is filled in; what is
there and wrong stays wrong. An envelope that lacks nothing is not completed: the decoder finds out
first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode, decode_known
from meup_agent.protocol.dialects.base import decode_header
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.numbers import fits_double
from meup_agent.protocol.payloads import proposal_problem, request_problem

MAX_ID_CHARS: Final = 256
"""Characters of an id, a name or a kind: these are remembered, logged and sent back in errors,
and the longest in use (a prefix and a UUID) have some 60."""

MAX_NAMED: Final = 64
"""Ids in ``to`` or in the correlation: a message for more participants than this is one for all."""

_NOTHING: Final = (b"null", b'""')

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_all = msgspec.json.Decoder().decode

_NO_PAYLOAD: Final = object()


class InboundFrame(msgspec.Struct, frozen=True):
    """An envelope that a member sent, with all of it decoded."""

    envelope: Envelope  # the header, and the frame as it came
    payload: dict[str, Any]
    at: int  # the time at which it came, in microseconds since 1970 (UTC), read once for a frame

    @property
    def kind_as_sent(self) -> str:
        """The kind in the sender's own writing, for example ``mcp.request``; for errors."""
        return decode_header(self.envelope.frame).kind


def decode_inbound(frame: bytes, dialect: str, at: int) -> InboundFrame:
    """Decode a member's frame and check its form.

    All of it is decoded, although only the header is needed: what is delivered must be readable at
    every receiver, down to numbers that no float holds, and the header's decoder does not look at
    what it skips. That is the payload alone, unless there are fields that no dialect knows.

    Raises:
        InvalidEnvelope: It is no envelope of that dialect, or lacks what every envelope has.
    """
    envelope = decode_known(frame, dialect)
    payload: Any
    if envelope is None:
        envelope = decode(frame, dialect)
        fields = _values(frame, envelope)
        payload = fields.get("payload", _NO_PAYLOAD)
    else:
        raw = envelope.raw_payload
        payload = _values(raw, envelope) if raw else _NO_PAYLOAD
    problem = _problem(envelope, payload)
    if problem is None and envelope.kind == kinds.MCP_PROPOSAL:
        problem = proposal_problem(payload, envelope.raw_payload) or None
    elif problem is None and envelope.kind == kinds.MCP_REQUEST:
        problem = request_problem(payload) or None
    if problem is not None:
        raise InvalidEnvelope("invalid_envelope", problem, envelope_id=usable_id(envelope.id))
    return InboundFrame(envelope, payload, at)


def _values(raw: bytes, envelope: Envelope) -> Any:
    """The JSON values of a part of a frame; InvalidEnvelope if some reader would not take it."""
    try:
        values = _decode_all(raw)
        if not fits_double(raw, values):
            raise ValueError("an integer is beyond the range of a double")
    except (msgspec.DecodeError, ValueError) as error:
        raise InvalidEnvelope(
            "invalid_json",
            f"the frame is no JSON that every reader understands: {error}",
            envelope_id=usable_id(envelope.id),
        ) from None
    return values


def is_name(text: str) -> bool:
    """True for a text that can be an id or a kind: not empty, not too long, all printable."""
    return 0 < len(text) <= MAX_ID_CHARS and text.isprintable()


def usable_id(envelope_id: str | None) -> str | None:
    """The id of a refused envelope, if an answer can refer to it."""
    return envelope_id if envelope_id and is_name(envelope_id) else None


def _problem(envelope: Envelope, payload: object) -> str | None:
    """The first problem of an envelope, in one sentence; ``None`` if there is none."""
    if not envelope.protocol:
        return "the envelope has no 'protocol'"
    if not isinstance(payload, dict):
        if payload is _NO_PAYLOAD:
            return "the envelope has no 'payload'"
        return "the envelope's 'payload' is not an object"
    if not is_name(envelope.id):
        return _unfit("id")
    if envelope.kind not in kinds.KINDS and not is_name(envelope.kind):
        return _unfit("kind")
    for field, names in (("to", envelope.to), ("correlation", envelope.correlation)):
        if len(names) > MAX_NAMED:
            return f"the envelope's {field!r} names {len(names)}; at most {MAX_NAMED} are taken"
        for name in names:
            if not is_name(name):
                return _unfit(field)
    return None


def _unfit(field: str) -> str:
    return (
        f"the envelope's {field!r} must hold 1 to {MAX_ID_CHARS} printable characters for each name"
    )


def with_field(frame: bytes, name: str, value: object) -> bytes:
    """A frame with another value of one field, and all others as they are."""
    return msgspec.json.encode({**_decode_fields(frame), name: value})


def complete(frame: bytes, defaults: Mapping[str, object]) -> bytes | None:
    """A frame with the fields that it lacks; ``None`` if it lacks none of them, or is no object."""
    try:
        given = _decode_fields(frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return complete_fields(frame, given, defaults)


def complete_fields(
    frame: bytes, given: Mapping[str, msgspec.Raw], defaults: Mapping[str, object]
) -> bytes | None:
    """As :func:`complete`, of a frame whose fields are known."""
    lacking: dict[str, Any] = {
        name: value for name, value in defaults.items() if _is_left_out(name, given)
    }
    if not lacking:
        return None
    kept = {name: value for name, value in given.items() if name not in lacking}
    if len(kept) == len(given) and given:
        # Unchanged, byte for byte.
        return msgspec.json.encode(lacking)[:-1] + b"," + frame.lstrip()[1:]
    return msgspec.json.encode({**lacking, **kept})


def _is_left_out(name: str, given: Mapping[str, msgspec.Raw]) -> bool:
    if name not in given:
        return True
    value = bytes(given[name]).strip()
    # An empty text is no payload, but none that was left out.
    return value in _NOTHING and not (name == "payload" and value != b"null")
