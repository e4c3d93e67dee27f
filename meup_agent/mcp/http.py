"""A space over streamable HTTP: the ASGI application, and who its clients are."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections import OrderedDict
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import (
    AuthenticatedUser,
    BearerAuthBackend,
    RequireAuthMiddleware,
)
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    TransportSecurityMiddleware,
    TransportSecuritySettings,
)
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationError
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from meup_agent.client.proposal_handle import TTL
from meup_agent.errors import MeupError, UsageError
from meup_agent.mcp.calls import CallSettings
from meup_agent.mcp.cancellation import CancellationLayer, OpenStreams
from meup_agent.mcp.principal import MAX_PRINCIPALS, PrincipalPool
from meup_agent.mcp.space_server import SpaceHandlers, make_server
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from contextlib import AbstractAsyncContextManager

    from mcp.server.context import ServerRequestContext
    from starlette.responses import Response
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from meup_agent.agent.agent import Agent
    from meup_agent.client.space import Space
    from meup_agent.mcp.principal import Principal
    from meup_agent.session.reconnector import Token

log = logging.getLogger("meup_agent.mcp")

LOOPBACK_HOSTS: Final = (
    *("127.0.0.1:*", "localhost:*", "[::1]:*"),
    *("127.0.0.1", "localhost", "[::1]"),
)
"""The values of ``Host`` by which this machine alone is meant; ``*``: any port."""

MAX_WRONG_TOKENS: Final = 10
"""Of one address in a minute."""

WRONG_SECONDS: Final = 60.0
MAX_ADDRESSES: Final = 4096
"""Addresses whose wrong tokens are counted."""

MAX_SESSIONS: Final = 1000
"""Sessions of clients at once; each has a task and its streams."""


_SESSION: Final = "mcp-session-id"

MAX_PARTICIPANT_SESSIONS: Final = 64
"""Of one participant's clients; one more ends the one that was used longest ago, so that no
participant takes the place of the others."""


class SessionIds:
    """The sessions of each participant, in the order of their last use."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()

    def note(self, participant: str, session: str) -> str | None:
        """Note that a session is used; the one that is to end, if there are too many."""
        ids = self._ids.setdefault(participant, OrderedDict())
        self._ids.move_to_end(participant)
        ids[session] = None
        ids.move_to_end(session)
        if len(self._ids) > MAX_PRINCIPALS:
            self._ids.popitem(last=False)
        return ids.popitem(last=False)[0] if len(ids) > MAX_PARTICIPANT_SESSIONS else None

    def touch(self, participant: str, session: str) -> None:
        """Note that a session is used which may be another participant's, or have ended."""
        if session in self._ids.get(participant, ()):
            self.note(participant, session)


class ParticipantUser(AuthenticatedUser):
    """An HTTP client that is a participant.

    Attributes:
        principal: The participant, in the space.
        principal_key: Its key.
    """

    def __init__(self, token: AccessToken, principal: Principal) -> None:
        super().__init__(token)
        self.principal = principal
        self.principal_key = principal.key


class TooManyWrongTokens(AuthenticationError):
    """An address has sent too many wrong tokens lately."""


