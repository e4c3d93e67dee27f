"""FastMCP's client: CONFIGURATION CALLS, a line of JSON a call."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from fastmcp import Client


async def main(configuration: dict[str, Any], calls: str) -> None:
    async with Client(configuration) as client:
        say([each.name for each in await client.list_tools()])
        for tool, arguments in json.loads(calls):
            result = await client.call_tool(tool, arguments, raise_on_error=False)
            say([result.is_error, result.content[0].text])


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")


asyncio.run(main(json.loads(Path(sys.argv[1]).read_text()), sys.argv[2]))
