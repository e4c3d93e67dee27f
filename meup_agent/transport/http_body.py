"""The body of a POST; a module of its own, since it needs httpx to be loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from typing import Self


class RequestBody(httpx.AsyncByteStream):
    """One chunk; httpx's own is a generator, and trio complains of one that a cancellation left."""

    def __init__(self, content: bytes) -> None:
        self._left = [content]

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()
