"""The whole chain: MCP client, `meup mcp`, a gateway, `meup bridge`, MCP server."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import mcp_types as types
import pytest
from mcp.client import Client, ClientRequestContext
from mcp.client.stdio import stdio_client

from meup_agent import Agent, Proposal
from tests.forkserver import launched
from tests.mcp.conftest import ANYTHING, PROPOSES, staged
from tests.mcp.server.test_mcp_command import command, variables
from tests.mcp.server.test_tool_calls import MODES, text
from tests.programs import ROOT, Program, program

BRIDGED = [{"kind": "mcp/request"}, {"kind": "mcp/response"}, {"kind": "chat"}]
"""Capabilities of a bridge: answer, ask back, and tell what happens."""


def editor() -> Agent:
    """A reviewer that fulfills every proposal, and changes each text."""
    agent = Agent("reviewer")

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        text = proposal.arguments.get("text")
        await proposal.fulfill({"text": f"{text}, edited"} if text else None)

    return agent


@asynccontextmanager
async def chain(
    participant: str, mode: str, folder: Path
) -> AsyncGenerator[tuple[Client, Program]]:
    """A client of a space, in which two MCP servers are participants."""
    names = ("slow", "offers")
    commands = {name: launched("-W", "ignore", "-m", f"tests.mcp.servers.{name}") for name in names}
    servers = {
        name: {"command": program, "args": arguments, "env": {"PYTHONPATH": str(ROOT)}}
        for name, (program, *arguments) in commands.items()
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": servers}), "utf-8")
    async with staged(
        slow=BRIDGED, offers=BRIDGED, alice=ANYTHING, bob=PROPOSES, reviewer=ANYTHING
    ) as stage:
        watcher = await stage.join("reviewer", editor())
        tokens = {f"MEUP_TOKEN_{name.upper()}": stage.token(name) for name in names}
        arguments = ["-m", "meup_agent.cli", "bridge", "--servers", str(path)]
        where = {"MEUP_URL": stage.gateway.url, "MEUP_SPACE": "demo"}
        with program(arguments, {**where, **tokens}) as bridge:
            for name in names:
                await watcher.present(name)
            server = stdio_client(command(env=variables(stage, participant)))
            async with Client(server, mode=mode, elicitation_callback=elicited) as client:
                yield client, bridge


async def elicited(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult:
    assert params.message == "Your name?"
    return types.ElicitResult(action="accept", content={"name": "Ann"})


async def check_progress_and_cancel(client: Client, bridge: Program) -> None:
    """Progress comes up, and a cancel goes down to the handler in the server."""
    begun = anyio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        if message == "begun":
            begun.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: client.call_tool("slow_wait", {}, progress_callback=note))
        await begun.wait()
        tasks.cancel_scope.cancel()
    await anyio.to_thread.run_sync(bridge.wait_for, "slow: wait ended")


@pytest.mark.parametrize("mode", MODES)
async def test_calls_that_are_allowed(mode: str, tmp_path: Path) -> None:
    async with chain("alice", mode, tmp_path) as (client, bridge):
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"slow_wait", "slow_echo", "offers_greet"} <= names
        assert text(await client.call_tool("slow_echo", {"text": "hello"})) == "hello"
        # The server asks during the call, and the person at the client answers.
        assert text(await client.call_tool("offers_greet", {})) == "hello Ann"
        assert [str(each.uri) for each in (await client.list_resources()).resources] == [
            "note://first"
        ]
        await check_progress_and_cancel(client, bridge)
        bridge.wait_for("slow: wait for 'alice'")


@pytest.mark.thorough
@pytest.mark.parametrize("mode", MODES)
async def test_calls_that_a_reviewer_edits(mode: str, tmp_path: Path) -> None:
    async with chain("bob", mode, tmp_path) as (client, bridge):
        said = text(await client.call_tool("slow_echo", {"text": "hello"}))
        assert said.startswith("hello, edited")
        assert "reviewer" in said  # a note says who changed what
        assert text(await client.call_tool("offers_greet", {})) == "hello Ann"
        await check_progress_and_cancel(client, bridge)
        bridge.wait_for("slow: wait for 'reviewer'")
