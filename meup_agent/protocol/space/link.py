"""The link between the owner of a space and its delivery: frozen messages, in one order.

The delivery says of a :class:`Connection` that it came, sent a frame or left. The owner hands it
entries (:class:`Entry`) and the other messages that are listed here, each when everything that was
decided before it is kept. A delivery in the same process takes them in plain calls; nothing that
an owner hands on refers to what it has in memory, nor does a connection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

from meup_agent.protocol.space.journal import Entry
from meup_agent.protocol.space.state.streams import JoinState
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct
from meup_agent.protocol.wire.streams import StreamInfo

# --- subscribers of a space ---
# Queues to readers, and the form in which these take frames.


class Place(Enum):
    """The part of a connection in its space (PROTOCOL 3)."""

    ANSWERING = "answering"
    """It answers for its participant, which has one such connection."""
    BESIDE = "beside"
    """It takes part as its participant, and answers what belongs to its own exchanges."""
    OBSERVING = "observing"
    """It hears, and sends nothing."""


class FrameFormat(NamedTuple):
    """The form in which a subscriber takes frames; one frame is made for all of the same form."""

    dialect: str
    numbered: bool = False  # each frame has its number as ``seq`` (PROTOCOL 6)
    # Of what it sent itself it gets an acknowledgement (PROTOCOL 6).
    acked: bool = False
    # Makes of a frame what is handed to :meth:`Subscriber.deliver`.
    pack: Callable[[bytes], bytes] = bytes
    # The same of frames of streams; ``None``: it takes none of them.
    pack_frame: Callable[[bytes], bytes] | None = None
    # Makes of an entry itself what is handed to :meth:`Subscriber.deliver`, or ``None`` of one that
    # it does not take; no frame is made then.
    pack_entry: Callable[[Entry], object] | None = None


class Subscriber(Protocol):
    """A queue to a reader; one with a ``participant`` that takes part is found by name."""

    @property
    def form(self) -> FrameFormat: ...

    def deliver(self, packed: Any) -> None:
        """Queue what its form made, once for all: a frame, mostly.

        Never raises, and never calls the space.
        """

    def close(self, code: int, reason: str) -> None:
        """End: nothing more is delivered. Never raises, and never calls the space."""

    def ready(self, then: Callable[[], None]) -> None:
        """Call when most of what was delivered is on its way; not at all if it has ended."""


class UnqueuedSubscriber:
    """Takes what is delivered at once, and never resumes."""

    last_seen = None

    def ready(self, then: Callable[[], None]) -> None:
        """Go on at once."""
        then()


class FrameReader(Subscriber, Protocol):
    """A subscriber that takes frames of streams: its form has a ``pack_frame``."""

    @property
    def paused(self) -> bool:
        """True while its connection takes no more, and what is delivered waits in its queue."""
        ...


@dataclass(slots=True, eq=False)
class ResumeProgress:
    """Progress of a subscriber that still reads what it missed."""

    subscriber: Subscriber
    seen: int  # the number of the last entry that it has
    # It was told that some of what it missed is not kept any more, and takes what there is.
    gap: bool
    until: int = 0  # the last number of the page that it waits for
    held: list[bytes] = field(default_factory=list[bytes])  # for it alone, after what it missed
    held_bytes: int = 0
    stopped: bool = False


# --- link ---


class Connection(FrozenStruct, gc=False):
    """A connection in a space, by a number that no other one ever gets."""

    number: int
    participant: str
    place: Place
    dialect: str
    numbered: bool  # its frames have numbers, with which it can resume
    acked: bool  # of what it sent it gets an acknowledgement
    takes_frames: bool  # it takes frames of streams, and may send them
    # The number of the last envelope that it got before; ``None``: it does not resume.
    last_seen: int | None
    is_local: bool = False  # it is a session in the gateway's own process


class WelcomeMessage(FrozenStruct):
    """The welcome of a connection, which gets from then on all that is delivered."""

    connection: int
    welcome: Envelope
    join_state: JoinState


class AcceptedMessage(FrozenStruct):
    """An entry that has an acknowledgement for the connection that sent it."""

    connection: int
    entry: Entry


class DirectMessage(FrozenStruct):
    """An envelope of the gateway for some connections alone, if they are still here."""

    connections: tuple[int, ...]
    envelope: Envelope


class EchoMessage(FrozenStruct):
    """An entry for one connection that sent its envelope again."""

    connection: int
    entry: Entry


class CloseMessage(FrozenStruct):
    """The end of a connection."""

    connection: int
    code: int
    reason: str


class FrameMessage(FrozenStruct):
    """A frame for the readers of a stream."""

    stream: StreamInfo
    frame: bytes | None  # ``None``: all readers lose it
    size: int


class StreamEndMessage(FrozenStruct):
    """The end of a stream, whose readers are told first what they lost of it."""

    stream: str


LinkMessage = (
    Entry
    | AcceptedMessage
    | WelcomeMessage
    | DirectMessage
    | EchoMessage
    | CloseMessage
    | FrameMessage
    | StreamEndMessage
)
