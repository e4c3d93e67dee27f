"""A space as an MCP server over standard input and output."""

from __future__ import annotations

import logging
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from mcp.server.stdio import stdio_server
from mcp_types import INTERNAL_ERROR

from meup_agent.mcp.sdk.messages import ForwardingReader
from meup_agent.mcp.server.cancellation import CancellingStream, OpenStreams
from meup_agent.mcp.server.space_server import NotJoined, SpaceHandlers, make_server
from meup_agent.processes.guarded import read_from, read_lines
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from meup_agent.mcp.sdk.messages import Item
    from meup_agent.mcp.server.client_member import ClientMember, ClientMembers
    from meup_agent.mcp.server.space_server import OwnTool
    from meup_agent.mcp.server.tool_calls import CallSettings

log = logging.getLogger("meup_agent.mcp")

MAX_LINE_BYTES: Final = 16 * 1024 * 1024
"""Of one message; the largest that a client sends has a file in it."""

UNHEARD_SECONDS: Final = 5.0
"""Until it is logged that no gateway has answered."""

JOIN_SECONDS: Final = 20.0
"""Wait of a client's first request for the space; clients give up after a minute or half of one."""

END_SECONDS: Final = 2.0
"""Wait for the space at the end of a client that needed nothing of it."""

_WITHOUT_SPACE: Final = frozenset({"initialize", "server/discover", "ping"})
"""Methods that the SDK answers by itself."""


async def _read_stdin(fd: int) -> AsyncGenerator[str]:
    """The lines of standard input, whose reader can be cancelled while it waits.

    The SDK reads in a thread, which ends only with the next line: a process that was told to stop
    would wait for its client.
    """
    async for line in read_lines(partial(read_from, fd), MAX_LINE_BYTES):
        yield line.decode("utf-8", "replace")


async def serve_stdio(
    pool: ClientMembers, settings: CallSettings, own_tools: Sequence[OwnTool] = ()
) -> None:
    """Serve one client over standard input and output, as the participant of this process.

    Args:
        pool: The participants.
        settings: Settings of the calls.
        own_tools: Tools of this process beside those of the space.

    Raises:
        MeupError: The participant is not in the space, or no longer.
    """
    async with pool.run():
        joining = _Joining(pool)
        streams = OpenStreams()
        handlers = SpaceHandlers(
            joining.member_of, streams, settings, joined=joining.wait, own_tools=own_tools
        )
        server = make_server(handlers)
        try:
            async with (
                background_tasks() as tasks,
                handlers.tasks,
                stdio_server(stdin=cast("Any", await _input())) as (read, write),
            ):
                tasks.start_soon(joining.run)
                messages = _PatientStream(CancellingStream(read, streams, ""), joining)
                await server.run(
                    cast("Any", messages), write, server.create_initialization_options()
                )
                with anyio.move_on_after(END_SECONDS):
                    await joining.wait()  # else a token that is refused would not be told
        except* BrokenPipeError:
            log.info("the client reads no more")


class _Joining:
    """The participant of this process, which may join after its client has begun.

    A client that starts before the gateway is greeted at once; else it would take its server for
    dead.
    """

    def __init__(self, pool: ClientMembers) -> None:
        self._pool = pool
        self._member: ClientMember | None = None
        self._joined = anyio.Event()

    async def run(self) -> None:
        """Join, and wait until it is not in the space any more; raises why."""
        login = None
        with anyio.move_on_after(UNHEARD_SECONDS):
            login = await self._pool.get(None)
        if login is None:
            log.warning("no gateway has answered yet; waiting for it")
            login = await self._pool.get(None)
        assert login is not None  # else it has raised
        self._member = login.member
        self._joined.set()
        await login.member.raise_at_end()

    async def wait(self) -> bool:
        """Wait until it has joined; true if it had not before."""
        was_late = not self._joined.is_set()
        await self._joined.wait()
        return was_late

    def member_of(self, _: object) -> ClientMember:
        """The participant.

        Raises:
            NotJoined: It is not in the space yet.
        """
        if self._member is None:
            raise NotJoined(
                INTERNAL_ERROR,
                "the gateway of these tools is not there yet; start it (meup up), and try again",
            )
        return self._member


class _PatientStream(ForwardingReader):
    """A client's messages; what needs the space is handed on once that is joined, or is late."""

    def __init__(self, stream: CancellingStream, joining: _Joining) -> None:
        super().__init__(stream)
        self._joining = joining
        self._waits = True

    async def receive(self) -> Item:
        """The next message."""
        item = await super().receive()
        method = getattr(getattr(item, "message", None), "method", "")
        if self._waits and method not in _WITHOUT_SPACE:
            self._waits = False
            with anyio.move_on_after(JOIN_SECONDS):
                await self._joining.wait()
        return item


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
