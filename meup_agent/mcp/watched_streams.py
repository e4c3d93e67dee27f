"""Streams of messages between the SDK and a server, and what passes through them.

The SDK's transports give a stream to read and one to write. These stand in their places, and pass
everything on; what its session does not tell is noted here: that the server has gone, what exactly
it asked, and the reason of a cancellation, for which the SDK has fixed words.
"""

from __future__ import annotations

import logging
import re
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import mcp_types as types
from mcp.shared.message import SessionMessage

from meup_agent.errors import printable
from meup_agent.mcp.server_asks import ASK_METHODS, current_call
from meup_agent.protocol import kinds
from meup_agent.protocol.payloads import TOOL_LIST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextvars import Context
    from types import TracebackType

    Item = SessionMessage | Exception

MAX_ASKS_KEPT: Final = 256
"""Questions of a server whose parameters are kept until the session's callback takes them."""

MAX_OPEN_ASKS: Final = 256
"""Requests of a server that have no answer yet: each is a task of the SDK, and a server that asks
without reading would have them without an end."""

MAX_REASON_CHARS: Final = 500
"""Characters of a reason that a server is told."""


FIRST_REVISION: Final = "2024-11-05"
"""Of MCP. Servers written by hand for existing spaces name versions of their own, as ``0.1.0``,
and their bridges look at none; a revision of a later date than ours stays refused."""

MAX_VERSION_CHARS: Final = 40
"""Characters of a version in the log that MCP never had."""

_REVISION: Final = re.compile(r"\d{4}-\d{2}-\d{2}")

log = logging.getLogger("meup_agent.mcp")


class Traffic:
    """Notes of what passes between the SDK and one server.

    Args:
        on_end: Called when nothing more comes from the server.
        clean: Takes what is unusable out of the result of a ``tools/list``.

    Attributes:
        excess: Why the server is not listened to any more; empty while it is.
        session_lost: The server has answered that it does not know the session.
    """

    def __init__(
        self, on_end: Callable[[], None], clean: Callable[[dict[str, Any]], Awaitable[None]]
    ) -> None:
        self.on_end = on_end
        self.excess = ""
        self._clean = clean
        self.session_lost = False
        self._asked: OrderedDict[types.RequestId, dict[str, Any]] = OrderedDict()
        self._listing: set[types.RequestId] = set()
        self._greeting: types.RequestId | None = None
        self._open: Counter[types.RequestId] = Counter()

    def take_asked(self, request_id: types.RequestId) -> dict[str, Any]:
        """The parameters of a server's request as they came: the SDK's types drop some."""
        return self._asked.pop(request_id, {})

    async def received(self, item: Item) -> None:
        """Note what comes from the server.

        Raises:
            EndOfStream: The server is not listened to any more.
        """
        if isinstance(item, Exception):
            return
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            self._open[message.id] += 1
            if self._open.total() > MAX_OPEN_ASKS:
                self.excess = f"has asked {MAX_OPEN_ASKS} times without taking an answer"
                raise anyio.EndOfStream
            if message.method in ASK_METHODS:
                self._asked[message.id] = dict(message.params or {})
                while len(self._asked) > MAX_ASKS_KEPT:
                    self._asked.popitem(last=False)
        elif isinstance(message, types.JSONRPCResponse) and message.id in self._listing:
            self._listing.discard(message.id)
            # Before the session validates it, which takes a list as a whole or not at all.
            await self._clean(message.result)
        elif isinstance(message, types.JSONRPCResponse) and message.id == self._greeting:
            self._greeting = None
            self._read_version(message.result)
        elif isinstance(message, types.JSONRPCNotification) and message.method == kinds.CANCELLED:
            self.settled((message.params or {}).get("requestId"))

    def _read_version(self, result: dict[str, Any]) -> None:
        """Take a server that names no revision of MCP for one of the first."""
        version = result.get("protocolVersion")
        if isinstance(version, str) and not _REVISION.fullmatch(version):
            log.warning(
                "an MCP server says the revision %r, which MCP never had; taken for %s",
                printable(version[:MAX_VERSION_CHARS]),
                FIRST_REVISION,
            )
            result["protocolVersion"] = FIRST_REVISION

    def settled(self, request_id: object) -> None:
        """Note that a request of the server is answered, or that the server cancelled it."""
        if isinstance(request_id, str | int) and self._open[request_id] > 1:
            self._open[request_id] -= 1
        elif isinstance(request_id, str | int):
            del self._open[request_id]

    def prepare(self, item: SessionMessage) -> SessionMessage:
        """The message to send in place of one of the session's."""
        message = item.message
        if isinstance(message, types.JSONRPCRequest):
            if message.method == TOOL_LIST:
                self._listing.add(message.id)
            elif message.method == "initialize":
                self._greeting = message.id
        elif isinstance(message, types.JSONRPCNotification) and message.method == kinds.CANCELLED:
            call = current_call.get()
            if call is not None and call.reason is not None:
                params = {**(message.params or {}), "reason": call.reason[:MAX_REASON_CHARS]}
                ours = types.JSONRPCNotification(
                    jsonrpc="2.0", method=message.method, params=params
                )
                return SessionMessage(ours, item.metadata)
        return item


class _WatchedStream:
    """A stream of the SDK's transport, in a place where its traffic is noted."""

    def __init__(self, inner: Any, traffic: Traffic) -> None:
        self._inner = inner
        self._traffic = traffic

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        """Begin the block at whose end it is closed."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        """Close it."""
        closed: bool | None = await self._inner.__aexit__(kind, error, traceback)
        return closed


class WatchedReader(_WatchedStream):
    """The stream of a server's messages, which notes them and their end."""

    @property
    def last_context(self) -> Context | None:
        """The context in which the last message was received, where the transport tells."""
        context: Context | None = getattr(self._inner, "last_context", None)
        return context

    async def receive(self) -> Item:
        """The next message."""
        item: Item = await self._inner.receive()
        await self._traffic.received(item)
        return item

    def __aiter__(self) -> Self:
        """The stream itself."""
        return self

    async def __anext__(self) -> Item:
        """The next message, or the end."""
        try:
            item: Item = await self._inner.__anext__()
            await self._traffic.received(item)
        except (StopAsyncIteration, anyio.EndOfStream):
            self._traffic.on_end()
            raise StopAsyncIteration from None
        return item


class WatchedWriter(_WatchedStream):
    """The stream of messages to a server, which puts our reason into a cancellation."""

    async def send(self, item: SessionMessage, /) -> None:
        """Send a message."""
        await self._inner.send(self._traffic.prepare(item))
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self._traffic.settled(item.message.id)
