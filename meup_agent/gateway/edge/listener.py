"""The listening socket of the gateway's port, and picows' protocol with the gateway's bounds."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from typing import Any, Final, cast

import aiofastnet
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in picows' stubs

from meup_agent.gateway.edge.first_request import (
    STRANGER_READ_BYTES,
    BoundedReads,
    HandshakeLimiter,
    WholeReads,
    feed,
)
from meup_agent.gateway.logs import PicowsLog, RefusalLog, log
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock

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

Accept = Callable[[WSUpgradeRequest, str], WSUpgradeResponseWithListener]
"""Decides about a handshake, which came from an address."""


async def listen(
    accept: Accept,
    place: tuple[str, int] | socket.socket,
    runtime: GatewayRuntime,
    handshakes: HandshakeLimiter,
    *,
    context: ssl.SSLContext | None = None,
    http: Callable[[], asyncio.BaseProtocol] | None = None,
) -> asyncio.Server:
    """Begin to listen at a host and port, or at a Unix socket that is bound.

    Handshakes are decided with the address that they come from.

    A connection whose first request is no upgrade gets a protocol of ``http``; without one it is
    a handshake as well, and refused. ``picows.ws_create_server`` does the same for WebSocket alone,
    and does not tell where a handshake comes from.

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
            return accept(request, address_of(protocol.transport.underlying_transport))

        # By position, since that is how picows itself makes one.
        protocol = _BoundedProtocol(
            None,
            None,
            False,  # is no client
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

    def choose(upgrade: bool) -> asyncio.BaseProtocol:
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


def address_of(wire: asyncio.BaseTransport) -> str:
    """The other end's address, without its port; empty at a Unix socket, or if it is unknown."""
    peer = cast("tuple[object, ...] | str | None", wire.get_extra_info("peername"))
    return str(peer[0]) if isinstance(peer, tuple) else ""


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