class WrongTokens:
    """Limits wrong tokens by address, so that the gateway has no reason to limit our own."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, address: str) -> None:
        """Raise if an address may try no other token now."""
        count, since = self._counts.get(address, (0, 0.0))
        if anyio.current_time() - since > WRONG_SECONDS:
            self._counts.pop(address, None)
        elif count >= MAX_WRONG_TOKENS:
            raise TooManyWrongTokens("too many wrong tokens; wait a minute")

    def count(self, address: str) -> None:
        """Count a wrong token."""
        count, since = self._counts.pop(address, (0, anyio.current_time()))
        self._counts[address] = (count + 1, since)
        if len(self._counts) > MAX_ADDRESSES:
            self._counts.popitem(last=False)


class ParticipantAuth(BearerAuthBackend):
    """Finds the participant of a request by its token; without one, that of this process.

    Args:
        pool: The participants.
        anonymous: A request without a token is the participant of this process.
    """

    def __init__(self, pool: PrincipalPool, *, anonymous: bool) -> None:
        super().__init__(self)
        self._pool = pool
        self._anonymous = anonymous
        self._wrong = WrongTokens()

    async def verify_token(self, token: str) -> AccessToken | None:
        """The participant of a token, as the SDK wants it."""
        principal = await self._principal(token)
        return None if principal is None else _access(token, principal)

    async def authenticate(
        self, conn: HTTPConnection
    ) -> tuple[AuthCredentials, AuthenticatedUser] | None:
        """The participant of a request; ``None``: none that the gateway knows."""
        if "authorization" not in conn.headers:
            if not self._anonymous or not _is_local(conn):
                return None
            principal = await self._principal(None)
            assert principal is not None  # else it has raised
            return AuthCredentials([]), ParticipantUser(_access("", principal), principal)
        address = "" if conn.client is None else conn.client.host
        # Others behind this address, as behind a proxy, go on with the tokens that are known.
        if not self._pool.knows(conn.headers["authorization"].partition(" ")[2].strip()):
            self._wrong.check(address)
        found = await super().authenticate(conn)
        if found is None:
            self._wrong.count(address)
            return None
        credentials, user = found
        principal = await self._principal(user.access_token.token)
        if principal is None:
            return None
        return credentials, ParticipantUser(user.access_token, principal)

    async def _principal(self, token: str | None) -> Principal | None:
        try:
            return await self._pool.get(token)
        except MeupError as error:
            # Its words have addresses, which are not for everyone who asks.
            log.warning("a client was sent away: %s", error)
            raise AuthenticationError("the space cannot be reached now") from error


def _access(token: str, principal: Principal) -> AccessToken:
    # The digest keeps sessions of two tokens apart, also where both are one participant's.
    return AccessToken(
        token=token, client_id=principal.id, scopes=[], subject=principal.key or None
    )


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _no_answer(_: Message) -> None:
    pass


def _is_local(conn: HTTPConnection) -> bool:
    """True if the other end of the connection is on this machine."""
    try:
        return conn.client is not None and ipaddress.ip_address(conn.client.host).is_loopback
    except ValueError:
        return False


def _unavailable(_: HTTPConnection, error: Exception) -> Response:
    if isinstance(error, TooManyWrongTokens):
        body = {"error": "too_many_requests", "error_description": str(error)}
        return JSONResponse(body, 429, {"retry-after": f"{WRONG_SECONDS:.0f}"})
    return JSONResponse({"error": "unavailable", "error_description": str(error)}, 503)


class _SecurityLayer:
    """Checks ``Host`` and ``Origin`` before anything is answered, a cancel included."""

    def __init__(self, app: ASGIApp, settings: TransportSecuritySettings) -> None:
        self._app = app
        self._security = TransportSecurityMiddleware(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request, or pass it on."""
        if scope["type"] == "http":
            refused = await self._security.validate_request(Request(scope))
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self._app(scope, receive, send)


