"""Fills in what a sender leaves out of an envelope (PROTOCOL 3).

What is missing, or null, or an empty text, is filled in; what is there and wrong stays wrong. An
envelope that lacks nothing is not looked at here: the decoder finds out first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

_NOTHING: Final = (b"null", b'""')

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


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
