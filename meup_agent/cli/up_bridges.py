"""MCP servers beside a gateway: each joins as a participant, for as long as ``meup up`` runs."""

from __future__ import annotations

import gc
import socket
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final

import anyio
from anyio import to_thread

from meup_agent.errors import MeupError
from meup_agent.mcp.server_config import StdioServer
from meup_agent.mcp.server_process import ServerStarter

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from pathlib import Path

    from meup_agent.cli.children import Children
    from meup_agent.cli.up_plan import Launch, Place
    from meup_agent.mcp.pin import ToolLock
    from meup_agent.mcp.server_config import Server


@cache
def open_pins(path: Path) -> ToolLock:
    """The accepted tools of a file, opened once: bridges of one process share it.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    from meup_agent.mcp.pin import ToolLock  # loaded with the bridge

    return ToolLock(path)


BRIDGE_GRACES: Final = 3
"""Graces for a bridge to leave: its running calls get one, its server's end the rest."""


async def run_bridge(
    launch: Launch, server: Server, url: str, starter: ServerStarter | None, children: Children
) -> str | None:
    """Let an MCP server be a participant until everything ends; why it failed, if it did."""
    # In a thread, as it takes a second or two, in which the gateway serves and servers start.
    await to_thread.run_sync(_load_bridge)
    from meup_agent.agent.agent import GRACE
    from meup_agent.mcp.bridge import Bridge
    from meup_agent.mcp.bridge_group import BridgeEntry, join_bridges
    from meup_agent.mcp.connection import ServerGone
    from meup_agent.transport.loops import background_tasks

    joined = False

    async def leave(scope: anyio.CancelScope) -> None:
        await children.leaving.wait()
        if joined:
            scope.deadline = anyio.current_time() + BRIDGE_GRACES * GRACE
        else:
            scope.cancel()

    try:
        pin = open_pins(launch.pins) if server.pin else None
        bridge = Bridge(launch.name, server, starter=starter, pin=pin)
        entry = BridgeEntry(bridge=bridge, url=url, space=launch.space, token=launch.token)
        with anyio.CancelScope() as scope:
            async with background_tasks() as tasks:
                tasks.start_soon(leave, scope)
                async with join_bridges([entry], hurry=children.hurry):
                    joined = True
                    await children.leaving.wait()
    except ServerGone as error:
        return error.why  # its standard error was logged line by line
    except MeupError as error:
        return f"failed: {error}"
    finally:
        if starter is not None:
            starter.discard()
    return None


@contextmanager
def start_servers(launches: Iterable[Launch]) -> Generator[dict[Place, ServerStarter]]:
    """Start the programs of servers before anything else is loaded.

    At the end of the block those are ended that no bridge has taken.
    """
    starters = {
        launch.place: ServerStarter(launch.server)
        for launch in launches
        if isinstance(launch.server, StdioServer)
    }
    try:
        for starter in starters.values():
            starter.begin()
        yield starters
    finally:
        for starter in starters.values():
            starter.discard()


def can_listen(host: str, port: int) -> bool:
    """True if an address is free; servers are not to be started for a gateway that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with suppress(OSError), socket.create_server((host, port), family=family):
        return True
    return False


def _load_bridge() -> None:
    """Import the bridge, and with it the SDK."""
    for name in ("bridge", "bridge_group"):
        import_module(f"meup_agent.mcp.{name}")
    end_loading()


@contextmanager
def loading() -> Generator[None]:
    """Collect no garbage until :func:`end_loading`, or to the end of the block at the latest.

    What is imported stays; looking through it again and again was a tenth of the time to the first
    tool.
    """
    gc.disable()
    try:
        yield
    finally:
        end_loading()


def end_loading() -> None:
    """Collect garbage again, though not of what has been loaded."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
