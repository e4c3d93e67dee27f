"""WebSocket connections of ``websockets.asyncio``, adapted for a ``WebSocketTransport``."""

from __future__ import annotations

from contextlib import asynccontextmanager
from inspect import isgenerator
from typing import TYPE_CHECKING, Final, cast

import anyio
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode
from websockets.protocol import State

from meup_agent.transport.base import STREAM_MARK
from meup_agent.transport.connect_failure import explained
from meup_agent.transport.listener_owner import check_listener, is_authenticated

if TYPE_CHECKING:
    from asyncio import Task, TimerHandle
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from ssl import SSLObject
    from typing import Any


GATHERED_BYTES: Final = 32 * 1024
"""Bytes gathered for one write; beyond them senders wait for the socket, as with the library."""

GATHERED_FRAMES: Final = 8
"""Messages gathered for one write. A whole turn in one write makes both ends wait for each other:
the reader idles until the last of the turn is made."""


_WHOLE: Final = {0x80 | opcode: opcode for opcode in (Opcode.TEXT, Opcode.BINARY)}
"""First bytes of frames that are a message each, of no extension."""

_TWO_BYTES: Final = 126
"""Said as a length: the two bytes after it have that. Above: eight have it, or there is a mask."""


def _whole_messages(data: bytes) -> list[Frame] | None:
    """The messages of which a read consists; ``None``: there is something else in it, too."""
    frames: list[Frame] = []
    at, end = 0, len(data)
    while at < end:
        opcode = _WHOLE.get(data[at])
        if opcode is None or end - at < 4:
            return None
        size, start = data[at + 1], at + 2
        if size == _TWO_BYTES:
            size, start = data[start] << 8 | data[start + 1], start + 2
        elif size > _TWO_BYTES:
            return None
        at = start + size
        if at > end:
            return None
        frames.append(Frame(opcode, data[start:at]))
    return frames


class AsyncioWebSocket(ClientConnection):
    """A connection whose writes go into the loop's buffer whole.

    A read that is whole messages is cut up here: the library's parser took a fifth of the processor
    time of an agent that answers short messages. It gets every other read.
    """

    _gathered = _frames = 0
    _is_between_frames = False
    _timer: TimerHandle | None = None
    _check: Task[None] | None = None

    async def handshake(self, *args: Any, **kwargs: Any) -> None:
        """Send the request and wait for its answer, unless another user is at the other end."""
        wire = self.transport
        tls: SSLObject | None = wire.get_extra_info("ssl_object")
        if not is_authenticated(None if tls is None else tls.context):
            check_listener(wire.get_extra_info("socket"))
        await super().handshake(*args, **kwargs)

    def data_received(self, data: bytes) -> None:
        """Take what came from the socket."""
        protocol = self.protocol
        if self._is_between_frames and protocol.state is State.OPEN:
            frames = _whole_messages(data)
            if frames is not None:
                for frame in frames:
                    self.process_event(frame)
                return
        super().data_received(data)
        # These are no names of its interface: where they are others, it gets every read.
        reader: Any = getattr(protocol, "parser", None)
        while (inner := getattr(reader, "gi_yieldfrom", None)) is not None:
            reader = inner
        # There it waits for the first byte of a frame, and nowhere else.
        is_between = isgenerator(reader) and reader.gi_code.co_name == "at_eof"
        # Nor is it amid a message of several frames; `websockets` 16 does not say so by this name.
        is_between = is_between and getattr(protocol, "current_size", 0) is None
        self._is_between_frames = is_between

    async def send_whole(self, frame: bytes) -> None:
        """Send a message: it is in a buffer before the first wait that can be cancelled.

        Where there is room, the messages of one turn of the loop leave in few writes. The library
        says why a message cannot be sent, and waits for room.
        """
        is_text = frame[:1] != STREAM_MARK
        is_open = self.protocol.state is State.OPEN and not self.transport.is_closing()
        has_room = not self.paused
        if not (is_open and has_room):
            await self.send(frame, text=is_text)
            return
        (self.protocol.send_text if is_text else self.protocol.send_binary)(frame)
        self._gathered += len(frame)
        self._frames += 1
        if self._gathered > GATHERED_BYTES or self._frames == GATHERED_FRAMES:
            self._write()
            if self.paused:
                async with self.send_context():
                    pass
        elif self._gathered == len(frame):
            self.loop.call_soon(self._write)

    def _write(self) -> None:
        """Write what has been gathered; whatever the library sends has taken it along."""
        self._gathered = self._frames = 0
        if self.protocol.state is State.OPEN and not self.transport.is_closing():
            gathered = self.protocol.data_to_send()
            if gathered:
                self.transport.write(b"".join(gathered))

    async def round_trip(self) -> None:
        """Send a ping and wait for its pong, or for the end of the connection."""
        await (await self.ping())

    def repeat(self, seconds: float, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call so many seconds from now, and again after each call, while the connection is open.

        The call waits for nothing but the connection, and raises nothing. In between there is only
        a timer of the loop's: a task that sleeps takes 3 KiB.
        """
        self._timer = self.loop.call_later(seconds, self._begin, seconds, check)

    def _begin(self, seconds: float, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def check_and_repeat() -> None:
            await check()
            self.repeat(seconds, check)

        if self.protocol.state is State.OPEN:
            self._check = self.loop.create_task(check_and_repeat(), name="meup connection: check")

    async def shake_hands_and_close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the answer; does not raise on a closed connection."""
        await self.close(code, reason)

    async def abort(self) -> None:
        """End the connection at once, without a word; to be called where it cannot be cancelled."""
        # After its end, asyncio's transport raises (in 3.13, too) where it closed with frames
        # still to be written: its loop is gone, and it has not counted that it ended.
        if not self.connection_lost_waiter.done():
            self.transport.abort()
        await self.wait_closed()

    async def end(self) -> None:
        """End the connection without a word, and what is repeated with it.

        A check that runs ends by itself, since it can only wait for the connection.
        """
        await self.abort()
        if self._check is not None:
            await self._check
        if self._timer is not None:
            self._timer.cancel()


@asynccontextmanager
async def open_websocket(url: str, where: str, **options: Any) -> AsyncGenerator[AsyncioWebSocket]:
    """Connect; leaving the block ends the connection without a word.

    Errors name the gateway as ``where`` does.
    """
    with explained(where, options["open_timeout"]):
        socket = cast(
            "AsyncioWebSocket", await connect(url, create_connection=AsyncioWebSocket, **options)
        )
    try:
        yield socket
    finally:
        with anyio.CancelScope(shield=True):
            await socket.end()
