"""Fixtures of the tests of MCP: a space with participants, and MCP servers over it."""

import logging
import socket
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
import uvicorn
from mcp.client.client import Client
from mcp.client.streamable_http import streamable_http_client

from meup_agent import Agent, Settings, Space
from meup_agent.gateway import Gateway
from meup_agent.mcp import McpApp
from meup_agent.mcp.server.client_member import ClientMembers
from meup_agent.mcp.server.tool_calls import CallSettings
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.processes import meup
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

ANYTHING: Sequence[Mapping[str, Any]] = [{"kind": "*"}]

READS: Sequence[Mapping[str, Any]] = [
    {"kind": "mcp/request", "payload": {"method": method}}
    for method in ("tools/list", "resources/**", "prompts/**", "completion/complete")
]
OLD = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
"""Revisions with a handshake, in which a cancelled call is answered."""

BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}


def hello(version: str = OLD[-1], **capabilities: Any) -> dict[str, Any]:
    """The first message of a client that speaks a revision."""
    info = {"name": "wire", "version": "1"}
    params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
    return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}


PROPOSES: Sequence[Mapping[str, Any]] = [
    *READS,
    {"kind": "mcp/proposal"},
    {"kind": "mcp/withdraw"},
    {"kind": "mcp/request", "payload": {"method": "notifications/cancelled"}},
    {"kind": "chat"},
]
"""Capabilities of a participant that must propose every call."""


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


@pytest.fixture
def log_lines() -> Generator[LogLines]:
    """The log of the bridge."""
    handler = LogLines()
    logger = logging.getLogger("meup_agent.mcp")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@dataclass
class Stage:
    """A gateway, and participants in its space.

    Attributes:
        gateway: The gateway.
        spaces: The space as each participant sees it.
        first_welcome: Seconds that the joins of MCP clients wait for theirs.
    """

    gateway: Gateway
    stack: AsyncExitStack
    spaces: dict[str, Space] = field(default_factory=dict[str, Space])
    first_welcome: float = PATIENCE

    def token(self, participant: str) -> str:
        """A participant's token."""
        return self.gateway.token(participant)

    @property
    def caller(self) -> Space:
        """The space as the participant caller sees it."""
        return self.spaces["caller"]

    async def join(self, name: str, agent: Agent | None = None) -> Space:
        """Let an agent join as a participant, until the stage's end."""
        self.spaces[name] = await self.stack.enter_async_context(self.joined(name, agent))
        return self.spaces[name]

    def joined(self, name: str, agent: Agent | None = None) -> AbstractAsyncContextManager[Space]:
        """A block in which another participant is in the space."""
        joining = (agent or Agent(name)).join
        return joining(self.gateway.url, space="demo", token=self.token(name), grace=0)

    def pool(self, own: str) -> ClientMembers:
        """The participants of MCP clients; one that sends no token is ``own``."""

        def join(
            agent: Agent, token: str | None, /, *, observe: bool = False
        ) -> AbstractAsyncContextManager[Space]:
            return agent.join(
                self.gateway.url,
                space="demo",
                token=self.token(own) if token is None else token,
                settings=Settings(first_welcome=self.first_welcome),
                observe=observe,
            )

        return ClientMembers(join, own=self.token(own) if own else None)


@asynccontextmanager
async def staged(
    *agents: Agent, **participants: Sequence[Mapping[str, Any]]
) -> AsyncGenerator[Stage]:
    """A space with agents that may do everything, and others who have yet to join, for a block
    that ends in time.
    """
    everybody = {**{each.name: ANYTHING for each in agents}, **participants}
    with anyio.fail_after(PATIENCE):
        async with Gateway(participants=everybody) as gateway, AsyncExitStack() as stack:
            stage = Stage(gateway, stack)
            for each in agents:
                await stage.join(each.name, each)
            yield stage


def refusal(*arguments: str, lacks: Sequence[str] = (), **given: str) -> str:
    """The one sentence with which `meup` refuses to start, where the environment has a secret."""
    known = {"MEUP_URL": "ws://127.0.0.1:9", "MEUP_SPACE": "demo", "MEUP_TOKEN": "secret-token"}
    variables = {name: value for name, value in known.items() if name not in lacks}
    done = meup(*arguments, variables={**variables, **given})
    assert done.returncode != 0
    (line,) = done.stderr.splitlines()
    assert "secret-token" not in line
    assert line.startswith("meup: ")
    return line.removeprefix("meup: ")


class _Server(uvicorn.Server):
    """A server whose signals are the test run's."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield


@dataclass
class ServedSpace:
    """An MCP server over HTTP.

    Attributes:
        app: What it serves.
        url: Its address.
    """

    app: McpApp
    url: str

    @asynccontextmanager
    async def client(
        self, token: str | None = None, *, mode: str = "auto", **options: Any
    ) -> AsyncGenerator[Client]:
        """The SDK's client of it."""
        async with self.http(token) as http:
            transport = streamable_http_client(self.url, http_client=http)
            async with Client(transport, mode=mode, **options) as client:
                yield client

    def http(self, token: str | None = None) -> httpx2.AsyncClient:
        """A client of HTTP, which sends a token."""
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        return httpx2.AsyncClient(headers=headers, verify=NO_TLS, timeout=PATIENCE)


@asynccontextmanager
async def served(stage: Stage, own: str = "", **settings: Any) -> AsyncGenerator[ServedSpace]:
    """Serve a stage's space over HTTP; a client without a token is ``own``."""
    calls = CallSettings(**{"ttl": 30.0, **settings})
    app = McpApp(stage.pool(own), settings=calls, anonymous=bool(own))
    async with serving(app) as port:
        yield ServedSpace(app, f"http://127.0.0.1:{port}/mcp")


@asynccontextmanager
async def serving(app: Any) -> AsyncGenerator[int]:
    """Serve an ASGI application for the length of a block; the port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = uvicorn.Config(
            app, lifespan="on", log_config=None, access_log=False, timeout_graceful_shutdown=1
        )
        server = _Server(config)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            with anyio.fail_after(PATIENCE):
                while not server.started:
                    await anyio.lowlevel.checkpoint()
            try:
                yield listening.getsockname()[1]
            finally:
                server.should_exit = True
