"""Flow control of a connection: until when it is not read, and what waits to be sent.

A :class:`SendQueue` is the socket that an ASGI server does not have.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import anyio

if TYPE_CHECKING:
    from uvicorn.protocols.http.flow_control import FlowControl

HIGH_WATER_BYTES: Final = 64 * 1024
"""Bytes that may wait to be sent before the queue above is paused, as asyncio has it for a socket:
beyond that they are counted and bounded there."""

LOW_WATER_BYTES: Final = HIGH_WATER_BYTES // 4
"""Bytes at which a reader no longer counts as behind."""


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
        self._bytes -= self._sending
        self._sending = 0
        if self._paused and self._bytes <= LOW_WATER_BYTES:
            self._paused = False
            self._resume()
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


CHUNK_WRITER: Final = "meup.chunk_writer"
"""Name of the :class:`ChunkWriter` in the state of an HTTP request, where its server has one."""


class ChunkWriter:
    """Writes parts of a response, once begun, without the turns that ASGI takes for each.

    For what many connections get alike: it is framed once, and each write costs a tenth of a
    message of ASGI. The response has no length, and its request is a ``GET`` of HTTP/1.1, so that
    chunks are what its body consists of.
    """

    def __init__(self, transport: asyncio.WriteTransport, flow: FlowControl) -> None:
        self._transport = transport
        self._flow = flow

    def write(self, chunk: bytes) -> bool:
        """Write what :func:`frame_chunk` made; false if nothing is taken now."""
        if self._flow.write_paused or self._transport.is_closing():
            return False
        self._transport.write(chunk)
        return True


def frame_chunk(data: bytes) -> bytes:
    """A part of a body as a chunk (RFC 9112 section 7.1); none is empty, which would end it."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class ReadTransport(Protocol):
    """The transport that a gate opens and closes."""

    def pause_reading(self) -> None:
        """Read nothing."""
        ...

    def resume_reading(self) -> None:
        """Read again."""
        ...

    def is_closing(self) -> bool:
        """True if it reads nothing more."""
        ...

    def abort(self) -> None:
        """End it at once."""
        ...


class ReadGate:
    """Keeps a connection from being read until a time, until the next turn, or while it is held.

    The one mechanism for this: what comes too fast stays in the socket, and in the end with its
    sender; nothing of it is lost. ``reopened`` is called before the socket is read again, and may
    close the gate again.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, wire: ReadTransport, reopened: Callable[[], None]
    ) -> None:
        self.open = True
        self._loop = loop
        self._wire = wire
        self._reopened = reopened
        self._held = False
        self._timer: asyncio.Handle | None = None
        self._until = 0.0
        self._reads = True
        self._read_decrypted: Callable[[], None] | None = getattr(wire, "_do_read", None)

    def pause(self, seconds: float) -> None:
        """Read nothing for a time, and not before the next turn of the loop.

        Of several times the longest counts.
        """
        until = self._loop.time() + seconds
        if self._timer is not None:
            if until <= self._until:
                return
            self._timer.cancel()
        self._until = until
        self._timer = (
            self._loop.call_later(seconds, self._due)
            if seconds > 0.0
            else self._loop.call_soon(self._due)
        )
        self._change()

    def release(self) -> None:
        """Read again in the next turn, whatever the time; what is held stays so."""
        if self._timer is not None:
            self._timer.cancel()
            self._until = 0.0
            self._timer = self._loop.call_soon(self._due)

    def hold(self, held: bool) -> None:
        """Read nothing until told otherwise."""
        self._held = held
        self._change()

    def stop(self) -> None:
        """Forget the time: the connection has ended."""
        if self._timer is not None:
            self._timer.cancel()

    def _due(self) -> None:
        self._timer = None
        self._change()

    def _change(self) -> None:
        opens = not self._held and self._timer is None
        if opens and not self.open:
            self.open = True
            # What was read before the gate closed comes first, and may close it again.
            self._reopened()
        else:
            self.open = opens
        if self.open is not self._reads and not self._wire.is_closing():
            self._reads = self.open
            if self._reads:
                self._wire.resume_reading()
                if self._read_decrypted is not None:
                    self._loop.call_soon(self._go_on_decrypting)
            else:
                self._wire.pause_reading()

    def _go_on_decrypting(self) -> None:
        """Read what came with TLS before the gate closed.

        Aiofastnet looks at it only when more comes, which a sender who waits for an answer does not
        send.
        """
        if self._reads and self._read_decrypted is not None and not self._wire.is_closing():
            try:
                self._read_decrypted()
            except Exception:
                # The same records would have broken the connection, had they come a moment later.
                self._wire.abort()
