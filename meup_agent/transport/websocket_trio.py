"""WebSocket connections of ``websockets.trio``, adapted for a ``WebSocketTransport``.

Imported only where trio runs: it is not a dependency of this package.
"""

from __future__ import annotations

import logging
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import trio
from websockets.protocol import State
from websockets.trio.client import ClientConnection, connect

from meup_agent.transport.base import STREAM_MARK, background_tasks
from meup_agent.transport.connect_failure import explained
from meup_agent.transport.listener_owner import check_listener, is_authenticated

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
    from ssl import SSLContext
    from typing import Any

    from anyio.abc import TaskGroup, TaskStatus


class TrioWebSocket(ClientConnection):
    """A connection whose writes may be cut in the middle by a cancellation.

    A Ctrl-C, which trio raises in whichever task runs, must not cut them: the library would leave
    generators behind, about which Python complains.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.helpers: TaskGroup
        # The library's own lock is taken after the frame was queued: a send that is cancelled
        # while it waits there would leave the frame to the next one.
        self._turn = trio.Lock()

    async def handshake(self, *args: Any, **kwargs: Any) -> None:
        """Send the request and wait for its answer, unless another user is at the other end."""
        wire: Any = self.stream
        context: SSLContext | None = None
        while hasattr(wire, "transport_stream"):  # TLS
            context, wire = context or wire.context, wire.transport_stream
        if not is_authenticated(context):
            check_listener(wire.socket)
        await super().handshake(*args, **kwargs)

    @trio.lowlevel.enable_ki_protection
    async def recv_events(self) -> None:
        """Read, in a task of the library's: Ctrl-C in the middle of a frame would end no reader."""
        await super().recv_events()

    @trio.lowlevel.enable_ki_protection
    async def send_whole(self, frame: bytes) -> None:
        """Send a message; a cancellation that may have cut it ends the connection."""
        async with self._turn:
            try:
                await self.send(frame, text=frame[:1] != STREAM_MARK)
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self.abort()
                raise

    @trio.lowlevel.enable_ki_protection
    async def round_trip(self) -> None:
        """Send a ping and wait for its pong, or for the end of the connection."""
        pong = await self.ping(ack_on_close=True)
        await pong.wait()

    def repeat(self, seconds: float, check: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call so many seconds from now, and again after each call, while the connection is open.

        The call waits for nothing but the connection, and raises nothing.
        """
        self.helpers.start_soon(self._repeat, seconds, check)

    @trio.lowlevel.enable_ki_protection
    async def _repeat(self, seconds: float, check: Callable[[], Awaitable[None]]) -> None:
        while self.protocol.state is State.OPEN:
            await trio.sleep(seconds)
            await check()

    @trio.lowlevel.enable_ki_protection
    async def shake_hands_and_close(self, code: int, reason: str) -> None:
        """Send a close frame and wait for the answer; does not raise on a closed connection."""
        await self.aclose(code, reason)

    @trio.lowlevel.enable_ki_protection
    async def abort(self) -> None:
        """End the connection at once, without a word; wakes a blocked sender and the reader."""
        # Closing a TLS stream writes a goodbye, and would wait for room to write it.
        await trio.aclose_forcefully(self.stream)
        await self.close_stream()


class _LibraryLogger(logging.LoggerAdapter[logging.LoggerAdapter[logging.Logger]]):
    """The library's logger, but for what it takes for its own error when we close its stream."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of logging
        is_closed = isinstance(sys.exception(), trio.ClosedResourceError)
        return not is_closed and super().isEnabledFor(level)


@asynccontextmanager
async def open_websocket(url: str, where: str, **options: Any) -> AsyncGenerator[TrioWebSocket]:
    """Connect; leaving the block ends the connection without a word.

    Errors name the gateway as ``where`` does.
    """
    async with background_tasks() as helpers:
        with explained(where, options["open_timeout"]):
            socket, held = await helpers.start(_hold_open, url, options)
        socket.helpers = helpers
        # From here on only we end it, so that a cancelled block still closes politely.
        held.shield = True
        try:
            yield socket
        finally:
            held.cancel()


@trio.lowlevel.enable_ki_protection
async def _hold_open(
    url: str,
    options: dict[str, Any],
    *,
    task_status: TaskStatus[tuple[TrioWebSocket, trio.CancelScope]],
) -> None:
    """Open a connection and keep it until the scope that is handed out is cancelled.

    The library reads in a nursery around the connection. Opened by the user's task, that nursery
    would be cancelled together with it, before a close frame could be sent.
    """
    options = options | {"logger": _LibraryLogger(options["logger"], {})}
    try:
        with trio.CancelScope() as scope:
            async with connect(url, create_connection=TrioWebSocket, **options) as socket:
                task_status.started((cast("TrioWebSocket", socket), scope))
                await trio.sleep_forever()
    except trio.BrokenResourceError as error:
        # What a failed TLS handshake is to trio; asyncio raises the cause, an OSError.
        raise ConnectionError(str(error.__cause__ or error)) from error
