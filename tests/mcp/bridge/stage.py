"""A gateway, a bridge with a real server behind it, and participants that call it."""

import logging
import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio

from meup_agent import Agent, Backoff, Space
from meup_agent.gateway import Gateway
from meup_agent.mcp import Bridge, HttpServer, StdioServer, ToolLock
from meup_agent.mcp.bridge.config import Server
from meup_agent.mcp.bridge.connection import ConnectionSettings
from meup_agent.mcp.bridge.transports import OnAsk
from tests.forkserver import launched
from tests.patience import PATIENCE
from tests.programs import ROOT

AT_ONCE = ConnectionSettings(start_seconds=PATIENCE, restart=Backoff(first=0.001, longest=0.001))
"""A server that ended is started again without a pause."""

BRIDGE = "server"
"""The name of the bridge's participant."""

MAY: dict[str, list[dict[str, Any]]] = {
    BRIDGE: [{"kind": "mcp/response"}, {"kind": "chat"}, {"kind": "mcp/request"}],
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


class Stage:
    """A space with a bridge in it.

    Attributes:
        bridge: The bridge.
        caller: A participant that may do everything.
        gateway: The gateway.
    """

    def __init__(
        self, gateway: Gateway, bridge: Bridge, caller: Space, stack: AsyncExitStack
    ) -> None:
        self.gateway = gateway
        self.bridge = bridge
        self.caller = caller
        self._stack = stack

    async def join(self, name: str, agent: Agent | None = None) -> Space:
        """Let another participant join, until the end of the test."""
        return await self._stack.enter_async_context(self.joined(name, agent))

    def joined(self, name: str, agent: Agent | None = None) -> AbstractAsyncContextManager[Space]:
        """A block in which another participant is in the space."""
        token = self.gateway.token(name)
        return (agent or Agent(name)).join(self.gateway.url, space="demo", token=token)


@asynccontextmanager
async def bridged(
    server: Server,
    *,
    settings: ConnectionSettings = AT_ONCE,
    pin: ToolLock | None = None,
    on_ask: OnAsk | None = None,
    caller: Agent | None = None,
) -> AsyncGenerator[Stage]:
    """A server in a space, for the length of a block that ends in time."""
    with anyio.fail_after(PATIENCE):
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            gateway = await enter(Gateway(participants=MAY))
            bridge = Bridge(BRIDGE, server, pin=pin, on_ask=on_ask, settings=settings)
            await enter(bridge.join(gateway.url, space="demo", token=gateway.token(BRIDGE)))
            agent = caller or Agent("caller")
            us = await enter(agent.join(gateway.url, space="demo", token=gateway.token("caller")))
            yield Stage(gateway, bridge, us, stack)


class LogLines(logging.Handler):
    """The log of the bridge, to wait for a line of it."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []
        self._come = anyio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        self._come.set()

    def with_text(self, text: str) -> list[str]:
        """The lines that contain a text."""
        return [line for line in self.lines if text in line]

    async def wait_for(self, text: str, count: int = 1) -> str:
        """The first line that contains a text, once there are so many."""
        while len(self.with_text(text)) < count:
            self._come = anyio.Event()
            await self._come.wait()
        return self.with_text(text)[0]
