"""The message port: its socket, the first request of a connection, and its WebSocket connections.

Picows reads the frames. Framing that the gateway does itself stands here: joining fragments, and
packing once for all.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from importlib import import_module
from typing import Any, Final, NamedTuple, Protocol, cast

import aiofastnet
from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in picows' stubs

from meup_agent.gateway.auth import BAD_REQUEST, NotAdmitted, TokenUse
from meup_agent.gateway.edge.connection import DecryptedReads, MemberConnection
from meup_agent.gateway.edge.handshake import MAX_JOIN_BYTES, Handshake, admit
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import PicowsLog, RefusalLog, log
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.space.allowance import TokenBucket
from meup_agent.transport.base import ABNORMAL, TOO_BIG

# --- the first request of a connection ---
# Its head is read to its end, and decides who takes it over.
#
# A WebSocket upgrade goes to picows, everything else to HTTP. Either gets the connection as if it
# had had it from the beginning, with every byte that came; afterwards nothing of this is left in
# between. Until then it is a stranger's connection: its head is bounded, it has one deadline from
# the moment that it was accepted, TLS included, and only so many are in this state at once.

MAX_HEAD_BYTES: Final = 16 * 1024
"""Bytes of the first request's head, the blank line at its end included."""

STRANGER_READ_BYTES: Final = 2 * 1024
"""Bytes that are read at a time of a connection that has not joined: a handshake or a join frame,
and no more than some hundred empty frames, since all of them are looked at before others are."""

REFUSAL: Final = (
    b"HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s"
)

TOO_EARLY: Final = "a WebSocket client waits for the answer before it sends (RFC 6455 section 4.1)"

Choose = Callable[[bool, bytes, asyncio.BaseTransport], asyncio.BaseProtocol]
"""Makes the protocol that takes a connection over; it is told of a WebSocket upgrade, and the
head."""

Forward = Callable[[bool, bytes, asyncio.BaseTransport], asyncio.BaseProtocol | None]
"""Makes the protocol that takes over a connection which, by its head, is not for this gateway; it
is told of a WebSocket upgrade, too."""

Move = Callable[[asyncio.Transport, asyncio.BaseProtocol, bytes], None]
"""Moves a connection to a transport for picows, with the bytes received so far."""

# As h11 ends a head. Picows asks for CRLF, so without that an upgrade is none.
_END = re.compile(rb"\n\r?\n")
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*websocket", re.IGNORECASE)


