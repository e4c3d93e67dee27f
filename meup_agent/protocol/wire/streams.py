"""Streams on the wire: frames of data, and the payloads that open, share and close them.

A frame is ``#<stream id>#<data>``, text or binary, and no envelope: no JSON begins so. All else
about a stream is said in envelopes of the kinds ``stream/*`` (PROTOCOL 8). One reader serves the
gateway, which carries them out, and the participants, which are told of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeGuard, cast

import msgspec

from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope, FrozenStruct, is_list
from meup_agent.protocol.wire.payloads import (
    JsonObject,
    PayloadReader,
    as_object,
    as_text,
    is_name,
    one_or_more,
)

MARK: Final = b"#"
"""The first byte of a frame of a stream, and the one behind the stream's id."""

MAX_STREAM_ID_BYTES: Final = 128
"""Bytes of a stream's id: it stands in every frame, and those of gateways have some 30."""

MAX_TARGETS: Final = 64
"""Targets of a stream, as many as an envelope may name; a stream for more is one for all."""

INVALID_FRAME: Final = "invalid_stream_frame"
TARGET_NOT_FOUND: Final = "target_not_found"
STREAM_NOT_FOUND: Final = "stream_not_found"
UNAUTHORIZED_WRITE: Final = "unauthorized_stream_write"
UNAUTHORIZED: Final = "unauthorized"
PARTICIPANT_NOT_FOUND: Final = "participant_not_found"
INVALID_OPERATION: Final = "invalid_operation"

COMPLETE: Final = "complete"
"""The reason of a stream that its owner ended, having said all."""
CANCELLED: Final = "cancelled"
OWNER_LEFT: Final = "owner_left"
"""The reason of the gateway for a stream whose owner went away and did not come back in time."""
REVOKED: Final = "revoked"
"""The reason of the gateway for a stream whose owner may request it no longer, or was removed."""
WRITER_LEFT: Final = "writer_left"
"""The reason of the gateway for taking a writer's right, who is not its owner and has left."""

ABOUT: Final = "dev.meup/about"
"""Beside the fields of a request: the ids of the messages that the stream is about."""

ORIGIN: Final = "dev.meup/origin"
"""Beside them in a welcome: the request and the opening, by which a close may name the stream."""

STREAMS_KEY: Final = "dev.meup/streams"
"""The key of a welcome for what its gateway does with streams; readers may leave it."""

_ACTIVE: Final = "active_streams"
_OF_GATEWAY: Final = frozenset(
    {"stream_id", "owner", "authorized_writers", "created", ABOUT, ORIGIN}
)
_OF_OPEN: Final = frozenset({*_OF_GATEWAY, "encoding"})


class StreamFrame(FrozenStruct, gc=False):
    """One frame of a stream."""

    stream: str
    data: bytes


def is_stream_frame(frame: bytes) -> bool:
    """True for a frame that can be no envelope, since it begins as those of streams do."""
    return frame[:1] == MARK


def read_frame(frame: bytes | str) -> StreamFrame | None:
    """Read a frame of a stream; ``None``: it is none.

    Raises:
        InvalidEnvelope: It begins as one, and has no id, or none that can be one.
    """
    raw = frame.encode(errors="surrogatepass") if isinstance(frame, str) else frame
    if raw[:1] != MARK:
        return None
    # No further than an id can reach: a stranger's may be as long as a message.
    end = raw.find(MARK, 1, MAX_STREAM_ID_BYTES + 2)
    if end > 1:
        try:
            stream = raw[1:end].decode()
        except UnicodeDecodeError:
            stream = ""
        if stream.isprintable() and stream:
            return StreamFrame(stream, raw[end + 1 :])
    raise InvalidEnvelope(
        INVALID_FRAME,
        "a frame of a stream is '#', the stream's id of 1 to"
        f" {MAX_STREAM_ID_BYTES} bytes of printable text, '#', and the data",
    )


