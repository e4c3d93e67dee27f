"""Tools whose names meet, or that a client forbids: each is listed under a legal name."""

import re
from typing import Any

from meup_agent import Agent, Request
from tests.mcp.conftest import ANYTHING, served, staged

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")

NAMES = [
    *("read", "read all", "read.all", "read/all", "öffnen!", "r\x1b[31med", "\u202eread", "-"),
    *("x" * 100 + end for end in "12"),
]
"""Of one participant; several are the same once a client's rules are applied to them."""


def echo(name: str) -> Agent:
    """An agent whose tools tell their own names, and whose they are."""
    agent = Agent(name)

    @agent.on_request("tools/list")
    async def tools(_: Request) -> dict[str, Any]:
        return {
            "tools": [
                {"name": each, "description": each, "inputSchema": {"type": "object"}}
                for each in NAMES
            ]
        }

    @agent.on_request("tools/call")
    async def call(request: Request) -> dict[str, Any]:
        return {"content": [], "structuredContent": {"it": [name, request.params["name"]]}}

    return agent


async def test_a_call_reaches_the_tool_that_was_listed() -> None:
    async with staged(left=ANYTHING, right=ANYTHING, alice=ANYTHING) as stage:
        for name in ("left", "right"):
            await stage.join(name, echo(name))
        async with served(stage, own="alice") as server, server.client() as client:
            listed = (await client.list_tools()).tools
            reached: list[tuple[str, ...]] = []
            for tool in listed:
                result = await client.call_tool(tool.name, {})
                assert result.structured_content is not None
                reached.append(tuple(result.structured_content["it"]))
                assert tool.description == reached[-1][1]
    names = [tool.name for tool in listed]
    assert len(set(names)) == len(names) == 2 * len(NAMES)
    assert all(LEGAL.match(name) for name in names)
    assert reached == [(owner, name) for owner in ("left", "right") for name in NAMES]
