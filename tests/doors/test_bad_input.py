"""Doors whose space cannot be asked, or decides by rules that broke: nothing runs, and all is said.

The hooks have tests of their own; `can_use_tool` and `approve_calls` hand on the words of `Door`.
"""

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp.client.stdio import stdio_client

from meup_agent import Agent
from meup_agent.approval import Reviewer
from meup_agent.cli.up.endpoints import LateApp
from meup_agent.doors.permit import Denied, Door, HostCall, Why
from meup_agent.gateway.auth import new_token
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.doors.test_acp import CANCELLED, desk, permission, terminal
from tests.doors.test_approve_tool import asked
from tests.interaction.people import EVERYTHING, PROPOSALS, InMemory, join, until
from tests.mcp.conftest import staged
from tests.mcp.server.test_mcp_command import command, variables, wire
from tests.mcp.server.test_tool_calls import text
from tests.patience import PATIENCE

pytestmark = pytest.mark.anyio

NO_OTHER_WAY = "do not try to do the same by another way"


async def test_a_token_that_may_not_propose_is_denied_by_the_tool() -> None:
    async with (
        staged(Agent("ann"), coder=[]) as stage,
        Client(stdio_client(command("--approve-tool", env=variables(stage, "coder")))) as client,
    ):
        said = json.loads(text(await client.call_tool("approve", asked())))
        assert len(stage.spaces["ann"].proposals) == 0
    assert said["behavior"] == "deny"
    assert "none of your capabilities allows" in said["message"]
    assert NO_OTHER_WAY in said["message"]


@pytest.mark.thorough
async def test_a_token_that_may_not_propose_is_denied_to_an_editors_agent() -> None:
    async with desk(coder=[]) as at:
        permitted, made = await at.prompt(permission(), terminal())
        assert at.editor.did == []
        assert len(at.person.proposals) == 0
    assert permitted["outcome"] == CANCELLED
    assert made["error"] == -32800
    assert "none of your capabilities allows" in made["text"]
    assert NO_OTHER_WAY in made["text"]


async def test_a_door_tells_people_why_it_could_not_propose(
    caplog: pytest.LogCaptureFixture,
) -> None:
    meeting = InMemory({"coder": [], "ann": EVERYTHING})
    async with Door().join(meeting.connector("coder"), token=meeting.token("coder")) as door:
        with caplog.at_level(logging.WARNING, "meup_agent.doors"):
            answer = await door.ask(HostCall("Bash", {"command": "ls"}, "claude-agent-sdk"))
    assert isinstance(answer, Denied)
    assert answer.why is Why.UNREACHABLE
    [line] = caplog.messages
    assert line.startswith("a call of claude-agent-sdk was denied: ")
    assert "none of your capabilities allows" in line


async def test_the_tool_is_not_there_with_the_token_of_another_gateway() -> None:
    async with (
        staged(Agent("ann"), coder=PROPOSALS) as one,
        staged(Agent("ann"), coder=PROPOSALS) as other,
    ):
        env = {**variables(one, "coder"), "MEUP_URL": other.gateway.url}
        async with wire("--approve-tool", env=env) as (process, _):
            await process.wait()
            assert process.returncode != 0
        assert [len(each.spaces["ann"].proposals) for each in (one, other)] == [0, 0]


@pytest.mark.thorough
async def test_an_editors_agent_is_not_started_with_the_token_of_another_gateway() -> None:
    with pytest.raises(ConnectionError):
        async with desk(token=new_token()):
            pytest.fail("its proxy should have ended")


@pytest.mark.parametrize("broken", ["rules: [", "rules: []\nend: true\n"])
async def test_a_call_waits_on_while_the_policy_is_broken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("rules: [{ask: {tool: Bash}}]\nend: true\n")
    meeting = InMemory({"coder": PROPOSALS, "ann": EVERYTHING, "reviewer": EVERYTHING})
    reviewer, answers = Reviewer(policy), list[Any]()
    with anyio.fail_after(PATIENCE):
        async with (
            reviewer.join(meeting.connector("reviewer"), token=meeting.token("reviewer")),
            join(meeting, "ann") as person,
            Door().join(meeting.connector("coder"), token=meeting.token("coder")) as door,
            anyio.create_task_group() as tasks,
        ):

            async def ask(number: int) -> None:
                call = HostCall("Bash", {"command": f"ls {number}"}, "claude-code")
                answers.append(await door.ask(call))

            tasks.start_soon(ask, 1)
            await until(lambda: len(person.proposals) == 1)
            policy.write_text(broken)
            await until(lambda: "the policy before it stays" in caplog.text)
            tasks.start_soon(ask, 2)
            await until(lambda: len(person.proposals) == 2)
            assert [each.state for each in person.proposals] == ["pending", "pending"]
            assert answers == []
            tasks.cancel_scope.cancel()


async def test_no_request_waits_for_an_application_that_could_not_begin() -> None:
    late, said = LateApp(), list[Any]()

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        await anyio.sleep_forever()

    async def request() -> None:
        await late({"type": "http"}, receive, send)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request)
            await anyio.wait_all_tasks_blocked()
            assert said == []
            with suppress(RuntimeError), late.loading():
                raise RuntimeError
    assert said[0]["status"] == 503
