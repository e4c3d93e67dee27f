"""Resuming: the words of a gateway and its member about what was missed (PROTOCOL 6)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.protocol.envelope import Envelope

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


def read_missed(welcome: dict[str, Any]) -> Missed | None:
    """A welcome's word on what the member missed; ``None`` if it has none."""
    until = welcome.get("until")
    if not isinstance(until, int) or isinstance(until, bool):
        return None
    return Missed(welcome.get("resumed") is True, until, welcome.get("gap") is True)


def read_seq(frame: bytes) -> int | None:
    """The number of an envelope whose frame has been decoded before; ``None`` if it has none."""
    at = frame.rfind(_LAST_FIELD, _FROM_THE_END)
    if at >= 0:
        try:
            return _number(_decode_json(frame[at + _AT : -1]))
        except msgspec.DecodeError:
            pass  # it is not the last field
    return _number(_decode_numbered(frame).seq)


def numbered(frame: bytes, seq: int) -> bytes:
    """A frame with ``seq`` as its last field, which counts if the sender wrote one, too."""
    return b'%b,"seq":%d}' % (frame.rstrip()[:-1], seq)


def add_until(welcome: Envelope, until: int) -> Envelope:
    """A welcome with the last number of what its reader missed, known when it is sent."""
    raw = b'%b,"until":%d}' % (welcome.raw_payload[:-1], until)
    return msgspec.structs.replace(welcome, raw_payload=raw)


def _number(seq: object) -> int | None:
    return seq if type(seq) is int and seq >= 0 else None
