"""A way to a space for several participants of one process: its MCP clients, or its bridges.

By itself, since both directions use it, and neither imports the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from meup_agent.transport.websocket import websocket_connector

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractAsyncContextManager

    from meup_agent.transport.base import Transport


class SpaceConnector:
    """Connects to a space as the participant of any token.

    Where an address is given instead, ``MEUP_PARTICIPANT`` counts, which is the name of one token.

    Args:
        url: The gateway.
        space: The space.
    """

    def __init__(self, url: str, space: str) -> None:
        self.where = url
        self._dial = websocket_connector(url, space=space)

    def __call__(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
        """Open a connection; leaving the block closes it."""
        return self._dial(headers)
