"""A whole gateway as one ASGI application: HTTP and WebSocket, mountable under any path."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from starlette.routing import WebSocketRoute
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket

from meup_agent.errors import UsageError
from meup_agent.gateway.config import Config
from meup_agent.gateway.edge.http.app import http_app
from meup_agent.gateway.edge.http.sockets import SocketConnection, serve_socket
from meup_agent.gateway.journal.engines import open_journal
from meup_agent.gateway.logs import log
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.space.counters import Counters
from meup_agent.protocol.space.journal import Journal

RESTARTING = 1012


class MountedGateway:
    """A gateway whose connections an ASGI server takes; it has no port of its own.

    Attributes:
        runtime: Its spaces.
        limits: What it takes and waits for.
    """

    def __init__(self, config: Config, journal: Journal, url: str = "") -> None:
        self.runtime = GatewayRuntime(config, journal=journal)
        self.runtime.url = url
        self.limits = config.limits
        self._connections: set[SocketConnection] = set()
        self._stopping = False
        self._empty = anyio.Event()
        self._room = anyio.Event()
        self._room.set()
        self._journal = journal
        journal.on_full = self._hold
        journal.on_failed = self._fail

    @property
    def listening(self) -> bool:
        """Whether it takes connections."""
        return not self._stopping

    @property
    def open_connections(self) -> int:
        """Connections at this moment, those that have not joined yet included."""
        return len(self._connections)

    @property
    def counters(self) -> Counters:
        """What has happened since it began."""
        return self.runtime.counters

    def opened(self, connection: SocketConnection) -> None:
        """Count a connection in."""
        self._connections.add(connection)

    def lost(self, connection: SocketConnection) -> None:
        """Count a connection out."""
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def until_kept(self) -> None:
        """Wait while too much waits for the disk."""
        await self._room.wait()

    async def stop(self) -> None:
        """Close every connection with 1012; takes ``stop_timeout`` at most."""
        self._stopping = True
        await self._journal.flush(self.limits.stop_timeout)
        self._close_all("the gateway stops; connect again")
        with anyio.move_on_after(self.limits.stop_timeout, shield=True):
            if self._connections:
                self._empty = anyio.Event()
                await self._empty.wait()

    def _close_all(self, reason: str) -> None:
        self.runtime.close(RESTARTING, reason)
        for connection in tuple(self._connections):
            connection.shut(RESTARTING, reason)

    def _hold(self, full: bool) -> None:
        if full:
            self._room = anyio.Event()
        else:
            self._room.set()

    def _fail(self, sentence: str) -> None:
        """Stop: what cannot be kept is not accepted either."""
        log.error("%s", sentence)
        self._stopping = True
        self._room.set()
        self._close_all("the gateway cannot keep what is said; connect again later")
        self.runtime.give_up()


class GatewayApp:
    """A gateway as an ASGI application.

    ::

        gateway = asgi_app(load_config("space.yaml"))
        app = Starlette(routes=[Mount("/gateway", gateway)], lifespan=gateway.lifespan)

    Members dial ``ws://…/gateway/ws?space=demo``, and the HTTP API is below ``/gateway`` as well.
    An application that is mounted is not told when it begins and ends: so the outer one gets
    :attr:`lifespan`, or enters it in a lifespan of its own. Served by itself it needs none of that.

    It runs on asyncio, in one process: another process would not know the members of this one. The
    server in front takes the connections, speaks TLS and sends the pings; what ``host``, ``port``,
    ``http``, ``tls`` and the limits of handshakes and pings in the configuration say is its matter.

    Args:
        config: The spaces, their participants and the limits.
        url: Where members dial, as invitations say it; empty: they do not say it.
    """

    def __init__(self, config: Config, *, url: str = "") -> None:
        self._config = config
        self._url = url
        self._running: MountedGateway | None = None
        self._app = http_app(
            lambda: self.running,
            WebSocketRoute("/{path:path}", self._socket),
            lifespan=self.lifespan,
        )

    @property
    def running(self) -> MountedGateway:
        """The gateway, as long as its lifespan lasts.

        Raises:
            UsageError: Nobody has entered its lifespan.
        """
        if self._running is None:
            raise UsageError(
                "the gateway does not run; give its lifespan to the application that it is mounted"
                " in: Starlette(…, lifespan=gateway.lifespan)"
            )
        return self._running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or serve one connection."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Run the gateway for the length of a block.

        Args:
            app: The application that it is mounted in; it is not looked at.

        Raises:
            ConfigurationError: The journal's file cannot be used.
        """
        async with open_journal(self._config.journal, wall_clock) as journal:
            self._running = gateway = MountedGateway(self._config, journal, self._url)
            try:
                yield
            finally:
                await gateway.stop()
                self._running = None

    async def _socket(self, websocket: WebSocket) -> None:
        await serve_socket(self.running, websocket)


def asgi_app(config: Config, *, url: str = "") -> GatewayApp:
    """A gateway as an ASGI application; see :class:`GatewayApp`.

    Args:
        config: The spaces, their participants and the limits.
        url: Where members dial, as invitations say it; empty: they do not say it.
    """
    return GatewayApp(config, url=url)


__all__ = ["GatewayApp", "MountedGateway", "asgi_app"]
