"""From the start of `meup up --servers` until a participant has the tools of every server.

Three servers, two ways: as programs of a few lines, which shows what is ours, and on the official
SDK, whose import each of them pays. Beside the latter: the same three, started at once by the
SDK's client alone, from the start of its process until it has their tools.
"""

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meup_agent import Agent
from tests.bench import processes
from tests.bench.figures import Figure, Program

SERVERS = 3
TIMES = 3
GOAL = 3.0
PATIENCE = 120.0

SMALL = """
import json, sys

TOOL = {"name": "add", "inputSchema": {"type": "object"}}
INFO = {"name": "small", "version": "1"}
ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO,
    },
    "tools/list": {"tools": [TOOL]},
}
for line in sys.stdin:
    asked = json.loads(line)
    if "id" in asked:
        found = ANSWERS.get(asked["method"])
        said = {"error": {"code": -32601, "message": "no such method"}}
        said = said if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **said}), flush=True)
"""

ON_THE_SDK = """
from mcp.server.mcpserver import MCPServer

server = MCPServer("adder")


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


server.run()
"""

CLIENT_ALONE = """
import sys
import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def list_tools(path):
    server = StdioServerParameters(command=sys.argv[3], args=[*sys.argv[4:], path])
    async with Client(stdio_client(server)) as client:
        assert (await client.list_tools()).tools
        print("listed", flush=True)
        await anyio.sleep_forever()


async def main():
    async with anyio.create_task_group() as tasks:
        for _ in range(int(sys.argv[2])):
            tasks.start_soon(list_tools, sys.argv[1])


anyio.run(main)
"""


def environment(folder: Path) -> dict[str, str]:
    """The environment of what is measured: bytecode that is there, and state of its own."""
    return {**os.environ, **processes.BYTECODE, "MEUP_STATE_DIR": str(folder / "state")}


def configuration(folder: Path, server: str) -> Path:
    """An `mcp.json` with servers of one kind."""
    program = folder / "server.py"
    program.write_text(server)
    command, *arguments = [*processes.PYTHON, str(program)]
    entry = {"command": command, "args": arguments, "env": processes.BYTECODE}
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {f"server-{i}": entry for i in range(SERVERS)}}))
    return path


def started(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        text=True,
    )


def ended(process: "subprocess.Popen[str]") -> None:
    """End a process and what it has started."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()


def cpu_seconds(process: int) -> float:
    """CPU seconds of a process so far, without its children."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def of_what_it_started(process: int) -> float:
    """CPU seconds so far of all that a process has started and that still runs."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    started = [int(child) for found in lists for child in found.read_text("ascii").split()]
    return sum(cpu_seconds(child) + of_what_it_started(child) for child in started)


def first_tools(folder: Path, server: str) -> tuple[float, float, float]:
    """Seconds until an agent beside `meup up` has the tools of all; CPU of it, and of them."""
    path = configuration(folder, server)
    begun = time.perf_counter()
    options = ["--servers", str(path), "--port", "0"]
    process = started([*processes.PYTHON, "-m", "meup_agent.cli", "up", *options], folder)
    try:
        client = pasted(process)
        token = Path(client["args"][2]).read_text(encoding="ascii").strip()
        asyncio.run(listed(client["env"]["MEUP_URL"], client["env"]["MEUP_SPACE"], token))
        took = time.perf_counter() - begun
        return took, cpu_seconds(process.pid), of_what_it_started(process.pid)
    finally:
        ended(process)


def pasted(process: "subprocess.Popen[str]") -> Any:
    """The client's entry that `meup up` prints."""
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if found := re.search(r"^\{.*?^\}", said, re.DOTALL | re.MULTILINE):
            return json.loads(found.group())["mcpServers"]["meup"]
    raise AssertionError("meup up has ended")


async def listed(url: str, space: str, token: str) -> None:
    """Join, and list the tools of each server as soon as it is there."""
    async with Agent("agent").join(url, space=space, token=token) as member:
        async with asyncio.timeout(PATIENCE):
            for number in range(SERVERS):
                name = f"server-{number}"
                await member.present(name, timeout=PATIENCE)
                assert await member.offers.tools(name)


def alone(folder: Path) -> float:
    """Seconds until the SDK's client has the tools of servers on the SDK."""
    configuration(folder, ON_THE_SDK)
    program = folder / "client.py"
    program.write_text(CLIENT_ALONE)
    begun = time.perf_counter()
    arguments = [str(folder / "server.py"), str(SERVERS), *processes.PYTHON]
    process = started([*processes.PYTHON, str(program), *arguments], folder)
    try:
        assert process.stdout is not None
        for _ in range(SERVERS):
            assert process.stdout.readline() == "listed\n"
        return time.perf_counter() - begun
    finally:
        ended(process)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    took: dict[str, list[float]] = {"small": [], "sdk": [], "alone": []}
    own: list[float] = []
    beside: list[float] = []
    servers: list[float] = []
    times = round(TIMES * scale)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for turn in range(1 + times):
            small, cpu, _ = first_tools(folder, SMALL)
            sdk, cpu_beside, of_servers = first_tools(folder, ON_THE_SDK)
            found = {"small": small, "sdk": sdk, "alone": alone(folder)}
            if turn or not times:  # the first compiles
                own.append(cpu)
                beside.append(cpu_beside)
                servers.append(of_servers)
                for name, seconds in found.items():
                    took[name].append(seconds)
    small, sdk, client = (statistics.median(seconds) for seconds in took.values())
    yield Figure("three servers of a few lines", small, "s", GOAL)
    yield Figure("of that, CPU of `meup up` itself", statistics.median(own), "s")
    yield Figure("three servers on the SDK", sdk, "s", GOAL)
    yield Figure("of that, CPU of the servers", statistics.median(servers), "s")
    yield Figure("of that, CPU of `meup up` itself, beside them", statistics.median(beside), "s")
    # No order of starts takes less than all cores need for what is to be done.
    least = (statistics.median(servers) + statistics.median(beside)) / (os.cpu_count() or 1)
    yield Figure("all of that CPU, on all cores at once", least, "s")
    yield Figure("the SDK's client alone, the same three", client, "s")
    yield Figure("on the SDK: times its client alone", sdk / client, "×")


PROGRAM = Program("meup_up", "From `meup up --servers` to the tools of three servers", measure)
