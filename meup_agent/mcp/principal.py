"""The participants that MCP clients are: each is in the space once, however many clients it has."""

from __future__ import annotations

import hashlib
import hmac
import inspect
import logging
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.subscriptions import ListenHandler, ResourceUpdated

from meup_agent.agent.agent import Agent
from meup_agent.client.messages import Request
from meup_agent.errors import MeupError, SessionEnded, UsageError
from meup_agent.mcp.announcements import Announcements, ClientSessions
from meup_agent.mcp.catalog import CHANGES, Catalog
from meup_agent.mcp.client_calls import ASKED, ClientCalls
from meup_agent.mcp.subscribed_resources import SubscribedResources
from meup_agent.protocol import kinds, payloads
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
    from contextlib import AbstractAsyncContextManager
    from typing import Self

    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session.reconnector import Token

log = logging.getLogger("meup_agent.mcp")

MAX_PRINCIPALS: Final = 256
"""Participants that one process is in the space as; each has a connection to the gateway."""

IDLE_SECONDS: Final = 600.0
"""A participant without a session and without a request for so long leaves the space."""

REFUSED_SECONDS: Final = 10.0
"""A token that was refused is not tried again for so long: the gateway counts failed logins."""

MAX_REFUSED: Final = 4096

MAX_JOINING: Final = 16
"""Tokens that are tried at the same time."""


class TooManyPrincipals(UsageError):
    """No other participant can be served by this process now."""


