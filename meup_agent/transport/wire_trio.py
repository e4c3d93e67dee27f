"""WebSocket connections of ``websockets.trio``, in the shape of a ``Wire``.

Imported only where trio runs: it is no dependency of this package.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio
from websockets.trio.client import ClientConnection, connect

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Any


class TrioWire(ClientConnection):
    """A connection whose writes may be cut in the middle by a cancellation."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The library's own lock is taken after the frame was queued: a send that is cancelled
        # while it waits there would leave the frame to the next one.
        self._turn = trio.Lock()

    async def send_whole(self, frame: bytes) -> None:
        """Send a text message; a cancellation that may have cut it ends the connection."""
        async with self._turn:
            try:
                await self.send(frame, text=True)
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self.abort()
                raise

    async def round_trip(self) -> None:
        """Send a ping and wait for its pong, or for the end of the connection."""
        pong = await self.ping(ack_on_close=True)
        await pong.wait()

    async def shake_hands_and_close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the answer."""
        await self.aclose(code, reason)

    async def abort(self) -> None:
        """End the connection at once, without a word; wakes a blocked sender and the reader."""
        # Closing a TLS stream writes a goodbye, and would wait for room to write it.
        await trio.aclose_forcefully(self.stream)
        await self.close_stream()


@asynccontextmanager
async def open_wire(url: str, **options: Any) -> AsyncGenerator[TrioWire]:
    """Connect; leaving the block ends the connection without a word, if it is cancelled.

    Raises:
        OSError: Nobody answered, or TLS failed.
        websockets.exceptions.WebSocketException: What answered did not accept the handshake.
    """
    try:
        async with connect(url, create_connection=TrioWire, **options) as wire:
            yield cast("TrioWire", wire)
    except trio.BrokenResourceError as error:
        # What a failed TLS handshake is to trio; asyncio raises the cause, an OSError.
        raise ConnectionError(str(error.__cause__ or error)) from error
