"""Listens for WebSocket connections, and knows of each where it comes from before its handshake."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

import aiofastnet
from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # not in picows' stubs

from meup_agent.gateway.config import Limits
from meup_agent.gateway.edge.handshaking import Handshakes, most_handshakes
from meup_agent.gateway.edge.picows_log import PicowsLog
from meup_agent.gateway.logs import log
from meup_agent.gateway.refusal_log import RefusalLog

READ_BEYOND: Final = 2
"""A message up to so many times too large is read to its end and thrown away, so that its sender
gets to read why; picows closes with 1009 at the head of a larger frame."""

READ_BUFFER_BYTES: Final = 16 * 1024
"""What a connection's read buffer begins with, as picows has it."""

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
    limits: Limits,
    refusals: RefusalLog,
    *,
    backlog: int,
    context: ssl.SSLContext | None = None,
) -> asyncio.Server:
    """Begin to listen.

    ``picows.ws_create_server`` does the same, but does not tell where a handshake comes from.

    Args:
        accept: Decides about handshakes.
        host: Where to listen.
        port: Where to listen; 0: any free port.
        limits: What is taken and waited for.
        refusals: Logs who does not get in.
        backlog: Connections that wait to be taken.
        context: What to encrypt with.

    Raises:
        OSError: The address cannot be listened at.
    """
    handshakes = Handshakes(most_handshakes(limits))

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
