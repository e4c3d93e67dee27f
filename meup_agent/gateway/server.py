"""A gateway with a port of its own, for WebSocket and HTTP; HTTP may have one for itself.

:func:`serve` runs one by its configuration, :class:`Gateway` one inside a program or a test.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import urlsplit

import anyio
from anyio import AsyncContextManagerMixin
from anyio.from_thread import BlockingPortal, start_blocking_portal

from meup_agent.errors import UsageError
from meup_agent.gateway.cluster.forwarding import ConnectionForwarder, forward_connections
from meup_agent.gateway.config import (
    DEFAULT_HOST,
    Config,
    ConfigChange,
    Participants,
    first_token,
    one_space_config,
)
from meup_agent.gateway.edge import listener
from meup_agent.gateway.edge.listener import (
    HandshakeLimiter,
    max_handshakes,
    shorten_tls_failures,
)
from meup_agent.gateway.edge.local import LocalConnector
from meup_agent.gateway.history import HistoryLog, connect_outputs, open_history
from meup_agent.gateway.journal.engines import Keeper, engine_of, open_journal
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.logs import log
from meup_agent.gateway.network import (
    PortAddress,
    check_encrypted,
    copied_certificate,
    is_loopback,
    listen_error,
    load_certificate,
    server_context,
    serves_console,
    shares_port,
)
from meup_agent.gateway.reach import notices_of
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.space.allowance import SpaceCounters
from meup_agent.protocol.space.journal import Journal
from meup_agent.transport.base import loop_options

if TYPE_CHECKING:
    import socket
    import ssl

    from starlette.routing import BaseRoute
    from starlette.types import ASGIApp

    from meup_agent.gateway.edge.http.server import AsgiServer
    from meup_agent.transport.base import Connector

LAST_TURNS: Final = 1.0
"""Seconds for the loop to report that dropped sockets are closed; it takes one or two turns."""


CONSOLE_PATH: Final = "/console"

Page = Callable[[GatewayRuntime], "AbstractAsyncContextManager[ASGIApp]"]
"""A factory of the console: an application that a gateway serves for the length of a block. It is
handed in, since the console stands above the gateway."""


class RunningGateway:
    """A gateway that listens; made by :func:`serve`."""

    def __init__(
        self, config: Config, journal: Journal | None, history: HistoryLog | None = None
    ) -> None:
        self._config = config
        self.runtime = GatewayRuntime(
            config,
            journal=journal,
            shares_journal=journal is not None,
            loop=asyncio.get_running_loop(),
            on_failure=self._close_listening,
            recorder=history,
        )
        if config.tracing:
            from meup_agent.gateway.edge.http.views import export_to_sdk

            export_to_sdk(self.runtime)
        self.counters: Final = self.runtime.counters
        """Counts since it began to listen."""
        self.failed: Final = self.runtime.failed
        """Set when nothing can be kept any more; then it has stopped by itself."""
        self._servers: list[asyncio.Server] = []
        self._contexts: list[ssl.SSLContext] = []
        self._socket_url: str | None = None
        self.http_url: str | None = None
        """The address of its HTTP API for clients on this machine; ``None``: it serves none."""
        self.forwarder: ConnectionForwarder | None = None
        """Takes connections to spaces that other gateways have."""
        self.keeper: Keeper | None = None
        """Begins and ends the spaces, where each has a journal of its own."""
        self._http: AsgiServer | None = None
        self._routes: list[BaseRoute] = []
        self._has_console = False
        self._handshakes = HandshakeLimiter(
            max_handshakes(config.limits), config.limits.handshake_timeout
        )

    @property
    def failure(self) -> str:
        """The reason of that, in one sentence."""
        return self.runtime.failure

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._address.port

    def own_port(self, at_http_port: bool) -> tuple[str, int] | None:
        """Host and port by which this machine reaches it, or its HTTP API, if it serves that."""
        dialled = urlsplit((self.http_url if at_http_port else self.url) or "")
        return None if dialled.port is None else (dialled.hostname or "", dialled.port)

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        return self._address.url

    @property
    def own_url(self) -> str:
        """The address for programs of its own user: of the Unix socket, where it has one."""
        return self._socket_url or self.url

    def connector(self, space: str) -> Connector:
        """A way to a space for participants in this process; without a socket where it can be."""
        if self.forwarder is not None:
            # Another gateway may have the space, now or later.
            from meup_agent.transport.websocket import SpaceConnector

            return SpaceConnector(self.own_url, space)
        return LocalConnector(self.runtime, space, self.own_url)

    @property
    def listens_at(self) -> str:
        """The address it listens at; see :class:`~meup_agent.gateway.network.PortAddress`."""
        return self._address.listens_at

    @property
    def console_url(self) -> str | None:
        """The address of its console for browsers on this machine; ``None``: it serves none."""
        return self.http_url + CONSOLE_PATH if self.http_url and self._has_console else None

    def mount(self, page: ASGIApp) -> None:
        """Serve the console beside the HTTP API, once it listens."""
        from starlette.routing import Mount

        self._has_console = True
        self._routes.append(Mount(CONSOLE_PATH, page))

    def route(self, path: str, app: ASGIApp) -> None:
        """Serve an application at one path beside the HTTP API, once it listens."""
        from starlette.routing import Route

        self._routes.append(Route(path, app))

    def reload(self, config: Config) -> ConfigChange:
        """Take over a configuration that was read again; see :meth:`GatewayRuntime.reload`.

        New connections get the certificate that its files hold now.

        Raises:
            ConfigurationError: It cannot be taken over; nothing has changed.
        """
        tls = config.tls
        if tls is None:
            return self.runtime.reload(config)
        with copied_certificate(tls) as copy:
            change = self.runtime.reload(config)
            # The contexts themselves: listening sockets keep theirs, and take no other.
            for context in self._contexts:
                load_certificate(context, copy, tls)
            return change

    def drop(self, participant: str) -> None:
        """Drop the sockets of a participant, in each space, without a close frame."""
        self.runtime.drop(participant)

    def abort(self) -> None:
        """Play a killed gateway: stop listening and drop every socket without a close frame."""
        self._close_listening()
        self._handshakes.drop_all()
        if self._http is not None:
            self._http.abort()
        self.runtime.abort()

    async def listen(self, host: str, port: int) -> None:
        """Begin to listen."""
        context = self._context_for(host)
        shared = shares_port(self._config, host)
        if shared:
            # Loaded only where it is wanted: a web framework takes its time.
            from meup_agent.gateway.edge.http.server import http_edge

            self._http = http_edge(self.runtime, self._routes)
            await self._http.start()
        try:
            server = await self._listen_at((host, port), context)
        except OSError as error:
            raise listen_error(host, port, error) from None
        bound_port: int = server.sockets[0].getsockname()[1]
        self._address = PortAddress("ws" if context is None else "wss", host, bound_port)
        self.runtime.url = self.url
        said = self.listens_at
        if shared:
            self.runtime.local_http = is_loopback(host)
            self.http_url = _http_address(self.url)
            said += f" and {_http_address(self.listens_at)}"
        log.info("listening at %s", said)

    async def listen_for_http(self) -> None:
        """Begin to listen at a port of its own for HTTP, if it is to have one."""
        address = self._config.http_address
        if address is not None:
            context = self._context_for(address[0])
            from meup_agent.gateway.edge.http.server import listen_for_http

            self._http, listening = await listen_for_http(
                self.runtime,
                *address,
                context,
                self._routes,
                self._handshakes,
                partial(self._forward, at_http_port=True),
            )
            self.runtime.local_http = is_loopback(listening.host)
            self.http_url = listening.url
            log.info("listening at %s for HTTP", listening.listens_at)

    def _context_for(self, host: str) -> ssl.SSLContext | None:
        """The TLS of a port at a host; ``None``: it has none, and needs none."""
        tls = self._config.tls
        check_encrypted(host, tls, insecure=self._config.insecure)
        if tls is None:
            return None
        self._contexts.append(server_context(tls))
        return self._contexts[-1]

    async def listen_at_socket(self, bound: socket.socket, url: str) -> None:
        """Listen at a Unix socket as well, for WebSocket and for HTTP, if it serves that."""
        await self._listen_at(bound.dup())
        self._socket_url = url
        log.info("listening at %s", url)

    async def _listen_at(
        self, place: tuple[str, int] | socket.socket, context: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        server = await listener.listen(
            place,
            self.runtime,
            self._handshakes,
            context,
            None if self._http is None else self._http.protocol,
            self._forward,
        )
        self._servers.append(server)
        return server

    def _forward(
        self,
        is_upgrade: bool,
        head: bytes,
        transport: asyncio.BaseTransport,
        *,
        at_http_port: bool = False,
    ) -> asyncio.BaseProtocol | None:
        """The protocol that forwards a connection, if another gateway has its space."""
        if self.forwarder is None:
            return None
        return self.forwarder.protocol_for(
            head, transport, is_upgrade=is_upgrade, at_http_port=at_http_port
        )

    def _close_listening(self) -> None:
        # First the socket, which others may replace once its port is free, and which is removed.
        for server in reversed(self._servers):
            server.close()

    async def stop(self) -> None:
        """Close every connection with 1012 and stop listening; takes ``stop_timeout`` at most."""
        self._close_listening()
        # They have joined nothing, so they are owed no close frame.
        self._handshakes.drop_all()
        deadline = anyio.current_time() + self.runtime.limits.stop_timeout
        if self.keeper is not None:
            with anyio.CancelScope(shield=True):
                await self.keeper.leave()
        await self.runtime.drain()
        if self._http is not None:
            # What it was asked is answered, and kept, before the journal is closed.
            with anyio.CancelScope(shield=True, deadline=deadline):
                await self._http.stop()
        await self.runtime.wait_empty(deadline - anyio.current_time())
        self.abort()
        await self.runtime.wait_empty(LAST_TURNS)
        with anyio.move_on_after(LAST_TURNS, shield=True):
            for server in self._servers:
                await server.wait_closed()
        log.info("stopped listening at %s", self.listens_at)


def _http_address(url: str) -> str:
    """The address by which HTTP is served where an address leads to WebSocket."""
    return "http" + url.removeprefix("ws")


@asynccontextmanager
async def serve(
    config: Config,
    host: str | None = None,
    port: int | None = None,
    *,
    page: Page | None = None,
    routes: Mapping[str, ASGIApp] | None = None,
) -> AsyncGenerator[RunningGateway]:
    """Run a gateway for the length of a block.

    Leaving the block closes every member with 1012 and takes ``stop_timeout`` at most. A gateway
    that can keep nothing any more stops by itself: see :attr:`RunningGateway.failed`.

    Args:
        config: Its spaces and limits.
        host: Where to listen, in place of the configuration's.
        port: Where to listen, in place of the configuration's; 0: any free port.
        page: The console, where the configuration allows one.
        routes: Applications beside the HTTP API, by their paths.

    Raises:
        ConfigurationError: The address cannot be listened at, the journal's file cannot be used, or
            the configuration is wrong.
    """
    async with AsyncExitStack() as stack, AsyncExitStack() as pages:
        if config.tls is not None:
            stack.enter_context(shorten_tls_failures())
        history = None
        if config.history is not None:
            history = stack.enter_context(open_history(config.history, wall_clock))
        host = config.host if host is None else host
        port = config.port if port is None else port
        journal, keep = None, engine_of(config.journal).keep
        if keep is None:
            journal = await stack.enter_async_context(open_journal(config, wall_clock))
        gateway = RunningGateway(config, journal, history)
        if keep is not None:
            keeping = keep(gateway.runtime, config.journal, wall_clock)
            gateway.keeper = await stack.enter_async_context(keeping)
        stack.enter_context(connect_outputs(config, gateway.runtime))
        await stack.enter_async_context(notices_of(config, gateway.runtime))
        if page is not None and serves_console(config, host):
            gateway.mount(await pages.enter_async_context(page(gateway.runtime)))
        for path, app in (routes or {}).items():
            gateway.route(path, app)
        await gateway.listen(host, port)
        if gateway.keeper is not None and gateway.keeper.membership is not None:
            place = gateway.runtime, gateway.keeper.membership, gateway.own_port
            gateway.forwarder = await stack.enter_async_context(forward_connections(*place))
        # After the page, whose event streams end before answers are waited for.
        stack.push_async_callback(gateway.stop)
        await gateway.listen_for_http()
        if gateway.keeper is not None:
            await gateway.keeper.begin()
        yield gateway


# --- a gateway inside a program or a test ---


class _EmbeddedGateway:
    """The addresses, tokens and counters of a gateway, which any thread may read."""

    _config: Config
    _running: RunningGateway | None = None
    _served: Gateway

    @property
    def _gateway(self) -> RunningGateway:
        running = self._served._running
        if running is None:
            raise UsageError("the gateway does not run; use it inside its 'async with' block")
        return running

    @property
    def url(self) -> str:
        """The address to dial, for example ``ws://127.0.0.1:41234``."""
        return self._gateway.url

    @property
    def http_url(self) -> str:
        """The address of its HTTP API.

        Raises:
            UsageError: It serves none: its configuration says so, or others can reach it.
        """
        url = self._gateway.http_url
        if url is None:
            raise UsageError("the gateway serves no HTTP; give it a config with http")
        return url

    @property
    def port(self) -> int:
        """The port it listens at."""
        return self._gateway.port

    @property
    def counters(self) -> SpaceCounters:
        """Counts since it began to listen, or was restarted; they change while they are read."""
        return self._gateway.counters

    def token(self, participant: str, space: str | None = None) -> str:
        """A token of a participant.

        Args:
            participant: The participant.
            space: In which space; the first one by default.

        Raises:
            KeyError: There is no such participant, or it has no token.
        """
        return first_token(self._served._config, participant, space)


