"""A gateway in the loop of the test itself, with one participant of bad intentions."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from meup_agent.gateway import Gateway, GatewayLimits

PATH_AS_NAME = "..\\..\\x"

HOSTILE: dict[str, list[dict[str, Any]]] = {
    PATH_AS_NAME: [],
    "bob": [{"kind": "chat"}],
    "mallory": [{"kind": "*"}],
    "carol": [],
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The gateway's loops, since here it runs in the test's own."""
    return request.param


@asynccontextmanager
async def running(**limits: Any) -> AsyncGenerator[Gateway]:
    async with Gateway(participants=HOSTILE, limits=GatewayLimits(**limits)) as gateway:
        yield gateway
