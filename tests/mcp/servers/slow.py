"""An MCP server whose calls take until they are cancelled, and tell that they were.

It says on standard error what happens to a call; over HTTP a test asks it instead.
"""

import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer

from tests.mcp.servers.over_http import run

server = MCPServer("slow")

counts = {"running": 0, "ended": 0}

changed: list[anyio.Event] = []


def note(what: str, line: str) -> None:
    """Count what happened to a call, and say it."""
    counts[what] += 1
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    while changed:
        changed.pop().set()


async def until(what: str, count: int) -> int:
    """Wait until something has happened so often."""
    while counts[what] < count:
        changed.append(anyio.Event())
        await changed[-1].wait()
    return counts[what]


@server.tool()
async def wait(ctx: Context[Any, Any]) -> str:
    """Wait until it is cancelled."""
    await ctx.report_progress(1, 10, "begun")
    note("running", "wait began")
    try:
        await anyio.sleep_forever()
    finally:
        note("ended", "wait ended")
    return "never"


@server.tool()
async def running(count: int) -> int:
    """Wait until so many calls have begun to wait."""
    return await until("running", count)


@server.tool()
async def ended(count: int) -> int:
    """Wait until so many calls that waited have ended."""
    return await until("ended", count)


@server.tool()
def echo(text: str) -> str:
    """Give a text back."""
    return text


if __name__ == "__main__":
    run(server)
