"""The socket that an ASGI server does not have: frames wait here until the server takes them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

HIGH_WATER_BYTES: Final = 64 * 1024
"""Bytes that may wait to be sent before the queue above is paused, as asyncio has it for a socket:
beyond that they are counted and bounded there."""

LOW_WATER_BYTES: Final = HIGH_WATER_BYTES // 4


class SendQueue:
    """Frames that one ASGI connection still has to send; pauses the queue above when it is full."""

    joins_frames = True

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause = pause
        self._resume = resume
        self.closed = anyio.Event()
        self.code = 0
        self.reason = ""
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._sending = 0
        self._paused = False
        self._changed = anyio.Event()

    def write(self, packed: bytes) -> None:
        """Queue something to send."""
        if self.closed.is_set():
            return
        self._frames.append(packed)
        self._bytes += len(packed)
        self._changed.set()
        if self._bytes > HIGH_WATER_BYTES and not self._paused:
            self._paused = True
            self._pause()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued."""
        if not self.closed.is_set():
            self.code, self.reason = code, reason
            self.closed.set()
            self._changed.set()

    async def take(self, seconds: float | None = None) -> bytes | None:
        """The next to send, as soon as there is something; ``None``: it has ended.

        After so many seconds of silence it is empty. What was taken counts as being sent until this
        is called again.
        """
        self._sent()
        with anyio.move_on_after(seconds):
            while not self._frames:
                if self.closed.is_set():
                    return None
                self._changed = anyio.Event()
                await self._changed.wait()
        if not self._frames:
            return b""
        packed = self._frames.popleft()
        self._sending = len(packed)
        return packed

    def _sent(self) -> None:
        self._bytes -= self._sending
        self._sending = 0
        if self._paused and self._bytes <= LOW_WATER_BYTES:
            self._paused = False
            self._resume()
