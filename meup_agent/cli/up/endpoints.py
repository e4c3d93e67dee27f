"""Applications of a gateway's own port: hooks of coding agents, and the space for MCP clients.

A client is the participant of its token, by a connection beside others (PROTOCOL 3) that ends with
the token. That is looked up where the gateway looks, so an unknown one costs no connection, and
paced as at its HTTP API.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import quote

import anyio
from anyio import to_thread

from meup_agent.errors import TokenRefused
from meup_agent.gateway.network import is_loopback, serves_http

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from contextlib import AbstractAsyncContextManager

    from starlette.types import ASGIApp, Receive, Scope, Send

    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space
    from meup_agent.gateway.auth import Identity
    from meup_agent.gateway.config import Config
    from meup_agent.gateway.server import RunningGateway


# --- an application that is loaded after the gateway listens ---

LOADING_SECONDS: Final = 30.0
"""Wait of a request for an application that is being loaded."""


class LateApp:
    """An ASGI application whose requests wait until it answers, and get 503 once it has ended."""

    def __init__(self) -> None:
        self._app: ASGIApp | None = None
        self._begun = anyio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not self._begun.is_set():
            with anyio.move_on_after(LOADING_SECONDS):
                await self._begun.wait()
        app = self._app
        if app is None:
            from starlette.responses import PlainTextResponse

            words = "the gateway starts or stops; try again soon"
            app = PlainTextResponse(words, 503, {"Retry-After": "1"})
        await app(scope, receive, send)

    @contextmanager
    def loading(self) -> Generator[None]:
        """The block in which an application is loaded, and answers; after it no request waits.

        Also where it failed before there was one.
        """
        try:
            yield
        finally:
            self._app = None
            self._begun.set()

    async def _answer(
        self,
        gateway: RunningGateway,
        app: ASGIApp,
        running: AbstractAsyncContextManager[object],
        check_tokens: Callable[[], object],
    ) -> None:
        """Answer by an application that runs, until cancelled; tokens are checked at a reload."""
        told = gateway.runtime.on_reload
        told.append(check_tokens)
        try:
            async with running:
                self._app = app
                self._begun.set()
                await anyio.sleep_forever()
        finally:
            told.remove(check_tokens)


def _key_of(identity: Identity) -> str:
    """The name of a participant; those of two spaces may have one name."""
    return f"{quote(identity.space, safe='')}/{identity.participant}"


def _find(gateway: RunningGateway, token: str) -> str | None:
    identity = gateway.runtime.tokens.identify(token)
    return identity and _key_of(identity)


def _identify(gateway: RunningGateway, token: str | None) -> Identity:
    identity = None if token is None else gateway.runtime.tokens.identify(token)
    if identity is None:
        raise TokenRefused("no participant has this token")
    return identity


# --- hooks of coding agents ---
HOOKS_PATH: Final = "/hooks/{agent}"


class _Login(NamedTuple):
    key: str
    token: str


class HookEndpoint(LateApp):
    """An ASGI application that answers hooks while :meth:`run` runs."""

    def __init__(self, mode: Any = "enforce") -> None:
        super().__init__()
        self._mode = mode

    async def run(self, gateway: RunningGateway) -> None:
        """Answer the hooks of a gateway's participants, until cancelled."""
        with self.loading():
            # In a thread, as it takes a moment, in which the gateway serves.
            await to_thread.run_sync(import_module, "meup_agent.doors.hook_app")
            await self._serve(gateway)

    async def _serve(self, gateway: RunningGateway) -> None:
        from starlette.requests import HTTPConnection

        from meup_agent.doors.hook_app import HookApp, NotLoggedIn
        from meup_agent.gateway.auth import NotAdmitted
        from meup_agent.gateway.console.local_session import LocalSpace
        from meup_agent.gateway.edge.handshake import bearer
        from meup_agent.gateway.edge.http.context import authenticate

        def log_in(scope: Scope) -> _Login:
            connection = HTTPConnection(scope)
            try:
                identity = authenticate(gateway.runtime, connection)
            except NotAdmitted as refused:
                raise NotLoggedIn(refused.status, str(refused)) from None
            return _Login(_key_of(identity), bearer(connection.headers["authorization"]))

        def join(agent: Agent, token: str, /) -> AbstractAsyncContextManager[Space]:
            return agent.join(LocalSpace(gateway.runtime, _identify(gateway, token)), beside=True)

        app = HookApp(join, log_in, self._mode)
        check_tokens = partial(app.check_found, partial(_find, gateway))
        await self._answer(gateway, app, app.run(), check_tokens)


# --- MCP clients ---
# The server of `meup mcp --http` in the gateway's process: what a client does is decided, kept and
# shown as over a socket of its own.

MCP_PATH: Final = "/mcp"

log = logging.getLogger("meup_agent.mcp")


def serves_mcp(settings: Config) -> bool:
    """True if a gateway has HTTP to serve MCP clients by, and what that needs is installed."""
    return serves_http(settings) and find_spec("mcp") is not None


class McpEndpoint(LateApp):
    """An ASGI application that serves MCP clients while :meth:`run` runs.

    Args:
        answer_within: Seconds until a call that waits is answered with *still waits*; 0: never;
            ``None``: before its client gives up.
    """

    def __init__(self, answer_within: float | None = None) -> None:
        super().__init__()
        self._answer_within = answer_within

    async def run(self, gateway: RunningGateway, host: str) -> None:
        """Serve the spaces of a gateway that listens at a host, until cancelled."""
        with self.loading():
            # In a thread, as it takes a second or two, in which servers start.
            await to_thread.run_sync(import_module, "meup_agent.mcp.server.http")
            await self._serve(gateway, host)

    async def _serve(self, gateway: RunningGateway, host: str) -> None:
        from meup_agent.mcp.server.client_member import ClientMembers
        from meup_agent.mcp.server.http import LOOPBACK_HOSTS, McpApp
        from meup_agent.mcp.server.tool_calls import CallSettings

        def join(
            agent: Agent, token: str | None, /, *, observe: bool = False
        ) -> AbstractAsyncContextManager[Space]:
            assert not observe, "tokens are looked up"
            connector = gateway.connector(_identify(gateway, token).space)
            return agent.join(connector, token=token, beside=True)

        members = ClientMembers(join, find=partial(_find, gateway))
        app = McpApp(
            members,
            settings=CallSettings(answer_within=self._answer_within),
            hosts=LOOPBACK_HOSTS if is_loopback(host) else None,
            path=MCP_PATH,
        )
        log.info("MCP clients find the space at %s%s", gateway.http_url, MCP_PATH)
        await self._answer(gateway, app, app.lifespan(), members.check_found)
