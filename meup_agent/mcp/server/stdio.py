"""A space as an MCP server over standard input and output."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server.stdio import stdio_server

from meup_agent.mcp.sdk.streams import read_lines
from meup_agent.mcp.server.cancellation import CancellingStream, OpenStreams
from meup_agent.mcp.server.space_server import SpaceHandlers, make_server
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from meup_agent.mcp.server.client_member import ClientMembers
    from meup_agent.mcp.server.tool_calls import CallSettings

log = logging.getLogger("meup_agent.mcp")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Of one message; the largest that a client sends has a file in it."""

_CHUNK: Final = 1 << 16


async def _read_stdin(fd: int) -> AsyncGenerator[str]:
    """The lines of standard input, whose reader can be cancelled while it waits.

    The SDK reads in a thread, which ends only with the next line: a process that was told to stop
    would wait for its client.
    """

    async def read() -> bytes:
        await anyio.wait_readable(fd)
        return os.read(fd, _CHUNK)

    async for line in read_lines(read, MAX_LINE_BYTES):
        yield line.decode("utf-8", "replace")


async def serve_stdio(pool: ClientMembers, settings: CallSettings) -> None:
    """Serve one client over standard input and output, as the participant of this process.

    Args:
        pool: The participants.
        settings: Settings of the calls.

    Raises:
        MeupError: The participant is not in the space, or no longer.
    """
    async with pool.run():
        login = await pool.get(None)
        assert login is not None  # else it has raised
        member = login.member
        streams = OpenStreams()
        handlers = SpaceHandlers(lambda _: member, streams, settings)
        server = make_server(handlers)
        try:
            async with (
                background_tasks() as tasks,
                handlers.tasks,
                stdio_server(stdin=cast("Any", await _input())) as (read, write),
            ):
                tasks.start_soon(member.raise_at_end)
                await server.run(
                    cast("Any", CancellingStream(read, streams, member.key)),
                    write,
                    server.create_initialization_options(),
                )
        except* BrokenPipeError:
            log.info("the client reads no more")


async def _input() -> AsyncGenerator[str] | None:
    """Standard input; ``None``: it cannot be waited for, and is the SDK's to read."""
    if sys.platform == "win32":
        return None
    with anyio.move_on_after(0):
        try:
            await anyio.wait_readable(0)
        except OSError:  # a file, for one, is always readable
            return None
    fd = os.dup(0)
    # What the handlers' own programs read must not be the client's messages.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return _read_stdin(fd)
