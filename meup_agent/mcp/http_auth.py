"""The participant that a client over HTTP is: by its token, or the one of this process."""

from __future__ import annotations

import ipaddress
import logging
from collections import OrderedDict
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import anyio
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from starlette.authentication import (
    AuthCredentials,
    AuthenticationBackend,
    AuthenticationError,
)
from starlette.responses import JSONResponse

from meup_agent.errors import MeupError
from meup_agent.protocol.space.rate_limits import NoticeThrottle, network_of
from meup_agent.protocol.token_strength import is_guessable
from meup_agent.transport.request_headers import is_forwarded

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

    from meup_agent.mcp.principal_pool import Login, PrincipalPool

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
        principal: The participant, in the space.
        key: A digest of the client's token; empty: the participant of this process.
    """

    def __init__(self, login: Login) -> None:
        # The digest keeps sessions of two tokens apart, also where both are one participant's.
        super().__init__(
            AccessToken(
                token=login.token or "",
                client_id=login.principal.id,
                scopes=[],
                subject=login.key or None,
            )
        )
        self.principal = login.principal
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
        count, since = self._counts.pop(network, (0, now))
        if now - since > WRONG_SECONDS:
            count, since = 0, now
        self._counts[network] = (min(count + 1, MAX_WRONG_TOKENS), since)
        if len(self._counts) > MAX_NETWORKS:
            self._counts.popitem(last=False)
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

    def __init__(self, pool: PrincipalPool, *, anonymous: bool) -> None:
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
        if given is None:
            if not self._anonymous or not _is_local(conn):
                return None
            if is_forwarded(conn.headers.keys()):
                raise NeedsToken("a request that comes through a proxy needs a token")
            user = await self._user(None)
            assert user is not None  # else it has raised
            return AuthCredentials([]), user
        scheme, _, token = given.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        network = network_of("" if conn.client is None else conn.client.host)
        # Those who share the network with one that guesses, as behind a proxy, go on.
        if not is_guessable(token) or await self._pool.knows(token):
            user = await self._user(token)
        else:
            user = await self._try(token, network)
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


def _is_local(conn: HTTPConnection) -> bool:
    """True if the other end of the connection is on this machine."""
    return conn.client is not None and _is_loopback(conn.client.host)


@lru_cache(maxsize=1024)
def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def answer_error(_: HTTPConnection, error: Exception) -> Response:
    """The answer where a token could not be looked up, or is missing."""
    if isinstance(error, TooManyWrongTokens):
        body = {"error": "too_many_requests", "error_description": str(error)}
        return JSONResponse(body, 429, {"retry-after": f"{WRONG_SECONDS:.0f}"})
    if isinstance(error, NeedsToken):
        body = {"error": "invalid_token", "error_description": str(error)}
        return JSONResponse(body, 401, {"www-authenticate": "Bearer"})
    return JSONResponse({"error": "unavailable", "error_description": str(error)}, 503)
