"""Calls a tool of the MCP server that the command line names: `mcp_client TOOL PROGRAM …`."""

import os
import sys

import anyio
from mcp import StdioServerParameters
from mcp.client import Client
from mcp.client.stdio import stdio_client


async def main(tool: str, program: str, *arguments: str) -> None:
    variables = {**os.environ, "OTEL_SERVICE_NAME": "door", "MEUP_TRACING": "1"}
    server = StdioServerParameters(command=program, args=list(arguments), env=variables)
    async with Client(stdio_client(server), mode="auto") as client:
        await client.list_tools()  # as hosts do; else the call looks for the tool first
        result = await client.call_tool(tool, {"text": "hello"})
        sys.stdout.write(f"{result.content[0].text}\n")  # type: ignore[union-attr] # it is a text


if __name__ == "__main__":
    tool, program, *arguments = sys.argv[1:]
    anyio.run(main, tool, program, *arguments)
