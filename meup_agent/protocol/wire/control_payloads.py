"""Payloads of participant control: pause, resume, status, forget, compact, clear, shutdown.

The payloads are those of the specification of ``mew/v0.4``; one reader serves the gateway, which
holds a participant to its pause, and the agents that obey.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Literal

import msgspec

from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import (
    JsonObject,
    PayloadReader,
    as_list,
    as_object,
    as_text,
    number,
)

PAUSE: Final = "participant/pause"
RESUME: Final = "participant/resume"
REQUEST_STATUS: Final = "participant/request-status"
STATUS: Final = "participant/status"
FORGET: Final = "participant/forget"
COMPACT: Final = "participant/compact"
COMPACT_DONE: Final = "participant/compact-done"
CLEAR: Final = "participant/clear"
RESTART: Final = "participant/restart"
SHUTDOWN: Final = "participant/shutdown"

HELD_KINDS: Final = frozenset(
    {
        kinds.MCP_REQUEST,
        kinds.MCP_PROPOSAL,
        kinds.CHAT,
        kinds.STREAM_REQUEST,
        kinds.REASONING_START,
        kinds.YES_GIVE,
    }
)
"""The kinds that begin something, which a participant that is paused may not send. A notification
begins nothing."""

PAUSED_KEY: Final = "dev.meup/paused"
"""In ``you`` of a welcome: the pause that holds for its reader, with the seconds that are left."""

MAX_PAUSE_SECONDS: Final = 30 * 24 * 3600.0
"""Longest time of a pause; one without a time lasts until it is lifted."""

MAX_FIELDS: Final = 64
"""Fields that a request of the status may name."""

Direction = Literal["oldest", "newest"]


class Pause(msgspec.Struct, frozen=True):
    """A participant is to begin nothing new until it is resumed, or a time is over.

    Attributes:
        id: The id of the envelope that pauses; a resume refers to it.
        by: The participant that pauses.
        reason: Its reason.
        seconds: Seconds until the pause ends by itself; ``None``: it lasts until a resume.
    """

    id: str
    by: str
    reason: str = ""
    seconds: float | None = None


class Resumption(msgspec.Struct, frozen=True):
    """The end of a pause.

    Attributes:
        by: The participant that lifted it; our own name where its time was over.
        reason: The reason.
        pauses: Ids of the pauses that it lifts; empty: any.
    """

    by: str
    reason: str = ""
    pauses: tuple[str, ...] = ()


class StatusRequest(msgspec.Struct, frozen=True):
    """A participant asks for our status.

    Attributes:
        by: The participant that asks.
        fields: The fields that it wants; empty: all.
    """

    by: str
    fields: tuple[str, ...] = ()


class Forget(msgspec.Struct, frozen=True):
    """We are to drop a part of our context.

    Attributes:
        by: The participant that asks for it.
        direction: ``oldest`` or ``newest``.
        entries: Entries to drop; ``None``: it leaves that to us.
        reason: Its reason.
    """

    by: str
    direction: Direction = "oldest"
    entries: int | None = None
    reason: str = ""


class Compact(msgspec.Struct, frozen=True):
    """We are to shorten our context.

    Attributes:
        by: The participant that asks for it.
        target_tokens: Tokens that may remain; ``None``: it leaves that to us.
        reason: Its reason.
    """

    by: str
    target_tokens: int | None = None
    reason: str = ""


class _Order(msgspec.Struct, frozen=True):
    by: str
    reason: str = ""


class Clear(_Order, frozen=True):
    """We are to drop all of our context. ``by`` asks for it, with a ``reason``."""


class Restart(_Order, frozen=True):
    """We are to begin anew; what ran has ended. ``by`` asks for it, with a ``reason``."""


class Shutdown(_Order, frozen=True):
    """We are to finish what runs, and to leave. ``by`` asks for it, with a ``reason``."""


class ParticipantStatus(msgspec.Struct, frozen=True):
    """The status of a participant, by its own word.

    Attributes:
        participant: The participant.
        status: Its state in a word: ``active``, ``paused`` …; empty where it says none.
        fields: All that it says, the same included.
        about: The id of the envelope that it answers.
    """

    participant: str
    status: str
    fields: JsonObject
    about: str | None = None


class CompactDone(msgspec.Struct, frozen=True):
    """The end of a compaction.

    Attributes:
        participant: The participant that has compacted its context.
        skipped: There was nothing to compact.
        fields: All that it says.
        about: The id of the request for it.
    """

    participant: str
    skipped: bool
    fields: JsonObject
    about: str | None = None


class Acknowledgement(msgspec.Struct, frozen=True):
    """The word of a participant that it has got a chat message.

    Attributes:
        chat_id: The message.
        by: The participant.
        status: What it makes of it: ``received``, ``read``, ``processing`` …
    """

    chat_id: str
    by: str
    status: str = ""


def read_acknowledgement(envelope: Envelope) -> Acknowledgement:
    """Read a ``chat/acknowledge``, whatever stands in it."""
    said = as_text(envelope.payload_object.get("status"))
    return Acknowledgement(_first(envelope.correlation) or "", envelope.sender, said)


Control = (
    Pause
    | Resumption
    | StatusRequest
    | Forget
    | Compact
    | Clear
    | Restart
    | Shutdown
    | ParticipantStatus
    | CompactDone
)


def read_control(envelope: Envelope, payload: JsonObject) -> Control:
    """Read an envelope of participant control; InvalidEnvelope where its payload cannot be meant.

    Existing terminals leave the payload out, or send more than the specification has.
    """
    return _READERS[envelope.kind](PayloadReader(envelope, payload))


def _pause(read: PayloadReader) -> Pause:
    said = read.payload.get("timeout_seconds")
    seconds = number(said)
    if said is not None and (seconds is None or not 0 < seconds <= MAX_PAUSE_SECONDS):
        raise read.problem(
            f"its 'timeout_seconds' must be a number above 0, and at most {MAX_PAUSE_SECONDS:g}"
        )
    reason = read.text("reason")
    return Pause(read.envelope.id, read.by, reason, seconds)


def _resumption(read: PayloadReader) -> Resumption:
    return Resumption(read.by, read.text("reason"), read.envelope.correlation)


def _status_request(read: PayloadReader) -> StatusRequest:
    said: object = read.payload.get("fields", [])
    listed = as_list(said)
    fields = [each for each in listed if isinstance(each, str)]
    if not isinstance(said, list) or len(fields) != len(listed) or len(fields) > MAX_FIELDS:
        raise read.problem(f"its 'fields' must be a list of at most {MAX_FIELDS} names")
    return StatusRequest(read.by, tuple(fields))


def _forget(read: PayloadReader) -> Forget:
    direction = read.payload.get("direction", "oldest")
    if direction not in ("oldest", "newest"):
        raise read.problem("its 'direction' must be 'oldest' or 'newest'")
    return Forget(read.by, direction, read.count("entries"), read.text("reason"))


def _compact(read: PayloadReader) -> Compact:
    return Compact(read.by, read.count("target_tokens"), read.text("reason"))


def _order(
    form: type[Clear | Restart | Shutdown], read: PayloadReader
) -> Clear | Restart | Shutdown:
    return form(read.by, read.text("reason"))


def _status(read: PayloadReader) -> ParticipantStatus:
    said = as_text(read.payload.get("status"))
    return ParticipantStatus(read.by, said, read.payload, _first(read.envelope.correlation))


def _compact_done(read: PayloadReader) -> CompactDone:
    skipped = read.payload.get("skipped") is True
    return CompactDone(read.by, skipped, read.payload, _first(read.envelope.correlation))


_READERS: Final[dict[str, Callable[[PayloadReader], Control]]] = {
    PAUSE: _pause,
    RESUME: _resumption,
    REQUEST_STATUS: _status_request,
    STATUS: _status,
    FORGET: _forget,
    COMPACT: _compact,
    COMPACT_DONE: _compact_done,
    CLEAR: partial(_order, Clear),
    RESTART: partial(_order, Restart),
    SHUTDOWN: partial(_order, Shutdown),
}
CONTROL_KINDS: Final = frozenset(_READERS)
"""The kinds of participant control."""

ANSWERS: Final = frozenset({STATUS, COMPACT_DONE, RESUME})
"""The kinds by which a participant answers what it was asked."""

ASKED: Final = CONTROL_KINDS - ANSWERS
"""The kinds that ask a participant for something, which it answers."""


def build_pause(pause: Pause, seconds_left: float | None) -> JsonObject:
    """The value of :data:`PAUSED_KEY`."""
    left = {} if seconds_left is None else {"seconds_left": seconds_left}
    return {"id": pause.id, "by": pause.by, "reason": pause.reason, **left}


def read_pause(you: JsonObject) -> Pause | None:
    """The pause that a welcome tells; ``None``: none holds."""
    said = as_object(you.get(PAUSED_KEY))
    name, by, reason = said.get("id"), said.get("by"), said.get("reason", "")
    if not (isinstance(name, str) and isinstance(by, str) and isinstance(reason, str)):
        return None
    return Pause(name, by, reason, number(said.get("seconds_left")))


def outlasts(held: tuple[str, float | None], new: tuple[str, float | None]) -> bool:
    """True if a pause in force (by whom, until when) goes on when another one comes.

    A participant changes its own; of two participants' pauses the one that ends later counts.
    """
    (by, until), (newer, new_until) = held, new
    if by == newer:
        return False
    return until is None or (new_until is not None and until > new_until)


def _first(correlation: tuple[str, ...]) -> str | None:
    return correlation[0] if correlation else None
