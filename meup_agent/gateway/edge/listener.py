"""The listening socket of the message port, and its bounds on handshakes: anybody can open them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import aiofastnet
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in picows' stubs

from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import PicowsLog, RefusalLog, log
from meup_agent.gateway.runtime import wall_clock

READ_BEYOND: Final = 2
"""A message up to so many times too large is read to its end and thrown away, so that its sender
gets to read why; picows closes with 1009 at the head of a larger frame."""

READ_BUFFER_BYTES: Final = 16 * 1024
"""Initial size of a connection's read buffer, as picows has it."""

STRANGER_READ_BYTES: Final = 2 * 1024
"""Bytes that are read at a time of a connection that has not joined: a handshake or a join frame,
and no more than some hundred empty frames, since all of them are looked at before others are."""

MEMBER_READ_BYTES: Final = 16 * 1024
"""The same of a member. Without it picows' buffer doubles with each read that fills it, and all
frames in it, a million in the end, are taken in one turn of the loop."""

Accept = Callable[[WSUpgradeRequest, str], WSUpgradeResponseWithListener]
"""Decides about a handshake, which came from an address."""


async def listen(
    accept: Accept,
    host: str,
    port: int,
    limits: GatewayLimits,
    refusals: RefusalLog,
    *,
    backlog: int,
    context: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Begin to listen, and have handshakes decided with the address that they come from.

    ``picows.ws_create_server`` does the same, but does not tell where a handshake comes from.
    """
    handshakes = HandshakeLimiter(max_handshakes(limits))

    def make() -> asyncio.BaseProtocol:
        protocol: Any = None

        def decide(request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
            handshakes.end(protocol)
            return accept(request, address_of(protocol.transport.underlying_transport))

        # By position, since that is how picows itself makes one.
        protocol = _BoundedProtocol(
            None,
            None,
            False,  # is no client
            decide,
            PicowsLog(log, refusals),
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
        handshakes.begin(protocol)
        return cast("asyncio.BaseProtocol", protocol)

    # What picows itself listens with: its sockets take less of the loop's time.
    create_server = partial(aiofastnet.create_server, asyncio.get_running_loop())
    return await create_server(
        make,
        host=host,
        port=port,
        backlog=backlog,
        ssl=context,
        ssl_handshake_timeout=None if context is None else limits.handshake_timeout,
    )


_WSProtocol = cast("type[Any]", WSProtocol)


def _get_buffer(self: Any, size_hint: int) -> memoryview:
    """Room for the next read; of picows' own it is as much as the connection may send at a time."""
    room: memoryview = _WSProtocol.get_buffer(self, size_hint)
    return room[: getattr(self.listener, "read_bytes", STRANGER_READ_BYTES)]


_BoundedProtocol: Any = type("_BoundedProtocol", (_WSProtocol,), {"get_buffer": _get_buffer})


def address_of(wire: asyncio.BaseTransport) -> str:
    """The other end's address, without its port; empty if it is not known any more."""
    peer = cast("tuple[object, ...] | None", wire.get_extra_info("peername"))
    return str(peer[0]) if peer else ""


def peer_of(wire: asyncio.BaseTransport) -> str:
    """The other end's address with its port, for the log."""
    peer = cast("tuple[object, ...] | None", wire.get_extra_info("peername"))
    return "{}:{}".format(*peer[:2]) if peer else "an unknown address"


CONNECTIONS_TO_A_HANDSHAKE: Final = 4
"""For so many connections that a gateway takes, one more may be in its handshake, which takes
milliseconds where no peer means ill."""


def max_handshakes(limits: GatewayLimits) -> int:
    """The number of connections that may be in their handshake at once."""
    return max(limits.max_connections // CONNECTIONS_TO_A_HANDSHAKE, 1)


class HandshakeLimiter:
    """Bounds connections whose handshake has begun; one too many, and the oldest is dropped.

    The oldest, and not the newest: those who only hold a place wait longer than those who want in.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By identity, in the order in which they began; the values keep the keys from being reused.
        self._begun: dict[int, Any] = {}

    def begin(self, protocol: Any) -> None:
        """Count a connection in, and drop the oldest if these are too many."""
        self._begun[id(protocol)] = protocol
        if len(self._begun) > self._limit:
            oldest = self._begun.pop(next(iter(self._begun)))
            # One that has ended by itself, or is not made yet, has no socket to drop.
            if oldest.transport is not None:
                oldest.transport.disconnect(False)

    def end(self, protocol: Any) -> None:
        """Count a connection out: its handshake has been read."""
        self._begun.pop(id(protocol), None)


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