def write_frame(stream: str, data: bytes) -> bytes:
    """A frame of a stream, as it stands on the wire."""
    return b"#%b#%b" % (stream.encode(), data)


class StreamOrigin(FrozenStruct):
    """The envelopes that a stream comes from.

    Attributes:
        by: The participant that requested it; another may own it now.
        request: The id of its ``stream/request``.
        opened: The id of its ``stream/open``; empty where it is not known.
    """

    by: str
    request: str
    opened: str = ""

    def is_named(self, by: str, about: tuple[str, ...]) -> bool:
        """Tell whether a participant means it by a correlation; a request's id is its sender's."""
        return (self.by == by and self.request in about) or self.opened in about


class StreamInfo(FrozenStruct):
    """A stream that is open, as ``stream/open`` and the welcome's ``active_streams`` say it.

    Attributes:
        id: Names it in its frames; unique in its space, and never given twice.
        owner: The participant that requested it, or to whom it was transferred since.
        writers: The participants that may write it, its owner among them.
        targets: The participants that get its frames; empty: all.
        created: The time of its opening (RFC 3339), by the gateway's clock.
        fields: The fields of its request, untouched: ``direction``, ``format``, ``metadata``, …
        about: The ids of the messages that it is about, such as the request that it answers.
        origin: Its request and its opening; ``None`` where a gateway does not tell them.
    """

    id: str
    owner: str
    writers: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    created: str = ""
    fields: JsonObject = {}  # noqa: RUF012  # a struct copies it
    about: tuple[str, ...] = ()
    origin: StreamOrigin | None = None

    def to_wire(self) -> JsonObject:
        """The stream as the welcome lists it; what its request says cannot pose as the rest."""
        said: JsonObject = {
            **self.fields,
            "stream_id": self.id,
            "owner": self.owner,
            "authorized_writers": list(self.writers),
            "created": self.created,
        }
        if self.about:
            said[ABOUT] = list(self.about)
        else:
            said.pop(ABOUT, None)
        said.pop(ORIGIN, None)
        if self.origin is not None:
            said[ORIGIN] = msgspec.structs.asdict(self.origin)
        return said


def read_stream(said: object) -> StreamInfo | None:
    """Read a stream of ``active_streams``, or the payload of ``stream/open``; ``None``: none."""
    item = as_object(said)
    stream, owner = item.get("stream_id"), item.get("owner")
    if not is_stream_id(stream) or not is_name(owner):
        return None
    fields = {name: value for name, value in item.items() if name not in _OF_OPEN}
    return StreamInfo(
        id=stream,
        owner=owner,
        # One that says none has its owner alone (mew/v0.4 section 3.10.8).
        writers=_names(item.get("authorized_writers")) or (owner,),
        targets=_names(item.get("target")),
        created=as_text(item.get("created")),
        fields=fields,
        about=_names(item.get(ABOUT)),
        origin=_read_origin(item.get(ORIGIN)),
    )


def _read_origin(said: object) -> StreamOrigin | None:
    try:
        return msgspec.convert(said, StreamOrigin)
    except msgspec.ValidationError:
        return None


def read_active_streams(welcome: JsonObject) -> tuple[StreamInfo, ...] | None:
    """The open streams that a welcome lists; ``None``: it does not say which there are."""
    listed: object = welcome.get(_ACTIVE)
    if not is_list(listed):
        return None
    return tuple(stream for stream in map(read_stream, listed) if stream is not None)


class StreamRequest(FrozenStruct):
    """A ``stream/request``: its sender wants a stream of its own to write."""

    id: str  # the envelope's, which the answer names
    by: str
    targets: tuple[str, ...] = ()  # the participants that are to get its frames; empty: all
    fields: JsonObject = {}  # noqa: RUF012  # a struct copies it
    about: tuple[str, ...] = ()  # the messages that motivated it: the envelope's correlation


class StreamOpen(FrozenStruct):
    """A ``stream/open``: the gateway's answer to a request, which every member hears."""

    stream: StreamInfo
    request: str  # the id of the request