class McpApp:
    """A space as an ASGI application that MCP clients speak to, over streamable HTTP.

    ::

        space = mcp_app()
        app = Starlette(routes=[Mount("/tools", space)], lifespan=space.lifespan)

    An application that is mounted is not told when it begins and ends: so the outer one gets
    :attr:`lifespan`, or enters it in a lifespan of its own. Served by itself it needs none of that.

    Args:
        pool: The participants that its clients are.
        settings: Settings of the calls.
        anonymous: A client on this machine that sends no token is the participant of this process.
        hosts: The values of ``Host`` that are served; ``None``: any.
        path: Its path.
        max_body: Bytes of a request's body.
        max_sessions: Sessions of clients at once.
    """

    def __init__(
        self,
        pool: PrincipalPool,
        *,
        settings: CallSettings | None = None,
        anonymous: bool = True,
        hosts: Sequence[str] | None = LOOPBACK_HOSTS,
        path: str = "/mcp",
        max_body: int = DEFAULT_MAX_REQUEST_BODY_SIZE,
        max_sessions: int = MAX_SESSIONS,
    ) -> None:
        self.streams = OpenStreams()
        self._sessions = SessionIds()
        self._pool = pool
        self._handlers = SpaceHandlers(_principal_of, self.streams, settings or CallSettings())
        security = _security(hosts)
        # One manager serves one lifespan.
        self._make_manager = partial(
            StreamableHTTPSessionManager,
            make_server(self._handlers),
            security_settings=security,
            max_request_body_size=max_body,
            max_sessions=max_sessions,
        )
        self._manager: StreamableHTTPSessionManager | None = None
        layer = CancellationLayer(self._serve, self.streams)
        limited = RequestBodyLimitMiddleware(layer, max_body)
        self._app = Starlette(
            routes=[Route(path, _Endpoint(RequireAuthMiddleware(limited, [])))],
            middleware=[
                Middleware(_SecurityLayer, settings=security),
                Middleware(
                    AuthenticationMiddleware,
                    backend=ParticipantAuth(pool, anonymous=anonymous),
                    on_error=_unavailable,
                ),
                Middleware(AuthContextMiddleware),
            ],
            lifespan=self.lifespan,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Serve for the length of a block.

        Args:
            app: The application that it is mounted in; it is not looked at.
        """
        manager = self._manager = self._make_manager()
        try:
            async with (
                self._pool.run(),
                self._handlers.tasks,
                manager.run(),
                background_tasks() as tasks,
            ):

                def ended(principal: Principal) -> None:
                    tasks.start_soon(self._end_sessions, principal)

                self._pool.on_end.append(ended)
                try:
                    yield
                finally:
                    self._pool.on_end.remove(ended)
        finally:
            self._manager = None

    async def _end_sessions(self, principal: Principal) -> None:
        """End the sessions of a participant that is not in the space any more."""
        for session in principal.sessions.ids:
            log.info("session %s ended: %s", session, principal.error)
            await self._end_session(session, ParticipantUser(_access("", principal), principal))

    async def _end_session(self, session: str, user: ParticipantUser) -> None:
        scope = {
            "type": "http",
            "method": "DELETE",
            "path": "/",
            "headers": [(b"mcp-session-id", session.encode()), (b"host", b"localhost")],
            "user": user,
        }
        await self._manage(scope, _no_body, _no_answer)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, and keep the number of its participant's sessions in bounds."""
        user: ParticipantUser = scope["user"]
        given = Headers(scope=scope).get(_SESSION)
        if given is not None:
            self._sessions.touch(user.principal_key, given)
            await self._manage(scope, receive, send)
            return
        opened: list[str] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                opened.extend(Headers(raw=message["headers"]).getlist(_SESSION))
            await send(message)

        await self._manage(scope, receive, watched)
        for session in opened:
            last = self._sessions.note(user.principal_key, session)
            if last is not None:
                log.info("session %s ended: its participant has opened many others", last)
                await self._end_session(last, user)

    async def _manage(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            raise UsageError(
                "the MCP server does not run; give its lifespan to the application that it is"
                " mounted in: Starlette(…, lifespan=app.lifespan)"
            )
        await self._manager.handle_request(scope, receive, send)


def mcp_app(
    url: str | None = None,
    *,
    space: str | None = None,
    token: Token | None = None,
    path: str = "/mcp",
    hosts: Sequence[str] | None = LOOPBACK_HOSTS,
    ttl: float | None = TTL,
) -> McpApp:
    """A space as a mountable ASGI application for MCP clients; see :class:`McpApp`.

    Args:
        url: The gateway, for example ``ws://localhost:8420``; else ``MEUP_URL``.
        space: The space; else ``MEUP_SPACE``.
        token: The token of the participant that a client on this machine is which sends none; else
            ``MEUP_TOKEN``. Where there is none, every client must send its own.
        path: Its path.
        hosts: The values of ``Host`` that are served, ``*`` for any port; ``None``: any, for where
            something in front checks them. Then every client must send its own token.
        ttl: Seconds that a proposal waits for a decision and its result; ``None``: for ever.
    """
    own = token or os.environ.get("MEUP_TOKEN") or None

    def join(agent: Agent, theirs: str | None) -> AbstractAsyncContextManager[Space]:
        return agent.join(url, space=space, token=own if theirs is None else theirs)

    return McpApp(
        PrincipalPool(join, own=own),
        settings=CallSettings(ttl=ttl),
        anonymous=own is not None and hosts is not None,
        hosts=hosts,
        path=path,
    )


class _Endpoint:
    """An ASGI application as Starlette's routes take it: an object, and no function."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass it on."""
        await self._app(scope, receive, send)


def _security(hosts: Sequence[str] | None) -> TransportSecuritySettings:
    if hosts is None:
        return TransportSecuritySettings(enable_dns_rebinding_protection=False)
    origins = [f"{scheme}://{host}" for scheme in ("http", "https") for host in hosts]
    return TransportSecuritySettings(allowed_hosts=list(hosts), allowed_origins=origins)


def _principal_of(ctx: ServerRequestContext[Any, Any]) -> Principal:
    user = ctx.request.user if ctx.request is not None else None
    assert isinstance(user, ParticipantUser)  # RequireAuthMiddleware lets no other through
    return user.principal
