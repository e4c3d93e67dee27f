"""A space over streamable HTTP: the ASGI application, and the participants of its clients."""

from __future__ import annotations

import ipaddress
import logging
import os
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import anyio
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser, RequireAuthMiddleware
from mcp.server.auth.provider import AccessToken
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import DEFAULT_MAX_REQUEST_BODY_SIZE
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, AuthenticationError
from starlette.datastructures import Headers
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from meup_agent.errors import MeupError, UsageError
from meup_agent.mcp.sdk.tasks import Ctx
from meup_agent.mcp.server.cancellation import CancellationLayer, OpenStreams
from meup_agent.mcp.server.client_member import (
    MAX_CLIENT_MEMBERS,
    ClientMember,
    ClientMembers,
    Login,
)
from meup_agent.mcp.server.space_server import SpaceHandlers, make_server
from meup_agent.mcp.server.tool_calls import CallSettings
from meup_agent.protocol.space.allowance import NoticeThrottle, network_of
from meup_agent.protocol.wire.membership import is_guessable
from meup_agent.protocol.wire.ttl_map import keep_last
from meup_agent.transport.base import background_tasks
from meup_agent.transport.http import is_forwarded, is_served
from meup_agent.transport.websocket import SpaceConnector

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from starlette.requests import HTTPConnection
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from meup_agent.agent.agent import Agent
    from meup_agent.client.proposal import Ttl
    from meup_agent.client.space import Space
    from meup_agent.session.settings import Token


# --- the participant that a client over HTTP is ---
# By its token, or the one of this process.

log = logging.getLogger("meup_agent.mcp")

MAX_WRONG_TOKENS: Final = 10
"""Of one network in a minute, of those that could be guessed."""

WRONG_SECONDS: Final = 60.0
"""Time for which wrong tokens of a network are counted."""

MAX_NETWORKS: Final = 4096
"""Networks whose wrong tokens are counted."""


class ParticipantUser(AuthenticatedUser):
    """An HTTP client that is a participant.

    Attributes:
        member: The participant, in the space.
        key: A digest of the client's token; empty: the participant of this process.
    """

    def __init__(self, login: Login) -> None:
        # The digest keeps sessions of two tokens apart, also where both are one participant's.
        super().__init__(
            AccessToken(
                token=login.token or "",
                client_id=login.member.id,
                scopes=[],
                subject=login.key or None,
            )
        )
        self.member = login.member
        self.key = login.key


class TooManyWrongTokens(AuthenticationError):
    """A network has sent too many wrong tokens lately."""


class NeedsToken(AuthenticationError):
    """A request without a token may be anybody's."""


class WrongTokens:
    """Limits guesses by network, so that the gateway has no reason to limit our own tokens."""

    def __init__(self) -> None:
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def begin(self, network: str) -> None:
        """Count a token before it is looked up, since many are at once.

        Raises:
            TooManyWrongTokens: The network may try no other token now.
        """
        now = anyio.current_time()
        count, since = self._counts.get(network, (0, now))
        if now - since > WRONG_SECONDS:
            count, since = 0, now
        counted = (min(count + 1, MAX_WRONG_TOKENS), since)
        keep_last(self._counts, network, counted, MAX_NETWORKS)
        if count >= MAX_WRONG_TOKENS:
            raise TooManyWrongTokens("too many wrong tokens; wait a minute")

    def take_back(self, network: str) -> None:
        """Count one less: it was right, or could not be looked up."""
        count, since = self._counts.get(network, (0, 0.0))
        if count:
            self._counts[network] = (count - 1, since)


