"""A port of its own for HTTP, beside the one that also takes WebSocket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Final

from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute

from meup_agent.gateway.admission import BAD_REQUEST
from meup_agent.gateway.config import TlsConfig
from meup_agent.gateway.edge.http.server import HttpEdge
from meup_agent.gateway.network import host_and_port, listen_error, local_host, server_context
from meup_agent.gateway.runtime import GatewayRuntime

BACKLOG: Final = 2_048
"""Callers that may wait to be taken; the system may allow fewer."""


class HttpPort(HttpEdge):
    """The HTTP API of a gateway on a port of its own."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        host: str,
        port: int,
        tls: TlsConfig | None,
        routes: Sequence[BaseRoute] = (),
    ) -> None:
        def refusal() -> PlainTextResponse:
            said = f"this port is for HTTP; the gateway's port for WebSocket is {runtime.url}"
            return PlainTextResponse(said, BAD_REQUEST)

        super().__init__(runtime, refusal, None if tls is None else server_context(tls), routes)
        self._host = host
        self._port = port
        self._scheme = "http" if tls is None else "https"

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return self._url(local_host(self._host))

    @property
    def listens_at(self) -> str:
        """The address it listens at, ``0.0.0.0`` included, which cannot be dialled."""
        return self._url(self._host or "*")

    def _url(self, host: str) -> str:
        return f"{self._scheme}://{host_and_port(host, self._port)}"

    async def listen(self) -> None:
        """Begin to listen."""
        bound = await _bound(self._host, self._port)
        self._port = int(bound.getsockname()[1])
        await self.start(bound)


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
