"""News of a server, which the spaces of its bridge are told."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from meup_agent.errors import MeupError
from meup_agent.protocol import kinds, payloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.client.space import Space
    from meup_agent.protocol.payloads import JsonObject

log = logging.getLogger("meup_agent.mcp")


class ServerNews:
    """Words and notifications for the spaces; what a gateway does not allow is left out.

    Args:
        name: The server's name, for the log.

    Attributes:
        spaces: The spaces that are told.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.spaces: list[Space] = []

    async def notify(self, method: str, params: JsonObject, to: tuple[str, ...] = ()) -> None:
        """Send a notification of MCP, to everyone if no addressee is named."""
        payload = payloads.notification(method, params)
        await self._each(
            kinds.MCP_REQUEST, payload, lambda space: space.send(kinds.MCP_REQUEST, payload, to=to)
        )

    async def send_chat(self, text: str) -> None:
        """Say something to everyone."""
        await self._each(kinds.CHAT, {"message": text}, lambda space: space.chat(text))

    async def _each(self, kind: str, payload: JsonObject, send: Callable[[Space], Any]) -> None:
        for space in self.spaces:
            if not space.may(kind, payload):
                log.debug("%s: the gateway does not allow %s", self._name, kind)
                continue
            try:
                await send(space)
            except MeupError as error:
                log.info("%s: not told: %s", self._name, error)
