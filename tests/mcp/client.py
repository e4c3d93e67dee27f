"""A client of MCP in a space with some agents, for tests that need no more of either."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from mcp.client.client import Client

from meup_agent import Agent
from tests.mcp.conftest import ANYTHING, served, staged


@asynccontextmanager
async def client_beside(
    *agents: Agent,
    may: Sequence[Mapping[str, Any]] = ANYTHING,
    ttl: float | str = 30.0,
    **options: Any,
) -> AsyncGenerator[Client]:
    """The SDK's client of a participant that may do some things, in a space with these agents."""
    async with (
        staged(*agents, alice=may) as stage,
        served(stage, own="alice", ttl=ttl) as server,
        server.client(**options) as client,
    ):
        yield client
