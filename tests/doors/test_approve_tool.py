"""The tool `approve` of `meup mcp`, asked as Claude Code asks its permission tool."""

import json
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from meup_agent import Agent, Proposal
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.interaction.people import PROPOSALS, files, until
from tests.mcp.conftest import ANYTHING, refusal, staged
from tests.mcp.server.test_mcp_command import command, variables, wire
from tests.mcp.server.test_tool_calls import text
from tests.wire import payloads

pytestmark = pytest.mark.anyio

SESSION = {"CLAUDE_CODE_SESSION_ID": "session-1"}


def asked(command: str = "ls", call_id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"tool_name": "Bash", "input": {"command": command}, "tool_use_id": call_id, **more}


async def test_a_call_runs_as_it_was_fulfilled_and_a_no_says_why() -> None:
    person = Agent("ann")

    @person.on_proposal(tool="*")
    async def decide(proposal: Proposal) -> None:
        if proposal.arguments["command"] == "ls":
            await proposal.fulfill({"command": "ls -l"})
        else:
            await proposal.reject("unsafe", explain="not on Fridays")

    async with staged(person, files(), coder=ANYTHING) as stage:
        env = {**variables(stage, "coder"), **SESSION}
        async with Client(
            stdio_client(command("--approve-tool", "--to", "ann", env=env))
        ) as client:
            names = [each.name for each in (await client.list_tools()).tools]
            yes = json.loads(text(await client.call_tool("approve", asked())))
            again = json.loads(text(await client.call_tool("approve", asked())))
            no = json.loads(text(await client.call_tool("approve", asked("rm", "toolu_2"))))
            unread = json.loads(text(await client.call_tool("approve", asked(input="ls"))))
        proposals = stage.spaces["ann"].proposals
        labels = payloads.meta_of(proposals[0].envelope.payload)["dev.meup/door"]
    assert names == ["approve", "files_add"]
    assert yes == again == {"behavior": "allow", "updatedInput": {"command": "ls -l"}}
    assert no["behavior"] == unread["behavior"] == "deny"
    assert "not on Fridays" in no["message"]
    assert "'input'" in unread["message"]
    assert len(proposals) == 2
    assert (labels["agent"], labels["session"]) == ("claude-code", "session-1")


@pytest.mark.parametrize("how", ["cancelled", "closed"])
async def test_a_call_that_its_client_gives_up_is_withdrawn(how: str) -> None:
    async with (
        staged(Agent("ann"), coder=PROPOSALS) as stage,
        wire("--approve-tool", env=variables(stage, "coder")) as (process, lines),
    ):
        proposals = stage.spaces["ann"].proposals
        await lines.call("approve", asked())
        await until(lambda: len(proposals) == 1)
        if how == "cancelled":
            params = {"requestId": 1, "reason": "interrupted"}
            await lines.send(method="notifications/cancelled", params=params)
        else:
            assert process.stdin is not None
            await process.stdin.aclose()
        await until(lambda: proposals[0].state == "withdrawn")


async def test_more_than_so_many_calls_at_once_are_denied() -> None:
    async with (
        staged(Agent("ann"), coder=PROPOSALS) as stage,
        Client(stdio_client(command("--approve-tool", env=variables(stage, "coder")))) as client,
        anyio.create_task_group() as tasks,
    ):
        for number in range(64):
            tasks.start_soon(client.call_tool, "approve", asked(call_id=f"toolu_{number}"))
        await until(lambda: len(stage.spaces["ann"].proposals) == 64)
        said = json.loads(text(await client.call_tool("approve", asked(call_id="one-more"))))
        tasks.cancel_scope.cancel()
    assert said["behavior"] == "deny"
    assert "64 calls" in said["message"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--approve-tool", "--http", "127.0.0.1:0"), "--approve-tool is for the Claude Code"),
        (("tests/mcp/server/echo_agent.py:agent", "--approve-tool"), "--approve-tool asks a space"),
        (("--approve-tool",), "MEUP_TOKEN"),
    ],
)
def test_where_it_is_not_offered(arguments: tuple[str, ...], said: str) -> None:
    lacks = ("MEUP_TOKEN",) if "MEUP_TOKEN" in said else ()
    assert said in refusal("mcp", *arguments, lacks=lacks)