class ParticipantAuth(AuthenticationBackend):
    """Finds the participant of a request by its token; without one, that of this process.

    Args:
        pool: The participants.
        anonymous: A request of this machine without a token is the participant of this process.
    """

    def __init__(self, pool: ClientMembers, *, anonymous: bool) -> None:
        self._pool = pool
        self._anonymous = anonymous
        self._wrong = WrongTokens()
        self._tried: set[str] = set()  # the tokens that are looked up and may be guesses
        self._told = NoticeThrottle()
        self._users: WeakKeyDictionary[Login, ParticipantUser] = WeakKeyDictionary()

    async def authenticate(
        self, conn: HTTPConnection
    ) -> tuple[AuthCredentials, AuthenticatedUser] | None:
        """The participant of a request; ``None``: none that the gateway knows."""
        given = conn.headers.get("authorization")
        host = "" if conn.client is None else conn.client.host
        if given is None:
            if not self._anonymous or not _is_loopback(host):
                return None
            if is_forwarded(conn.headers.keys()):
                raise NeedsToken("a request that comes through a proxy needs a token")
            user = await self._user(None)
        else:
            scheme, _, token = given.strip().partition(" ")
            token = token.strip()
            if scheme.lower() != "bearer" or not token:
                return None
            # Those who share the network with one that guesses, as behind a proxy, go on.
            if not is_guessable(token) or await self._pool.knows(token):
                user = await self._user(token)
            else:
                user = await self._try(token, network_of(host))
        return None if user is None else (AuthCredentials([]), user)

    async def _try(self, token: str, network: str) -> ParticipantUser | None:
        """The participant of a token that may be a guess."""
        if token in self._tried:  # the same lookup
            return await self._user(token)
        self._wrong.begin(network)
        self._tried.add(token)
        try:
            user = await self._user(token)
        except AuthenticationError:
            self._wrong.take_back(network)
            raise
        finally:
            self._tried.discard(token)
        if user is not None:
            self._wrong.take_back(network)
        return user

    async def _user(self, token: str | None) -> ParticipantUser | None:
        try:
            login = await self._pool.get(token)
        except MeupError as error:
            # Its words have addresses, which are not for everyone who asks.
            if self._told.due("", type(error).__name__, int(anyio.current_time() * 1_000_000)):
                log.warning("a client was sent away: %s", error)
            raise AuthenticationError("the space cannot be reached now") from error
        if login is None:
            return None
        user = self._users.get(login)
        if user is None:  # made once: it costs more than all else here
            user = self._users[login] = ParticipantUser(login)
        return user


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    """True if an address is of this machine; an empty one, which is not known, is of none."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def answer_error(_: HTTPConnection, error: Exception) -> Response:
    """The answer where a token could not be looked up, or is missing."""
    match error:
        case TooManyWrongTokens():
            headers = {"retry-after": f"{WRONG_SECONDS:.0f}"}
            what, status = "too_many_requests", 429
        case NeedsToken():
            what, status, headers = "invalid_token", 401, {"www-authenticate": "Bearer"}
        case _:
            what, status, headers = "unavailable", 503, {}
    return JSONResponse({"error": what, "error_description": str(error)}, status, headers)


# --- a space over streamable HTTP ---

LOOPBACK_HOSTS: Final = (
    *("127.0.0.1:*", "localhost:*", "[::1]:*"),
    *("127.0.0.1", "localhost", "[::1]"),
)
"""The values of ``Host`` by which this machine alone is meant; ``*``: any port."""

MAX_SESSIONS: Final = 1000
"""Sessions of clients at once; each has a task and its streams."""


_SESSION: Final = "mcp-session-id"

MAX_PARTICIPANT_SESSIONS: Final = 128
"""Of one participant's clients; one more ends the one that was used longest ago, so that no
participant takes the place of the others."""


MAX_NOTED_SESSIONS: Final = MAX_CLIENT_MEMBERS * MAX_PARTICIPANT_SESSIONS
"""Sessions that are noted, also those that have ended."""


class SessionIds:
    """The sessions of participants, in the order of their last use, and whose they are."""

    def __init__(self) -> None:
        self._users: OrderedDict[str, ParticipantUser] = OrderedDict()

    def note(self, user: ParticipantUser, session: str) -> tuple[str, ParticipantUser] | None:
        """Note that a session begins; the one of its participant's that is to end, if any."""
        self._users[session] = user
        ours = self._sessions_of(user.member)
        if len(ours) > MAX_PARTICIPANT_SESSIONS:
            return ours[0], self._users.pop(ours[0])
        if len(self._users) > MAX_NOTED_SESSIONS:
            self._users.popitem(last=False)
        return None

    def touch(self, user: ParticipantUser, session: str) -> None:
        noted = self._users.get(session)
        if noted is not None and noted.key == user.key:
            self._users.move_to_end(session)

    def pop(self, member: ClientMember, key: str | None) -> dict[str, ParticipantUser]:
        """Forget the sessions of a participant, or of one of its tokens alone."""
        return {
            each: self._users.pop(each)
            for each in self._sessions_of(member)
            if key in (None, self._users[each].key)
        }

    def _sessions_of(self, member: ClientMember) -> list[str]:
        key = member.key
        return [each for each, user in self._users.items() if user.member.key == key]


