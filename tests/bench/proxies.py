"""A tool call from an MCP client: to its server, and through a space and other proxies.

Run it from the repository: `python -m tests.bench.proxies`

By stdio the client starts what it calls, by HTTP it dials it. The same server, on the official SDK,
is behind each way; through a space it is `meup mcp`, a gateway and `meup bridge`, which check,
number and journal each message, or `meup up`, which is all three (by stdio beside a `meup mcp`).
FastMCP's proxy and `mcp-proxy` decide and keep nothing. Each has an environment of its own, made
when it is first needed, since they ask for other versions. All ways are open at once, and take
turns.
"""

import asyncio
import json
import os
import re
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.bench import processes
from tests.bench.figures import Figure, Program, main
from tests.bench.one_door import by_command, called
from tests.bench.processes import Address, gateway, process
from tests.programs import ROOT

if TYPE_CHECKING:
    from mcp import Client

TURNS, EACH = 20, 10
TOGETHER, IN_FLIGHT = 320, 32
PATIENCE = 60.0

SPACE = "demo"
EVERYTHING: list[dict[str, Any]] = [{"kind": "*"}]

PEERS = {"FastMCP": ("fastmcp==4.2.3",), "mcp-proxy": ("mcp-proxy==0.12.0", "mcp<2")}
"""Peers, and what is installed for each."""

SERVER = """
import sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


if len(sys.argv) > 1:
    server.run("streamable-http", port=int(sys.argv[1]))
else:
    server.run()
"""

OF_MCP_1 = SERVER.replace(
    "mcp.server.mcpserver import MCPServer", "mcp.server.fastmcp import FastMCP"
)
OF_MCP_1 = OF_MCP_1.replace("MCPServer(", "FastMCP(")
"""The same on the SDK's version 1, which `mcp-proxy` asks for."""


class Way(NamedTuple):
    """A client of one way to the tool, and what the tool is called there."""

    words: str
    client: "Client"
    tool: str


def environment_of(peer: str) -> Path:
    """The folder of a peer's programs; it is made when it is first asked for."""
    folder = ROOT / ".venv" / "peers" / peer.lower()
    if not (folder / "made").exists():
        uv = [sys.executable, "-m", "uv", "--quiet"]
        subprocess.run([*uv, "venv", "--clear", "--python", sys.executable, folder], check=True)
        python = ["--compile-bytecode", "--python", str(folder / "bin" / "python")]
        subprocess.run([*uv, "pip", "install", *python, *PEERS[peer]], check=True)
        (folder / "made").touch()
    return folder / "bin"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextmanager
