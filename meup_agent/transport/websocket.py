"""A connection over a WebSocket, on whichever loop runs."""

from __future__ import annotations

import logging
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, Literal

import anyio
from websockets import version as library
from websockets.exceptions import ConnectionClosed
from websockets.protocol import State

from meup_agent.errors import ConfigurationError
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES
from meup_agent.transport.base import (
    ABNORMAL,
    CLOSE_TIMEOUT,
    HANDSHAKE_TIMEOUT,
    PING_DEADLINE,
    PING_INTERVAL,
    CloseInfo,
    Connector,
    checked_close,
    runs_on_asyncio,
)
from meup_agent.transport.connect_failure import explained
from meup_agent.transport.urls import (
    check_headers,
    handshake_url,
    short_path,
    socket_path,
)

if TYPE_CHECKING:
    import ssl as ssl_module
    from collections.abc import AsyncGenerator, Callable, Mapping
    from contextlib import AbstractAsyncContextManager
    from typing import Any, Self

    from meup_agent.transport.base import Transport
    from meup_agent.transport.websocket_asyncio import AsyncioWebSocket
    from meup_agent.transport.websocket_trio import TrioWebSocket

    Driver = AsyncioWebSocket | TrioWebSocket
    """The library's kinds of connection, with methods of the same names and promises.

    They raise ``ConnectionClosed`` when the connection has ended, unless they say otherwise.
    """

MIN_TRIO_VERSION: Final = (17, 0, 1)
"""Of `websockets`: 16 has no trio, and 17.0 breaks connections under load."""

MAX_UNREAD_FRAMES: Final = 16
"""Frames received and not read yet before the socket is left to fill up: a few of the largest fit
in memory, and a reader that is busy for a moment does not stop the flow of small ones."""


