"""Resuming: the words of a gateway and its member about what was missed (PROTOCOL 6)."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

from meup_agent.causes import read_reason
from meup_agent.protocol.envelope import Envelope, encode_json
from meup_agent.protocol.payloads import as_object
from meup_agent.protocol.timestamps import read_moment, rfc3339

ARRIVED: Final = "dev.meup/arrived"
"""In a presence: the newcomer reads what it missed by itself. ``new``: it was not here before,
``resumed``: it gets everything, ``gap``: some of it is not known any more. Without this key it may
have missed anything, and the others say again what must not be missed (PROTOCOL 4.14)."""

REPLAYED: Final = "dev.meup/replayed"
"""Beside ``seq`` of an open proposal that was accepted before its reader came, and of a request
that is out to fulfill it, or was cancelled: an object. Its ``in_progress`` says whether there is
one that is out, its ``expires_at`` a deadline that is not the proposal's own any more, its
``rejected`` why its reader has rejected it, and its ``cancelled``, in a request, that this was
cancelled."""

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


class ReplayMark(NamedTuple):
    """The gateway's word on an open proposal from before its reader came."""

    in_progress: bool = False  # a request is out to fulfill it
    # Its deadline in microseconds since 1970, where the proposal does not say it itself.
    expires_at: int | None = None
    # The time at which its proposer left, in microseconds since 1970, while that is away.
    proposer_left: int | None = None
    # Of a request: it was cancelled, and a result that still comes fulfills all the same.
    cancelled: bool = False
    # The reason for which its reader has decided to reject it, in another process; empty: it has
    # not.
    rejected: str = ""


NOT_REPLAYED: Final = ReplayMark()


def replayed(frame: bytes, seq: int, mark: ReplayMark) -> bytes:
    """A frame from before its reader came, with the number of its reader's welcome."""
    said = b"true" if mark.in_progress else b"false"
    if mark.expires_at is not None:
        said += b',"expires_at":"%b"' % rfc3339(mark.expires_at).encode()
    if mark.proposer_left is not None:
        said += b',"proposer_left":"%b"' % rfc3339(mark.proposer_left).encode()
    if mark.cancelled:
        said += b',"cancelled":true'
    if mark.rejected:
        said += b',"rejected":%b' % encode_json(mark.rejected)
    marked = b'%b,"%b":{"in_progress":%b}}' % (frame.rstrip()[:-1], REPLAYED.encode(), said)
    return numbered(marked, seq)


def read_replayed(extra: tuple[tuple[str, bytes], ...]) -> ReplayMark | None:
    """The mark of a replayed envelope; ``None``: it is no replay.

    A sender can write this header field, too: it counts only in an envelope whose number shows that
    it is not new.
    """
    for name, raw in extra:
        if name == REPLAYED:
            said = as_object(_decode_json(raw))
            in_progress = said.get("in_progress") is not False
            return ReplayMark(
                in_progress,
                read_moment(said.get("expires_at")),
                read_moment(said.get("proposer_left")),
                said.get("cancelled") is True,
                read_reason(said["rejected"]) if "rejected" in said else "",
            )
    return None


def _number(seq: object) -> int | None:
    return seq if type(seq) is int and seq >= 0 else None