class FirstRequest(asyncio.BaseProtocol):
    """A connection whose first request has not been read to the end of its head."""

    __slots__ = ("_choose", "_dropped", "_handshakes", "_head", "_move", "_transport")

    def __init__(
        self, choose: Choose, handshakes: HandshakeLimiter, move: Move | None = None
    ) -> None:
        self._choose = choose
        self._move = move
        self._handshakes = handshakes
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._dropped = False
        handshakes.begin(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to read, unless it was dropped while TLS was negotiated."""
        self._transport = cast("asyncio.Transport", transport)
        if self._dropped:
            # Later in this turn: the reader that aiofastnet adds next would outlive the socket, and
            # be in the way of another one with its number.
            asyncio.get_running_loop().call_soon(self._transport.abort)

    def eof_received(self) -> bool:
        """Let the connection close: without the end of its head there is nothing to answer."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._handshakes.end(self)

    def drop(self) -> None:
        """Drop the connection: it is late, or the oldest of too many."""
        self._dropped = True
        self._handshakes.end(self)
        if self._transport is not None:
            self._transport.abort()

    def _add(self, data: bytes) -> None:
        """Hand the connection over if this is the end of its head."""
        transport, head = self._transport, self._head
        assert transport is not None, "it has been read"
        before = len(head)
        head += data
        end = _END.search(head, max(before - 2, 0))
        if (len(head) if end is None else end.end()) > MAX_HEAD_BYTES:
            said = f"the head of a request may have at most {MAX_HEAD_BYTES} bytes"
            _refuse(transport, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, said)
        elif end is not None:
            self._hand_over(transport, bytes(head), end.end())

    def _hand_over(self, transport: asyncio.Transport, head: bytes, end: int) -> None:
        upgrade = head.endswith(b"\r\n\r\n", 0, end) and _UPGRADE.search(head, 0, end) is not None
        if upgrade and len(head) - end > STRANGER_READ_BYTES:
            _refuse(transport, HTTPStatus.BAD_REQUEST, TOO_EARLY)
            return
        self._handshakes.end(self)
        protocol = self._choose(upgrade, head[:end], transport)
        if self._move is not None and isinstance(protocol, asyncio.BufferedProtocol):
            self._move(transport, protocol, head)
            return
        self._give(transport, protocol)
        feed(protocol, transport, head)

    def _give(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        """Give a protocol the connection."""
        transport.set_protocol(protocol)
        protocol.connection_made(transport)


def _refuse(transport: asyncio.Transport, status: HTTPStatus, said: str) -> None:
    """Say why no one takes a connection; its deadline stands until the answer has been read."""
    if not transport.is_closing():
        transport.write(REFUSAL % (status, status.phrase.encode(), len(said), said.encode()))
        transport.close()


class WholeReads(FirstRequest, asyncio.Protocol):
    """A first request as the loop itself reads it, into room of its own, as at a port for HTTP."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        self._add(data)


class BoundedReads(FirstRequest, asyncio.BufferedProtocol):
    """A first request as aiofastnet reads it: of TLS, too, a little at a time."""

    __slots__ = ("_room",)

    def __init__(self, choose: Choose, handshakes: HandshakeLimiter) -> None:
        super().__init__(choose, handshakes)
        # Of its own, since a loop may hold the room of a read while others are read.
        self._room = bytearray(STRANGER_READ_BYTES)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        self._add(bytes(memoryview(self._room)[:nbytes]))

    def _give(self, transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
        if isinstance(protocol, asyncio.BufferedProtocol):
            super()._give(transport, protocol)
            return
        transport.set_protocol(BufferedReads(protocol))
        protocol.connection_made(cast("asyncio.Transport", ResumedTransport(transport)))


class BufferedReads(asyncio.BufferedProtocol):
    """Hands a protocol, as a whole, what is read into a buffer.

    Aiofastnet reads on in the way in which it has begun, also for another protocol: what stands
    behind the head of a request over TLS would find none with a buffer.
    """

    def __init__(self, protocol: Any) -> None:
        self._room = bytearray(READ_BUFFER_BYTES)
        self._data_received: Callable[[bytes], None] = protocol.data_received
        for each in ("eof_received", "connection_lost", "pause_writing", "resume_writing"):
            setattr(self, each, getattr(protocol, each))

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Hand on what came."""
        self._data_received(bytes(memoryview(self._room)[:nbytes]))


class ResumedTransport:
    """A transport of aiofastnet's whose reading can be paused; see :class:`DecryptedReads`."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.resume_reading = DecryptedReads(asyncio.get_running_loop(), transport).resume

    def __getattr__(self, name: str) -> Any:
        """All else is the transport's own."""
        return getattr(self._transport, name)


def feed(protocol: Any, transport: asyncio.Transport, data: bytes) -> None:
    """Have a protocol take what was read before it had the connection."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    left = memoryview(data)
    while left and not transport.is_closing():
        room = memoryview(protocol.get_buffer(len(left)))
        count = min(len(room), len(left))
        room[:count] = left[:count]
        protocol.buffer_updated(count)
        left = left[count:]


CONNECTIONS_TO_A_HANDSHAKE: Final = 4
"""For so many connections that a gateway takes, one more may be in its handshake, which takes
milliseconds where no peer means ill."""


def max_handshakes(limits: GatewayLimits) -> int:
    """The number of connections that may be in their handshake at once."""
    return max(limits.max_connections // CONNECTIONS_TO_A_HANDSHAKE, 1)


class Droppable(Protocol):
    """A connection that has not said yet what it wants."""

    def drop(self) -> None:
        """Drop it: it is late, or the oldest of too many."""
        ...


class HandshakeLimiter:
    """Bounds connections whose first request is not read yet; one too many drops the oldest.

    The oldest, and not the newest: those who only hold a place wait longer than those who want in.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        # The deadline of each, in the order in which they began.
        self._begun: dict[Droppable, float] = {}
        # One for all of them: a timer of its own was a fifth of what a connection costs here.
        self._late: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, request: Droppable) -> None:
        """Count a connection in, and drop the oldest if these are too many."""
        loop = asyncio.get_running_loop()
        deadline = self._begun[request] = loop.time() + self._timeout
        if len(self._begun) > self._limit:
            next(iter(self._begun)).drop()
        if self._late is None:
            self._late = loop.call_at(deadline, self._drop_late)

    def end(self, request: Droppable) -> None:
        """Count a connection out: its first request has been read, or it has ended."""
        self._begun.pop(request, None)

    def drop_all(self) -> None:
        """Drop every connection whose first request is not read yet."""
        for request in tuple(self._begun):
            request.drop()
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _drop_late(self) -> None:
        """Drop those whose deadline has passed, and wait for that of the oldest."""
        loop = asyncio.get_running_loop()
        self._late = None
        while self._begun:
            oldest, deadline = next(iter(self._begun.items()))
            if deadline > loop.time():
                self._late = loop.call_at(deadline, self._drop_late)
                return
            oldest.drop()


# --- listener ---

BACKLOG: Final = 4_096
"""Connections that may wait to be taken. All members dial at once when their gateway has restarted,
and a client that finds no room tries again after a second, or three, or seven."""

READ_BEYOND: Final = 2
"""A message up to so many times too large is read to its end and thrown away, so that its sender
gets to read why; picows closes with 1009 at the head of a larger frame."""

READ_BUFFER_BYTES: Final = 16 * 1024
"""Initial size of a connection's read buffer, as picows has it."""

MEMBER_READ_BYTES: Final = 16 * 1024
"""Bytes that are read at a time of a member. Without it picows' buffer doubles with each read that
fills it, and all frames in it, a million in the end, are taken in one turn of the loop."""


async def listen(
    place: tuple[str, int] | socket.socket,
    runtime: GatewayRuntime,
    handshakes: HandshakeLimiter,
    context: ssl.SSLContext | None,
    http: Callable[[], asyncio.BaseProtocol] | None,
    forward: Forward,
) -> asyncio.Server:
    """Begin to listen at a host and port, or at a Unix socket that is bound.

    A connection whose first request is not an upgrade gets a protocol of ``http``; without
    one it is a handshake as well, and refused. ``picows.ws_create_server`` does the same for
    WebSocket alone, and does not tell where a handshake comes from.

    Where both are served, the loop itself accepts, as at a port for HTTP alone, and an upgrade gets
    what picows writes to fastest: aiofastnet's own accepting costs a task for each connection. TLS
    cannot change hands, so it is aiofastnet's for both. A Unix socket has no TLS.
    """
    limits = runtime.limits
    moves = isinstance(place, socket.socket) or (
        http is not None and context is None and SelectorSocketTransport is not None
    )

    def websocket() -> asyncio.BaseProtocol:
        protocol: Any = None

        def decide(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
            return _accept(runtime, request, address_of(protocol.transport.underlying_transport))

        # By position, since that is how picows itself makes one.
        protocol = _BoundedProtocol(
            None,
            None,
            False,  # is not a client
            decide,
            PicowsLog(log, runtime.refusals),
            True,  # disconnects if we raise
            limits.handshake_timeout,
            True,  # pings
            limits.ping_interval,
            limits.ping_deadline,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            False,  # does not answer pings, however many: the connection does
            limits.max_message_bytes * READ_BEYOND,
            None,
            READ_BUFFER_BYTES,
        )
        return cast("asyncio.BaseProtocol", protocol)

    def choose(
        upgrade: bool, head: bytes, transport: asyncio.BaseTransport
    ) -> asyncio.BaseProtocol:
        taken = forward(upgrade, head, transport)
        if taken is not None:
            return taken
        return websocket() if upgrade or http is None else http()

    loop = asyncio.get_running_loop()
    first_request = (
        partial(WholeReads, choose, handshakes, _move)
        if moves
        else partial(BoundedReads, choose, handshakes)
    )
    # What picows itself listens with: its sockets take less of the loop's time.
    if isinstance(place, socket.socket):
        return await loop.create_unix_server(first_request, sock=place, backlog=BACKLOG)
    create_server = loop.create_server if moves else partial(aiofastnet.create_server, loop)
    host, port = place
    return await create_server(
        first_request,
        host=host,
        port=port,
        backlog=BACKLOG,
        ssl=context,
        ssl_handshake_timeout=None if context is None else limits.handshake_timeout,
    )


def _accept(
    runtime: GatewayRuntime, request: WSUpgradeRequest, address: str
) -> WSUpgradeResponseWithListener:
    """Decide about a handshake that came from an address."""
    headers = request.headers
    # Browsers say "keep-alive, Upgrade", and picows compares the whole value.
    if "upgrade" in headers.get("Connection", "").lower():
        headers["Connection"] = "Upgrade"
    try:
        handshake = admit(runtime, request.path, headers, address)
        return WSUpgradeResponseWithListener(
            WSUpgradeResponse.create_101_response(handshake.answer),
            WebSocketConnection(runtime, handshake),
        )
    except NotAdmitted as refused:
        response = WSUpgradeResponse.create_error_response(
            refused.status, str(refused).encode(), refused.headers
        )
    except Exception:
        # Picows would tell the client what was raised.
        log.exception("a handshake from %s could not be answered", address)
        response = WSUpgradeResponse.create_error_response(500, b"internal error")
    return WSUpgradeResponseWithListener(response, None)


_WSProtocol = cast("type[Any]", WSProtocol)

SelectorSocketTransport: Any = None
if sys.platform != "win32":
    # It is not among what aiofastnet promises; without it, aiofastnet accepts for both.
    with suppress(ImportError, AttributeError):
        SelectorSocketTransport = import_module(
            "aiofastnet.selector_transport"
        ).SelectorSocketTransport


def _get_buffer(self: Any, size_hint: int) -> memoryview:
    """Room for the next read; of picows' own it is as much as the connection may send at a time."""
    room: memoryview = _WSProtocol.get_buffer(self, size_hint)
    return room[: getattr(self.listener, "read_bytes", STRANGER_READ_BYTES)]


_BoundedProtocol: Any = type("_BoundedProtocol", (_WSProtocol,), {"get_buffer": _get_buffer})


class _StreamSocket(socket.socket):
    """A socket on which picows can set options of TCP, which a Unix socket does not have."""

    def setsockopt(self, level: int, *rest: Any) -> None:
        """Set an option, if the socket has it."""
        if self._has(level):
            super().setsockopt(level, *rest)

    def getsockopt(self, level: int, *rest: Any) -> Any:
        """An option's value; 0 if the socket does not have it."""
        return cast("Any", super().getsockopt(level, *rest)) if self._has(level) else 0

    def _has(self, level: int) -> bool:
        return level != socket.IPPROTO_TCP or self.family != socket.AF_UNIX


def _move(transport: asyncio.Transport, protocol: asyncio.BaseProtocol, came: bytes) -> None:
    """Give a protocol a transport of aiofastnet's for a connection, and what came of it so far."""
    loop = asyncio.get_running_loop()
    # The connection lives on: of two descriptors, the loop's own is closed.
    number = os.dup(transport.get_extra_info("socket").fileno())
    transport.abort()
    moved = SelectorSocketTransport(loop, _StreamSocket(fileno=number), protocol)
    # In the turn in which it begins to read, so before anything else is read.
    loop.call_soon(feed, protocol, moved, came)


class ConnectionEnds(NamedTuple):
    """Address and port of who dialled a connection, and those that were dialled.

    A port of the dialling end alone may have connections to several places at once.
    """

    dialler: tuple[str, int]
    dialled: tuple[str, int]


forwarded_for: Final[dict[ConnectionEnds, str]] = {}
"""Addresses of members whose connections another gateway forwarded, by the ends of the connection
to itself that this process dials for each."""


def ends_of(wire: asyncio.BaseTransport) -> ConnectionEnds | None:
    """The ends of a connection that came in; ``None`` at a Unix socket, or if they are unknown."""
    far, near = (
        cast("tuple[Any, ...] | str | None", wire.get_extra_info(name))
        for name in ("peername", "sockname")
    )
    if not isinstance(far, tuple) or not isinstance(near, tuple):
        return None
    return ConnectionEnds(far[:2], near[:2])


def address_of(wire: asyncio.BaseTransport) -> str:
    """The other end's address, without its port; empty at a Unix socket, or if it is unknown.

    Of a forwarded connection, that of the member.
    """
    ends = ends_of(wire)
    return "" if ends is None else forwarded_for.get(ends, ends.dialler[0])


def address_of_client(scope: Mapping[str, Any]) -> str:
    """The address of who sent a request, by its ASGI scope; of a forwarded one, the member's."""
    client, server = scope.get("client"), scope.get("server")
    if client is None:
        return ""
    address = str(client[0])
    if server is None:
        return address
    return forwarded_for.get(ConnectionEnds((address, client[1]), tuple(server)), address)


def peer_of(wire: asyncio.BaseTransport) -> str:
    """The other end's address with its port, for the log."""
    peer = cast("tuple[object, ...] | str | None", wire.get_extra_info("peername"))
    if isinstance(peer, tuple):
        return "{}:{}".format(*peer[:2])
    return "an unknown address" if peer is None else "this machine, at the Unix socket"


FAILED: Final = "SSL handshake failed"
"""Message of aiofastnet in that case."""


@contextmanager
def shorten_tls_failures() -> Generator[None]:
    """For the length of a block, log a TLS handshake that fails in one line.

    A health check that only opens a connection is enough for that. aiofastnet hands it to the
    loop's exception handler, with a class in place of an exception, over which logging breaks.
    """
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    refusals = RefusalLog(wall_clock)

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        wire = context.get("transport")
        if isinstance(wire, aiofastnet.Transport) and context["message"] == FAILED:
            refusals.info(
                "%s ended before its TLS handshake did", address_of(wire) or "a connection"
            )
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
    try:
        yield
    finally:
        # A program that set another one meanwhile goes on with that.
        if loop.get_exception_handler() is handle:
            loop.set_exception_handler(before)


# --- connections at the message port ---

CONTINUATION: Final = 0x0
TEXT: Final = 0x1
BINARY: Final = 0x2
CLOSE: Final = 0x8
PING: Final = 0x9
PONG: Final = 0xA

PROTOCOL_ERROR: Final = 1002

NORMAL: Final = 1000

CLOSED_STRANGER_SECONDS: Final = 1.0
"""Seconds between two reads of a connection that was closed before it joined and still sends."""

_MICROSECONDS: Final = 1_000_000


class WebSocketConnection(WSListener, MemberConnection):
    """A connection at the message port."""

    joins_frames = True

    def __init__(self, runtime: GatewayRuntime, handshake: Handshake) -> None:
        MemberConnection.__init__(self, runtime, handshake)
        # Strangers get room for a join frame, members for their messages.
        self._assembler = Assembler(MAX_JOIN_BYTES)
        self.read_bytes = STRANGER_READ_BYTES
        self._packers = (pack_text, pack_binary)
        self._full = False
        self._ping: bytes | None = None
        # What was read from the socket before its gate closed: less than one read.
        self._unhandled: deque[tuple[int, bool, bool, bytes]] = deque()
        self._join_frames = self._join_bytes = 0
        # Of frames that are not a whole message; most connections never send one.
        self._pieces: TokenBucket | None = None

    # --- what picows calls ------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Join, or wait for the join frame."""
        self._transport = transport
        self._wire = transport.underlying_transport
        self._connected(self._wire, address_of(self._wire), peer_of(self._wire))

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take a frame now, or when the connection is read again."""
        # Not its `.value`: that is two calls of functions in Python for each frame.
        kind: int = frame.msg_type  # type: ignore[assignment]  # compares as an int
        data = frame.get_payload_as_bytes()
        reserved = bool(frame.rsv1 or frame.rsv2 or frame.rsv3)
        if self._gate.open:
            self._handle(kind, bool(frame.fin), reserved, data)
        elif self._ended_by is None or kind == CLOSE:
            self._unhandled.append((kind, bool(frame.fin), reserved, data))

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """Leave the space."""
        self._unhandled.clear()
        code = ABNORMAL if self._ended_by is not None else self._closed_by_picows(transport)
        self._disconnected(code)

    def pause_writing(self) -> None:
        """Hold frames back until the socket takes more."""
        self._full = True
        MemberConnection.pause_writing(self)

    def resume_writing(self) -> None:
        """Write what was held back."""
        self._full = False
        if self._ping is not None:
            self._answer_ping(self._ping)
        MemberConnection.resume_writing(self)

    # --- what a connection does with its socket ---------------------------------------------

    def write(self, packed: bytes) -> None:
        # After a close frame nothing may follow; picows sends one by itself in some cases.
        if self._ended_by is None and not self._transport.is_close_frame_sent:
            self._wire.write(packed)

    def _send_close(self, code: int, reason: str) -> None:
        self._transport.send_close(cast("WSCloseCode", code), reason)

    def _drop_transport(self) -> None:
        self._transport.disconnect(False)

    def _join(self, use: TokenUse, dialect: str) -> None:
        self._assembler = Assembler(self._limits.max_message_bytes)
        self.read_bytes = MEMBER_READ_BYTES
        super()._join(use, dialect)

    # --- frames -----------------------------------------------------------------------------

    def _handle(self, kind: int, final: bool, reserved: bool, data: bytes) -> None:
        """Take a frame: a control frame, or a fragment of a message."""
        self._count_frame(len(data))
        if kind == CLOSE:
            self._answer_close(int.from_bytes(data[:2]))
            return
        if self._ended_by is not None and self._member is None:
            # It was closed, and has nothing to say but that it closes as well.
            self._gate.pause(CLOSED_STRANGER_SECONDS)
            return
        if self._ended_by is not None or not final or kind in (PING, PONG):
            self._count_piece()
        if self._ended_by is not None or (self._member is None and self._over_budget(len(data))):
            return
        if kind == PING:
            self._answer_ping(data)
        elif reserved:
            self._end(PROTOCOL_ERROR, "no extension was agreed on")
        elif kind != PONG:
            try:
                message = self._assembler.add(kind, final, data)
            except BadMessage as bad:
                self._refuse_message(bad.code, str(bad))
            else:
                if message is not None:
                    self._handle_message(message)

    def _read_on(self) -> None:
        while self._unhandled and self._gate.open:
            self._handle(*self._unhandled.popleft())

    def _count_piece(self) -> None:
        """Count a frame that is not a whole message: control, a fragment, or one too late."""
        limits, now = self._limits, round(self._loop.time() * _MICROSECONDS)
        if self._pieces is None:
            self._pieces = TokenBucket(limits.frames_per_second, limits.frames_burst)
        wait = self._pieces.consume(now)
        if wait:
            self._read_later(wait)

    def _over_budget(self, size: int) -> bool:
        """True if a connection has sent more than a join takes; it is closed then."""
        most = self._limits.join_frames
        self._join_frames += 1
        self._join_bytes += size
        if self._join_frames > most:
            said = f"no join frame stands in the first {most} frames (join_frames)"
            self._not_admitted(NotAdmitted(BAD_REQUEST, said))
        elif self._join_bytes > MAX_JOIN_BYTES:
            self._end(TOO_BIG, f"a join may have at most {MAX_JOIN_BYTES} bytes")
        return self._ended_by is not None

    def _read_later(self, seconds: float) -> None:
        # Of a sender that far ahead, what was read is taken at once, and then it waits.
        if seconds <= self._longest_pause or not self._unhandled:
            super()._read_later(seconds)

    def _answer_ping(self, payload: bytes) -> None:
        """Answer a ping; while the socket takes no more, only the last (RFC 6455 section 5.5.3).

        Otherwise a peer that pings and does not read would fill the memory with answers.
        """
        self._ping = payload if self._full else None
        if not self._full and self._ended_by is None and not self._transport.is_close_frame_sent:
            self._transport.send_pong(payload)

    # --- ending -----------------------------------------------------------------------------

    def _answer_close(self, code: int) -> None:
        """Finish the closing handshake, whichever end began it."""
        if self._ended_by is None:
            # Some codes never stand in a close frame (RFC 6455 section 7.4).
            allowed = code not in (1004, 1005, ABNORMAL, 1015) and code < 5000
            self._ended_by = (int(code) or NORMAL) if allowed else PROTOCOL_ERROR
            if not self._transport.is_close_frame_sent:
                self._transport.send_close(cast("WSCloseCode", self._ended_by))
            self._drop_soon()
        self._leave()
        self._transport.disconnect()

    def _closed_by_picows(self, transport: WSTransport) -> int:
        """The code with which picows closed, for broken rules or a missing pong; 1006 if none."""
        sent = transport.close_handshake.sent if transport.is_close_frame_sent else None
        if sent is None:
            return ABNORMAL
        code = cast("int", sent.code)
        self._runtime.counters.closed[code] += 1
        return code


# --- framing that picows leaves to us ---


class BadMessage(Exception):
    """Fragments that make no message that is taken; ``code`` is the close code that says why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Assembler:
    """Joins the fragments of a connection's messages, and bounds what they come to.

    Text and binary frames are the same here: a message is checked as UTF-8 when it is decoded.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: bytearray | None = None

    def add(self, opcode: int, final: bool, data: bytes) -> bytes | None:
        """Take a data frame; the whole message if this completes one.

        Raises :exc:`BadMessage`, and keeps nothing, where the frame does not follow from those
        before it, or the message has become too large.
        """
        continues = opcode == CONTINUATION
        if continues is (self._parts is None):
            raise BadMessage(PROTOCOL_ERROR, "the fragments of a message do not follow each other")
        if len(data) + len(self._parts or b"") > self._max_bytes:
            self._parts = None
            raise BadMessage(TOO_BIG, f"a message may have at most {self._max_bytes} bytes")
        if final and self._parts is None:
            return data
        self._parts = self._parts or bytearray()
        self._parts += data
        if not final:
            return None
        message, self._parts = bytes(self._parts), None
        return message


def _pack(opcode: int, payload: bytes) -> bytes:
    """A whole message as a server sends it: one frame, not masked (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((0x80 | opcode, size)) + payload
    if size < 1 << 16:
        return bytes((0x80 | opcode, 126)) + size.to_bytes(2) + payload
    return bytes((0x80 | opcode, 127)) + size.to_bytes(8) + payload


pack_text: Final = partial(_pack, TEXT)
pack_binary: Final = partial(_pack, BINARY)


def pack_close(code: int, reason: str) -> bytes:
    """A close frame (RFC 6455 section 5.5.1)."""
    return _pack(CLOSE, code.to_bytes(2) + reason.encode())


class FrameEnds:
    """Knows where the frames of a server end, of a connection whose bytes are only copied."""

    def __init__(self) -> None:
        self.closed: bool = False
        """True once a close frame came, after which nothing may follow."""
        self._head: bytes = b""  # of a frame whose length is not known yet
        self._left: int = 0  # bytes of a frame's payload that are still to come

    @property
    def missing(self) -> int:
        """Bytes that may be read without reading into the next frame; 0: a frame has ended."""
        return self._left or min(len(self._head), 1)

    def add(self, data: bytes) -> None:
        """Take the next bytes."""
        data, at = self._head + data, self._left
        size = len(data)
        while at + 2 <= size:
            length, begin = data[at + 1], at + 2
            if length > 125:
                begin += 2 if length == 126 else 8
                if begin > size:
                    break
                length = int.from_bytes(data[at + 2 : begin])
            self.closed = data[at] & 0x0F == CLOSE
            at = begin + length
        self._head, self._left = (data[at:], 0) if at <= size else (b"", at - size)
