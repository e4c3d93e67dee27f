"""What an older server over standard input and output asks and says without naming a call."""

import json
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import mcp_types as types
import pytest

from meup_agent import Agent, Proposal, Reason
from meup_agent.errors import ConfigurationError
from meup_agent.mcp import Bridge
from tests.mcp.bridge.stage import BRIDGE, LogLines, bridged, stdio
from tests.mcp.bridge.test_bad_input import do
from tests.mcp.conftest import served

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASK = json.dumps(
    {"method": "elicitation/create", "params": {"message": "Who are you?", "requestedSchema": NAME}}
)


@pytest.mark.parametrize(
    ("approves", "answer"),
    [(True, {"action": "accept", "content": {"name": "Ann"}}), (False, {"action": "decline"})],
)
async def test_person_fills_in_a_form_where_calls_of_several_run(
    approves: bool, answer: dict[str, Any]
) -> None:
    """The form is a proposal, whose approval with other arguments is the answer."""
    person = Agent("other")

    @person.on_proposal(method="elicitation/create")
    async def decide(proposal: Proposal) -> None:
        assert (proposal.proposer, proposal.arguments) == (BRIDGE, {"name": None})
        if not approves:
            await proposal.reject(Reason.DISAGREE)
        elif "problem" in proposal.envelope.payload_object["params"]:
            await proposal.fulfill({"name": "Ann"})
        else:
            await proposal.fulfill()  # and so leave it empty

    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        other = await stage.join("other", person)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(do, other, "wait")
            await anyio.lowlevel.checkpoint()
            assert await do(other, "x") == "done: x"  # so the other call has arrived
            assert json.loads(await do(stage.caller, ASK)) == answer
            tasks.cancel_scope.cancel()


async def test_client_is_asked_for_its_roots_and_told_logs_outside_its_calls() -> None:
    heard: list[types.LoggingMessageNotificationParams] = []
    told = anyio.Event()

    async def logged(params: types.LoggingMessageNotificationParams) -> None:
        heard.append(params)
        told.set()

    async def rooted(_: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///ann"})])

    async with (
        bridged(stdio("scripted", "2025-06-18")) as stage,
        served(stage, own="other") as server,
        server.client(mode="legacy", list_roots_callback=rooted, logging_callback=logged) as client,
    ):
        await client.call_tool(f"{BRIDGE}_do", {"way": "after"})
        await told.wait()
    (said,) = heard
    assert (said.level, said.logger) == ("warning", f"{BRIDGE}/roots")
    assert said.data == {"roots": [{"uri": "file:///ann"}]}


@pytest.mark.parametrize("given", [True, False])
async def test_server_that_starts_is_told_the_roots_that_were_given(
    given: bool, tmp_path: Path, log_lines: LogLines
) -> None:
    server = stdio("scripted", "2025-06-18", "asks")
    async with bridged(server, roots=[str(tmp_path), "file:///far"] if given else ()):
        line = await log_lines.wait_for("roots: ")
    roots = json.loads(line.partition("roots: ")[2])["roots"]
    uris = [tmp_path.as_uri(), "file:///far"] if given else []
    assert [each["uri"] for each in roots] == uris


def test_root_that_is_no_folder_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="there is no folder '/nowhere' to be a root"):
        Bridge("x", stdio("scripted", "2025-06-18"), roots=["/nowhere"])