class StreamClose(FrozenStruct):
    """A ``stream/close``, of a participant or the gateway."""

    by: str
    stream: str  # empty where only the correlation tells which
    reason: str = ""
    # Ids of the ``stream/request`` or ``stream/open`` of the stream.
    about: tuple[str, ...] = ()


class WriterOrder(FrozenStruct):
    """An owner's word on who may write its stream, or owns it from now on.

    A ``stream/grant-write``, ``stream/revoke-write`` or ``stream/transfer-ownership``.
    """

    stream: str
    participant: str
    reason: str = ""


class WriterChange(FrozenStruct):
    """The gateway's word on the same, with all that may write now.

    A ``stream/write-granted``, ``stream/write-revoked`` or ``stream/ownership-transferred``.
    """

    stream: str
    writers: tuple[str, ...]
    reason: str
    owner: str = ""  # the new one; empty: it is as before


class StreamLost(FrozenStruct):
    """A ``stream/lost`` of the gateway: so many frames its reader was too slow for."""

    stream: str
    frames: int
    bytes: int  # of their data


StreamMessage = StreamRequest | StreamOpen | StreamClose | WriterOrder | WriterChange | StreamLost
"""An envelope about a stream, read."""


# --- reading ----------------------------------------------------------------------------------


def read_message(envelope: Envelope, payload: JsonObject) -> StreamMessage:
    """Read an envelope of one of :data:`MESSAGE_KINDS`.

    Raises:
        InvalidEnvelope: It lacks something, or nothing in it tells which stream it is about.
    """
    return _READERS[envelope.kind](_StreamPayloadReader(envelope, payload))


def _request(read: _StreamPayloadReader) -> StreamRequest:
    fields = {name: value for name, value in read.payload.items() if name not in _OF_OPEN}
    about = read.envelope.correlation
    return StreamRequest(read.envelope.id, read.by, read.targets(), fields, about)


def _open(read: _StreamPayloadReader) -> StreamOpen:
    # Existing gateways are seen to leave the owner out: it is for whom they answer.
    owner = {"owner": "".join(read.envelope.to[:1])}
    stream = read_stream({**owner, **read.payload})
    if stream is None or not read.envelope.correlation:
        raise read.problem("it must name its stream, the stream's owner and its request")
    return StreamOpen(stream, read.envelope.correlation[0])


def _close(read: _StreamPayloadReader) -> StreamClose:
    about = read.envelope.correlation
    named = read.stream() if "stream_id" in read.payload or not about else ""
    return StreamClose(read.by, named, read.text("reason"), about)


def _writer_order(field: str, read: _StreamPayloadReader) -> WriterOrder:
    return WriterOrder(read.stream(), read.name(field), read.text("reason"))


def _writer_change(read: _StreamPayloadReader) -> WriterChange:
    stream, _ = read.stream(), read.name("participant_id")
    return WriterChange(stream, read.writers(), read.text("reason"))


def _transferred(read: _StreamPayloadReader) -> WriterChange:
    stream, _, owner = read.stream(), read.name("previous_owner"), read.name("new_owner")
    return WriterChange(stream, read.writers(), read.text("reason"), owner)


_READERS: Final[dict[str, Callable[[_StreamPayloadReader], StreamMessage]]] = {
    kinds.STREAM_REQUEST: _request,
    kinds.STREAM_OPEN: _open,
    kinds.STREAM_CLOSE: _close,
    kinds.STREAM_GRANT_WRITE: partial(_writer_order, "participant_id"),
    kinds.STREAM_REVOKE_WRITE: partial(_writer_order, "participant_id"),
    kinds.STREAM_TRANSFER_OWNERSHIP: partial(_writer_order, "new_owner"),
    kinds.STREAM_WRITE_GRANTED: _writer_change,
    kinds.STREAM_WRITE_REVOKED: _writer_change,
    kinds.STREAM_OWNERSHIP_TRANSFERRED: _transferred,
    kinds.STREAM_LOST: lambda read: StreamLost(
        read.stream(), read.number("frames"), read.number("bytes")
    ),
}

