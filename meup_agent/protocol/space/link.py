"""The link between the owner of a space and its delivery: frozen messages, in one order.

The delivery says of a :class:`Connection` that it came, sent a frame or left. The owner hands it
entries (:class:`Entry`) and the other messages that are listed here, each when everything that was
decided before it is kept. A delivery in the same process takes them in plain calls; nothing that
an owner hands on refers to what it has in memory, nor does a connection.
"""

from __future__ import annotations

import msgspec

from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.presence import JoinState
from meup_agent.protocol.space.subscriber import Place
from meup_agent.protocol.streams import StreamInfo


class Connection(msgspec.Struct, frozen=True, gc=False):
    """A connection in a space, by a number that no other one ever gets."""

    number: int
    participant: str
    place: Place
    dialect: str
    numbered: bool  # its frames have numbers, with which it can resume
    takes_frames: bool  # it takes frames of streams, and may send them
    # The number of the last envelope that it got before; ``None``: it does not resume.
    last_seen: int | None


class WelcomeMessage(msgspec.Struct, frozen=True):
    """The welcome of a connection, which gets from then on all that is delivered."""

    connection: int
    welcome: Envelope
    join_state: JoinState


class DirectMessage(msgspec.Struct, frozen=True):
    """An envelope of the gateway for some connections alone, if they are still here."""

    connections: tuple[int, ...]
    envelope: Envelope


class EchoMessage(msgspec.Struct, frozen=True):
    """An entry for one connection that sent its envelope again."""

    connection: int
    entry: Entry


class CloseMessage(msgspec.Struct, frozen=True):
    """The end of a connection."""

    connection: int
    code: int
    reason: str


class FrameMessage(msgspec.Struct, frozen=True):
    """A frame for the readers of a stream."""

    stream: StreamInfo
    frame: bytes | None  # ``None``: all readers lose it
    size: int


class StreamEndMessage(msgspec.Struct, frozen=True):
    """The end of a stream, whose readers are told first what they lost of it."""

    stream: str


LinkMessage = (
    Entry
    | WelcomeMessage
    | DirectMessage
    | EchoMessage
    | CloseMessage
    | FrameMessage
    | StreamEndMessage
)
