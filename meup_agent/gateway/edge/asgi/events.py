"""The event stream of a space: what is said in it, as it is said (server-sent events)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final, cast

import anyio
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meup_agent.gateway.config import Limits
from meup_agent.gateway.edge.asgi.callers import space_of
from meup_agent.gateway.edge.asgi.messages import asked_dialect, is_seq
from meup_agent.gateway.edge.asgi.problems import BAD_REQUEST, UNAVAILABLE, Problem
from meup_agent.gateway.edge.asgi.served import Served, read
from meup_agent.gateway.member import TOO_SLOW
from meup_agent.protocol.space.host import SpaceHost
from meup_agent.protocol.space.listeners import Form
from meup_agent.transport.base import LAST_SEEN_HEADER

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a comment is sent, so that nothing on the way takes the stream
for dead."""

RETRY_MILLISECONDS: Final = 1_000
"""After which a reader should come back when its stream has ended."""

NORMAL: Final = 1000

CATCH_UP_PAGE: Final = 100
"""Entries that are read at a time for a reader who does not follow."""

_SEQ: Final = b'"seq":'


def pack_event(frame: bytes) -> bytes:
    """A numbered frame as an event: its number is the event's id."""
    seq = frame[frame.rindex(_SEQ) + len(_SEQ) : -1]
    return b"id: %b\n%b\n" % (seq, _data(frame))


def _data(frame: bytes) -> bytes:
    """Lines of data; JSON has line ends only between its words."""
    lines = (
        frame.replace(b"\r", b"\n").split(b"\n") if b"\n" in frame or b"\r" in frame else [frame]
    )
    return b"".join(b"data: %b\n" % line for line in lines)


class EventStream:
    """One reader of a space's events: a listener with a bounded queue.

    Args:
        form: How it takes what is said.
        limits: How much may wait for it.

    Attributes:
        form: See above.
    """

    def __init__(self, form: Form, limits: Limits) -> None:
        self.form = form
        self._limits = limits
        self._queue: list[bytes] = []
        self._bytes = 0
        self._then: Callable[[], None] | None = None
        self._something = anyio.Event()
        self.ended = anyio.Event()

    def deliver(self, packed: bytes) -> None:
        """Queue an event; a reader for whom too much waits is ended, and resumes."""
        if self.ended.is_set():
            return
        self._queue.append(packed)
        self._bytes += len(packed)
        self._something.set()
        limits = self._limits
        if len(self._queue) > limits.max_queued_frames or self._bytes > limits.max_queued_bytes:
            self.close(TOO_SLOW, "you read too slowly; come back with Last-Event-ID")

    def close(self, code: int, reason: str) -> None:
        """End the stream after what is queued."""
        self._then = None
        self.ended.set()
        self._something.set()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when everything that was delivered has been taken."""
        self._then = then
        self._something.set()

    async def until_taken(self) -> None:
        """Return when everything that was delivered has been taken, or it has ended."""
        taken = anyio.Event()
        self.ready(taken.set)
        if not self.ended.is_set():
            await taken.wait()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """What is to be sent, until the stream is ended."""
        while True:
            # Everything that waits in one piece, as for members.
            queue, self._queue, self._bytes = self._queue, [], 0
            if queue:
                yield b"".join(queue)
                continue
            if self.ended.is_set():
                return
            then, self._then = self._then, None
            if then is not None:
                then()
                continue
            self._something = anyio.Event()
            with anyio.move_on_after(KEEP_ALIVE_SECONDS) as silence:
                await self._something.wait()
            if silence.cancelled_caught:
                yield b": nothing new\n\n"


class EventResponse:
    """Streams a space's events to one reader; an ASGI response.

    Args:
        served: The gateway.
        host: The space.
        form: How the reader takes what is said.
        last_seen: The number after which it reads; ``None``: what comes from now on.
        follow: ``False``: end when there is nothing more for now.
    """

    def __init__(
        self,
        served: Served,
        host: SpaceHost,
        form: Form,
        last_seen: int | None,
        *,
        follow: bool = True,
    ) -> None:
        self._host = host
        self._limits = served.limits
        self._stream = EventStream(form, served.limits)
        self._last_seen = last_seen
        self._follow = follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader goes, is too slow, or the gateway stops."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        stream, host = self._stream, self._host
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        stream.deliver(b"retry: %d\n\n" % RETRY_MILLISECONDS)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._until_stuck, tasks.cancel_scope)
                host.journal.after(self._announce_gap)
                if self._follow:
                    host.watch(stream, self._last_seen)
                else:
                    tasks.start_soon(self._read_what_there_is)
                async for chunk in stream.chunks():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
                tasks.cancel_scope.cancel()
        finally:
            stream.close(TOO_SLOW, "")
            host.unwatch(stream)

    def _announce_gap(self) -> None:
        host, seen = self._host, self._last_seen
        floor = host.journal.floor(host.name)
        if seen is not None and not floor <= seen <= host.delivered:
            self._stream.deliver(b'event: gap\ndata: {"after":%d}\n\n' % floor)

    async def _read_what_there_is(self) -> None:
        """Hand over what is known by now, page by page, and end."""
        host, stream = self._host, self._stream
        until = host.delivered
        floor = host.journal.floor(host.name)
        seen = until if self._last_seen is None else max(self._last_seen, floor)
        while seen < until and not stream.ended.is_set():
            entries = await read(host, after=seen, until=until, limit=CATCH_UP_PAGE)
            for entry in entries:
                packed = host.frame(entry, stream.form)
                if packed is not None:
                    stream.deliver(packed)
            seen = entries[-1].seq if entries else until
            await stream.until_taken()
        stream.close(NORMAL, "")

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_stuck(self, scope: anyio.CancelScope) -> None:
        """Give a stream that has ended its time, and no more, to be read."""
        await self._stream.ended.wait()
        await anyio.sleep(self._limits.close_timeout)
        scope.cancel()


async def get_events(served: Served, request: Request) -> Response:
    """The events of a space, from now on or from a number on."""
    identity, host = space_of(served, request)
    if not served.listening:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway stops; come back soon")
    said = request.query_params.get("since") or request.headers.get(LAST_SEEN_HEADER)
    if said is not None and not is_seq(said):
        raise Problem(
            BAD_REQUEST, "bad_query", f"{LAST_SEEN_HEADER} must be the 'seq' of an envelope"
        )
    follow = request.query_params.get("follow", "true")
    if follow not in ("true", "false"):
        raise Problem(BAD_REQUEST, "bad_query", "follow must be true or false")
    dialect = asked_dialect(request) or served.hub.dialect(identity)
    response = EventResponse(
        served,
        host,
        Form(dialect, True, pack_event),
        None if said is None else int(said),
        follow=follow == "true",
    )
    # All that is asked of a response is that it can be called so.
    return cast("Response", response)
