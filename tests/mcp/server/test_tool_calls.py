"""Calls of tools, from an MCP client through a space."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp_types import TextContent

from meup_agent import Agent, Proposal, Reason, Request
from tests.interaction.people import files
from tests.mcp.client import client_beside
from tests.mcp.conftest import ANYTHING, PROPOSES, ServedSpace, Stage, served, staged
from tests.patience import PATIENCE

MODES = ["legacy", "auto"]
"""Revisions of the SDK's client: by handshake, and 2026-07-28."""


def reviewer(*, reject: Reason | None = None, explain: str | None = None) -> Agent:
    """An agent that decides each proposal."""
    agent = Agent("reviewer")

    @agent.on_proposal
    async def decide(proposal: Proposal) -> None:
        if reject is None:
            await proposal.fulfill()
        else:
            await proposal.reject(reject, explain=explain)

    return agent


@asynccontextmanager
async def space_with(*deciding: Agent) -> AsyncGenerator[tuple[Stage, ServedSpace]]:
    """A space with tools, and clients that must propose calls of them."""
    async with staged(files(), alice=PROPOSES, reviewer=ANYTHING, bob=ANYTHING) as stage:
        for agent in deciding:
            await stage.join("reviewer", agent)
        async with served(stage, own="alice") as server:
            yield stage, server


def text(result: Any) -> str:
    return "\n".join(each.text for each in result.content if isinstance(each, TextContent))


@pytest.mark.parametrize("mode", MODES)
async def test_a_call_that_is_not_allowed_becomes_a_proposal(mode: str) -> None:
    noted: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        noted.append(message)

    async with space_with(reviewer()) as (_, server), server.client(mode=mode) as client:
        result = await client.call_tool("files_add", {"a": 1, "b": 2}, progress_callback=note)
    assert (result.is_error, result.structured_content) == (False, {"result": 3})
    assert noted[0] == "waiting for a decision by files or reviewer, 30 s left"


@pytest.mark.parametrize("mode", MODES)
async def test_a_rejection_is_an_error_in_words(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.mcp.sdk.decisions.EXPLANATION_SECONDS", PATIENCE)
    unsafe = reviewer(reject=Reason.UNSAFE, explain="It writes\noutside the folder.")
    async with space_with(unsafe) as (_, server), server.client(mode=mode) as client:
        result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert result.is_error
    assert text(result) == (
        'The call of files_add was rejected as unsafe by reviewer: "It writes outside the folder.".'
        " It was not carried out. Do not retry the same call, nor try to do the same by another"
        " way; change what was objected to, or ask the user how to go on."
    )


@pytest.mark.parametrize("ttl", [0.2, "space"])
async def test_an_expiry_says_that_no_participant_decided(
    ttl: float | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call waits as long as it says, or as the space does."""
    monkeypatch.setenv("MEUP_TTL", "0.2" if ttl == "space" else "60")
    async with client_beside(files(), may=PROPOSES, ttl=ttl) as client:
        result = await client.call_tool("files_add", {"a": 1, "b": 2})
    assert result.is_error
    assert text(result).startswith(
        "No participant decided on the call of files_add within 200 ms, so it was not carried out."
    )
    assert "do not try to do the same by another way" in text(result)


async def test_many_clients_call_at_once() -> None:
    async with space_with() as (stage, server):
        results: list[Any] = []

        async def call(number: int) -> None:
            async with server.client(stage.token("bob")) as client:
                results.append(await client.call_tool("files_add", {"a": number, "b": 0}))

        async with anyio.create_task_group() as tasks:
            for number in range(10):
                tasks.start_soon(call, number)
    assert sorted(each.structured_content["result"] for each in results) == list(range(10))


async def test_headers_that_repeat_arguments_must_agree_with_them() -> None:
    agent = Agent("files")

    @agent.on_request("tools/list")
    async def list_tools() -> dict[str, Any]:
        region = {"type": "string", "x-mcp-header": "Region"}
        schema = {"type": "object", "properties": {"region": region}}
        return {"tools": [{"name": "put", "inputSchema": schema}]}

    @agent.on_request("tools/call")
    async def put(request: Request) -> dict[str, Any]:
        region = request.params["arguments"]["region"]
        return {"content": [{"type": "text", "text": region}]}

    new = "2026-07-28"
    envelope = {
        "io.modelcontextprotocol/protocolVersion": new,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": "files_put", "arguments": {"region": "north"}, "_meta": envelope}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": new,
        "mcp-method": "tools/call",
        "mcp-name": "files_put",
    }
    async with staged(agent, bob=ANYTHING) as stage:
        async with served(stage, own="bob") as server, server.http() as http:
            # The first call: no client has asked for the list before.
            sent = {**headers, "mcp-param-region": "south"}
            refused = await http.post(server.url, json=message, headers=sent)
            sent = {**headers, "mcp-param-region": "north"}
            taken = await http.post(server.url, json=message, headers=sent)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)
    assert taken.json()["result"]["content"][0]["text"] == "north"
