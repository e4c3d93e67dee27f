"""The app-server that Codex's terminal and our client share, at a socket of this user alone."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import anyio
from websockets.asyncio.client import ClientConnection, unix_connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from meup_agent.errors import CannotConnect, printable
from meup_agent.processes.guarded import PipedProcess
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Mapping


START_SECONDS: Final = 30.0
"""For an app-server to listen: it reads its configuration, and may ask who is signed in."""

LOOK_SECONDS: Final = 0.05
"""Between two looks whether it listens."""

MAX_MESSAGE_BYTES: Final = 32 * 1024 * 1024
"""Bytes of one message; the largest has the output of a command in it."""

END_SECONDS: Final = 12.0
"""For it to end by itself, by SIGTERM, and by SIGKILL."""

MAX_ERROR_CHARS: Final = 500
"""Characters of its last words that are told."""


class AppServer:
    """An app-server that runs.

    Attributes:
        address: The address for ``codex --remote``.
    """

    def __init__(self, path: Path, connection: ClientConnection) -> None:
        self.address = f"unix://{path}"
        self._connection = connection

    async def send(self, message: bytes) -> None:
        """Send a message; nothing where it has ended."""
        try:
            await self._connection.send(message, text=True)
        except ConnectionClosed:
            return

    async def messages(self) -> AsyncIterator[bytes | str]:
        """Its messages, until it ends."""
        try:
            async for message in self._connection:
                yield message
        except ConnectionClosed:
            return


@asynccontextmanager
async def app_server(codex: str, env: Mapping[str, str]) -> AsyncGenerator[AppServer]:
    """Start an app-server for the length of a block, and connect to it.

    Args:
        codex: The command of Codex.
        env: All of its environment.

    Raises:
        CannotConnect: It cannot be started, or does not listen in time.
    """
    # A folder that nobody else can enter: who can connect can have commands run.
    with TemporaryDirectory(prefix="meup-codex-") as folder:
        path, log = Path(folder, "codex.sock"), Path(folder, "log")
        process = _start(codex, path, log, env)
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(_drain, process)
                connection = await _connect(path, process, log)
                async with connection:
                    yield AppServer(path, connection)
            with anyio.move_on_after(END_SECONDS, shield=True):
                await process.end()
        finally:
            process.close()


def _start(codex: str, path: Path, log: Path, env: Mapping[str, str]) -> PipedProcess:
    with log.open("wb") as errors:
        # What it types into a terminal is asked about nowhere, and of calls of MCP servers it would
        # ask by a question of its own, which only its terminal answers.
        off, on = "features.unified_exec_tty=false", "features.tool_call_mcp_elicitation=true"
        command = (codex, "-c", off, "-c", on, "app-server", "--listen", f"unix://{path}")
        return PipedProcess(command, env, stderr=errors.fileno())


async def _drain(process: PipedProcess) -> None:
    """Read what it prints, so that it can go on."""
    while await process.read():
        pass


async def _connect(path: Path, process: PipedProcess, log: Path) -> ClientConnection:
    with anyio.move_on_after(START_SECONDS):
        while process.status is None:
            if await anyio.Path(path).exists():
                try:
                    return await unix_connect(
                        str(path), "ws://localhost/", max_size=MAX_MESSAGE_BYTES, compression=None
                    )
                except (OSError, WebSocketException):
                    pass  # it has made the socket, and does not listen yet
            with anyio.move_on_after(LOOK_SECONDS):
                await process.wait_ended()
    said = await anyio.Path(log).read_text(errors="replace")
    said = said.partition("Stack backtrace")[0].strip()
    last = printable(said[-MAX_ERROR_CHARS:]) or f"it does not listen after {START_SECONDS:g} s"
    raise CannotConnect(f"the app-server of Codex did not start: {last}")