class Gateway(_EmbeddedGateway, AsyncContextManagerMixin):
    """A gateway that listens for the length of an ``async with`` block, on asyncio.

    ::

        async with Gateway(participants={"alice": [{"kind": "chat"}]}) as gateway:
            ...  # dial gateway.url with gateway.token("alice")

    A program that runs on trio uses :meth:`in_thread`.

    Args:
        space: The id of its one space.
        participants: The participants, and their capabilities; each gets a random token.
        config: A whole configuration, in place of these two.
        host: Where to listen.
        port: Where to listen; 0: any free port, the same again after :meth:`restart`.
        limits: Its limits, where no ``config`` says it.
        page: The console that it serves, where the configuration allows one.

    Raises:
        ConfigurationError: A participant's id cannot be one.
        InvalidPattern: A capability does not compile.
    """

    def __init__(
        self,
        space: str = "demo",
        participants: Participants | None = None,
        *,
        config: Config | None = None,
        host: str = DEFAULT_HOST,
        port: int = 0,
        limits: GatewayLimits | None = None,
        page: Page | None = None,
    ) -> None:
        self._served = self
        self._page = page
        self._config = config or one_space_config(space, participants or {}, limits)
        self._host = host
        self._port = port
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def __asynccontextmanager__(self) -> AsyncGenerator[Self]:
        """Listen; leaving stops, with a close frame for every member."""
        async with AsyncExitStack() as self._stack:
            await self._listen()
            yield self
        self._running = None

    def kill(self) -> None:
        """Drop every socket without a close frame and stop listening, as a killed process does."""
        self._gateway.abort()

    async def restart(self) -> None:
        """Listen at the same port again, having forgotten everything; kills it first if it runs."""
        self.kill()
        self._port = self._gateway.port
        await self._stack.aclose()
        await self._listen()

    def drop(self, participant: str) -> None:
        """Drop a participant's socket without a close frame."""
        self._gateway.drop(participant)

    @contextmanager
    def in_thread(self) -> Generator[ThreadedGateway]:
        """Run it in a thread with a loop of its own, whatever the caller runs on."""
        with start_blocking_portal("asyncio", loop_options(), name="meup-gateway") as portal:
            with portal.wrap_async_context_manager(self):
                yield ThreadedGateway(self, portal)

    async def _listen(self) -> None:
        self._running = await self._stack.enter_async_context(
            serve(self._config, self._host, self._port, page=self._page)
        )


class ThreadedGateway(_EmbeddedGateway):
    """A :class:`Gateway` in a thread of its own; every call returns when it has taken effect."""

    def __init__(self, gateway: Gateway, portal: BlockingPortal) -> None:
        self._served = gateway
        self._portal = portal

    def kill(self) -> None:
        """Drop every socket without a close frame and stop listening, as a killed process does."""
        self._portal.call(self._served.kill)

    def restart(self) -> None:
        """Listen at the same port again, having forgotten everything; kills it first if it runs."""
        self._portal.call(self._served.restart)

    def drop(self, participant: str) -> None:
        """Drop a participant's socket without a close frame."""
        self._portal.call(self._served.drop, participant)
