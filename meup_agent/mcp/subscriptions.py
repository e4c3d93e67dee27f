"""Subscriptions of participants to resources of a server, in every revision of MCP.

Older servers are told of each resource once for all who want it; newer ones by the one stream of
notifications that the bridge listens to, which is opened anew when the resources change.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError

from meup_agent.errors import RequestError, printable
from meup_agent.protocol import payloads

if TYPE_CHECKING:
    from mcp.client import Client

    from meup_agent.mcp.connection import ServerConnection

log = logging.getLogger("meup_agent.mcp")

MAX_SUBSCRIPTIONS: Final = 1_000
"""Resources of a server that are watched, times the participants that do."""

MAX_URI_CHARS: Final = 2_048
"""Characters of a URI that is remembered."""

LISTEN_AGAIN_SECONDS: Final = 5.0
"""Pause before a stream of notifications that was lost is opened again."""


class Subscriptions:
    """The resources of a server that participants watch.

    Args:
        connection: The connection to the server.
    """

    def __init__(self, connection: ServerConnection) -> None:
        self._connection = connection
        self._watchers: dict[str, set[str]] = {}
        self._changed = anyio.Event()

    def watchers(self, uri: str) -> tuple[str, ...]:
        """The participants that watch a resource, or what it is a part of."""
        found: set[str] = set()
        for watched, names in self._watchers.items():
            if uri == watched or uri.startswith(f"{watched.rstrip('/')}/"):
                found |= names
        return tuple(sorted(found))

    async def subscribe(self, participant: str, uri: str) -> None:
        """Let a participant watch a resource.

        Raises:
            RequestError: The server does not allow it, or there are too many.
        """
        if not uri or len(uri) > MAX_URI_CHARS:
            raise RequestError(
                payloads.INVALID_PARAMS, "a subscription needs the URI of a resource"
            )
        names = self._watchers.get(uri, set())
        if participant in names:
            return
        if sum(map(len, self._watchers.values())) >= MAX_SUBSCRIPTIONS:
            raise RequestError(
                payloads.EXCHANGE_ERROR, "too many resources are watched", {"reason": "busy"}
            )
        if not names and not self._connection.is_modern:
            await self._connection.request("resources/subscribe", {"uri": uri})
        self._watchers.setdefault(uri, set()).add(participant)
        self._changed.set()

    async def unsubscribe(self, participant: str, uri: str) -> None:
        """Let a participant no longer watch a resource.

        Raises:
            RequestError: The server answered with an error.
        """
        names = self._watchers.get(uri, set())
        names.discard(participant)
        if not names and self._watchers.pop(uri, None) is not None:
            self._changed.set()
            if not self._connection.is_modern:
                await self._connection.request("resources/unsubscribe", {"uri": uri})

    async def drop(self, participant: str) -> None:
        """Forget a participant that left."""
        for uri in [uri for uri, names in self._watchers.items() if participant in names]:
            try:
                await self.unsubscribe(participant, uri)
            except RequestError as error:
                log.debug("%s: %s", self._connection.name, error)

    async def renew(self) -> None:
        """Tell a server that was started again of the resources that are watched."""
        if self._connection.is_modern:
            return
        for uri in list(self._watchers):
            try:
                await self._connection.request("resources/subscribe", {"uri": uri})
            except RequestError as error:
                log.warning("%s: %r is not watched: %s", self._connection.name, uri, error)

    async def listen(self, client: Client) -> None:
        """Keep the stream of notifications of a newer server open, until cancelled."""
        capabilities = client.server_capabilities
        wanted = {
            "tools_list_changed": bool(capabilities.tools and capabilities.tools.list_changed),
            "prompts_list_changed": bool(
                capabilities.prompts and capabilities.prompts.list_changed
            ),
            "resources_list_changed": bool(
                capabilities.resources and capabilities.resources.list_changed
            ),
        }
        while True:
            self._changed = anyio.Event()
            uris = list(self._watchers)
            if not uris and not any(wanted.values()):
                await self._changed.wait()
                continue
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._cancel_when_changed, tasks.cancel_scope)
                    async with client.listen(**wanted, resource_subscriptions=uris) as stream:
                        # Each event also comes to the session's handler, as in older revisions.
                        async for _ in stream:
                            pass
                    tasks.cancel_scope.cancel()
            except* SubscriptionLost:
                pass
            except* MCPError as group:
                error = group.exceptions[0]
                log.info(
                    "%s has no stream of notifications: %s",
                    self._connection.name,
                    printable(str(error))[:200],
                )
                await self._changed.wait()
            if not self._changed.is_set():
                with anyio.move_on_after(LISTEN_AGAIN_SECONDS):
                    await self._changed.wait()

    async def _cancel_when_changed(self, scope: anyio.CancelScope) -> None:
        await self._changed.wait()
        scope.cancel()
