"""An MCP server whose calls take until they are cancelled, and tell that they were.

It says on standard error what happens to a call, so that a test can wait for it.
"""

import sys
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("slow")


def say(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@server.tool()
async def wait(ctx: Context[Any, Any]) -> str:
    """Wait until it is cancelled."""
    say("wait began")
    try:
        await ctx.report_progress(1, 10, "begun")
        await anyio.sleep_forever()
    finally:
        say("wait ended")
    return "never"


@server.tool()
def echo(text: str) -> str:
    """Give a text back."""
    return text


if __name__ == "__main__":
    server.run("stdio")