async def _no_body() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _no_answer(_: Message) -> None:
    pass


def _refusal(headers: Headers, hosts: frozenset[str]) -> PlainTextResponse | None:
    """The answer to a request that is for another host, or of a page of another one."""
    asked = headers.getlist("host")
    if len(asked) != 1 or not is_served(asked[0], hosts):
        return PlainTextResponse("this server is not for the host that Host names", 421)
    for origin in headers.getlist("origin"):
        scheme, _, host = origin.lower().partition("://")
        if scheme not in ("http", "https") or not is_served(host, hosts):
            return PlainTextResponse("this server is not for pages of that Origin", 403)
    return None


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
        anonymous: A client on this machine that sends no token is the participant of this process,
            unless its headers say that it came through a proxy. A proxy may say nothing: then
            strangers behind it are that participant.
        hosts: The values of ``Host`` that are served, ``*`` for any port; ``None``: any.
        path: Its path.
    """

    def __init__(
        self,
        pool: ClientMembers,
        *,
        settings: CallSettings | None = None,
        anonymous: bool = False,
        hosts: Sequence[str] | None = LOOPBACK_HOSTS,
        path: str = "/mcp",
    ) -> None:
        self.streams = OpenStreams()
        self._sessions = SessionIds()
        self._pool = pool
        self._handlers = SpaceHandlers(_member_of, self.streams, settings or CallSettings())
        # One manager serves one lifespan.
        self._make_manager = partial(
            StreamableHTTPSessionManager,
            make_server(self._handlers),  # without security_settings: see __call__
            max_request_body_size=DEFAULT_MAX_REQUEST_BODY_SIZE,
            max_sessions=MAX_SESSIONS,
        )
        self._manager: StreamableHTTPSessionManager | None = None
        layer = CancellationLayer(self._serve, self.streams, DEFAULT_MAX_REQUEST_BODY_SIZE)
        self._hosts = None if hosts is None else frozenset(each.lower() for each in hosts)
        self._endpoint = AuthenticationMiddleware(
            AuthContextMiddleware(RequireAuthMiddleware(layer, [])),
            backend=ParticipantAuth(pool, anonymous=anonymous),
            on_error=answer_error,
        )
        self._path = path
        # For all else: its lifespan, paths that are none, and the way to the right one.
        self._app = Starlette(routes=[Route(path, self._endpoint)], lifespan=self.lifespan)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request.

        ``Host`` and ``Origin`` are checked before anything is answered, a cancel included: a page
        in a browser can make its own name lead to this machine, and names it there.
        """
        app: ASGIApp = self._app
        if scope["type"] == "http":
            refused = None if self._hosts is None else _refusal(Headers(scope=scope), self._hosts)
            if refused is not None:
                app = refused
            # Routing, and what routed applications raise, would cost each call a tenth of our part.
            elif scope["path"] == f"{scope.get('root_path', '')}{self._path}":
                app = self._endpoint
        await app(scope, receive, send)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:
        """Serve for the length of a block.

        Args:
            app: The application that it is mounted in; it is not looked at.
        """
        failure: Exception | None = None
        manager = self._manager = self._make_manager()
        try:
            async with (
                self._pool.run(),
                self._handlers.tasks,
                manager.run(),
                background_tasks() as tasks,
            ):

                def ended(member: ClientMember, key: str | None) -> None:
                    tasks.start_soon(self._end_sessions, self._sessions.pop(member, key))

                self._pool.on_end.append(ended)
                try:
                    yield
                except Exception as error:
                    failure = error  # by itself: the SDK's manager would put it into a group
                finally:
                    self._pool.on_end.remove(ended)
        finally:
            self._manager = None
        if failure is not None:
            raise failure

    async def _end_sessions(self, users: dict[str, ParticipantUser]) -> None:
        """End sessions whose participant, or whose token, is not in the space any more."""
        for session, user in users.items():
            why = user.member.error or "its token is refused"
            log.info("session %s ended: %s", session, why)
            await self._end_session(session, user)

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
            self._sessions.touch(user, given)
            await self._manage(scope, receive, send)
            return
        opened: list[str] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                opened.extend(Headers(raw=message["headers"]).getlist(_SESSION))
            await send(message)

        await self._manage(scope, receive, watched)
        for session in opened:
            last = self._sessions.note(user, session)
            if last is not None:
                log.info("session %s ended: its participant has opened many others", last[0])
                await self._end_session(*last)

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
    anonymous: bool = False,
    path: str = "/mcp",
    hosts: Sequence[str] | None = LOOPBACK_HOSTS,
    ttl: Ttl = "space",
    answer_within: float | None = None,
) -> McpApp:
    """A space as a mountable ASGI application for MCP clients; see :class:`McpApp`.

    Args:
        url: The gateway, for example ``ws://localhost:8420``; else ``MEUP_URL``.
        space: The space; else ``MEUP_SPACE``.
        token: The token of this process's participant; else ``MEUP_TOKEN``.
        anonymous: A client on this machine that sends no token is this process's participant; see
            :class:`McpApp`. Otherwise each client sends a token.
        path: Its path.
        hosts: The values of ``Host`` that are served, ``*`` for any port; ``None``: any, for where
            something in front checks them.
        ttl: Seconds that a proposal waits for a decision and its result; ``None``: for ever. By
            default ``MEUP_TTL``, else 300.
        answer_within: Seconds until a call that waits for a decision is answered with *still
            waits*, and its client asks for the outcome later; 0: never. By default before the
            client gives up, as far as its name tells when.

    Raises:
        UsageError: Clients without a token are to be let in, and there is none of this process, or
            any host is served.
    """
    own = token or os.environ.get("MEUP_TOKEN") or None
    if anonymous and (own is None or hosts is None):
        raise UsageError(
            "clients without a token need a participant to be, by token or MEUP_TOKEN, and hosts"
            " that are this machine's"
        )

    def join(
        agent: Agent, theirs: str | None, /, *, observe: bool = False
    ) -> AbstractAsyncContextManager[Space]:
        # Beside, so that two processes with one token do not throw each other out.
        join = partial(agent.join, observe=observe, beside=not observe, take_over=not observe)
        where, which = url or os.environ.get("MEUP_URL"), space or os.environ.get("MEUP_SPACE")
        if theirs is None or not where or not which:  # then this says what is missing
            return join(url, space=space, token=theirs or own)
        return join(SpaceConnector(where, which), token=theirs)

    return McpApp(
        ClientMembers(join, own=own),
        settings=CallSettings(ttl=ttl, answer_within=answer_within),
        anonymous=anonymous,
        hosts=hosts,
        path=path,
    )


def _member_of(ctx: Ctx) -> ClientMember:
    user = ctx.request.user if ctx.request is not None else None
    assert isinstance(user, ParticipantUser)  # RequireAuthMiddleware lets no other through
    return user.member
