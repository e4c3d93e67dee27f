"""Approvals of a space for the tools of a pydantic-ai agent."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from meup_agent import Agent, Request, Space
from meup_agent.adapters.approvals import APPROVED, SpaceApprovals
from meup_agent.errors import AlreadyDecided, RequestError
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, encode_json
from meup_agent.protocol.wire.payloads import JsonObject
from tests.adapters.test_contract import PARTICIPANTS, anyio_backend, notes, reviewer
from tests.interaction.people import InMemory, Notes, join, until
from tests.interaction.views import taped
from tests.patience import PATIENCE

__all__ = ["anyio_backend", "notes"]


MALLORY = [{"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read"}}}]
"""Capabilities of a participant that may have one tool called, and approve nothing else."""


@pytest.fixture
def meeting() -> InMemory:
    """The participants of the contract, without a network, and one that is not trusted."""
    return InMemory({**PARTICIPANTS, "mallory": MALLORY})


@asynccontextmanager
async def approved_agent(
    meeting: InMemory, notes: Notes, ttl: float = 60.0
) -> AsyncGenerator[tuple["ModelAgent[None, str]", Space, SpaceApprovals]]:
    """An agent whose model deletes the path of its prompt, with a tool that needs approval."""
    approvals = SpaceApprovals(ttl=ttl)
    participant = Agent("agent")
    participant.include(approvals)

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if returned:
            text = " | ".join(part.model_response_str() for part in returned)
            return ModelResponse(parts=[TextPart(text)])
        paths = (
            [str(messages[0].parts[0].content)] if hasattr(messages[0].parts[0], "content") else []
        )
        return ModelResponse(parts=[ToolCallPart("delete", {"path": path}) for path in paths])

    agent: ModelAgent[None, str] = ModelAgent(
        FunctionModel(respond), capabilities=[HandleDeferredToolCalls(approvals.handler)]
    )

    @agent.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        notes(path)
        return f"deleted {path}"

    with anyio.fail_after(PATIENCE):
        async with join(meeting, participant) as space:
            approvals.space = space
            yield agent, space, approvals


@asynccontextmanager
async def running(agent: "ModelAgent[None, str]", *paths: str) -> AsyncGenerator[list[str]]:
    """Runs that end with the block, and their outputs."""
    outputs: list[str] = []

    async def go(path: str) -> None:
        outputs.append((await agent.run(path)).output)

    async with anyio.create_task_group() as tasks:
        for each in paths:
            tasks.start_soon(go, each)
        yield outputs


async def test_an_approved_tool_runs_with_what_was_approved(
    meeting: InMemory, notes: Notes
) -> None:
    async with join(meeting, reviewer()), approved_agent(meeting, notes) as (agent, _, _):
        assert (await agent.run("a")).output == "deleted a"
        assert (await agent.run("edit")).output == "deleted edited"
    assert notes.all == ["a", "edited"]


@pytest.mark.parametrize(
    ("path", "ttl", "said"),
    [
        ("bad", 60.0, "rejected as unsafe by reviewer"),
        ("never", 0.2, "neither a refusal nor a permission"),
    ],
    ids=["rejection", "silence"],
)
async def test_what_is_not_approved_does_not_run(
    meeting: InMemory, notes: Notes, path: str, ttl: float, said: str
) -> None:
    async with join(meeting, reviewer()), approved_agent(meeting, notes, ttl) as (agent, _, _):
        assert said in (await agent.run(path)).output
    assert notes.all == []


async def test_nothing_runs_by_a_request_alone(meeting: InMemory, notes: Notes) -> None:
    async with approved_agent(meeting, notes), join(meeting, "trusted") as trusted:
        with pytest.raises(RequestError, match="fulfill one of its open proposals"):
            await trusted.call("agent", "delete", {"path": "a"})
    assert notes.all == []


async def test_an_approval_counts_once(meeting: InMemory, notes: Notes) -> None:
    async with approved_agent(meeting, notes) as (agent, _, _), join(meeting, "trusted") as trusted:
        async with running(agent, "a") as outputs:
            await until(lambda: bool(trusted.proposals))
            first = trusted.proposals[0]
            result = await trusted.proposals.get(first).fulfill()
            assert result.content[0]["text"] == APPROVED
        with pytest.raises(AlreadyDecided):
            await trusted.proposals.get(first).fulfill()
    assert outputs == ["deleted a"]
    assert notes.all == ["a"]


async def test_handler_without_a_space_denies(meeting: InMemory, notes: Notes) -> None:
    async with approved_agent(meeting, notes) as (agent, _, approvals):
        approvals.space = None
        assert "approvals.space is not set" in (await agent.run("a")).output
    assert notes.all == []


def planted(name: str, proposer: str) -> JsonObject:
    """The payload of a request that fulfills a proposal with other arguments."""
    params = {"name": name, "arguments": {"path": "planted"}}
    return payloads.request(
        "tools/call", {**params, "_meta": {payloads.PROPOSER: proposer}}, "planted"
    )


async def test_a_request_of_another_tool_approves_nothing(meeting: InMemory, notes: Notes) -> None:
    """A participant that may call `read` says that with it for a proposal to `delete`."""
    async with (
        approved_agent(meeting, notes) as (agent, _, _),
        join(meeting, "trusted") as trusted,
        join(meeting, "mallory") as mallory,
        taped(mallory) as tape,
    ):
        async with running(agent, "a") as outputs:
            await until(lambda: bool(trusted.proposals and mallory.proposals))
            [open_one] = mallory.proposals
            await mallory.send(
                kinds.MCP_REQUEST, planted("read", "agent"), to="agent", correlation=open_one.id
            )
            answer = await tape.until(lambda each: each.kind == kinds.MCP_RESPONSE)
            assert "fulfill one of its open proposals" in json.dumps(answer.payload_object)
            await trusted.proposals.get(trusted.proposals[0]).fulfill()
    assert outputs == ["deleted a"]
    assert notes.all == ["a"]


@pytest.mark.parametrize("proposer", ["agent", "mallory"])
async def test_the_arguments_of_the_one_that_fulfilled_count(
    meeting: InMemory, notes: Notes, proposer: str
) -> None:
    """A request that came first, and was not what carried the proposal out, plants nothing."""
    async with (
        approved_agent(meeting, notes) as (agent, _, approvals),
        join(meeting, "trusted") as trusted,
    ):
        async with running(agent, "a") as outputs:
            await until(lambda: bool(trusted.proposals))
            [open_one] = trusted.proposals
            payload = planted("delete", proposer)
            first = Envelope(
                id="first",
                sender="mallory",
                kind=kinds.MCP_REQUEST,
                to=("agent",),
                correlation=(open_one.id,),
                raw_payload=encode_json(payload),
            )
            # As a gateway that lets it through would have it handled.
            with suppress(RequestError):
                await approvals.approve(Request(first, payloads.read_call(payload)))
            await trusted.proposals.get(open_one).fulfill()
    assert outputs == ["deleted a"]
    assert notes.all == ["a"]


async def test_parallel_calls_are_approved_each_with_its_own_arguments(
    meeting: InMemory, notes: Notes
) -> None:
    async with approved_agent(meeting, notes) as (agent, _, _), join(meeting, "trusted") as trusted:
        async with running(agent, "a", "b", "c") as outputs:
            await until(lambda: len(trusted.proposals) == 3)
            for each in trusted.proposals:
                proposal = trusted.proposals.get(each)
                if proposal.arguments["path"] == "b":
                    await proposal.reject("unsafe")
                elif proposal.arguments["path"] == "c":
                    await proposal.fulfill({"path": "other"})
                else:
                    await proposal.fulfill()
    assert sorted(notes.all) == ["a", "other"]
    assert len(outputs) == 3
    assert "rejected as unsafe by trusted" in " ".join(outputs)
