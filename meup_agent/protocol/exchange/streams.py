"""The stream table: open streams, those that we write, and the readers of the others.

Streams are not exchanges: nothing is owed for a frame, and none is sent again. The table learns of
streams from the gateway alone, by ``stream/*`` and the list in its welcome; it starts the handlers
of ``on_stream`` as notices, through the scheduler, and keeps all state that a cut connection
leaves. After a reconnect a stream goes on if the gateway still lists it as the one that it was;
every other one ends, for the reason that the replay tells, if it tells one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from meup_agent.errors import InvalidEnvelope, UsageError
from meup_agent.protocol.exchange.effects import (
    Priority,
    Role,
    StreamBuffer,
    StreamBuffers,
    StreamEnd,
    Unsend,
)
from meup_agent.protocol.exchange.handlers import HandlerScheduler
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.wire import kinds
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.payloads import JsonObject, as_text
from meup_agent.protocol.wire.streams import (
    CANCELLED,
    COMPLETE,
    MESSAGE_KINDS,
    OWNER_LEFT,
    REVOKED,
    StreamClose,
    StreamInfo,
    StreamLost,
    StreamOpen,
    StreamOrigin,
    StreamRequest,
    WriterChange,
    build_close,
    read_active_streams,
    read_message,
)
from meup_agent.protocol.wire.ttl_map import TTLMap

# --- streams that this participant writes ---
# Requested, open, ended (PROTOCOL 8).

MAX_ENDED: Final = 1024
"""Streams of its own that an agent remembers after their end."""

ENDED_SECONDS: Final = 60.0
"""Streams of ours that have ended, for refusals of what was sent before we knew."""

DISCONNECTED: Final = "disconnected"
"""The reason of a stream that a gateway no longer lists after a reconnect, or of our own end."""
ERROR: Final = "error"
"""The reason of a stream whose writer failed."""

MAX_TEXT_CHARS: Final = 1000
"""Characters of the words with which a stream ends."""


class OwnStream:
    """A stream that we write.

    Attributes:
        request_id: The id of our request; empty: another participant's, that we may write.
        payload: The payload of the request.
        about: The messages that it is about.
        stream: The stream, once the gateway has opened it.
        refusal: The payload of the gateway's refusal.
        end: Its end.
        gaps: Losses of our connection while it went on; each may have lost frames uncounted.
        wake: Called on each change; set by the writer.
    """

    def __init__(self, payload: JsonObject | None = None, about: tuple[str, ...] = ()) -> None:
        self.request_id = ""
        self.payload = payload or {}
        self.about = about
        self.stream: StreamInfo | None = None
        self.refusal: JsonObject | None = None
        self.end: StreamEnd | None = None
        self.gaps = 0
        self.wake: Callable[[], None] = lambda: None

    def finish(self, end: StreamEnd) -> None:
        """Note its end; the first one counts."""
        if self.end is None:
            self.end = end
            self.wake()


# --- the stream table ---

MAX_OPEN: Final = 4096
"""Open streams of a space that are known; a gateway that names more is not believed."""

MAX_REQUESTS: Final = 256
"""Requests for streams whose answer, and answers whose request, an agent waits for."""

REQUEST_SECONDS: Final = 60.0
"""Requests of others that wait for their answer, and answers that wait for the request which tells
what they are for: existing gateways send that later."""


class StreamTable:
    """Streams of a space, as one participant knows them."""

    def __init__(self, context: TableContext, scheduler: HandlerScheduler) -> None:
        self._context = context
        self._scheduler = scheduler
        self._open: dict[str, StreamInfo] = {}
        self.buffers: Final = StreamBuffers()
        self._of_handlers: list[StreamBuffer] = []
        self._awaited: dict[str, Callable[[StreamBuffer], None]] = {}
        # Those that we write: by our request until it is answered, then by stream.
        self._requested: dict[str, OwnStream] = {}
        self._written: dict[str, list[OwnStream]] = {}
        self._given_up: TTLMap[str, bool] = TTLMap(count=MAX_ENDED, seconds=ENDED_SECONDS)
        # Streams that we write no more; of those that we closed, the reason.
        self._ended: TTLMap[str, str] = TTLMap(count=MAX_ENDED, seconds=ENDED_SECONDS)
        self._requests: TTLMap[str, StreamRequest] = TTLMap(
            count=MAX_REQUESTS, seconds=REQUEST_SECONDS
        )
        self._bare: TTLMap[str, StreamInfo] = TTLMap(count=MAX_REQUESTS, seconds=REQUEST_SECONDS)
        self._listed: tuple[StreamInfo, ...] = ()
        self._welcomed_before = False

    @property
    def streams(self) -> tuple[StreamInfo, ...]:
        """The open streams, oldest first."""
        return tuple(self._open.values())

    def get(self, stream: str) -> StreamInfo | None:
        return self._open.get(stream)

    # --- our own streams ---

    def own_streams(self) -> list[OwnStream]:
        """The streams that we write, or have requested."""
        written = [own for each in self._written.values() for own in each]
        return [*self._requested.values(), *written]

    def request(self, payload: JsonObject, about: tuple[str, ...]) -> OwnStream:
        """Request a stream; the gateway's answer opens or refuses it."""
        own = OwnStream(payload, about)
        self._request(own)
        return own

    def _request(self, own: OwnStream) -> None:
        sent = self._context.envelope_sender.send(
            kinds.STREAM_REQUEST,
            own.payload,
            priority=Priority.ANSWER,
            correlation=own.about,
        )
        own.request_id = sent.id
        self._requested[sent.id] = own

    def write(self, stream: str) -> OwnStream:
        """Write in a stream of another participant, which has let us.

        Raises:
            UsageError: It is not open, or not ours to write.
        """
        info = self._open.get(stream)
        if info is None or self._context.me not in info.writers:
            why = "is not open" if info is None else f"is one of {info.owner!r}, who has not let us"
            raise UsageError(f"the stream {stream[:128]!r} cannot be written: it {why}")
        own = OwnStream()
        self._begin_to_write(own, info)
        return own

    def _begin_to_write(self, own: OwnStream, stream: StreamInfo) -> None:
        own.stream = stream
        self._written.setdefault(stream.id, []).append(own)
        own.wake()

    def _writers(self, stream: str) -> list[OwnStream]:
        return list(self._written.get(stream, ()))

    def close(self, own: OwnStream, reason: str, text: str) -> None:
        """End a stream of ours, for all its readers; another's we only write no more."""
        if own.stream is None:
            if self._requested.pop(own.request_id, None) is not None:
                # It may have left already: then its stream is closed as soon as it opens.
                self._given_up.put(own.request_id, True, self._context.now)
                self._context.effects.append(Unsend(own.request_id))
        elif own.end is None:
            self._forget(own)
            end = StreamEnd(reason, self._context.me, text)
            own.finish(end)
            if own.request_id and own.stream.owner == self._context.me:
                origin = own.stream.origin
                opened = origin.opened if origin is not None else ""
                self._say_close(own.stream.id, opened or own.request_id, reason, text)
                self._finish(own.stream.id, end)

    def _say_close(self, stream: str, opened: str, reason: str, text: str) -> None:
        """Close a stream of ours for all; existing readers know it by its ``stream/open``."""
        now = self._context.now
        payload = build_close(stream, reason)
        sent = self._context.envelope_sender.send(
            kinds.STREAM_CLOSE,
            {**payload, "text": text[:MAX_TEXT_CHARS]} if text else payload,
            # Behind the frames that were sent before, and never left out.
            priority=Priority.ANSWER,
            correlation=(opened,) if opened else (),
        )
        # Others may have ended it first: then the gateway's refusal is not news.
        self._given_up.put(sent.id, True, now)
        self._ended.put(stream, reason, now)

    def close_all(self, reason: str, text: str) -> None:
        """End all streams of ours: we leave."""
        for own in self.own_streams():
            self.close(own, reason, text)

    def unsendable(self, stream: str, why: str) -> None:
        """End a stream of ours whose frames our connection does not carry."""
        for own in self._writers(stream):
            self.close(own, ERROR, why[:MAX_TEXT_CHARS])

    def refused(self, names: Sequence[str], payload: JsonObject) -> bool:
        """Apply a ``system/error``; ``True`` if it is about a stream of ours."""
        for name in names:
            own = self._requested.pop(name, None)
            if own is not None:
                own.refusal = payload
                own.wake()
                return True
            if self._is_given_up(name):
                return True
        stream, code = payload.get("stream_id"), payload.get("error")
        if names or not isinstance(stream, str) or not isinstance(code, str):
            return False
        # It names no message, so a frame was refused: none of the later ones passes either.
        known = stream in self._written or self._ended.get(stream, self._context.now) is not None
        words = as_text(payload.get("message"), MAX_TEXT_CHARS)
        self._finish_writers(stream, StreamEnd(code[:MAX_TEXT_CHARS], kinds.GATEWAY, words))
        return known

    def _is_given_up(self, request_id: str) -> bool:
        return self._given_up.get(request_id, self._context.now) is not None

    def _request_again(self, listed: Iterable[StreamInfo]) -> list[tuple[OwnStream, StreamInfo]]:
        """Find streams that we have requested, whose answer was lost; request others anew."""
        ours = [each for each in listed if each.owner == self._context.me]
        found: list[tuple[OwnStream, StreamInfo]] = []
        for request_id, own in list(self._requested.items()):
            del self._requested[request_id]
            stream = next((each for each in ours if _is_asked(each, own)), None)
            if stream is not None:
                ours.remove(stream)
                found.append((own, stream))
            else:
                self._context.effects.append(Unsend(request_id))
                self._request(own)
        return found

    def _finish_writers(self, stream: str, end: StreamEnd) -> None:
        for own in self._writers(stream):
            self._forget(own)
            own.finish(end)

    def _forget(self, own: OwnStream) -> None:
        assert own.stream is not None
        stream = own.stream.id
        writers = self._written.get(stream, [])
        if own in writers:
            writers.remove(own)
            if self._ended.get(stream, self._context.now) is None:
                self._ended.put(stream, "", self._context.now)
            if not writers:
                del self._written[stream]

    # --- readers ---

    def read(self, stream: str) -> StreamBuffer:
        """Keep the frames of an open stream for one more reader, from here on.

        Raises:
            UsageError: It is not open.
        """
        info = self._open.get(stream)
        if info is None:
            raise UsageError(f"the stream {stream[:128]!r} is not open; see those in space.streams")
        return self.buffers.open(info)

    def expect(self, about: str, take: Callable[[StreamBuffer], None]) -> None:
        """Hand each stream about a message of ours to a callee, and to no handler."""
        self._awaited[about] = take

    def expect_no_more(self, about: str) -> None:
        """Hand streams about a message to handlers again."""
        self._awaited.pop(about, None)

    def receive_frame(self, stream: str, data: bytes) -> bool:
        """Put a frame into the queues of its readers; ``True``: handlers are to be started."""
        queues = self.buffers.of(stream)
        for queue in queues:
            queue.put(data)
        if queues or not len(self._bare):
            return False
        return self._announce_bare(stream, data)

    # --- what the gateway says ---

    def receive(self, envelope: Envelope) -> None:
        """Apply an envelope of a kind ``stream/*``."""
        if envelope.kind not in MESSAGE_KINDS:
            return
        payload = envelope.payload_object
        try:
            said = read_message(envelope, payload)
        except InvalidEnvelope:
            self._context.drop("malformed_stream", envelope)
            return
        match said:
            case StreamRequest():
                self._requested_by_other(said, envelope)
            case StreamClose():
                self._closed(said, as_text(payload.get("text")))
            case _ if envelope.sender not in kinds.GATEWAY_NAMES:
                # The requests of others, and what only the gateway may say.
                if isinstance(said, StreamOpen | WriterChange | StreamLost):
                    self._context.drop("forged_stream", envelope)
            case StreamOpen():
                self._opened(said, envelope)
            case WriterChange():
                is_revoked = envelope.kind == kinds.STREAM_WRITE_REVOKED
                self._changed(said, said.reason if is_revoked else "")
            case StreamLost():
                for queue in self.buffers.of(said.stream):
                    queue.lost += said.frames
            case _:
                pass

    def _requested_by_other(self, said: StreamRequest, envelope: Envelope) -> None:
        """Note what a stream is to be, where the gateway's answer does not tell it."""
        bare = self._bare.pop(said.id)
        if bare is None:
            self._requests.put(said.id, said, self._context.now)
        elif bare.owner == said.by and bare.id in self._open:
            self._enter(_with_request(bare, said.fields, said.about), envelope)

    def _opened(self, said: StreamOpen, envelope: Envelope) -> None:
        stream = said.stream
        if stream.id in self._open or len(self._open) >= MAX_OPEN:
            self._context.drop("duplicate", envelope, expected=True)
            return
        origin = StreamOrigin(stream.owner, said.request, envelope.id)
        stream = msgspec.structs.replace(stream, origin=origin)
        if stream.owner == self._context.me:
            if self._is_given_up(said.request):
                self._say_close(stream.id, envelope.id, CANCELLED, "")
                return
            own = self._requested.pop(said.request, None)
            if own is not None:
                self._begin(own, stream)
                return
        self._open[stream.id] = stream
        if "direction" not in stream.fields:
            request = self._requests.pop(said.request)
            if request is None or request.by != stream.owner:
                self._bare.put(said.request, stream, self._context.now)
                return
            stream = _with_request(stream, request.fields, request.about)
        self._enter(stream, envelope)

    def _begin(self, own: OwnStream, stream: StreamInfo) -> None:
        """Open a stream that we have requested."""
        if "direction" not in stream.fields:
            stream = _with_request(stream, own.payload, own.about)
        if stream.origin is None:
            origin = StreamOrigin(self._context.me, own.request_id)
            stream = msgspec.structs.replace(stream, origin=origin)
        self._open[stream.id] = stream
        self._begin_to_write(own, stream)

    def _announce_bare(self, stream: str, data: bytes) -> bool:
        """Begin to read a stream whose request has not come before its first frame."""
        for info in self._bare.peek_all():
            if info.id == stream and info.origin is not None:
                request = info.origin.request
                self._bare.pop(request)
                envelope = Envelope(id=request, sender=info.owner, kind=kinds.STREAM_OPEN)
                self._enter(info, envelope)
                for queue in self.buffers.of(stream):
                    queue.put(data)
                return True
        return False

    def _enter(self, stream: StreamInfo, envelope: Envelope) -> None:
        """Enter an open stream, and start the handlers that it is for."""
        self._open[stream.id] = stream
        me = self._context.me
        if self._context.cursor.until is not None or stream.owner == me:
            return  # what the replay tells may have ended since: the welcome lists what has not
        if stream.targets and me not in stream.targets:
            return
        for name in stream.about:
            if name in self._awaited:
                self._awaited[name](self.buffers.open(stream))
                return
        handler = self._context.find_handler(Role.STREAM, envelope, None)
        if not handler:
            return
        queue = self.buffers.open(stream)
        if self._scheduler.notify(Role.STREAM, envelope, queue, handler=handler):
            self._of_handlers = [each for each in self._of_handlers if each.end is None]
            self._of_handlers.append(queue)
        else:
            queue.close()

    def _closed(self, said: StreamClose, text: str) -> None:
        stream = said.stream or self._named(said)
        self._finish(stream, StreamEnd(said.reason or COMPLETE, said.by, text))

    def _named(self, said: StreamClose) -> str:
        """The stream that a close names by what opened it, as our gateway reads it.

        Others may take the request's id from any sender: that counts where one stream has it.
        """
        known = [(each.id, each.origin) for each in self.streams if each.origin is not None]
        named = [id for id, origin in known if origin.is_named(said.by, said.about)]
        named = named or [id for id, origin in known if origin.request in said.about]
        return named[0] if len(named) == 1 else ""

    def _finish(self, stream: str, end: StreamEnd) -> None:
        """End a stream for its readers and writers."""
        info = self._open.pop(stream, None)
        if info is None:
            return
        if info.origin is not None:
            self._bare.pop(info.origin.request)
        self.buffers.finish(stream, end)
        self._finish_writers(stream, end)

    def _changed(self, said: WriterChange, text: str) -> None:
        """Note who owns and writes a stream now; without the right our own writers end."""
        before = self._open.get(said.stream)
        if before is not None:
            owner = said.owner or before.owner
            info = msgspec.structs.replace(before, writers=said.writers, owner=owner)
            self._replace(info, StreamEnd(REVOKED, before.owner, text))

    def _replace(self, info: StreamInfo, revoked: StreamEnd) -> None:
        self._open[info.id] = info
        for queue in self.buffers.of(info.id):
            queue.stream = info
        for own in self._writers(info.id):
            own.stream = info
        if self._context.me not in info.writers:
            self._finish_writers(info.id, revoked)

    # --- presence, the connection, our own end ---

    def participant_left(self, participant: str) -> None:
        """End the streams of a participant that left, where the gateway does not do so itself."""
        if self._context.roster.guarantees.resume:
            return
        for info in self.streams:
            if info.owner == participant and not set(info.writers) - {participant}:
                self._finish(info.id, StreamEnd(OWNER_LEFT, participant))

    def welcomed(self, payload: JsonObject) -> None:
        """Keep the list of a connection's first welcome until what we missed has been read."""
        self._listed = (read_active_streams(payload) or ())[:MAX_OPEN]

    def settle(self, welcome: Envelope, *, complete: bool) -> None:
        """Go on with the streams that the welcome lists, and end the others.

        ``complete``: nothing is missing of what was said meanwhile, so a request of ours is either
        answered or still to be sent. Otherwise it is made again, unless the list has its stream.
        """
        listed = {each.id: each for each in self._listed if not self._is_closed(each, complete)}
        self._listed = ()
        was_away, self._welcomed_before = self._welcomed_before, True
        for before in self.streams:
            info = listed.pop(before.id, None)
            if info is None or not _is_same(before, info):
                text = "the gateway no longer had it after a reconnect"
                self._finish(before.id, StreamEnd(DISCONNECTED, kinds.GATEWAY, text))
                if info is not None:
                    listed[info.id] = info
                continue
            about, origin = info.about or before.about, info.origin or before.origin
            info = msgspec.structs.replace(info, about=about, origin=origin)
            self._replace(info, StreamEnd(REVOKED))
            for reader in self.buffers.of(info.id):
                reader.gaps += was_away
            for own in self._writers(info.id):
                own.gaps += was_away
        if was_away and not complete:
            for own, info in self._request_again(listed.values()):
                self._begin(own, listed.pop(info.id))
        for info in listed.values():
            self._enter(info, welcome.replace(sender=info.owner))

    def _is_closed(self, listed: StreamInfo, complete: bool) -> bool:
        """True for a stream of ours that we closed while we were away; that is said again if lost.

        Its close is on its way otherwise, and no echo of it would end the stream here.
        """
        reason = self._ended.get(listed.id, self._context.now)
        if not reason or listed.owner != self._context.me:
            return False
        if not complete:
            origin = listed.origin
            opened = "" if origin is None else origin.opened or origin.request
            self._say_close(listed.id, opened, reason, "")
        return True

    def stopped(self, why: str) -> None:
        """End every stream: the connection has ended, and there will be no other."""
        end = StreamEnd(DISCONNECTED, kinds.GATEWAY, why[:MAX_TEXT_CHARS])
        for info in self.streams:
            self._finish(info.id, end)
        for own in self._requested.values():
            own.finish(end)
        self._requested.clear()

    def shutdown(self) -> None:
        """End the reading of handlers: the agent stops, and waits for them."""
        for queue in self._of_handlers:
            for each in queue.readers:
                each.finish(StreamEnd(DISCONNECTED, self._context.me, "the agent shuts down"))
            queue.close()
        self._of_handlers.clear()


def _is_asked(stream: StreamInfo, own: OwnStream) -> bool:
    """True if a stream has all that a request of ours says."""
    return all(stream.fields.get(name) == value for name, value in own.payload.items())


def _with_request(stream: StreamInfo, fields: JsonObject, about: tuple[str, ...]) -> StreamInfo:
    return msgspec.structs.replace(
        stream, fields={**fields, **stream.fields}, about=stream.about or about
    )


def _is_same(before: StreamInfo, info: StreamInfo) -> bool:
    """True if a listed stream is the one that we knew: gateways may begin to count anew."""
    same_time = not before.created or not info.created or before.created == info.created
    return same_time and info.owner == before.owner
