"""An MCP server whose tools tell with which arguments they run, their schemas' defaults included.

Its one argument is the list of their schemas, as JSON; the tools are t0, t1 and so on.
"""

import json
import sys
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from tests.tool_schemas import EndlessDefaults, fill_as_server

TOOLS = {f"t{number}": each for number, each in enumerate(json.loads(sys.argv[1]))}


async def list_tools(*_: Any) -> types.ListToolsResult:
    """The tools."""
    return types.ListToolsResult(
        tools=[types.Tool(name=name, input_schema=each) for name, each in TOOLS.items()]
    )


async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    """Tell the arguments with which the tool runs."""
    try:
        said = json.dumps(fill_as_server(TOOLS[params.name], params.arguments or {}))
    except EndlessDefaults:
        said = "{}"  # it runs with none
    return types.CallToolResult(content=[types.TextContent(type="text", text=said)])


async def main() -> None:
    """Serve over standard input and output."""
    server: Server[Any] = Server("defaults", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


anyio.run(main)
