"""Copies bytes between two connections, of a member's side and an owner's, until either ends."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

from meup_agent.gateway.edge.connection import STALL_SECONDS
from meup_agent.gateway.edge.listener import FrameEnds

COPY_BYTES: Final = 64 * 1024
"""Bytes that are copied at a time in one direction; as many wait for a slow reader."""

CLOSE_SECONDS: Final = 5.0
"""Longest time for the last bytes to be taken at either end."""

StreamPair = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class RelayTasks:
    """Tasks that each relay a connection, so many at once."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tasks = set[asyncio.Task[None]]()

    def start(self, work: Coroutine[Any, Any, None], writer: asyncio.StreamWriter) -> None:
        """Do it in a task of its own, unless there are too many."""
        if len(self._tasks) >= self._most:
            work.close()
            writer.transport.abort()
            return
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """End all of them."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def copy(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    seconds: float | None = None,
    frames: FrameEnds | None = None,
) -> None:
    """Copy until there is no more; ``frames`` are told of what was written.

    Raises:
        OSError: Either end broke, or nothing was taken for so many seconds.
    """
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        if frames is not None:
            frames.add(data)
        if writer.transport.get_write_buffer_size():
            async with asyncio.timeout(seconds):
                await writer.drain()


async def relay(member: StreamPair, owner: StreamPair, farewell: bytes = b"") -> None:
    """Copy both ways until the owner's end ends; then both are closed.

    When the member's end ends first, the owner reads so, and answers what it was asked. So both
    ends are read to the end: nothing of a member is left that its owner has not seen yet.

    Args:
        member: The member's end.
        owner: The owner's end.
        farewell: The close frame for the member if this is cancelled; empty: what is copied to it
            is no WebSocket.
    """
    frames = FrameEnds() if farewell else None
    to_owner = asyncio.ensure_future(copy(member[0], owner[1]))
    # It may have been closed long ago, which is not seen before what came earlier is written.
    to_member = asyncio.ensure_future(copy(owner[0], member[1], STALL_SECONDS, frames))
    for each in (to_owner, to_member):
        each.add_done_callback(_see_error)
    try:
        await asyncio.wait({to_owner, to_member}, return_when=asyncio.FIRST_COMPLETED)
        if not to_member.done():
            is_broken = to_owner.exception() is not None
            _end_writing(owner[1])
            await asyncio.wait({to_member}, timeout=CLOSE_SECONDS if is_broken else None)
        for each in (to_owner, to_member):
            each.cancel()
        await asyncio.wait({to_owner, to_member})
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(_close(member[1]), _read_out(owner))
    except asyncio.CancelledError:
        if frames is not None and not to_member.done():
            to_member.cancel()
            with suppress(OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await asyncio.wait({to_member})
                    await _say_farewell(owner[0], member[1], frames, farewell)
        raise
    finally:
        for each in (to_owner, to_member):
            each.cancel()
        for _, writer in (member, owner):
            close_soon(writer)


async def _say_farewell(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: FrameEnds, farewell: bytes
) -> None:
    """Write a close frame where a frame ends, and wait for the owner to end the connection.

    It does once it has the member's answer, which is still copied to it.
    """
    while frames.missing and (data := await reader.read(frames.missing)):
        writer.write(data)
        frames.add(data)
    if not frames.missing and not frames.closed:
        writer.write(farewell)
    while await reader.read(COPY_BYTES):
        pass


def _see_error(copying: asyncio.Task[None]) -> None:
    """Note that an end broke, of which there is nothing to say."""
    if not copying.cancelled():
        copying.exception()


def close_soon(writer: asyncio.StreamWriter) -> None:
    """Close a connection after what was written, or at once if that is not taken."""
    writer.close()
    asyncio.get_running_loop().call_later(CLOSE_SECONDS, writer.transport.abort)


def _end_writing(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
        else:
            writer.close()  # TLS ends both ways at once


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def _read_out(owner: StreamPair) -> None:
    _end_writing(owner[1])
    with suppress(OSError):
        while await owner[0].read(COPY_BYTES):
            pass
    await _close(owner[1])
