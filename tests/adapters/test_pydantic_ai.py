"""Approvals of a space for the tools of a pydantic-ai agent."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from meup_agent.adapters.approvals import Door, approve_calls
from meup_agent.errors import AlreadyDecided
from meup_agent.protocol.wire import payloads
from tests.adapters.test_contract import PARTICIPANTS, anyio_backend, notes, reviewer
from tests.interaction.people import InMemory, Notes, join, until
from tests.patience import PATIENCE

__all__ = ["anyio_backend", "notes"]


@pytest.fixture
def meeting() -> InMemory:
    """The participants of the contract, without a network."""
    return InMemory(PARTICIPANTS)


@asynccontextmanager
async def approved_agent(
    meeting: InMemory, notes: Notes, ttl: float = 60.0
) -> AsyncGenerator["ModelAgent[None, str]"]:
    """An agent whose model deletes the path of its prompt, with a tool that needs approval."""

    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        returned = [p for m in messages for p in m.parts if isinstance(p, ToolReturnPart)]
        if returned:
            text = " | ".join(part.model_response_str() for part in returned)
            return ModelResponse(parts=[TextPart(text)])
        [path] = [str(each.content) for each in messages[0].parts if hasattr(each, "content")]
        # Each run's call has the same id, as some models give them.
        return ModelResponse(parts=[ToolCallPart("delete", {"path": path}, "call-1")])

    with anyio.fail_after(PATIENCE):
        async with Door().join(meeting.connector("agent"), token=meeting.token("agent")) as door:
            handler = approve_calls(door, ttl=ttl)
            agent: ModelAgent[None, str] = ModelAgent(
                FunctionModel(respond), capabilities=[HandleDeferredToolCalls(handler)]
            )

            @agent.tool_plain(requires_approval=True)
            def delete(path: str) -> str:
                notes(path)
                return f"deleted {path}"

            yield agent


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
    async with join(meeting, reviewer()), approved_agent(meeting, notes) as agent:
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
    async with join(meeting, reviewer()), approved_agent(meeting, notes, ttl) as agent:
        assert said in (await agent.run(path)).output
    assert notes.all == []


async def test_an_approval_counts_once_and_for_one_run(meeting: InMemory, notes: Notes) -> None:
    async with approved_agent(meeting, notes) as agent, join(meeting, "trusted") as trusted:
        for _ in range(2):
            async with running(agent, "a") as outputs:
                await until(lambda: any(each.state.is_pending for each in trusted.proposals))
                asked = trusted.proposals[-1]
                await trusted.proposals.get(asked).fulfill()
            assert outputs == ["deleted a"]
            with pytest.raises(AlreadyDecided):
                await trusted.proposals.get(asked).fulfill()
        labels = payloads.meta_of(asked.envelope.payload)[payloads.DOOR]
    assert labels == {"agent": "pydantic-ai"}
    assert notes.all == ["a", "a"]


async def test_a_run_that_is_cancelled_withdraws(meeting: InMemory, notes: Notes) -> None:
    async with approved_agent(meeting, notes) as agent, join(meeting, "trusted") as trusted:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.run, "a")
            await until(lambda: len(trusted.proposals) == 1)
            tasks.cancel_scope.cancel()
        await until(lambda: trusted.proposals[0].state == "withdrawn")
    assert notes.all == []


async def test_parallel_calls_are_approved_each_with_its_own_arguments(
    meeting: InMemory, notes: Notes
) -> None:
    async with approved_agent(meeting, notes) as agent, join(meeting, "trusted") as trusted:
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
