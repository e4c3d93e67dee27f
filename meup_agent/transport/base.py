"""The contract of a connection, whatever carries it.

Both ends of :mod:`~meup_agent.transport.memory` and the client ends of
:mod:`~meup_agent.transport.websocket` and :mod:`~meup_agent.transport.http` keep it.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final, Protocol

import msgspec
from anyio import Lock, ResourceGuard

from meup_agent.errors import TransportClosed
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from typing import Self

HANDSHAKE_TIMEOUT: Final = 10.0
"""Seconds for name, TCP, TLS and WebSocket handshake together: a gateway that needs longer is
overloaded, and the next attempt does better."""

PING_INTERVAL: Final = 20.0
"""Seconds between pings. Gateways never ping and never time a peer out (PROTOCOL 2)."""

PING_DEADLINE: Final = 20.0
"""Seconds for the pong: after twice 20 s of silence at most, a dead connection is known as dead."""

CLOSE_TIMEOUT: Final = 1.0
"""Seconds that the other end gets to answer a close frame: it has had everything we had to say."""

DIALECT_HEADER: Final = "MEUP-Protocol"
"""The header in which both ends of a handshake name their dialect. A gateway whose answer has it
took the token of the handshake, and needs no join frame (PROTOCOL 2 and 3)."""

RESUME_HEADER: Final = "MEUP-Resume"
"""In a handshake, ``1``: each envelope is to say its number, so that one can come back to it
(PROTOCOL 6)."""

OBSERVE_HEADER: Final = "MEUP-Observe"
"""In a handshake, ``1``: the connection only looks on. A gateway that knows observers says it back;
from any other it would be a second connection of its participant (PROTOCOL 3)."""

BESIDE_HEADER: Final = "MEUP-Beside"
"""In a handshake, ``1``: the connection takes part beside the one that answers for its participant.
A gateway that knows such connections says it back (PROTOCOL 3)."""

LAST_SEEN_HEADER: Final = "Last-Event-ID"
"""In a handshake: the number of the last envelope that we got (PROTOCOL 6)."""

MAX_CLOSE_REASON_BYTES: Final = 123
"""A control frame carries 125 bytes, two of which are the code (RFC 6455 section 5.5)."""

STREAM_MARK: Final = b"#"
"""The first byte of a frame of a stream; no envelope begins with it."""

ABNORMAL: Final = 1006
"""The close code of a connection that ended without a close frame."""

INVALID: Final = 1007
"""The close code for a message that is not what it should be, for example no UTF-8."""

TOO_BIG: Final = 1009
"""The close code for a message above the receiver's limit."""

_SENDABLE_CODES = frozenset({1000, 1001, 1002, 1003, *range(1007, 1015), *range(3000, 5000)})
# RFC 6455 section 7.4: the others are reserved, or stand for "there was none".


class CloseInfo(msgspec.Struct, frozen=True):
    """The end of a connection.

    Attributes:
        code: The WebSocket close code of the end that closed first; 1006 where neither did.
        reason: The words that came with it, often none.
        local: This end closed first, by :meth:`Transport.aclose` or because the other broke a
            rule or was silent for too long. So 1009 says whose message was too large: ours,
            or (local) the other's.
    """

    code: int
    reason: str = ""
    local: bool = False

    def error(self) -> TransportClosed:
        """The exception for a frame that is sent after it."""
        return TransportClosed(self.code, self.reason)


class Transport(Protocol):
    """One connection. It is used by the task that opened it and by tasks below that one."""

    async def send(self, frame: bytes) -> None:
        """Send one message; waits while the other end does not keep up.

        A frame of a stream, which begins with :data:`STREAM_MARK`, is sent as a binary message, any
        other as text. Any number of tasks may send; messages stay whole. A cancelled send has sent
        all of the message, or nothing, or broken the connection: never half a message that another
        follows. A successful send says that the message is on its way, not that it arrived.

        Args:
            frame: UTF-8 JSON, or a frame of a stream. Its size is the receiver's to judge; a sender
                had better stay below the limit, since a reset may swallow the close frame that
                says 1009.

        Raises:
            TransportClosed: The connection has ended.
            NotExpressible: This transport carries no frames of streams.
        """
        ...

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Iterate over messages, text or binary, as the bytes that came.

        Their encoding is not checked here, because a bad byte must cost one message and not the
        connection. One task may iterate at a time.
        """
        ...

    async def __anext__(self) -> bytes:
        """Wait for the next message; a cancelled wait loses none.

        Raises:
            StopAsyncIteration: The connection has ended, cleanly or not, and everything that
                arrived before was handed out.
        """
        ...

    async def aclose(self, code: int = 1000, reason: str = "") -> None:
        """Close the connection; when this returns, it is closed.

        It takes :data:`CLOSE_TIMEOUT` and a little, whatever the other end does and even if the
        caller is cancelled. On a closed connection it does nothing.

        Args:
            code: A WebSocket close code that may be sent.
            reason: For a person to read, cut at :data:`MAX_CLOSE_REASON_BYTES`.

        Raises:
            ValueError: The code must not stand in a close frame.
        """
        ...

    async def abort(self) -> None:
        """End the connection at once, without a close frame: what is on its way may be lost."""
        ...

    @property
    def closed(self) -> CloseInfo | None:
        """The end of the connection; ``None`` while it is open or still closing."""
        ...

    @property
    def response_headers(self) -> Mapping[str, str]:
        """The headers of the other end's answer in the handshake, by names in lower case."""
        ...


class Connector(Protocol):
    """A callable that opens one connection for the length of a block."""

    def __call__(self, headers: Mapping[str, str]) -> AbstractAsyncContextManager[Transport]:
        """Open a connection; leaving the block closes it.

        The block is entered and left by the same task. Cancelling either leaves nothing behind.
        An exception of the block leaves it as it was raised.

        Args:
            headers: Of the handshake, for example ``Authorization``.

        Raises:
            HandshakeRefused: The gateway answered with an HTTP status.
            CannotConnect: There is no gateway at the address, or none that can be spoken to.
            ConfigurationError: A header cannot be sent as it is.
        """
        ...


class InboxTransport:
    """A transport whose frames wait in a queue: what had arrived before its end can be read."""

    def __init__(self) -> None:
        self._inbox: deque[bytes] = deque()
        self._arrived = Condition()
        self._room = Condition()
        # One sender at a time, so that frames leave in the order of the calls.
        self._turn = Lock()
        self._reading = ResourceGuard("reading from")
        self._closed: CloseInfo | None = None

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

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed.error()

    def _end(self, info: CloseInfo) -> None:
        """Note the end, and end every wait at this end's queue."""
        if self._closed is None:
            self._closed = info
            self._arrived.notify_all()
            self._room.notify_all()


def checked_close(code: int, reason: str) -> CloseInfo:
    """The close that this end is about to make, checked and cut to what a close frame holds."""
    if code not in _SENDABLE_CODES:
        raise ValueError(f"{code} cannot be sent as a close code; use 1000, or 3000 to 4999")
    cut = reason.encode(errors="replace")[:MAX_CLOSE_REASON_BYTES]
    return CloseInfo(code, cut.decode(errors="ignore"), local=True)
