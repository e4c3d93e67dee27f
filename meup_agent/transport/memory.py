"""A connection inside one process: for tests, and for agents beside their gateway."""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from anyio import Lock, ResourceGuard
from anyio.lowlevel import checkpoint_if_cancelled

from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES
from meup_agent.transport.base import (
    ABNORMAL,
    TOO_BIG,
    CloseInfo,
    Condition,
    Connector,
    checked_close,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
    from typing import Self

MEMORY_CAPACITY: Final = 64
"""Frames on their way in one direction: about what the buffers of a socket hold of small ones, so
that a sender feels a slow reader as early as it would there."""


class MemoryTransport:
    """One end of a :func:`memory_pair`.

    A queue of its own, not two memory object streams: closing must wake a sender that waits for
    room, and yet leave readable what had arrived.
    """

    def __init__(self, capacity: int) -> None:
        self._inbox: deque[bytes] = deque()
        self._arrived = Condition()
        self._room = Condition()
        # One sender at a time, so that frames leave in the order of the calls.
        self._turn = Lock()
        self._reading = ResourceGuard("reading from")
        self._closed: CloseInfo | None = None
        self._capacity = capacity
        self._max_frame_bytes = MAX_FRAME_BYTES
        self._peer = self
        self.response_headers: Mapping[str, str] = {}
        """The headers of the other end's answer in the handshake, by names in lower case."""

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open."""
        return self._closed

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        with self._reading:
            while not self._inbox:
                if self._closed is not None:
                    raise StopAsyncIteration
                await self._arrived.wait()
            self._room.notify_all()
            return self._inbox.popleft()

    def _end(self, info: CloseInfo) -> None:
        """Note the end, and end every wait at this end's queue."""
        if self._closed is None:
            self._closed = info
            self._arrived.notify_all()
            self._room.notify_all()

    async def send(self, frame: bytes) -> None:
        """Send one message; waits while the other end has no room."""
        peer = self._peer
        # A message for which there is room is sent without a checkpoint, as into a socket.
        if self._turn.locked() or len(peer._inbox) >= peer._capacity:
            await checkpoint_if_cancelled()
            async with self._turn:
                while self._closed is None and len(peer._inbox) >= peer._capacity:
                    await peer._room.wait()
                self._hand_over(frame)
        else:
            self._hand_over(frame)

    def _hand_over(self, frame: bytes) -> None:
        """Put a message into the other end's queue, which has room."""
        if self._closed is not None:
            raise self._closed.error()
        peer = self._peer
        if len(frame) > peer._max_frame_bytes:
            peer._close(CloseInfo(TOO_BIG, f"over {peer._max_frame_bytes} bytes", local=True))
        else:
            peer._inbox.append(frame)
            peer._arrived.notify_all()

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close both ends; what the other has not read yet, it still can."""
        self._close(checked_close(code, reason))

    async def abort(self) -> None:
        """End the connection at once, as :meth:`drop` does."""
        self.drop()

    def drop(self) -> None:
        """Lose the connection: code 1006 at both ends, and what was not read yet is gone."""
        if self._closed is None:
            for end in (self, self._peer):
                end._inbox.clear()
                end._end(CloseInfo(ABNORMAL))

    def _close(self, info: CloseInfo) -> None:
        """End the connection, as this end's doing."""
        if self._closed is None:
            self._end(info)
            self._peer._end(CloseInfo(info.code, info.reason))


def memory_pair(*, capacity: int = MEMORY_CAPACITY) -> tuple[MemoryTransport, MemoryTransport]:
    """Make two connected ends.

    Args:
        capacity: How many frames may be on their way in each direction; at least 1.
    """
    if capacity < 1:
        raise ValueError(f"a capacity of {capacity} lets nothing through; give at least 1")
    left, right = (MemoryTransport(capacity) for _ in range(2))
    left._peer, right._peer = right, left  # pyright: ignore[reportPrivateUsage]
    return left, right


def memory_connector(
    accept: Callable[[MemoryTransport, Mapping[str, str]], Awaitable[Mapping[str, str] | None]],
    *,
    capacity: int = MEMORY_CAPACITY,
) -> Connector:
    """Make a connector that dials a gateway in this process.

    Args:
        accept: Takes the gateway's end and the headers, as the handshake does: it returns when the
            connection is accepted (it is served in a task of the gateway's own), or raises
            :class:`~meup_agent.errors.HandshakeRefused`. What it returns are the headers of its
            answer.
        capacity: As for :func:`memory_pair`.
    """

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[MemoryTransport]:
        ours, theirs = memory_pair(capacity=capacity)
        try:
            answered = await accept(theirs, headers)
            ours.response_headers = {
                name.lower(): value for name, value in (answered or {}).items()
            }
            yield ours
        finally:
            await ours.aclose()

    return dial
