"""Changes in a space, told to the MCP clients of a participant.

Clients of older revisions have a session, and are told on its own stream; those of 2026-07-28 ask
for a stream with ``subscriptions/listen``. Both hear of it here.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
from anyio.lowlevel import checkpoint
from mcp.server.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_REQUEST

from meup_agent.client.offer_directory import METHODS, PROMPTS, RESOURCES, TEMPLATES, TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from mcp.server.context import ServerRequestContext
    from mcp.server.subscriptions import ServerEvent
    from mcp_types import LoggingLevel

    from meup_agent.mcp.naming import OwnName

log = logging.getLogger("meup_agent.mcp")

MAX_SUBSCRIPTIONS: Final = 1000
"""Resources that one session is subscribed to."""

NEWS_SECONDS: Final = 0.5
"""Pause after a session was told of changes; those that come meanwhile are told once."""

SESSION_KEY: Final = "meup_agent.session"
"""Key of an ASGI scope at which its session's id is noted, so that it is looked for once."""

_EVENTS: Final[dict[str, ServerEvent]] = {
    TOOLS: ToolsListChanged(),
    PROMPTS: PromptsListChanged(),
    RESOURCES: ResourcesListChanged(),
    TEMPLATES: ResourcesListChanged(),
}


class Announcements:
    """The changes, for who listens: the SDK's seam ``SubscriptionBus``."""

    def __init__(self) -> None:
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}

    def lists_changed(self, of: Iterable[str] = METHODS) -> None:
        """Tell that lists of some kinds may have changed; each is told once."""
        for event in dict.fromkeys(_EVENTS[kind] for kind in of):
            self.announce(event)

    def announce(self, event: ServerEvent) -> None:
        """Tell every listener; returns at once."""
        for listener in list(self._listeners.values()):
            listener(event)

    async def publish(self, event: ServerEvent) -> None:
        """As :meth:`announce`, for the SDK."""
        self.announce(event)
        await checkpoint()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Tell a listener from here on; returns what ends that."""
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe


class ClientSession:
    """A client's session, from the end of its handshake to its own end.

    Args:
        ctx: The context of the notification that ended the handshake.

    Attributes:
        subscribed: The resources that it wants to hear of, by their URIs for it.
        log_level: The least level of log messages that it wants.
    """

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._session = ctx.session
        self._pending: dict[ServerEvent, None] = {}
        self._came = anyio.Event()
        self.subscribed: dict[str, OwnName] = {}
        self.log_level: LoggingLevel = "debug"

    def put(self, event: ServerEvent) -> None:
        """Tell its client, soon; what it was not told yet it is told once."""
        if isinstance(event, ResourceUpdated) and event.uri not in self.subscribed:
            return
        self._pending[event] = None
        self._came.set()

    async def run(self) -> None:
        """Tell its client of each change, until cancelled."""
        while True:
            await self._came.wait()
            self._came = anyio.Event()
            pending, self._pending = self._pending, {}
            for event in pending:
                match event:
                    case ToolsListChanged():
                        await self._session.send_tool_list_changed()
                    case PromptsListChanged():
                        await self._session.send_prompt_list_changed()
                    case ResourcesListChanged():
                        await self._session.send_resource_list_changed()
                    case ResourceUpdated(uri=uri):
                        await self._session.send_resource_updated(uri)
            # A participant may announce changes without an end, and each has clients ask for lists.
            await anyio.sleep(NEWS_SECONDS)


class ClientSessions:
    """The sessions of a participant's clients, by their ids."""

    def __init__(self, announcements: Announcements) -> None:
        self._announcements = announcements
        self._sessions: dict[str, ClientSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def ids(self) -> list[str]:
        """The ids of the sessions."""
        return list(self._sessions)

    @contextmanager
    def open(self, ctx: ServerRequestContext[Any, Any]) -> Generator[ClientSession]:
        """A session for the length of a block, told of what changes."""
        session_id, session = id_of(ctx), ClientSession(ctx)
        self._sessions[session_id] = session
        unsubscribe = self._announcements.subscribe(session.put)
        try:
            yield session
        finally:
            unsubscribe()
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]

    def get(self, ctx: ServerRequestContext[Any, Any]) -> ClientSession:
        """The session of a request.

        Raises:
            MCPError: Its handshake has not ended.
        """
        session = self._sessions.get(id_of(ctx))
        if session is None:
            raise MCPError(INVALID_REQUEST, "send notifications/initialized first")
        return session

    def find(self, ctx: ServerRequestContext[Any, Any]) -> ClientSession | None:
        """The session of a request; ``None`` where its revision has none."""
        return self._sessions.get(id_of(ctx))


def id_of(ctx: ServerRequestContext[Any, Any]) -> str:
    """The id of the session that a request came in; empty on stdio."""
    if ctx.request is None:
        return ""
    noted: str | None = ctx.request.scope.get(SESSION_KEY)
    return ctx.request.headers.get("mcp-session-id", "") if noted is None else noted
