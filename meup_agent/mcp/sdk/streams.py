"""Streams of MCP messages that stand in the place of the SDK's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio.abc import ObjectReceiveStream

if TYPE_CHECKING:
    from contextvars import Context

    from mcp.shared.message import SessionMessage

    Item = SessionMessage | Exception


class ForwardingReader(ObjectReceiveStream["Item"]):
    """A stream of messages that passes on another one.

    Args:
        inner: The stream of the SDK's transport.
    """

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @property
    def last_context(self) -> Context | None:
        """The context in which the last message was sent, where the transport tells."""
        context: Context | None = getattr(self._inner, "last_context", None)
        return context

    async def receive(self) -> Item:
        """The next message."""
        item: Item = await self._inner.receive()
        return item

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()
