"""Streams of MCP messages: lines of bounded length, and what stands in the place of the SDK's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio.abc import ObjectReceiveStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from contextvars import Context

    from mcp.shared.message import SessionMessage

    Item = SessionMessage | Exception


class LineTooLong(Exception):
    """A line is longer than it may be."""


async def read_lines(read: Callable[[], Awaitable[bytes]], limit: int) -> AsyncGenerator[bytes]:
    """The lines of a stream, without their ends; of the last one only if it has an end.

    Args:
        read: Reads the next bytes; none at the end.
        limit: Bytes of a line.

    Raises:
        LineTooLong: A line has more.
    """
    rest: list[bytes] = []
    size = 0
    while chunk := await read():
        first, *others = chunk.split(b"\n")
        rest.append(first)
        size += len(first)
        if size > limit:
            raise LineTooLong(f"a message has more than {limit} bytes")
        for line in others:
            yield b"".join(rest)
            rest, size = [line], len(line)


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
