"""HTTP under uvicorn: on a loop that is there already, without signal handlers.

The gateway's API takes connections of the port that also takes WebSocket, or has a port of its own
beside it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final, cast

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from meup_agent.gateway.auth import BAD_REQUEST
from meup_agent.gateway.edge.connection import CHUNK_WRITER, STALL_SECONDS, ChunkWriter
from meup_agent.gateway.edge.http.api import http_app
from meup_agent.gateway.edge.http.context import with_headers
from meup_agent.gateway.edge.listener import BACKLOG, Forward, HandshakeLimiter, WholeReads
from meup_agent.gateway.logs import RefusalLog, UvicornLog
from meup_agent.gateway.network import PortAddress, listen_error
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock

_NOT_THE_FIRST: Final = PlainTextResponse(
    "a WebSocket begins with the first request of a connection; dial a new one",
    HTTPStatus.UPGRADE_REQUIRED,
    {"Upgrade": "websocket", "Connection": "Upgrade"},
)
"""The answer to an upgrade on a connection that HTTP has taken."""


class AsgiServer:
    """Serves an application on connections that are handed to it, or that it listens for.

    Args:
        app: The application; its lifespan is not its server's.
        max_connections: Connections at once; a request on one more is answered 503.
        head_seconds: Seconds for a request's head to arrive.
        stop_seconds: Seconds for answers that are on their way when it stops.
        tls: The TLS of the sockets that it listens at itself.
        ends: True to close each connection with its answer.
        upgrade: The answer to a WebSocket upgrade; without it that is the application's.
        refusals: The log of what callers did wrong; without it, one of its own.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        max_connections: int,
        head_seconds: float,
        stop_seconds: float,
        tls: ssl.SSLContext | None = None,
        upgrade: ASGIApp | None = None,
        ends: bool = False,
        refusals: RefusalLog | None = None,
    ) -> None:
        config = uvicorn.Config(
            _checked(app, upgrade, ends),
            http=_protocol(head_seconds, refusals or RefusalLog(wall_clock)),
            ws="none",
            lifespan="off",
            log_config=None,
            # Below, uvicorn writes whole addresses, with whatever a stranger put there.
            log_level=logging.WARNING,
            access_log=False,
            # A caller is limited by the address; no caller is to give another than its own.
            proxy_headers=False,
            server_header=False,
            date_header=False,
            limit_concurrency=max_connections,
            timeout_graceful_shutdown=math.ceil(stop_seconds),
            ssl_context_factory=None if tls is None else lambda _config, _default: tls,
        )
        self._server = uvicorn.Server(config)
        self._server.servers = []  # one may be stopped that has not begun

    async def start(self, *sockets: socket.socket) -> None:
        """Begin to serve, and to listen at these sockets."""
        for each in sockets:
            # asyncio sets it only where the listening socket names its protocol, which that of
            # `socket.create_server` does not. Without it the second part of an answer waits for
            # the first one's acknowledgement: 40 ms.
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = self._server
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        # Without its own endless loop: that only watches for signals and writes the date.
        await server.startup(sockets=[*sockets])

    def close_with(self, server: asyncio.Server) -> None:
        """Let a server whose connections are handed over stop listening with this one."""
        self._server.servers.append(server)

    def protocol(self) -> asyncio.BaseProtocol:
        """The protocol of one connection that is handed over."""
        server = self._server
        make = cast("Callable[..., asyncio.BaseProtocol]", server.config.http_protocol_class)
        return make(
            config=server.config, server_state=server.server_state, app_state=server.lifespan.state
        )

    async def stop(self) -> None:
        """Answer what has been asked, and close; takes ``stop_seconds`` and a little at most."""
        state = self._server.server_state
        # Uvicorn waits a moment for what is not there either.
        if state.connections or state.tasks:
            await self._server.shutdown()
        self.abort()

    def abort(self) -> None:
        """Stop listening, and drop every connection."""
        for server in self._server.servers:
            server.close()
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()


def _checked(app: ASGIApp, upgrade: ASGIApp | None, ends: bool) -> ASGIApp:
    """The application, with the date in its answers (RFC 9110 section 6.6.1).

    A request whose length is given in two ways (RFC 9112 section 6.1) is refused. A proxy may end
    it elsewhere than we do, and what follows it would be a stranger's request on another caller's
    connection: so the connection is closed with the answer.
    """

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        headers, answer = Headers(scope=scope), app
        if "content-length" in headers and "transfer-encoding" in headers:
            said = "a request has either Content-Length or Transfer-Encoding"
            answer = PlainTextResponse(said, BAD_REQUEST, {"Connection": "close"})
        elif upgrade is not None and headers.get("upgrade", "").lower() == "websocket":
            answer = upgrade
        await answer(scope, receive, send)

    more = [(b"connection", b"close")] if ends else []
    return with_headers(checked, lambda _: [(b"date", _date(int(time.time()))), *more])


