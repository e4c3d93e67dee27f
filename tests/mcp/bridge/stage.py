"""A gateway, a bridge with a real server behind it, and participants that call it."""

import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from meup_agent import Agent, Backoff
from meup_agent.mcp import Bridge, HttpServer, StdioServer, ToolLock
from meup_agent.mcp.bridge.config import Server
from meup_agent.mcp.bridge.connection import ConnectionSettings
from meup_agent.mcp.bridge.questions import OnAsk
from tests.forkserver import launched
from tests.mcp.conftest import LogLines as LogLines
from tests.mcp.conftest import Stage, staged
from tests.patience import PATIENCE
from tests.programs import ROOT

AT_ONCE = ConnectionSettings(start_seconds=PATIENCE, restart=Backoff(first=0.001, longest=0.001))
"""A server that ended is started again without a pause."""

BRIDGE = "server"
"""The name of the bridge's participant."""

MAY: dict[str, list[dict[str, Any]]] = {
    BRIDGE: [
        *({"kind": kind} for kind in ("mcp/response", "chat", "mcp/request")),
        {"kind": "mcp/proposal", "payload": {"method": "elicitation/create"}},
    ],
    "caller": [{"kind": "*"}],
    "other": [{"kind": "*"}],
    "proposer": [{"kind": "mcp/proposal"}, {"kind": "mcp/withdraw"}, {"kind": "mcp/response"}],
}
"""The participants, and what they may do."""


def stdio(name: str, *arguments: str, env: Mapping[str, str] | None = None) -> StdioServer:
    """A server of ours, as a program."""
    given = {"PYTHONPATH": str(ROOT), **(env or {})}
    command, *others = _command(name, *arguments)
    return StdioServer(command, tuple(others), given)


def _command(name: str, *arguments: str) -> list[str]:
    # The SDK warns of what newer revisions leave out, on the standard error that tests look at.
    return launched("-W", "ignore", "-m", f"tests.mcp.servers.{name}", *arguments)


@asynccontextmanager
async def over(way: str, name: str, port: str = "0") -> AsyncGenerator[Server]:
    """A server of ours over `stdio`, `http`, with plain JSON (`json`), or as of old (`sse`)."""
    if way == "stdio":
        yield stdio(name)
        return
    command = _command(name, way, port)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    async with await anyio.open_process(command, env=environment, stderr=None) as process:
        assert process.stdout is not None
        try:
            url = (await process.stdout.receive()).decode().strip()
            yield HttpServer(url, sse=way == "sse")
        finally:
            process.kill()


@asynccontextmanager
async def bridged(
    server: Server,
    *,
    settings: ConnectionSettings = AT_ONCE,
    pin: ToolLock | None = None,
    on_ask: OnAsk | None = None,
    roots: Sequence[str] = (),
    caller: Agent | None = None,
) -> AsyncGenerator[Stage]:
    """A server in a space, for the length of a block that ends in time."""
    async with staged(**MAY) as stage:
        bridge = Bridge(BRIDGE, server, pin=pin, on_ask=on_ask, roots=roots, settings=settings)
        joined = bridge.join(stage.gateway.url, space="demo", token=stage.token(BRIDGE))
        await stage.stack.enter_async_context(joined)
        await stage.join("caller", caller)
        yield stage
