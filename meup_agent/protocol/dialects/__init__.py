"""Dialects: the wire forms of an envelope (PROTOCOL 1).

Reading is lenient and the same for every dialect that writes its correlation and kinds in plain
sight; writing is strict and each dialect's own. A dialect is one record here, whose attributes say
what is particular to it: no other module names dialects.

A frame comes in and an :class:`~meup_agent.protocol.wire.envelope.Envelope` goes out, or the other
way.
A dialect never decides whether an envelope is allowed, and never changes a payload but as
``base`` says; one that came in a dialect leaves in it byte for byte. What a dialect has no
words for is ``NotExpressible``, and never written as something else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meup_agent.errors import InvalidEnvelope, UsageError
from meup_agent.protocol.dialects import mcpx_v01
from meup_agent.protocol.dialects.base import (
    PLAIN_DIALECTS,
    UNREADABLE,
    Dialect,
    Header,
    decode_header,
    decode_known_header,
    unreadable,
)
from meup_agent.protocol.wire.envelope import Envelope, check_frame

__all__ = [
    "ACKNOWLEDGING",
    "DEFAULT_DIALECT",
    "DIALECTS",
    "PUBLISHED",
    "STREAMING",
    "Dialect",
    "decode",
    "decode_known",
    "encode",
    "spoken",
]

DIALECTS: Final[dict[str, Dialect]] = {
    dialect.name: dialect for dialect in (mcpx_v01.DIALECT, *PLAIN_DIALECTS)
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
    return _read(header, frame, dialect, unnamed)


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
    return _read(header, frame, dialect, dialect)


def _read(header: Header, frame: bytes, dialect: str | None, unnamed: str) -> Envelope:
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
