"""The resources that clients are subscribed to, at the participants that have them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import MeupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.client.space import Space
    from meup_agent.mcp.naming import OwnName

log = logging.getLogger("meup_agent.mcp")

SUBSCRIBE_SECONDS: Final = 10.0
"""Wait for a participant that is asked to say when a resource changes."""

MAX_RESOURCES: Final = 10_000
"""Resources that one participant's clients are subscribed to."""


class SubscribedResources:
    """Subscribes once for however many clients, and until the last of them is gone.

    Args:
        space: The space.
        start_soon: Does some work beside.
    """

    def __init__(self, space: Space, start_soon: Callable[..., object]) -> None:
        self._space = space
        self._start_soon = start_soon
        self._clients: dict[OwnName, int] = {}
        self._asking: dict[OwnName, anyio.Lock] = {}

    @property
    def is_full(self) -> bool:
        """True if there is no room for another resource."""
        return len(self._clients) + len(self._asking) >= MAX_RESOURCES

    async def add(self, resource: OwnName) -> None:
        """Count a client.

        Raises:
            MeupError: Its participant was asked, and does not say when it changes.
        """
        lock = self._asking.setdefault(resource, anyio.Lock())
        try:
            async with lock:  # those that come meanwhile share its answer, and not its hope
                if resource not in self._clients:
                    await self._ask("resources/subscribe", resource)
                self._clients[resource] = self._clients.get(resource, 0) + 1
        finally:
            if not lock.locked() and self._asking.get(resource) is lock:
                del self._asking[resource]

    def discard(self, resource: OwnName) -> None:
        """Count a client no longer."""
        count = self._clients.get(resource, 0) - 1
        if count > 0:
            self._clients[resource] = count
        elif self._clients.pop(resource, None) is not None:
            self._start_soon(self._try, "resources/unsubscribe", resource)

    def renew(self, participant: str) -> None:
        """Subscribe again at a participant that has come anew, and knows nothing of us."""
        for resource in self._clients:
            if resource.participant == participant:
                self._start_soon(self._try, "resources/subscribe", resource)

    async def _try(self, method: str, resource: OwnName) -> None:
        try:
            await self._ask(method, resource)
        except MeupError as error:
            log.info("%s of %r at %r: %s", method, resource.name, resource.participant, error)

    async def _ask(self, method: str, resource: OwnName) -> None:
        await self._space.request(
            resource.participant, method, {"uri": resource.name}, timeout=SUBSCRIBE_SECONDS
        )
