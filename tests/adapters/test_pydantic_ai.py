"""Approvals of a space for the tools of a pydantic-ai agent."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import pytest
from pydantic_ai import Agent as ModelAgent
from pydantic_ai.capabilities import HandleDeferredToolCalls
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
)
from pydantic_ai.models.function import AgentInfo, FunctionModel

from meup_agent import Agent, Space
from meup_agent.adapters.approvals import APPROVED, SpaceApprovals
from meup_agent.errors import AlreadyDecided, RequestError
from meup_agent.testing.memory import MemorySpace
from tests.adapters.test_contract import (
    PARTICIPANTS,
    anyio_backend,
    notes,
    reviewer,
)
from tests.interaction.people import LIMITS, PATIENCE, Notes, join, until

__all__ = ["anyio_backend", "notes"]

pytestmark = pytest.mark.anyio


class InMemory:
    """The participants of the contract, without a network."""

    def __init__(self) -> None:
        space = MemorySpace(participants=PARTICIPANTS, limits=LIMITS)
        self.token, self.connector, self.drop = space.token, space.connector, space.drop
        self.kill, self.restart = space.kill, space.restart


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


async def test_an_approved_tool_runs_with_what_was_approved(notes: Notes) -> None:
    meeting = InMemory()
    async with join(meeting, reviewer()), approved_agent(meeting, notes) as (agent, _, _):
        assert (await agent.run("a")).output == "deleted a"
        assert (await agent.run("edit")).output == "deleted edited"
    assert notes.all == ["a", "edited"]


async def test_a_rejected_tool_does_not_run(notes: Notes) -> None:
    meeting = InMemory()
    async with join(meeting, reviewer()), approved_agent(meeting, notes) as (agent, _, _):
        assert "rejected as unsafe by reviewer" in (await agent.run("bad")).output
    assert notes.all == []


async def test_silence_is_no_approval(notes: Notes) -> None:
    meeting = InMemory()
    async with (
        join(meeting, reviewer()),
        approved_agent(meeting, notes, ttl=0.2) as (agent, _, _),
    ):
        assert "neither a refusal nor a permission" in (await agent.run("never")).output
    assert notes.all == []


async def test_nothing_runs_by_a_request_alone(notes: Notes) -> None:
    meeting = InMemory()
    async with approved_agent(meeting, notes), join(meeting, "trusted") as trusted:
        with pytest.raises(RequestError, match="fulfill one of its open proposals"):
            await trusted.call("agent", "delete", {"path": "a"})
    assert notes.all == []


async def test_an_approval_counts_once(notes: Notes) -> None:
    meeting = InMemory()
    async with (
        approved_agent(meeting, notes) as (agent, _, _),
        join(meeting, "trusted") as trusted,
    ):
        outputs: list[str] = []

        async def go() -> None:
            outputs.append((await agent.run("a")).output)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(go)
            await until(lambda: bool(trusted.proposals))
            first = trusted.proposals[0]
            result = await trusted.proposal(first).fulfill()
            assert result.content[0]["text"] == APPROVED
        with pytest.raises(AlreadyDecided):
            await trusted.proposal(first).fulfill()
    assert outputs == ["deleted a"]
    assert notes.all == ["a"]


async def test_handler_without_a_space_denies(notes: Notes) -> None:
    meeting = InMemory()
    async with approved_agent(meeting, notes) as (agent, _, approvals):
        approvals.space = None
        assert "approvals.space is not set" in (await agent.run("a")).output
    assert notes.all == []
