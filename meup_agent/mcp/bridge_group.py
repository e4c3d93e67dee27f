"""Several bridges in one process, each with a connection of its own to the gateway."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.agent.agent import GRACE
from meup_agent.errors import MeupError
from meup_agent.mcp.connection import ServerGone
from meup_agent.processes.restarts import keep_running
from meup_agent.session import Settings
from meup_agent.transport.websocket import SpaceConnector

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from meup_agent.mcp.bridge import Bridge

log = logging.getLogger("meup_agent.mcp")

PATIENT: Final = Settings(first_welcome=None)
"""A gateway that is not there yet is waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeEntry:
    """A bridge, and how it joins its space.

    Attributes:
        bridge: The bridge.
        url: The gateway.
        space: The space.
        token: The participant's token, or what reads it.
        participant: The participant's name, for a gateway that does not know it by the token.
    """

    bridge: Bridge
    url: str
    space: str
    token: str | Callable[[], str]
    participant: str | None = None


@asynccontextmanager
async def join_bridges(
    entries: Sequence[BridgeEntry], *, hurry: anyio.Event | None = None
) -> AsyncGenerator[None]:
    """The block in which bridges are in their spaces; entered when each is, or has failed.

    One whose server cannot be started is tried again with backoff, and the others go on; where
    none can be, and where the gateway sends the last one away, the block ends.

    Args:
        entries: The bridges.
        hurry: When it is set, running calls get no more time.

    Raises:
        MeupError: Of the only bridge, or of the last one.
    """
    leave = anyio.Event()
    failures: dict[str, MeupError] = {}

    async def serve(entry: BridgeEntry, *, task_status: TaskStatus[None]) -> None:
        bridge, statuses = entry.bridge, [task_status]

        async def serve_once() -> str | None:
            """Be in the space until the end; the reason if the server could not be started."""
            try:
                async with bridge.join(
                    SpaceConnector(entry.url, entry.space),
                    token=entry.token,
                    participant=entry.participant,
                    settings=PATIENT,
                    grace=GRACE,
                    hurry=hurry,
                ) as space:
                    log.info("%s: is %r in the space %r", bridge.name, space.me, entry.space)
                    failures.pop(bridge.name, None)
                    begin()
                    await leave.wait()
            except MeupError as error:
                failures[bridge.name] = error
                if len(failures) == len(entries):
                    tasks.cancel_scope.cancel()
                else:
                    log.error("%s: %s", bridge.name, error)
                begin()
                if isinstance(error, ServerGone) and len(failures) < len(entries):
                    return error.why
            return None

        def begin() -> None:
            while statuses:
                statuses.pop().started()

        async def failed(_why: str, delay: float) -> None:
            log.warning("%s: it is started again in %.1f s", bridge.name, delay)

        await keep_running(serve_once, failed, leave)

    async with anyio.create_task_group() as tasks:
        async with anyio.create_task_group() as starting:
            for entry in entries:
                starting.start_soon(tasks.start, serve, entry)
        if len(failures) < len(entries):
            try:
                yield
            finally:
                leave.set()
    if len(failures) == len(entries):
        raise list(failures.values())[-1]
