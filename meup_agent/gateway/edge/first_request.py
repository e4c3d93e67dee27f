"""The first request of a connection: its head is read to its end, and decides who takes it over.

A WebSocket upgrade goes to picows, everything else to HTTP. Either gets the connection as if it had
had it from the beginning, with every byte that came; afterwards nothing of this is left in between.
Until then it is a stranger's connection: its head is bounded, it has one deadline from the moment
that it was accepted, TLS included, and only so many are in this state at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, cast

from meup_agent.gateway.limits import GatewayLimits

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

Choose = Callable[[bool], asyncio.BaseProtocol]
"""Makes the protocol that takes a connection over; it is told of a WebSocket upgrade."""

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
        protocol = self._choose(upgrade)
        if self._move is not None and isinstance(protocol, asyncio.BufferedProtocol):
            self._move(transport, protocol, head)
            return
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        feed(protocol, transport, head)


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
        """Room for the next read."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Take what came."""
        self._add(bytes(memoryview(self._room)[:nbytes]))


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


class HandshakeLimiter:
    """Bounds connections whose first request is not read yet; one too many drops the oldest.

    The oldest, and not the newest: those who only hold a place wait longer than those who want in.
    """

    def __init__(self, limit: int, timeout: float) -> None:
        self._limit = limit
        self._timeout = timeout
        # The deadline of each, in the order in which they began.
        self._begun: dict[FirstRequest, float] = {}
        # One for all of them: a timer of its own was a fifth of what a connection costs here.
        self._late: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._begun)

    def begin(self, request: FirstRequest) -> None:
        """Count a connection in, and drop the oldest if these are too many."""
        loop = asyncio.get_running_loop()
        deadline = self._begun[request] = loop.time() + self._timeout
        if len(self._begun) > self._limit:
            next(iter(self._begun)).drop()
        if self._late is None:
            self._late = loop.call_at(deadline, self._drop_late)

    def end(self, request: FirstRequest) -> None:
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
