"""A participant that MCP clients are: in the space once, however many clients and tokens it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.subscriptions import ListenHandler, ResourceUpdated

from meup_agent.agent.agent import Agent
from meup_agent.client.messages import Request
from meup_agent.client.offer_directory import CHANGES
from meup_agent.errors import MeupError, SessionEnded
from meup_agent.mcp.announcements import Announcements, ClientSessions
from meup_agent.mcp.catalog import Catalog
from meup_agent.mcp.client_calls import ASKED, MAX_REQUESTS, ClientCalls, too_many_requests
from meup_agent.mcp.subscribed_resources import SubscribedResources
from meup_agent.protocol import kinds, payloads
from meup_agent.transport.loops import background_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope


class _Answering:
    """Counts a request for the length of a block: until its end its participant is not idle.

    One for all requests, which is cheaper than a generator for each.
    """

    def __init__(self, principal: Principal) -> None:
        self._principal = principal

    def __enter__(self) -> None:
        if self._principal.running >= MAX_REQUESTS:
            raise too_many_requests()
        self._principal.running += 1

    def __exit__(self, *_: object) -> None:
        self._principal.running -= 1
        self._principal.used_at = anyio.current_time()


class Principal:
    """A participant that MCP clients are, in the space.

    Attributes:
        key: Its name in the space; empty where one process serves no other.
        own: It is the participant of this process.
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
        answering: The block in which one is answered.
        used_at: The time of its last request.
        on_welcome: Called when it has joined anew, or may send other things than before.
    """

    space: Space
    catalog: Catalog
    subscribed: SubscribedResources

    def __init__(
        self,
        key: str,
        *,
        own: bool = True,
        bare: str | None = None,
        on_welcome: Callable[[Principal], None] = lambda _: None,
    ) -> None:
        self.key = key
        self.own = own
        self.on_welcome = on_welcome
        self.announcements = Announcements()
        self.sessions = ClientSessions(self.announcements)
        self.listen = ListenHandler(self.announcements)
        self.calls = ClientCalls()
        self.error: Exception | None = None
        self.used_at = 0.0
        self.running = 0
        self.answering = _Answering(self)
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
                    with self.space.watch(self._changes) as envelopes:
                        self.ready.set()
                        missed = 0
                        async for envelope in envelopes:
                            self._read(envelope)
                            if envelopes.missed > missed:
                                missed = envelopes.missed
                                self.announcements.lists_changed()
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

    def _changes(self, envelope: Envelope) -> bool:
        """True if an envelope may change something for MCP clients, which a call does not."""
        if envelope.kind == kinds.MCP_REQUEST:
            return b"notifications/" in envelope.raw_payload and envelope.concerns(self.id)
        return envelope.sender in kinds.GATEWAY_NAMES

    def _read(self, envelope: Envelope) -> None:
        """Note what an envelope changes for MCP clients."""
        if envelope.kind == kinds.MCP_REQUEST:
            self._read_notification(envelope)
        elif envelope.kind == kinds.SYSTEM_PRESENCE:
            payload = envelope.payload_object
            participant = payloads.as_object(payload.get("participant")).get("id")
            if isinstance(participant, str) and participant != self.id:
                self.announcements.lists_changed()
                if payload.get("event") == "join":
                    self.subscribed.renew(participant)
        elif envelope.kind == kinds.SYSTEM_WELCOME:
            self.announcements.lists_changed()
            self.on_welcome(self)

    def _read_notification(self, envelope: Envelope) -> None:
        call = payloads.read_call(envelope.payload)
        if call.method in CHANGES:
            self.announcements.lists_changed(CHANGES[call.method])
        elif call.method == "notifications/message":
            running = self.calls.find(envelope.sender, call.params)
            if running is not None:
                running.put_log(call.params)
        elif call.method == "notifications/resources/updated":
            uri = call.params.get("uri")
            if isinstance(uri, str):
                for exposed in self.catalog.exposed_uris(envelope.sender, uri):
                    self.announcements.announce(ResourceUpdated(exposed))
