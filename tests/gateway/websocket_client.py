"""A client of the message port that speaks for itself: no table, no reconnects."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from tests.patience import PATIENCE


@asynccontextmanager
async def open_websocket(
    url: str, token: str = "", *, headers: Mapping[str, str] | None = None, **options: Any
) -> AsyncGenerator[ClientConnection]:
    """A connection, with a token in its handshake if one is given."""
    proof = {"Authorization": f"Bearer {token}"} if token else {}
    options.setdefault("compression", None)
    # A client that does not read all it gets must still see the answer to its close frame.
    options.setdefault("max_queue", None)
    async with connect(
        url, additional_headers={**proof, **(headers or {})}, open_timeout=PATIENCE, **options
    ) as client:
        yield client


async def hear(client: ClientConnection) -> dict[str, Any]:
    with anyio.fail_after(PATIENCE):
        said: dict[str, Any] = json.loads(await client.recv())
        return said


async def hear_until(client: ClientConnection, **wanted: object) -> dict[str, Any]:
    """The next envelope whose header has these values."""
    while True:
        said = await hear(client)
        if all(said.get(name) == value for name, value in wanted.items()):
            return said


async def refusal(
    url: str, token: str = "", *, headers: Mapping[str, str] | None = None
) -> Response:
    """The answer to a handshake that is refused."""
    with pytest.raises(InvalidStatus) as refused:
        async with open_websocket(url, token, headers=headers):
            pass
    return refused.value.response
