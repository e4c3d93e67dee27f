"""The one connection that a diagnosis makes, with a record of its handshake and welcome."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from meup_agent.cli.address import Address
from meup_agent.errors import InvalidEnvelope, TransportError
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import decode
from meup_agent.transport.websocket import websocket_connector

if TYPE_CHECKING:
    from typing import Self

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.transport.base import CloseInfo, Transport


class RecordingTransport:
    """A transport that keeps the first welcome that comes over it.

    Args:
        inner: The transport.

    Attributes:
        inner: The same.
        welcome: The welcome; ``None`` until it came.
        welcomed_at: When it came, by this machine's clock.
        seconds: Time from the handshake to the welcome.
        unread: The frame that came in its place, in words; empty where none did.
    """

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.welcome: Envelope | None = None
        self.welcomed_at: datetime | None = None
        self.seconds: float | None = None
        self.unread = ""
        self._made_at = anyio.current_time()

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        return self.inner.closed

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the handshake's answer, by names in lower case."""
        return self.inner.response_headers

    async def send(self, frame: bytes) -> None:
        """Send one message.

        Raises:
            TransportClosed: The connection has ended.
        """
        await self.inner.send(frame)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        frame = await self.inner.__anext__()
        if self.welcome is None:
            self._look(frame)
        return frame

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection."""
        await self.inner.aclose(code, reason)

    async def abort(self) -> None:
        """End the connection at once."""
        await self.inner.abort()

    def _look(self, frame: bytes) -> None:
        try:
            envelope = decode(frame)
        except InvalidEnvelope as error:
            self.unread = str(error)
            return
        if envelope.kind != kinds.SYSTEM_WELCOME:
            self.unread = f"an envelope of kind {envelope.kind}"
            return
        self.welcome = envelope
        self.welcomed_at = datetime.now(UTC)
        self.seconds = anyio.current_time() - self._made_at


class AlreadyDialled(Exception):
    """The only attempt to connect is over."""


class OneShotConnector:
    """A connector that dials once, and keeps what is learned on the way.

    Args:
        where: Where to.
        timeout: Seconds for the handshake, and again for the welcome.
        made: Told of the other end's headers when the handshake is done.

    Attributes:
        where: The gateway's address, for errors.
        waiting: Ends when the welcome is overdue.
        tap: The connection; ``None`` where none was made.
        failure: The reason why none was made.
        closed: The end of the connection.
    """

    def __init__(
        self, where: Address, timeout: float, made: Callable[[Mapping[str, str]], Awaitable[None]]
    ) -> None:
        self.where = where.url
        self.waiting: anyio.CancelScope | None = None
        self.tap: RecordingTransport | None = None
        self.failure: TransportError | None = None
        self.closed: CloseInfo | None = None
        self._connector = websocket_connector(
            where.url, space=where.space, handshake_timeout=timeout
        )
        self._timeout = timeout
        self._made = made
        self._dialled = False

    @asynccontextmanager
    async def __call__(self, headers: Mapping[str, str]) -> AsyncGenerator[Transport]:
        """Open the connection; leaving the block closes it.

        Raises:
            AlreadyDialled: It was opened before.
            TransportError: It could not be made.
        """
        if self._dialled:
            raise AlreadyDialled
        self._dialled = True
        try:
            async with self._connector(headers) as transport:
                await self._made(transport.response_headers)
                self.tap = RecordingTransport(transport)
                if self.waiting is not None:
                    self.waiting.deadline = anyio.current_time() + self._timeout
                yield self.tap
                self.closed = transport.closed
        except TransportError as error:
            self.failure = error
            raise
        finally:
            # No use in waiting any more, least of all as long as a Retry-After asks for.
            if self.waiting is not None and (self.tap is None or self.tap.welcome is None):
                self.waiting.cancel()
