"""Peers of a tool call: a bare echo over the same processes, NATS, and the official `mcp` SDK.

The SDK is imported where it is used: processes of other programs that come by here load no SDK.
"""

import asyncio
import gc
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import picows
from websockets.asyncio.client import connect

from tests.bench import processes
from tests.bench.processes import answer, on_uvloop, own_memory
from tests.bench.timing import Calls, measured

if TYPE_CHECKING:
    from mcp.server import MCPServer
    from nats.aio.msg import Msg


class Relay(picows.WSListener):
    """Passes each message on to the other of two connections."""

    others: "list[Relay]" = []  # noqa: RUF012 - what the two of a process share

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        self.transport = transport
        self.others.append(self)

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.TEXT:
            payload = frame.get_payload_as_bytes()
            for other in self.others:
                if other is not self:
                    other.transport.send(picows.WSMsgType.TEXT, payload)


def relay(pipe: Connection) -> None:
    """The process in the middle."""

    async def main() -> None:
        server = await picows.ws_create_server(lambda _: Relay(), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await answer(pipe, lambda _: None)

    on_uvloop(main())


def echo(pipe: Connection, port: int, answer_bytes: int) -> None:
    """Answers each message with one of so many bytes."""
    said = "x" * answer_bytes

    async def main() -> None:
        async with connect(f"ws://127.0.0.1:{port}", compression=None) as wire:
            pipe.send("ready")
            async for _ in wire:
                await wire.send(said)

    on_uvloop(main())


def echo_caller(pipe: Connection, port: int, asked_bytes: int, wanted: Calls) -> None:
    """Sends messages of so many bytes and waits for the answers, in their order."""
    said = "x" * asked_bytes

    async def main() -> None:
        async with connect(f"ws://127.0.0.1:{port}", compression=None) as wire:

            async def call() -> None:
                await wire.send(said)
                await wire.recv()

            pipe.send(await measured(call, wanted._replace(in_flight=1)))

    on_uvloop(main())


SUBJECT = "tools.add"


@contextmanager
def nats_server() -> Generator[str]:
    """A NATS server as its package sets it up, on a free port; its address."""
    command = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or "nats-server"
    with tempfile.TemporaryDirectory() as folder:
        running = subprocess.Popen(
            [command, "--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir", folder],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield _nats_address(running, Path(folder))
        finally:
            running.kill()
            running.wait()


def _nats_address(server: "subprocess.Popen[bytes]", folder: Path) -> str:
    """Wait until a server has written down where it listens."""
    while server.poll() is None:
        for written in folder.glob("*.ports"):
            with suppress(ValueError):  # not written to its end yet
                return str(json.loads(written.read_text())["nats"][0])
        time.sleep(0.01)
    raise RuntimeError("the NATS server has ended before it listened")


def nats_tool(pipe: Connection, url: str) -> None:
    """Answers calls of a tool."""
    import nats

    async def main() -> None:
        server = await nats.connect(url)

        async def add(message: "Msg") -> None:
            arguments = json.loads(message.data)
            await message.respond(json.dumps({"result": sum(arguments.values())}).encode())

        await server.subscribe(SUBJECT, cb=add)
        await server.flush()
        pipe.send("ready")
        await answer(pipe, lambda _: None)

    on_uvloop(main())


def nats_caller(pipe: Connection, url: str, wanted: Calls) -> None:
    """Calls the tool by request and reply."""
    import nats

    async def main() -> None:
        server = await nats.connect(url)

        async def call() -> None:
            reply = await server.request(SUBJECT, b'{"a": 1, "b": 2}')
            assert json.loads(reply.data) == {"result": 3}

        pipe.send(await measured(call, wanted))
        await server.close()

    on_uvloop(main())


def mcp_server() -> "MCPServer":
    from mcp.server import MCPServer

    server = MCPServer("tools", log_level="WARNING")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    return server


class ServerUsage(NamedTuple):
    """The state of a server: seconds of CPU so far, its open streams, its memory."""

    cpu: float
    streams: int
    memory: int


def serve_http(pipe: Connection, app: Any, streams: Callable[[], int]) -> None:
    """Serve an application: tells its port, then its :class:`ServerUsage` whenever it is asked."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    # Its default of 5 s closes connections of a crowd just as they are used again.
    config = uvicorn.Config(app, log_level="warning", timeout_keep_alive=600)
    server = uvicorn.Server(config)

    def question(_: Any) -> ServerUsage:
        cpu = process_time()
        gc.collect()
        return ServerUsage(cpu, streams(), own_memory())

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listening]))
            pipe.send(listening.getsockname()[1])
            await answer(pipe, question)

    on_uvloop(run())


def mcp_http_server(pipe: Connection, json_response: bool) -> None:
    """The SDK's server, which answers by event streams, its default, or with plain JSON."""
    app = mcp_server().streamable_http_app(json_response=json_response)
    serve_http(pipe, app, lambda: 0)


def mcp_stdio_server() -> None:
    anyio.run(mcp_server().run_stdio_async, backend_options={"use_uvloop": True})


def mcp_caller(
    pipe: Connection, url: str | None, wanted: Calls, tool: str = "add", mode: str = "auto"
) -> None:
    """Calls a server of MCP: at an address, or the SDK's over the pipes of a process of its own."""

    from mcp import Client, StdioServerParameters

    python, *options = processes.PYTHON
    over_stdio = StdioServerParameters(
        command=python,
        args=[*options, "-c", "from tests.bench.peers import mcp_stdio_server; mcp_stdio_server()"],
        # The client hands down little of its environment.
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )

    async def main() -> None:
        async with Client(url or over_stdio, mode=mode) as client:

            async def call() -> None:
                result = await client.call_tool(tool, {"a": 1, "b": 2})
                assert json.dumps(result.structured_content) == '{"result": 3}'

            pipe.send(await measured(call, wanted))

    on_uvloop(main())
