"""Malicious MCP servers behind an address: what is read of an answer is bounded."""

import gzip
from collections.abc import AsyncGenerator

import httpx2
import pytest

from meup_agent.mcp.bridge.transports import MAX_MESSAGE_BYTES, _limit_response
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_compressed_answer_is_not_read(kind: str) -> None:
    """The limit counts what comes over the wire; 1.5 MB were 1.5 GB, and the end of the process."""
    bomb = gzip.compress(b"x" * (2 * MAX_MESSAGE_BYTES))

    async def body() -> AsyncGenerator[bytes]:
        yield bomb

    def answer(_: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": kind, "content-encoding": "gzip"}
        return httpx2.Response(200, headers=headers, content=body())

    hooks = {"response": [_limit_response]}
    transport = httpx2.MockTransport(answer)
    async with httpx2.AsyncClient(
        transport=transport, event_hooks=hooks, timeout=PATIENCE
    ) as client:
        with pytest.raises(httpx2.StreamError, match="compressed"):
            await client.get("http://server/mcp")