def running(command: list[str], variables: dict[str, str], port: int = 0) -> Generator[None]:
    """A program for the length of a block; with a port, once it listens there."""
    started = subprocess.Popen(
        command,
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while port:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
                break
            assert started.poll() is None, f"{command} has ended"
            assert time.monotonic() < deadline, f"{command} does not listen"
            time.sleep(0.05)
        yield
    finally:
        started.terminate()
        started.wait(PATIENCE)


@asynccontextmanager
async def at(url: str, token: str = "") -> AsyncGenerator["Client"]:
    """The SDK's client of an address, for as many calls at once as there are."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Limits(max_connections=2 * IN_FLIGHT)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            yield client


async def tool_of(client: "Client") -> str:
    """The name of the only tool, once it is there."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for tool in (await client.list_tools()).tools:
            if re.search(r"(^|_)add$", tool.name):
                return tool.name
        assert time.monotonic() < deadline, "the tool does not come"
        await asyncio.sleep(0.1)


async def call_at_once(way: Way, count: int) -> None:
    left = iter(range(count))

    async def call_rest() -> None:
        for _ in left:
            await called(way.client, way.tool)

    await asyncio.gather(*(call_rest() for _ in range(IN_FLIGHT)))


async def compare(ways: list[Way], scale: float, beside: str) -> Iterator[Figure]:
    """Let the ways take turns; the first is the server itself."""
    took: dict[str, list[float]] = {way.words: [] for way in ways}
    rates: dict[str, list[float]] = {way.words: [] for way in ways}
    for turn in range(max(1, round(TURNS * scale)) + 1):
        for words, client, tool in ways:
            for _ in range(EACH):
                begun = perf_counter()
                await called(client, tool)
                if turn:
                    took[words].append(perf_counter() - begun)
    together = max(IN_FLIGHT, round(TOGETHER * scale))
    for turn in range(4):
        for way in ways:
            begun = perf_counter()
            await call_at_once(way, together)
            if turn:
                rates[way.words].append(together / (perf_counter() - begun))
    return figures(took, rates, beside)


def figures(
    took: dict[str, list[float]], rates: dict[str, list[float]], beside: str
) -> Iterator[Figure]:
    itself, *others = took
    alone = {words: statistics.median(each) for words, each in took.items()}
    at_once = {words: statistics.median(each) for words, each in rates.items()}
    for words in took:
        yield Figure(f"{beside}: {words}", alone[words] * 1e3, "ms")
    for words in others:
        yield Figure(f"{beside}: {words}, times {itself}", alone[words] / alone[itself], "×")
    for words in took:
        yield Figure(f"{beside}, {IN_FLIGHT} under way: {words}", at_once[words], "/s")


@contextmanager
def running_up(folder: Path) -> Generator[tuple[str, str]]:
    """`meup up` with the server behind it; its address and the token of a client that may call."""
    port, token = free_port(), secrets.token_urlsafe(32)
    command = [*processes.PYTHON, str(folder / "server.py")]
    server = {"mcp_server": {"command": command, "env": processes.BYTECODE}}
    client = {"capabilities": EVERYTHING, "tokens": [token]}
    participants = {"server": {"capabilities": EVERYTHING, **server}, "client": client}
    file = folder / "space.yaml"
    settings = {"gateway": {"port": port}, "spaces": {SPACE: {"participants": participants}}}
    file.write_text(json.dumps(settings))
    variables = {**processes.BYTECODE, "MEUP_STATE_DIR": str(folder / "state")}
    with running([*processes.PYTHON, "-m", "meup_agent.cli", "up", str(file)], variables, port):
        yield f"127.0.0.1:{port}", token


async def by_stdio(folder: Path, address: Address, scale: float) -> Iterator[Figure]:
    server = [*processes.PYTHON, str(folder / "server.py")]
    entry = {"command": server[0], "args": server[1:], "env": processes.BYTECODE}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": entry}}))
    fastmcp = str(environment_of("FastMCP") / "fastmcp")
    proxied = ["run", str(folder / "mcp.json"), "--no-banner", "--log-level", "ERROR"]
    meup = [*processes.PYTHON, "-m", "meup_agent.cli"]
    variables = {**os.environ, **space_of(address, "client")}
    bridged = [*meup, "bridge", "--", *server]
    with running(bridged, space_of(address, "server")), running_up(folder) as (at_up, token):
        of_up = {"MEUP_URL": f"ws://{at_up}", "MEUP_SPACE": SPACE, "MEUP_TOKEN": token}
        programs = {
            "the server": by_command(server[0], server[1:], env=dict(os.environ)),
            "through a space": by_command(meup[0], [*meup[1:], "mcp"], env=variables),
            "through `meup up`": by_command(meup[0], [*meup[1:], "mcp"], env=variables | of_up),
            "FastMCP's proxy": by_command(fastmcp, proxied, env=dict(os.environ)),
        }
        return await measured(programs, scale, "by stdio")


async def by_http(folder: Path, address: Address, scale: float) -> Iterator[Figure]:
    meup = [*processes.PYTHON, "-m", "meup_agent.cli"]
    ports = {name: free_port() for name in ("server", "meup", "fastmcp", "mcp-proxy")}
    urls = {name: f"http://127.0.0.1:{port}/mcp" for name, port in ports.items()}
    server = [*processes.PYTHON, str(folder / "server.py"), str(ports["server"])]
    bridge = [*meup, "bridge", "--http", urls["server"]]
    mcp = [*meup, "mcp", "--http", f"127.0.0.1:{ports['meup']}", "--anonymous"]
    fastmcp = [str(environment_of("FastMCP") / "fastmcp"), "run", urls["server"], "--no-banner"]
    fastmcp += ["--transport", "http", "--port", str(ports["fastmcp"])]
    mcp_1 = environment_of("mcp-proxy")
    proxy = [
        str(mcp_1 / "mcp-proxy"),
        "--port",
        str(ports["mcp-proxy"]),
        "--",
        str(mcp_1 / "python"),
    ]
    with ExitStack() as stack:
        stack.enter_context(running(server, processes.BYTECODE, ports["server"]))
        stack.enter_context(running(bridge, space_of(address, "server")))
        stack.enter_context(running(mcp, space_of(address, "client"), ports["meup"]))
        stack.enter_context(running(fastmcp, {}, ports["fastmcp"]))
        stack.enter_context(running([*proxy, str(folder / "of_mcp_1.py")], {}, ports["mcp-proxy"]))
        at_up, token = stack.enter_context(running_up(folder))
        ways = {
            "the server": at(urls["server"]),
            "through a space": at(urls["meup"]),
            "through `meup up`": at(f"http://{at_up}/mcp", token),
            "FastMCP's proxy": at(urls["fastmcp"]),
            "`mcp-proxy`": at(urls["mcp-proxy"]),
        }
        return await measured(ways, scale, "by HTTP")


def space_of(address: Address, participant: str) -> dict[str, str]:
    token = address.tokens[SPACE, participant]
    return {**processes.BYTECODE, "MEUP_URL": address.url, "MEUP_SPACE": SPACE, "MEUP_TOKEN": token}


async def measured(ways: dict[str, Any], scale: float, beside: str) -> Iterator[Figure]:
    async with AsyncExitStack() as stack:
        found: list[Way] = []
        for words, client in ways.items():
            opened = await stack.enter_async_context(client)
            found.append(Way(words, opened, await tool_of(opened)))
        return await compare(found, scale, beside)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "server.py").write_text(SERVER)
        (folder / "of_mcp_1.py").write_text(OF_MCP_1)
        participants = {"server": EVERYTHING, "client": EVERYTHING}
        with process(gateway, {SPACE: participants}) as pipe:
            address: Address = pipe.recv()
            for way in (by_stdio, by_http):
                yield from asyncio.run(way(folder, address, scale))


PROGRAM = Program("proxies", "Through a space, and through other proxies", measure)

if __name__ == "__main__":
    main((PROGRAM,), sys.argv[1:])