class WebSocketTransport:
    """The client's end of a WebSocket connection."""

    def __init__(self, driver: Driver, close_timeout: float) -> None:
        self._driver = driver
        # The library applies its own only once the close frame is written, which a peer that does
        # not read can prevent; ours is longer, so that it decides only then.
        self._close_bound = close_timeout * 1.5
        self._reading = anyio.ResourceGuard("reading from")
        answer = driver.response
        said = () if answer is None else answer.headers.raw_items()
        self.response_headers: Mapping[str, str] = {name.lower(): value for name, value in said}
        """The headers of the gateway's answer in the handshake, by names in lower case."""

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        state = self._driver.protocol
        if state.state is not State.CLOSED:
            return None
        sent, received = state.close_sent, state.close_rcvd
        if received is not None and (sent is None or state.close_rcvd_then_sent):
            return CloseInfo(int(received.code), received.reason)
        if sent is not None:
            return CloseInfo(int(sent.code), sent.reason, local=True)
        return CloseInfo(ABNORMAL)

    async def send(self, frame: bytes) -> None:
        """Send one message; waits while the other end does not keep up."""
        try:
            await self._driver.send_whole(frame)
        except ConnectionClosed:
            raise (self.closed or CloseInfo(ABNORMAL)).error() from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        with self._reading:
            try:
                return await self._driver.recv(False)
            except ConnectionClosed:
                raise StopAsyncIteration from None

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection, politely if the other end lets us and within a deadline."""
        info = checked_close(code, reason)
        if self.closed is not None:
            return
        with anyio.move_on_after(self._close_bound, shield=True):
            await self._driver.shake_hands_and_close(info.code, info.reason)
        await self.abort()

    async def abort(self) -> None:
        """End the connection at once, without a close frame."""
        if self.closed is None:
            with anyio.CancelScope(shield=True):
                await self._driver.abort()

    async def round_trip(self) -> None:
        """Send a ping, and wait for its pong."""
        try:
            await self._driver.round_trip()
        except ConnectionClosed:
            raise (self.closed or CloseInfo(ABNORMAL)).error() from None

    def watch(self, interval: float, deadline: float) -> None:
        """Ping until the connection has ended; end it when a pong does not come in time.

        The library's own keepalive waits without a limit for room to write its ping, and so does
        not notice a peer that has stopped reading.
        """

        async def check() -> None:
            with anyio.move_on_after(deadline) as waiting, suppress(ConnectionClosed):
                await self._driver.round_trip()
            if waiting.cancelled_caught:
                await self.aclose(1011, f"no pong within {deadline:g} seconds")

        self._driver.repeat(interval, check)


def websocket_connector(
    url: str,
    *,
    space: str | None = None,
    ssl: ssl_module.SSLContext | None = None,
    proxy: str | Literal[True] | None = None,
    handshake_timeout: float = HANDSHAKE_TIMEOUT,
    close_timeout: float = CLOSE_TIMEOUT,
    ping_interval: float = PING_INTERVAL,
    ping_deadline: float = PING_DEADLINE,
) -> Connector:
    """Make a connector that dials a gateway.

    Args:
        url: ``ws://host:8420`` or ``wss://…``, or a Unix socket, ``unix:///run/meup.sock``. Without
            a path the gateway's own, ``/ws``, is used.
        space: The space to join, added to the query (PROTOCOL 3).
        ssl: For ``wss://``: certificates to trust other than the system's, or one of ours.
        proxy: The address of a proxy; ``True``: the one that the environment names.
        handshake_timeout: Seconds to connect in.
        close_timeout: Seconds that the gateway gets to answer a close frame.
        ping_interval: Seconds between pings.
        ping_deadline: Seconds to wait for a pong before the connection counts as lost.

    Raises:
        ConfigurationError: The address cannot be one of a gateway.
    """
    address, path = handshake_url(url, space), socket_path(url)
    options: dict[str, Any] = {
        # It costs more than twice the CPU on an echo, and three times the memory.
        "compression": None,
        "max_size": MAX_FRAME_BYTES,
        "max_queue": MAX_UNREAD_FRAMES,
        "open_timeout": handshake_timeout,
        "close_timeout": close_timeout,
        "ping_interval": None,  # our own: see WebSocketTransport.watch
        "proxy": proxy,
        "logger": _LOGGER,
    }
    if ssl is not None:
        options["ssl"] = ssl

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[WebSocketTransport]:
        check_headers(headers)
        given = {**options, "additional_headers": dict(headers)}
        where = address if path is None else url
        with ExitStack() as held:
            if path is not None:
                with explained(where, handshake_timeout):
                    given |= {"unix": True, "path": held.enter_context(short_path(path))}
            async with _open_websocket()(address, where, **given) as driver:
                transport = WebSocketTransport(driver, close_timeout)
                transport.watch(ping_interval, ping_deadline)
                try:
                    yield transport
                finally:
                    await transport.aclose()

    return dial


class SpaceConnector:
    """Connects to a space as the participant of any token: for several of one process.

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


def _open_websocket() -> Callable[..., AbstractAsyncContextManager[Driver]]:
    """The opener of the running loop."""
    if runs_on_asyncio():
        from meup_agent.transport.websocket_asyncio import open_websocket as open_on_asyncio

        return open_on_asyncio
    # An older library has no connections for trio, or none that hold.
    numbers = tuple(int(part) for part in library.version.split(".")[:3] if part.isdigit())
    if numbers < MIN_TRIO_VERSION:
        needed = ".".join(map(str, MIN_TRIO_VERSION))
        raise ConfigurationError(
            f"on trio a connection needs websockets {needed} or newer, and {library.version} is "
            "installed; run: pip install 'meup-agent[trio]'"
        )
    from meup_agent.transport.websocket_trio import open_websocket as open_on_trio

    return open_on_trio


class _WithoutFrames(logging.LoggerAdapter[logging.Logger]):
    """The library's logger, never at DEBUG: it would write the token of each handshake there."""

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - the name of logging
        return level > logging.DEBUG and super().isEnabledFor(level)


_LOGGER = _WithoutFrames(logging.getLogger("websockets.client"), {})
