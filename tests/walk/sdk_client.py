"""An MCP client of the official SDK for Python: CONFIGURATION CALLS, a line of JSON a call."""

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client


async def main(entry: dict[str, Any], calls: str) -> None:
    if "url" in entry:
        async with httpx2.AsyncClient(headers=entry["headers"], timeout=None) as http:
            await use(Client(streamable_http_client(entry["url"], http_client=http)), calls)
    else:
        await use(Client(stdio_client(StdioServerParameters(**entry))), calls)


async def use(connecting: Any, calls: str) -> None:
    async with connecting as client:
        say([each.name for each in (await client.list_tools()).tools])
        for tool, arguments in json.loads(calls):
            result = await client.call_tool(tool, arguments)
            say([result.is_error, result.content[0].text])


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


anyio.run(main, json.loads(Path(sys.argv[1]).read_text())["mcpServers"]["meup"], sys.argv[2])