class Principal:
    """A participant that MCP clients are, in the space.

    Attributes:
        key: A digest of its token; empty: the participant of this process.
        space: The space, as it sees it.
        catalog: The offers that it sees there.
        subscribed: The resources there that its clients are subscribed to.
        announcements: What changes there.
        sessions: The sessions of its clients.
        calls: The calls that run for its clients.
        listen: Answers ``subscriptions/listen``.
        error: Why it is not in the space any more.
        left: It left by itself.
        running: Its requests that are being answered.
        used_at: The time of its last request.
    """

    space: Space
    catalog: Catalog
    subscribed: SubscribedResources

    def __init__(self, key: str, *, bare: str | None = None) -> None:
        self.key = key
        self.announcements = Announcements()
        self.sessions = ClientSessions(self.announcements)
        self.listen = ListenHandler(self.announcements)
        self.calls = ClientCalls()
        self.error: Exception | None = None
        self.used_at = 0.0
        self.running = 0
        self.ready = anyio.Event()
        self.ended = anyio.Event()
        self.left = False
        self.agent = Agent("meup-mcp")
        self.agent.on_request(*ASKED)(self._answer)
        self._bare = bare
        self._scope = anyio.CancelScope()
        self._tasks: TaskGroup | None = None

    @property
    def id(self) -> str:
        """The participant."""
        return self.space.me

    @property
    def joined(self) -> bool:
        """True while it is in the space."""
        return self.ready.is_set() and self.error is None

    async def run(self, join: Callable[[Agent], AbstractAsyncContextManager[Space]]) -> None:
        """Be in the space until :meth:`leave`, or the gateway ends it."""
        try:
            with self._scope:
                async with join(self.agent) as self.space, background_tasks() as self._tasks:
                    self.catalog = Catalog(
                        self.space,
                        self.announcements.lists_changed,
                        self.start_soon,
                        bare=self._bare,
                    )
                    self.subscribed = SubscribedResources(self.space, self.start_soon)
                    self.used_at = anyio.current_time()
                    with self.space.watch() as envelopes:
                        self.ready.set()
                        missed = 0
                        async for envelope in envelopes:
                            self._read(envelope)
                            if envelopes.missed > missed:
                                missed = envelopes.missed
                                self.catalog.invalidate()
        except (MeupError, OSError) as error:
            self.error = error
        except anyio.get_cancelled_exc_class():
            self.left = True
            raise
        finally:
            self.error = self.error or SessionEnded("this participant has left the space")
            self.ready.set()
            self.ended.set()
            self.listen.close()

    @contextmanager
    def answering(self) -> Generator[None]:
        """Count a request for as long as it is answered: until then it does not leave as idle."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self.used_at = anyio.current_time()

    def leave(self) -> None:
        """Leave the space."""
        self.left = True
        self._scope.cancel()

    def start_soon(self, work: Callable[..., Coroutine[Any, Any, object]], *args: object) -> None:
        """Do some work beside the requests of its clients, until it leaves."""
        assert self._tasks is not None, "it is in the space"
        self._tasks.start_soon(work, *args)

    async def _answer(self, request: Request) -> dict[str, Any]:
        return await self.calls.answer(request)

    async def raise_at_end(self) -> None:
        """Wait until it is not in the space any more, and raise why, if it has not left itself."""
        await self.ended.wait()
        assert self.error is not None
        if not self.left:
            raise self.error

    def _read(self, envelope: Envelope) -> None:
        """Note what an envelope changes for MCP clients."""
        if envelope.kind == kinds.MCP_REQUEST:
            if b"notifications/" in envelope.raw_payload and envelope.concerns(self.id):
                self._read_notification(envelope)
        elif envelope.sender not in kinds.GATEWAY_NAMES:
            return
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            payload = envelope.payload_object
            participant = payloads.as_object(payload.get("participant")).get("id")
            if isinstance(participant, str) and participant != self.id:
                self.catalog.invalidate(participant)
                if payload.get("event") == "join":
                    self.subscribed.renew(participant)
        elif envelope.kind == kinds.SYSTEM_WELCOME:
            self.catalog.invalidate()  # a new connection, or other capabilities of ours

    def _read_notification(self, envelope: Envelope) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method in CHANGES:
            self.catalog.invalidate(envelope.sender, CHANGES[call.method])
        elif call.method == "notifications/message":
            running = self.calls.find(envelope.sender, call.params)
            if running is not None:
                running.put_log(call.params)
        elif call.method == "notifications/resources/updated":
            uri = call.params.get("uri")
            if isinstance(uri, str):
                for exposed in self.catalog.exposed_uris(envelope.sender, uri):
                    self.announcements.announce(ResourceUpdated(exposed))


class PrincipalPool:
    """The participants that one process serves MCP clients as.

    Args:
        join: Joins the space with a token; ``None``: the one of this process.
        own: The token of this process, where it is known: a client that sends it is the same
            participant, which cannot be in the space twice.
        bare: One participant, whose names stay as they are.
    """

    def __init__(
        self,
        join: Callable[[Agent, str | None], AbstractAsyncContextManager[Space]],
        *,
        own: Token | None = None,
        bare: str | None = None,
    ) -> None:
        self._join = join
        self._own = own
        self._bare = bare
        self._principals: dict[str, Principal] = {}
        self._refused: dict[str, float] = {}
        self._joining = anyio.Semaphore(MAX_JOINING)
        self._tasks: TaskGroup | None = None
        self.on_end: list[Callable[[Principal], None]] = []

    @asynccontextmanager
    async def run(self) -> AsyncGenerator[Self]:
        """Serve for the length of a block; then all leave the space."""
        async with background_tasks() as self._tasks:
            self._tasks.start_soon(self._leave_idle)
            yield self
        self._tasks = None

    async def get(self, token: str | None) -> Principal | None:
        """The participant of a token, in the space; ``None``: the gateway does not know the token.

        Raises:
            TooManyPrincipals: There is no room for another one.
            ConnectionFailed: The gateway cannot be reached.
        """
        if token is not None and await self._is_own(token):
            token = None
        key = "" if token is None else hashlib.sha256(token.encode()).hexdigest()
        principal = self._principals.get(key)
        if principal is None:
            async with self._joining:
                principal = self._principals.get(key)
                if principal is None:
                    if self._is_refused(key):
                        return None
                    principal = self._begin(key, token)
                await principal.ready.wait()
        await principal.ready.wait()
        error = principal.error
        if error is None:
            principal.used_at = anyio.current_time()
            return principal
        if key and isinstance(error, SessionEnded):
            return None
        raise error

    def knows(self, token: str) -> bool:
        """True if the participant of a token is in the space here."""
        principal = self._principals.get(hashlib.sha256(token.encode()).hexdigest())
        return principal is not None and principal.ready.is_set() and principal.error is None

    async def _is_own(self, token: str) -> bool:
        own = self._own() if callable(self._own) else self._own
        own = await own if inspect.isawaitable(own) else own
        return own is not None and hmac.compare_digest(own.strip().encode(), token.encode())

    def _begin(self, key: str, token: str | None) -> Principal:
        if len(self._principals) >= MAX_PRINCIPALS:
            raise TooManyPrincipals(f"{MAX_PRINCIPALS} participants are served already")
        if self._tasks is None:
            raise UsageError("the pool does not run")
        principal = self._principals[key] = Principal(key, bare=self._bare)
        self._tasks.start_soon(self._run, principal, token)
        return principal

    async def _run(self, principal: Principal, token: str | None) -> None:
        try:
            await principal.run(lambda agent: self._join(agent, token))
        finally:
            del self._principals[principal.key]
            if principal.key and isinstance(principal.error, SessionEnded) and not principal.left:
                self._refuse(principal.key)
            for told in self.on_end:
                told(principal)

    def _refuse(self, key: str) -> None:
        if len(self._refused) >= MAX_REFUSED:
            del self._refused[next(iter(self._refused))]
        self._refused[key] = anyio.current_time() + REFUSED_SECONDS

    def _is_refused(self, key: str) -> bool:
        until = self._refused.get(key)
        if until is None:
            return False
        if until > anyio.current_time():
            return True
        del self._refused[key]
        return False

    async def _leave_idle(self) -> None:
        while True:
            await anyio.sleep(IDLE_SECONDS / 10)
            before = anyio.current_time() - IDLE_SECONDS
            for principal in list(self._principals.values()):
                idle = not principal.running and not len(principal.sessions)
                if principal.key and principal.joined and idle and principal.used_at < before:
                    principal.leave()
