"""An MCP server, made with the official SDK, whose tool tells what it was called with, as JSON."""

import json
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

SCHEMA = {"type": "object"}


async def list_tools(*_: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[types.Tool(name="echo", input_schema=SCHEMA)])


async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Tell the name and the arguments, as the SDK read them."""
    said = json.dumps({"name": params.name, "arguments": params.arguments})
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])


async def main() -> None:
    server: Server[Any] = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