MESSAGE_KINDS: Final = frozenset(_READERS)
"""The kinds about streams."""


def is_stream_id(value: object) -> TypeGuard[str]:
    """True for a text that can be a stream's id: it can stand in a frame."""
    return (
        isinstance(value, str)
        and bool(value)
        and "#" not in value
        and value.isprintable()
        and len(value.encode()) <= MAX_STREAM_ID_BYTES
    )


class _StreamPayloadReader(PayloadReader):
    """Reads what payloads about streams alone have."""

    def stream(self) -> str:
        value = self.payload.get("stream_id")
        if is_stream_id(value):
            return value
        raise self.problem(
            f"its 'stream_id' must be 1 to {MAX_STREAM_ID_BYTES} bytes, printable and without '#'"
        )

    def targets(self) -> tuple[str, ...]:
        """The names in ``target``: none, one, or a list of them."""
        value: object = self.payload.get("target")
        listed = one_or_more(value)
        if value is None or not listed:
            return ()
        if not all(map(is_name, listed)) or len(listed) > MAX_TARGETS:
            raise self.problem(f"its 'target' must be a list of up to {MAX_TARGETS} participants")
        return tuple(dict.fromkeys(cast("list[str]", listed)))

    def writers(self) -> tuple[str, ...]:
        return _names(self.payload.get("authorized_writers"))

    def number(self, field: str) -> int:
        return self.count(field, required=True) or 0


def _names(value: object) -> tuple[str, ...]:
    """The names in a list, or the only one; what else stands there is left out."""
    return tuple(dict.fromkeys(each for each in one_or_more(value) if is_name(each)))


# --- writing ----------------------------------------------------------------------------------


def build_request(
    *, targets: tuple[str, ...] = (), direction: str = "upload", **fields: Any
) -> JsonObject:
    """The payload of a ``stream/request``; fields that are ``None`` are left out."""
    more = {name: value for name, value in fields.items() if value is not None}
    return {"direction": direction, **more, **({"target": list(targets)} if targets else {})}


def build_open(stream: StreamInfo) -> JsonObject:
    """The payload of a ``stream/open``: as the welcome has it, but for the origin, which it is."""
    return {**msgspec.structs.replace(stream, origin=None).to_wire(), "encoding": "binary"}


def build_close(stream: str, reason: str = COMPLETE) -> JsonObject:
    """The payload of a ``stream/close``."""
    return {"stream_id": stream, "reason": reason}


def build_write(stream: str, participant: str) -> JsonObject:
    """The payload of a ``stream/grant-write`` or ``stream/revoke-write``."""
    return {"stream_id": stream, "participant_id": participant}


def build_write_ack(stream: StreamInfo, participant: str, reason: str = "") -> JsonObject:
    """The payload of a ``stream/write-granted`` or ``stream/write-revoked``."""
    said = {"stream_id": stream.id, "participant_id": participant}
    return {**said, "authorized_writers": list(stream.writers), **_reason(reason)}


def build_transfer(stream: str, new_owner: str) -> JsonObject:
    """The payload of a ``stream/transfer-ownership``."""
    return {"stream_id": stream, "new_owner": new_owner}


def build_transferred(stream: StreamInfo, previous_owner: str, reason: str = "") -> JsonObject:
    """The payload of a ``stream/ownership-transferred``."""
    said = {"stream_id": stream.id, "previous_owner": previous_owner, "new_owner": stream.owner}
    return {**said, "authorized_writers": list(stream.writers), **_reason(reason)}


def build_lost(stream: str, frames: int, size: int) -> JsonObject:
    """The payload of a ``stream/lost``."""
    return {"stream_id": stream, "frames": frames, "bytes": size}


def _reason(reason: str) -> JsonObject:
    return {"reason": reason} if reason else {}
