"""An MCP server whose slow calls can be polled; it needs no space."""

import anyio
from mcp.client.client import Client
from mcp.server.mcpserver import MCPServer

from meup_agent.mcp import TasksClientExtension, TasksExtension

tasks = TasksExtension(poll_interval=0.2)
server = MCPServer("reports", lifespan=tasks.lifespan, extensions=[tasks])


@server.tool()
async def count(pages: int) -> int:
    """Count the words of some pages."""
    await anyio.sleep(pages / 10)
    return pages * 300


async def ask() -> None:
    async with Client(server, extensions=[TasksClientExtension()]) as client:
        result = await client.call_tool("count", {"pages": 5})
        print(result.structured_content)


if __name__ == "__main__":
    anyio.run(ask)