@lru_cache(1)
def _date(second: int) -> bytes:
    """A time in seconds since 1970 as a header has it; it is the same for all answers in one."""
    return formatdate(second, usegmt=True).encode()


def _protocol(seconds: float, refusals: RefusalLog) -> type[H11Protocol]:
    """HTTP, for callers who say what they want within a time, and read what they are answered."""

    class Patient(H11Protocol):
        cycle: Any  # none before the first request, which uvicorn's type does not say
        _late: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.logger = cast("logging.Logger", UvicornLog(self.logger, refusals))
            writer = ChunkWriter(transport, self.flow)
            self.app_state = {**self.app_state, CHUNK_WRITER: writer}
            self._late = self.loop.call_later(seconds, self._drop)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.cycle is not None and not self.cycle.response_complete:
                self._done_waiting()
            elif self._late is None:
                # Also for the rest of a body that was answered before it came: with its first byte
                # uvicorn's own deadline has ended for good.
                self._late = self.loop.call_later(seconds, self._drop)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._watch_reader()

        def resume_writing(self) -> None:
            super().resume_writing()
            if not self.transport.is_closing():
                self._stop_watching()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch_if_closing()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._watch_if_closing()

        def send_400_response(self, msg: str) -> None:
            if self.cycle is not None:
                # Its application would answer once more.
                self.cycle.disconnected = True
                self.cycle.message_event.set()
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:
                self.transport.close()  # the answer has begun
            self._watch_if_closing()

        def connection_lost(self, exc: Exception | None) -> None:
            self._done_waiting()
            self._stop_watching()
            super().connection_lost(exc)

        def _unsupported_upgrade_warning(self) -> None:
            # Uvicorn would say in the log to install what takes WebSocket; see _checked.
            pass

        def _done_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _watch_if_closing(self) -> None:
            # It closes once its reader has taken what was written.
            if self.transport.is_closing():
                self._watch_reader()

        def _watch_reader(self, waiting: float = math.inf) -> None:
            """Drop the connection once its reader takes nothing for a while.

            As long as a connection is watched, nothing more is written to it.
            """
            self._stop_watching()
            left = self.transport.get_write_buffer_size()
            if left >= waiting:
                self.transport.abort()
            else:
                self._stalled = self.loop.call_later(STALL_SECONDS, self._watch_reader, left)

        def _stop_watching(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
                self._stalled = None

        def _drop(self) -> None:
            self._late = None
            self.transport.abort()

    return Patient


def http_edge(
    runtime: GatewayRuntime,
    routes: Sequence[BaseRoute],
    upgrade: ASGIApp = _NOT_THE_FIRST,
) -> AsgiServer:
    """The HTTP API of a gateway, with further routes beside it."""
    limits, nats = runtime.limits, runtime.config.journal.nats
    return AsgiServer(
        http_app(lambda: runtime, *routes),
        max_connections=limits.max_connections,
        head_seconds=limits.handshake_timeout,
        stop_seconds=limits.stop_timeout,
        upgrade=upgrade,
        refusals=runtime.refusals,
        # The next request may be for a space that is at another gateway.
        ends=nats is not None and nats.advertise is not None,
    )


async def listen_for_http(
    runtime: GatewayRuntime,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    routes: Sequence[BaseRoute],
    handshakes: HandshakeLimiter,
    forward: Forward,
) -> tuple[AsgiServer, PortAddress]:
    """Begin to listen at a port for HTTP alone; its heads are read as at the port for both."""
    said = f"this port is for HTTP; the gateway's port for WebSocket is {runtime.url}"
    edge = http_edge(runtime, routes, PlainTextResponse(said, BAD_REQUEST))

    def choose(
        upgrade: bool, head: bytes, transport: asyncio.BaseTransport
    ) -> asyncio.BaseProtocol:
        return (None if upgrade else forward(upgrade, head, transport)) or edge.protocol()

    await edge.start()
    first_request = partial(WholeReads, choose, handshakes)
    try:
        server = await asyncio.get_running_loop().create_server(
            first_request, host, port, ssl=tls, backlog=BACKLOG
        )
    except OSError as error:
        raise listen_error(host, port, error, " for HTTP") from None
    edge.close_with(server)
    scheme = "http" if tls is None else "https"
    return edge, PortAddress(scheme, host, server.sockets[0].getsockname()[1])
