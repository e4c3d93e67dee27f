"""An MCP server in a space, by a program in place of `meup bridge`."""

import sys
from pathlib import Path
from typing import Any

import anyio

from meup_agent import Agent
from meup_agent.gateway import Gateway
from meup_agent.mcp import Ask, Bridge, StdioServer

SERVER = StdioServer(
    sys.executable, (str(Path(__file__).parent / "mcp_tides.py"),)
)

PARTICIPANTS = {
    "tides": [{"kind": "mcp/response"}, {"kind": "chat"}],
    "skipper": [{"kind": "mcp/request"}],
}


async def answer(ask: Ask) -> dict[str, Any]:
    """Answer what the server asks, in place of the participant that called."""
    print(f"{ask.server} asks for {ask.participant}: {ask.params['message']}")
    return {"action": "accept", "content": {"name": "Whitby"}}


async def main() -> None:
    bridge = Bridge("tides", SERVER, on_ask=answer)
    async with (
        Gateway(participants=PARTICIPANTS) as gateway,
        bridge.join(gateway.url, space="demo", token=gateway.token("tides")),
        Agent("skipper").join(
            gateway.url, space="demo", token=gateway.token("skipper")
        ) as space,
    ):
        print([tool["name"] for tool in await space.offers.tools("tides")])
        (content,) = await space.call(
            "tides", "high_water", {"harbour": "Leith"}
        )
        print(content["text"])
        (content,) = await space.call("tides", "my_high_water", {})
        print(content["text"])


if __name__ == "__main__":
    anyio.run(main)
