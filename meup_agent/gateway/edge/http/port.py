"""The HTTP port of a gateway: uvicorn on the gateway's own loop, without signal handlers."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import ssl
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final

import h11
import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from meup_agent.gateway.admission import BAD_REQUEST
from meup_agent.gateway.config import HttpConfig, TlsConfig
from meup_agent.gateway.edge.http.api import http_app
from meup_agent.gateway.network import host_and_port, listen_error, local_host, server_context
from meup_agent.gateway.runtime import GatewayRuntime

BACKLOG: Final = 2_048
"""Callers that may wait to be taken; the system may allow fewer."""


class HttpPort:
    """The HTTP API of a gateway on a port of its own."""

    def __init__(self, runtime: GatewayRuntime, where: HttpConfig, tls: TlsConfig | None) -> None:
        limits = runtime.limits
        self._where = where
        self._tls = tls
        config = uvicorn.Config(
            _dated(_http_only(http_app(lambda: runtime), runtime)),
            http=_protocol(limits.handshake_timeout),
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
            limit_concurrency=limits.max_connections,
            timeout_graceful_shutdown=math.ceil(limits.stop_timeout),
            ssl_context_factory=None if tls is None else _context(tls),
        )
        self._server = uvicorn.Server(config)
        self._socket: socket.socket | None = None

    @property
    def port(self) -> int:
        """The port it listens at."""
        assert self._socket is not None, "it listens first"
        return int(self._socket.getsockname()[1])

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return self._url(local_host(self._where.host))

    @property
    def listens_at(self) -> str:
        """The address it listens at, ``0.0.0.0`` included, which cannot be dialled."""
        return self._url(self._where.host or "*")

    def _url(self, host: str) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{host_and_port(host, self.port)}"

    async def listen(self) -> None:
        """Begin to listen."""
        server = self._server
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        self._socket = await _bound(self._where.host, self._where.port)
        # Without its own endless loop: that only watches for signals and writes the date.
        await server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        """Answer what has been asked, and stop listening; takes ``stop_timeout`` at most."""
        await self._server.shutdown()
        self.abort()

    def abort(self) -> None:
        """Stop listening, and drop every connection."""
        for server in self._server.servers:
            server.close()
        for connection in tuple(self._server.server_state.connections):
            connection.transport.abort()


def _context(tls: TlsConfig) -> Callable[[uvicorn.Config, object], ssl.SSLContext]:
    def make(_config: uvicorn.Config, _default: object) -> ssl.SSLContext:
        return server_context(tls)

    return make


async def _bound(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except OSError as error:
        raise listen_error(host, port, error, " for HTTP") from None


def _dated(app: ASGIApp) -> ASGIApp:
    """The application, with the date in its answers (RFC 9110 section 6.6.1)."""

    async def dated(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"date", formatdate(usegmt=True).encode()),
                ]
            await send(message)

        await app(scope, receive, send_dated)

    return dated


def _http_only(app: ASGIApp, runtime: GatewayRuntime) -> ASGIApp:
    """The application, without WebSocket: who dials the wrong port is told of the right one."""

    async def http_only(scope: Scope, receive: Receive, send: Send) -> None:
        if Headers(scope=scope).get("upgrade", "").lower() == "websocket":
            said = f"this port is for HTTP; the gateway's port for WebSocket is {runtime.url}"
            await PlainTextResponse(said, BAD_REQUEST)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return http_only


def _protocol(seconds: float) -> type[H11Protocol]:
    """HTTP, for callers who say what they want within a time, header by header."""

    class Patient(H11Protocol):
        _late: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._late = self.loop.call_later(seconds, self._drop)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:
                self._done_waiting()
            elif self._late is None and self.conn.trailing_data[0]:
                self._late = self.loop.call_later(seconds, self._drop)

        def connection_lost(self, exc: Exception | None) -> None:
            self._done_waiting()
            super().connection_lost(exc)

        def _unsupported_upgrade_warning(self) -> None:
            # Uvicorn would say in the log to install what takes WebSocket; see _http_only.
            pass

        def _done_waiting(self) -> None:
            if self._late is not None:
                self._late.cancel()
                self._late = None

        def _drop(self) -> None:
            self._late = None
            self.transport.abort()

    return Patient
