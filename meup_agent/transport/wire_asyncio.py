"""WebSocket connections of ``websockets.asyncio``, in the shape of a ``Wire``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
from websockets.asyncio.client import ClientConnection, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Any


class AsyncioWire(ClientConnection):
    """A connection whose writes go into the loop's buffer whole."""

    async def send_whole(self, frame: bytes) -> None:
        """Send a text message: it is in the buffer before the first wait that can be cancelled."""
        await self.send(frame, text=True)

    async def round_trip(self) -> None:
        """Send a ping and wait for its pong."""
        await (await self.ping())

    async def shake_hands_and_close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the answer."""
        await self.close(code, reason)

    async def abort(self) -> None:
        """End the connection at once, without a word."""
        self.transport.abort()
        await self.wait_closed()


@asynccontextmanager
async def open_wire(url: str, **options: Any) -> AsyncGenerator[AsyncioWire]:
    """Connect; leaving the block ends the connection without a word.

    Raises:
        OSError: Nobody answered, or TLS failed.
        websockets.exceptions.WebSocketException: What answered did not accept the handshake.
    """
    wire = cast("AsyncioWire", await connect(url, create_connection=AsyncioWire, **options))
    try:
        yield wire
    finally:
        with anyio.CancelScope(shield=True):
            await wire.abort()
