"""Streams that this participant writes: requested, open, ended (PROTOCOL 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from meup_agent.protocol import kinds
from meup_agent.protocol.exchange.effects import Priority, Unsend
from meup_agent.protocol.exchange.stream_buffer import StreamEnd
from meup_agent.protocol.exchange.table_context import TableContext
from meup_agent.protocol.payloads import JsonObject
from meup_agent.protocol.streams import StreamInfo, build_close
from meup_agent.protocol.ttl_map import TTLMap

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


class OwnStreams:
    """The streams that we have requested, by the request until it is answered, then by stream."""

    def __init__(self, context: TableContext) -> None:
        self._context = context
        self._requested: dict[str, OwnStream] = {}
        self._written: dict[str, list[OwnStream]] = {}
        self._given_up: TTLMap[str, bool] = TTLMap(count=MAX_ENDED, seconds=ENDED_SECONDS)
        self._ended: TTLMap[str, bool] = TTLMap(count=MAX_ENDED, seconds=ENDED_SECONDS)

    def of(self, stream: str) -> list[OwnStream]:
        """Our writers of a stream."""
        return list(self._written.get(stream, ()))

    def every(self) -> list[OwnStream]:
        """All of them."""
        written = [own for each in self._written.values() for own in each]
        return [*self._requested.values(), *written]

    def is_given_up(self, request_id: str) -> bool:
        """True if we asked for a stream and want it no more."""
        return self._given_up.get(request_id, self._context.now) is not None

    def answered(self, request_id: str) -> OwnStream | None:
        """The stream that was requested so, which is answered now."""
        return self._requested.pop(request_id, None)

    def request(self, payload: JsonObject, about: tuple[str, ...]) -> OwnStream:
        """Request a stream; the gateway's answer opens or refuses it."""
        own = OwnStream(payload, about)
        self._request(own)
        return own

    def begin(self, own: OwnStream, stream: StreamInfo) -> None:
        """Note that the gateway has opened a stream."""
        own.stream = stream
        self._written.setdefault(stream.id, []).append(own)
        own.wake()

    def write(self, stream: StreamInfo) -> OwnStream:
        """Write in a stream of another participant."""
        own = OwnStream()
        self.begin(own, stream)
        return own

    def close(self, own: OwnStream, reason: str, text: str) -> StreamEnd | None:
        """Write in a stream no more; the end of the stream, if it ends with that."""
        if own.stream is None:
            if self._requested.pop(own.request_id, None) is not None:
                # It may have left already: then its stream is closed as soon as it opens.
                self._given_up.put(own.request_id, True, self._context.now)
                self._context.effects.append(Unsend(own.request_id))
            return None
        if own.end is not None:
            return None
        self._forget(own)
        end = StreamEnd(reason, self._context.me, text)
        own.finish(end)
        if not own.request_id or own.stream.owner != self._context.me:
            return None
        origin = own.stream.origin
        opened = origin.opened if origin is not None else ""
        self.say_close(own.stream.id, opened or own.request_id, reason, text)
        return end

    def finish(self, stream: str, end: StreamEnd) -> None:
        """End our writing in a stream."""
        for own in self.of(stream):
            self._forget(own)
            own.finish(end)

    def stopped(self, end: StreamEnd) -> None:
        """End what was requested: no answer comes any more."""
        for own in self._requested.values():
            own.finish(end)
        self._requested.clear()

    def refused(self, names: Sequence[str], payload: JsonObject) -> bool:
        """Apply a ``system/error``; ``True`` if it is about a stream of ours."""
        for name in names:
            own = self._requested.pop(name, None)
            if own is not None:
                own.refusal = payload
                own.wake()
                return True
            if self.is_given_up(name):
                return True
        stream, code, text = (payload.get(key) for key in ("stream_id", "error", "message"))
        if names or not isinstance(stream, str) or not isinstance(code, str):
            return False
        # It names no message, so a frame was refused: none of the later ones passes either.
        known = stream in self._written or self._ended.get(stream, self._context.now) is not None
        words = text[:MAX_TEXT_CHARS] if isinstance(text, str) else ""
        self.finish(stream, StreamEnd(code[:MAX_TEXT_CHARS], kinds.GATEWAY, words))
        return known

    def request_again(self, listed: Iterable[StreamInfo]) -> list[tuple[OwnStream, StreamInfo]]:
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

    def say_close(self, stream: str, opened: str, reason: str, text: str) -> None:
        """Close a stream of ours for all; existing readers know it by its ``stream/open``."""
        now = self._context.now
        payload = build_close(stream, reason)
        sent = self._context.envelope_sender.send(
            kinds.STREAM_CLOSE,
            {**payload, "text": text[:MAX_TEXT_CHARS]} if text else payload,
            # Behind the frames that were sent before, and never left out.
            priority=Priority.ANSWER,
            correlation=(opened,),
        )
        # Others may have ended it first: then the gateway's refusal is no news.
        self._given_up.put(sent.id, True, now)
        self._ended.put(stream, True, now)

    def _request(self, own: OwnStream) -> None:
        sent = self._context.envelope_sender.send(
            kinds.STREAM_REQUEST,
            own.payload,
            priority=Priority.ANSWER,
            correlation=own.about,
        )
        own.request_id = sent.id
        self._requested[sent.id] = own

    def _forget(self, own: OwnStream) -> None:
        assert own.stream is not None
        stream = own.stream.id
        writers = self._written.get(stream, [])
        if own in writers:
            writers.remove(own)
            self._ended.put(stream, True, self._context.now)
            if not writers:
                del self._written[stream]


def _is_asked(stream: StreamInfo, own: OwnStream) -> bool:
    """True if a stream has all that a request of ours says."""
    return all(stream.fields.get(name) == value for name, value in own.payload.items())
