"""A call from an MCP client that waits for nobody: by `/mcp`, by `meup mcp`, and at its server.

`meup up` runs as a user runs it, with one server on the official SDK and a policy that lets its
calls through, so that each is proposed and carried out by the reviewer. Beside it: the server
alone, and many clients that connect at once.
"""

import asyncio
import json
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tests.bench import processes
from tests.bench.figures import Figure, Program
from tests.bench.meup_up import ON_THE_SDK, ended, environment, pasted, started

if TYPE_CHECKING:
    from mcp import Client

CALLS = 200
WARM_UP = 5
CROWD = 100

POLICY = "rules: [{allow: {tool: add}}]\nend: true\n"

Connected = Callable[[], AbstractAsyncContextManager["Client"]]


@asynccontextmanager
async def by_command(command: str, arguments: list[str], **more: Any) -> AsyncGenerator["Client"]:
    """The SDK's client of a program."""
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    server = StdioServerParameters(command=command, args=arguments, **more)
    async with Client(stdio_client(server)) as client:
        yield client


@asynccontextmanager
async def by_address(url: str, token: str) -> AsyncGenerator["Client"]:
    """The SDK's client of an address."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=120) as http:
        async with Client(streamable_http_client(url, http_client=http)) as client:
            yield client


async def called(client: "Client", tool: str) -> None:
    result: Any = await client.call_tool(tool, {"a": 1, "b": 2})
    assert result.content[0].text == "3", result


async def alone(connected: Connected, tool: str, count: int) -> float:
    """Median seconds of a call, one after another."""
    took: list[float] = []
    async with connected() as client:
        for _ in range(WARM_UP + count):
            begun = perf_counter()
            await called(client, tool)
            took.append(perf_counter() - begun)
    return statistics.median(took[WARM_UP:])


async def at_once(connected: Connected, tool: str, count: int) -> tuple[float, float]:
    """Seconds until so many clients are connected at once, and until each has called at once."""
    ready, done = 0, 0
    all_ready, go = asyncio.Event(), asyncio.Event()

    async def one() -> None:
        nonlocal ready, done
        async with connected() as client:
            ready += 1
            if ready == count:
                all_ready.set()
            await go.wait()
            await called(client, tool)
            done += 1

    begun = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(one())
        await all_ready.wait()
        connecting = perf_counter() - begun
        begun = perf_counter()
        go.set()
    assert done == count
    return connecting, perf_counter() - begun


def measure(scale: float = 1.0) -> Iterator[Figure]:
    count, crowd = max(1, round(CALLS * scale)), max(2, round(CROWD * scale))
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        program = folder / "server.py"
        program.write_text(ON_THE_SDK)
        command, *arguments = [*processes.PYTHON, str(program)]
        entry = {"command": command, "args": arguments, "env": processes.BYTECODE}
        (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"calc": entry}}))
        (folder / "policy.yaml").write_text(POLICY)
        options = ["--servers", "mcp.json", "--policy", "policy.yaml", "--port", "0"]
        up = started([*processes.PYTHON, "-m", "meup_agent.cli", "up", *options], folder)
        try:
            client = pasted(up)
            assert up.stdout is not None
            url = next(line.split('"')[3] for line in up.stdout if '"url"' in line)
            token = Path(client["args"][2]).read_text(encoding="ascii").strip()
            tool = "calc_add"
            door = [*processes.PYTHON, "-m", "meup_agent.cli", *client["args"]]
            variables = environment(folder) | client["env"]
            doors: dict[str, tuple[Connected, str]] = {
                "`/mcp` on the gateway": (lambda: by_address(url, token), tool),
                "`meup mcp`, by stdio": (
                    lambda: by_command(door[0], door[1:], env=variables),
                    tool,
                ),
                "the server itself, by stdio": (lambda: by_command(command, arguments), "add"),
            }
            for words, (connected, name) in doors.items():
                took = asyncio.run(alone(connected, name, count))
                yield Figure(f"a call that a rule lets through: {words}", took * 1e3, "ms")
            connecting, calling = asyncio.run(at_once(lambda: by_address(url, token), tool, crowd))
            yield Figure(f"{crowd} clients connect at once to `/mcp`", connecting, "s")
            yield Figure(f"{crowd} clients call at once: until the last answer", calling, "s")
        finally:
            ended(up)


PROGRAM = Program(
    "one_door", "Calls through `meup up --servers`, and many clients at once", measure
)
