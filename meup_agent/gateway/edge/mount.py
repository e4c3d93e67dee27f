"""A whole gateway as one ASGI application: HTTP and WebSocket, mountable under any path.

Its connections keep the rules of the message port; the server in front moves their bytes, one
message at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from starlette.responses import PlainTextResponse
from starlette.routing import WebSocketRoute
from starlette.types import Message, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect

from meup_agent.errors import ConfigurationError, UsageError
from meup_agent.gateway.auth import NotAdmitted
from meup_agent.gateway.config import Config
from meup_agent.gateway.edge.connection import CarriedConnection, SendQueue
from meup_agent.gateway.edge.handshake import Handshake, admit
from meup_agent.gateway.edge.http.api import http_app
from meup_agent.gateway.edge.http.views import export_to_sdk
from meup_agent.gateway.journal.engines import engine_of, open_journal
from meup_agent.gateway.reach import notices_of
from meup_agent.gateway.runtime import GatewayRuntime, wall_clock
from meup_agent.protocol.wire.streams import is_stream_frame
from meup_agent.transport.base import ABNORMAL


class AsgiConnection(CarriedConnection):
    """A WebSocket connection through an ASGI server."""

    def __init__(
        self, runtime: GatewayRuntime, handshake: Handshake, websocket: WebSocket, address: str
    ) -> None:
        super().__init__(runtime, handshake, address, address)
        self._websocket = websocket

    async def _accept(self) -> None:
        answer = self._handshake.answer.items()
        headers = [(name.encode(), value.encode()) for name, value in answer]
        await self._websocket.accept(headers=headers)

    async def _receive(self) -> bytes | None:
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            self._code = int(message.get("code") or ABNORMAL)
            return None
        text: str | None = message.get("text")
        return bytes(message["bytes"]) if text is None else text.encode(errors="surrogatepass")

    async def _send(self, queue: SendQueue) -> None:
        # A send that comes after the other end has gone; what is received says that it has.
        with suppress(WebSocketDisconnect):
            while (frame := await queue.take()) is not None:
                message: Message = {"type": "websocket.send"}
                if is_stream_frame(frame):
                    message["bytes"] = frame
                else:
                    message["text"] = frame.decode()
                await self._websocket.send(message)
            await self._websocket.close(queue.code, queue.reason)


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
        self._running: GatewayRuntime | None = None
        self._app = http_app(
            lambda: self.running,
            WebSocketRoute("/{path:path}", self._serve),
            lifespan=self.lifespan,
        )

    @property
    def running(self) -> GatewayRuntime:
        """The gateway, as long as its lifespan lasts.

        Raises:
            UsageError: Its lifespan has not been entered.
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
            ConfigurationError: The journal cannot be used, or has an address for other gateways.
        """
        config = self._config
        if config.journal.nats is not None and config.journal.nats.advertise is not None:
            raise ConfigurationError(
                "journal.nats.advertise: a mounted gateway takes no connections of other gateways;"
                " remove it, or run `meup gateway`"
            )
        keep = engine_of(config.journal).keep
        async with AsyncExitStack() as stack:
            journal = None
            if keep is None:
                journal = await stack.enter_async_context(open_journal(config, wall_clock))
            runtime = GatewayRuntime(
                config,
                journal=journal,
                shares_journal=keep is None,
                loop=asyncio.get_running_loop(),
                url=self._url,
            )
            if config.tracing:
                export_to_sdk(runtime)
            self._running = runtime
            try:
                async with AsyncExitStack() as kept, notices_of(config, runtime):
                    if keep is not None:
                        keeping = keep(runtime, config.journal, wall_clock)
                        await (await kept.enter_async_context(keeping)).begin()
                    yield
            finally:
                await runtime.drain()
                await runtime.wait_empty(runtime.limits.stop_timeout)
                self._running = None

    async def _serve(self, websocket: WebSocket) -> None:
        """Take a connection, from its handshake to its end."""
        runtime = self.running
        address = websocket.client.host if websocket.client is not None else ""
        # The outer application has chosen by the path: only the query says something here.
        target = b"?" + bytes(websocket.scope["query_string"])
        try:
            handshake = admit(runtime, target, websocket.headers, address)
        except NotAdmitted as refused:
            if "websocket.http.response" in websocket.scope.get("extensions", {}):
                answer = PlainTextResponse(str(refused), refused.status, refused.headers)
                await websocket.send_denial_response(answer)
            else:
                # Before it is accepted, which the server answers with 403 (ASGI).
                await websocket.close(refused.close_code)
            return
        await AsgiConnection(runtime, handshake, websocket, address).run()


def asgi_app(config: Config, *, url: str = "") -> GatewayApp:
    """A gateway as an ASGI application; see :class:`GatewayApp`.

    Args:
        config: The spaces, their participants and the limits.
        url: Where members dial, as invitations say it; empty: they do not say it.
    """
    return GatewayApp(config, url=url)
