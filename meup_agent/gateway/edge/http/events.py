"""The event stream of a space: what is said in it, as it is said (server-sent events)."""

from __future__ import annotations

from functools import partial
from typing import Final, cast

import anyio
import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.edge.flow import SendQueue
from meup_agent.gateway.edge.handshake import is_seq, read_place
from meup_agent.gateway.edge.http.context import (
    authorize_space,
    bad_query,
    over_limit,
    read_flag,
    read_journal,
)
from meup_agent.gateway.edge.http.messages import requested_dialect
from meup_agent.gateway.frame_queue import FrameQueue, GatewayMember
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.server import SpaceServer
from meup_agent.protocol.space.subscriber import FrameFormat, Place
from meup_agent.transport.base import DIALECT_HEADER, LAST_SEEN_HEADER, OBSERVE_HEADER

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a comment is sent, so that nothing on the way takes the stream
for dead."""

RETRY_MILLISECONDS: Final = 1_000
"""After which a reader should come back when its stream has ended."""

NORMAL: Final = 1000
KICKED: Final = 4403

PIECE_BYTES: Final = 64 * 1024
"""Bytes of a stream that are handed to the server at a time; it waits for the reader in between."""

CATCH_UP_PAGE: Final = 100
"""Entries that are read at a time for a reader who does not follow."""

_SEQ: Final = b'"seq":'


def pack_event(frame: bytes) -> bytes:
    """A numbered frame as an event: its number is the event's id."""
    seq = frame[frame.rindex(_SEQ) + len(_SEQ) : -1]
    # JSON has line ends only between its words.
    lines = frame.replace(b"\r", b"\n").split(b"\n")
    return b"id: %b\n%b\n" % (seq, b"".join(b"data: %b\n" % line for line in lines))


class EventResponse:
    """Streams a space's events to one reader, from now or from ``last_seen`` on; an ASGI response.

    It ends when there is nothing more for now, unless it is to ``follow``. One that ``observes`` is
    an observer of the space (PROTOCOL 3): a welcome comes first, and an event ``close`` says why it
    ends.
    """

    def __init__(
        self,
        runtime: GatewayRuntime,
        host: SpaceServer,
        identity: Identity,
        form: FrameFormat,
        last_seen: int | None,
        *,
        follow: bool = True,
        observes: bool = False,
    ) -> None:
        self._host = host
        self._identity = identity
        self._limits = runtime.limits
        self._backlogs = backlogs = runtime.backlogs
        if not backlogs.add_stream(identity):
            most = runtime.limits.max_streams
            said = f"you have {most} event streams, as many as you may; end one first"
            raise over_limit(said, "max_streams", most)
        self._sending = SendQueue(lambda: self._stream.pause(), lambda: self._stream.resume())
        # Its participant's agent keeps its connection.
        member = partial(GatewayMember, last_seen=last_seen, place=Place.OBSERVING)
        make = member if observes else FrameQueue
        self._stream = make(runtime, identity, form, self._sending)
        self._last_seen = last_seen
        self._follow = follow
        self._released = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the reader goes, is too slow, or the gateway stops."""
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        headers += [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
        stream, host = self._stream, self._host
        if isinstance(stream, GatewayMember):
            answered = {DIALECT_HEADER: stream.form.dialect, OBSERVE_HEADER: "1"}
            headers += [(name.lower().encode(), said.encode()) for name, said in answered.items()]
        try:
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            stream.deliver(b"retry: %d\n\n" % RETRY_MILLISECONDS)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._until_stuck, tasks.cancel_scope)
                if isinstance(stream, GatewayMember):
                    host.join(stream)
                else:
                    host.journal.call_when_kept(self._announce_gap)
                    if self._follow:
                        host.fanout.subscribe(stream, self._last_seen)
                    else:
                        tasks.start_soon(self._read_what_there_is)
                while (events := await self._sending.take(KEEP_ALIVE_SECONDS)) is not None:
                    chunk = events or b": nothing new\n\n"
                    # In pieces, so that the server copies no more than one before it waits.
                    for begin in range(0, len(chunk), PIECE_BYTES):
                        piece = chunk[begin : begin + PIECE_BYTES]
                        await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if host.owner.is_kicked(self._identity.participant):
                        stream.close(KICKED, "you were removed from the space")
                # Before its reader can know that it has ended, and ask for another.
                self._release()
                await send({"type": "http.response.body", "body": self._last_words()})
                tasks.cancel_scope.cancel()
        finally:
            self._release()

    def _release(self) -> None:
        """Leave the space, and make room for another stream; once."""
        if self._released:
            return
        self._released = True
        if isinstance(self._stream, GatewayMember):
            self._host.leave(self._stream)
        else:
            self._host.fanout.unsubscribe(self._stream)
        self._stream.lost()
        self._backlogs.remove_stream(self._identity)

    def _last_words(self) -> bytes:
        """The event that tells an observer's reader what a close frame would tell."""
        if not isinstance(self._stream, GatewayMember):
            return b""
        said = msgspec.json.encode({"code": self._sending.code, "reason": self._sending.reason})
        return b"event: close\ndata: %b\n\n" % said

    def _announce_gap(self) -> None:
        host, seen = self._host, self._last_seen
        begin = seen if seen is None else host.journal.resume_from(host.name, seen)
        if begin is not None and begin != seen:
            self._stream.deliver(b'event: gap\ndata: {"after":%d}\n\n' % begin)

    async def _read_what_there_is(self) -> None:
        """Hand over what is known by now, page by page, and end."""
        host, stream = self._host, self._stream
        until = host.fanout.delivered
        last_seen = self._last_seen
        seen = until if last_seen is None else host.journal.resume_from(host.name, last_seen)
        while seen < until and not stream.closed:
            entries = await read_journal(host, after=seen, until=until, limit=CATCH_UP_PAGE)
            for entry in entries:
                packed = host.fanout.pack(entry, stream.form)
                if packed is not None:
                    stream.deliver(packed)
            seen = entries[-1].seq if entries else until
            taken = anyio.Event()
            stream.ready(taken.set)
            await taken.wait()
        stream.close(NORMAL, "")

    async def _until_stuck(self, scope: anyio.CancelScope) -> None:
        """Give a stream that has ended its time, and no more, to be read."""
        await self._sending.closed.wait()
        await anyio.sleep(self._limits.close_timeout)
        scope.cancel()


async def get_events(runtime: GatewayRuntime, request: Request) -> Response:
    """The events of a space, from now on or from a number on."""
    identity, host = authorize_space(runtime, request)
    said = request.query_params.get("since") or request.headers.get(LAST_SEEN_HEADER)
    if said is not None and not is_seq(said):
        raise bad_query(f"{LAST_SEEN_HEADER} must be the 'seq' of an envelope")
    follow = read_flag(request, "follow", True)
    place = read_place(request.headers.get)
    observes = place is Place.OBSERVING and follow
    if observes:
        # As for any other connection that observes.
        runtime.check_members(identity, place)
        runtime.join_throttle.join(identity, place)
    dialect = requested_dialect(request) or runtime.dialect(identity)
    response = EventResponse(
        runtime,
        host,
        identity,
        FrameFormat(dialect, True, pack_event),
        None if said is None else int(said),
        follow=follow,
        observes=observes,
    )
    # All that is asked of a response is that it can be called so.
    return cast("Response", response)


async def cancel_when_gone(receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the reader of an answer has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
