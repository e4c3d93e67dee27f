"""What tool calls are compared with: a bare echo over the same processes, and the `mcp` SDK.

The SDK is imported where it is used: processes of other programs that come by here load no SDK.
"""

import json
import os
import socket
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import anyio
import picows
from websockets.asyncio.client import connect

from tests.bench.processes import answer, on_uvloop
from tests.bench.timing import Calls, measured

if TYPE_CHECKING:
    from mcp.server import MCPServer

# --- a bare echo ----------------------------------------------------------------------------


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


# --- the official SDK -----------------------------------------------------------------------


def mcp_server() -> "MCPServer":
    from mcp.server import MCPServer

    server = MCPServer("tools", log_level="WARNING")

    @server.tool()
    async def add(a: int, b: int) -> int:
        return a + b

    return server


def mcp_http_server(pipe: Connection) -> None:
    """The SDK's server over streamable HTTP, as its `run` sets it up."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    pipe.send(listening.getsockname()[1])
    app = mcp_server().streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run([listening])


def mcp_stdio_server() -> None:
    anyio.run(mcp_server().run_stdio_async, backend_options={"use_uvloop": True})


def mcp_caller(pipe: Connection, url: str | None, wanted: Calls) -> None:
    """Calls the SDK's server: at an address, or over the pipes of a process of its own."""

    from mcp import Client, StdioServerParameters

    over_stdio = StdioServerParameters(
        command=sys.executable,
        args=["-c", "from tests.bench.peers import mcp_stdio_server; mcp_stdio_server()"],
        # The client hands down little of its environment.
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    )

    async def main() -> None:
        async with Client(url or over_stdio) as client:

            async def call() -> None:
                result = await client.call_tool("add", {"a": 1, "b": 2})
                assert json.dumps(result.structured_content) == '{"result": 3}'

            pipe.send(await measured(call, wanted))

    on_uvloop(main())
