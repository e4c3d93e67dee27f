"""A gateway that is mounted in another application, which a real server serves."""

import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import uvicorn
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import InvalidState

from meup_agent.gateway import Config, GatewayApp, asgi_app
from tests.gateways import first_token
from tests.patience import PATIENCE
from tests.spaces import SpaceCounters

T = TypeVar("T")


class MountedPlace:
    """The gateway and its server, in a thread of their own; made by :func:`mounted`."""

    def __init__(self, config: Config, portal: BlockingPortal) -> None:
        self._config = config
        self._portal = portal
        self._port = 0
        self._start()

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self._port}/gateway/ws"

    @property
    def http_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/gateway"

    @property
    def app(self) -> GatewayApp:
        return self._gateway

    @property
    def counters(self) -> SpaceCounters:
        return self._gateway.running.counters

    def token(self, participant: str) -> str:
        return first_token(self._config, participant)

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run something on the loop of the application."""
        return self._portal.call(function)

    def drop(self, participant: str) -> None:
        self._portal.call(self._abort, f"Bearer {self.token(participant)}")

    def kill(self) -> None:
        self._portal.call(self._abort, None)

    def restart(self) -> None:
        self.kill()
        self.stop()
        self._start()

    def stop(self) -> None:
        self._portal.call(self._shut_down)

    def _start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self._port))
        self._port = self._socket.getsockname()[1]
        self._gateway = gateway = asgi_app(self._config, url=self.url)
        outer = Starlette(routes=[Mount("/gateway", gateway)], lifespan=gateway.lifespan)
        config = uvicorn.Config(
            outer, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=2
        )
        self._server = uvicorn.Server(config)
        self._portal.call(self._listen)

    async def _listen(self) -> None:
        server = self._server
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup(sockets=[self._socket])

    async def _shut_down(self) -> None:
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    await self._server.shutdown()
                except InvalidState:
                    # uvicorn also says goodbye on a connection that is closing already, which ends
                    # its own shutdown; soon that connection is gone.
                    await anyio.sleep(0.01)
                else:
                    return

    def _abort(self, authorization: str | None) -> None:
        if authorization is None:
            for each in self._server.servers:
                each.close()
        for connection in tuple(self._server.server_state.connections):
            headers = dict(getattr(connection, "scope", {}).get("headers", ()))
            if authorization in (None, headers.get(b"authorization", b"").decode()):
                connection.transport.abort()


@contextmanager
def mounted(config: Config) -> Generator[MountedPlace]:
    """A mounted gateway for the length of a block."""
    with start_blocking_portal("asyncio") as portal:
        place = MountedPlace(config, portal)
        try:
            yield place
        finally:
            place.stop()
