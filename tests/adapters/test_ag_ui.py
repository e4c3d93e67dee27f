"""Approvals of a space as interrupts of AG-UI runs, in the types of its own package."""

import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from ag_ui.core import (
    CustomEvent,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    ToolCallResultEvent,
)

from examples.calculator import agent as calculator
from meup_agent import Agent, Proposal, Space
from meup_agent.adapters.ag_ui import DIGEST, REFUSED, SpaceInterrupts
from meup_agent.client import proposal_feed
from meup_agent.gateway.config import ROLES
from meup_agent.gateway.server import ThreadedGateway
from meup_agent.protocol.wire import payloads
from tests.adapters.test_contract import anyio_backend, writer
from tests.adapters.test_programs import EXAMPLES, environment, gateway
from tests.interaction.people import EVERYTHING, InMemory, Meeting, Notes, OverSockets, join, until
from tests.patience import PATIENCE

__all__ = ["anyio_backend", "gateway"]

PARTICIPANTS = {
    "agent": [*ROLES["proposer"]],
    "other": [*ROLES["proposer"]],
    "reviewer": EVERYTHING,
    "tools": EVERYTHING,
}
ARGUMENTS = {"path": "a"}


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposal_feed, "PAUSE_SECONDS", 0.001)


def run_input(*resume: ResumeEntry, thread: str = "thread", run: str = "run") -> RunAgentInput:
    return RunAgentInput(thread_id=thread, run_id=run, messages=[], resume=list(resume) or None)


def entry(interrupt: Interrupt, status: Any = "resolved", **metadata: Any) -> ResumeEntry:
    payload = {"approved": True} if status == "resolved" else None
    return ResumeEntry(
        interrupt_id=interrupt.id, status=status, payload=payload, metadata=metadata or None
    )


async def call(space: Space, thread: str = "thread", within: float = 0.0) -> Any:
    interrupts = SpaceInterrupts(space, within=within)
    [tool] = await interrupts.tools.read()
    return await interrupts.call(run_input(thread=thread), tool, ARGUMENTS, "call-1")


async def interrupted(space: Space, thread: str = "thread") -> Interrupt:
    told = await call(space, thread)
    assert isinstance(told, Interrupt)
    return told


@asynccontextmanager
async def meeting_with(
    notes: Notes, reviewer: Agent | None = None
) -> AsyncGenerator[tuple[Meeting, Space, Space]]:
    """The meeting, and the space as the agent and as a person who decides see it."""
    meeting = InMemory(PARTICIPANTS)
    tools = writer(notes)
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, tools),
            join(meeting, reviewer or Agent("reviewer")) as person,
            join(meeting, "agent") as space,
        ):
            yield meeting, space, person


async def resumed(space: Space, run: RunAgentInput, within: float = PATIENCE) -> list[Any]:
    return [*await SpaceInterrupts(space, within=within).resume(run)]


async def decide(person: Space, interrupt: Interrupt) -> Any:
    await until(lambda: any(each.id == interrupt.id for each in person.proposals))
    return person.proposals.get(interrupt.id)


async def test_a_run_ends_with_the_open_proposal() -> None:
    async with meeting_with(Notes()) as (_, space, person):
        waiting = await interrupted(space)
        [proposed] = [each async for each in person.proposals.list()]
        assert waiting.id == proposed.id
        assert waiting.tool_call_id == "call-1"
        assert "tools_write" in (waiting.message or "")
        assert waiting.metadata == {
            DIGEST: payloads.digest(
                payloads.TOOL_CALL, {"name": "write", "arguments": ARGUMENTS}, "tools"
            )
        }
        finished = SpaceInterrupts(space).finish(run_input(), [waiting])
        read = RunFinishedEvent.model_validate_json(finished.model_dump_json(by_alias=True))
        assert isinstance(read.outcome, RunFinishedInterruptOutcome)
        assert [each.id for each in read.outcome.interrupts] == [waiting.id]


async def test_a_decision_within_the_wait_is_the_result() -> None:
    deciding = Agent("reviewer")

    @deciding.on_proposal
    async def approve(proposal: Proposal) -> None:
        await proposal.fulfill()

    async with meeting_with(Notes(), deciding) as (_, space, _):
        told = await call(space, within=PATIENCE)
    assert isinstance(told, ToolCallResultEvent)
    assert (told.tool_call_id, told.content) == ("call-1", "wrote a")


@pytest.mark.parametrize("process", ["the same", "another"])
async def test_a_resume_is_answered_with_the_result(process: str) -> None:
    notes = Notes()
    async with meeting_with(notes) as (meeting, space, person):
        waiting = await interrupted(space)
        run = run_input(entry(waiting, **waiting.metadata or {}), run="run-2")
        await (await decide(person, waiting)).fulfill()
        if process == "the same":
            [told] = await resumed(space, run)
        else:
            async with join(meeting, "agent", beside=True) as later:
                [told] = await resumed(later, run)
        assert isinstance(told, ToolCallResultEvent)
        assert (told.tool_call_id, told.content) == ("call-1", "wrote a")
        assert SpaceInterrupts(space).finish(run, [told]).outcome is None
    assert notes.all == ["a"]


async def test_a_resume_is_told_of_a_rejection() -> None:
    notes = Notes()
    async with meeting_with(notes) as (_, space, person):
        waiting = await interrupted(space)
        await (await decide(person, waiting)).reject("unsafe")
        [told] = await resumed(space, run_input(entry(waiting)))
        assert "rejected as unsafe by reviewer" in told.content
        assert not [each async for each in space.proposals.list()]
    assert notes.all == []


async def test_a_resume_approves_nothing_and_waits_on() -> None:
    notes = Notes()
    async with meeting_with(notes) as (_, space, _):
        waiting = await interrupted(space)
        assert await resumed(space, run_input(entry(waiting)), 0.0) == [waiting]
        # And so does a run of the thread that says nothing of it.
        assert await resumed(space, run_input(), 0.0) == [waiting]
    assert notes.all == []


async def test_a_cancelled_resume_withdraws() -> None:
    notes = Notes()
    async with meeting_with(notes) as (_, space, _):
        waiting = await interrupted(space)
        [told] = await resumed(space, run_input(entry(waiting, "cancelled")))
        assert "was withdrawn" in told.content
        assert not [each async for each in space.proposals.list()]
    assert notes.all == []


async def test_what_a_resume_may_not_name_is_refused() -> None:
    async with meeting_with(Notes()) as (meeting, space, person):
        waiting = await interrupted(space)
        async with join(meeting, "other") as other:
            [proposal] = [each async for each in person.proposals.list()]
            theirs = await interrupted(other)
            for run, of, left in (
                (run_input(entry(waiting, "cancelled", **{DIGEST: "0" * 64})), space, [waiting]),
                (run_input(entry(theirs, "cancelled")), space, [waiting]),
                (run_input(entry(waiting, "cancelled")), other, [theirs]),
                (run_input(entry(waiting, "cancelled"), thread="another"), space, []),
                (run_input(ResumeEntry(interrupt_id="none", status="cancelled")), space, [waiting]),
            ):
                warning, *told = await resumed(of, run, 0.0)
                assert isinstance(warning, CustomEvent)
                assert warning.name == REFUSED
                assert [each.id for each in told] == [each.id for each in left]
        assert proposal.state.is_pending


async def test_a_cancelled_run_withdraws() -> None:
    async with meeting_with(Notes()) as (_, space, person):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call, space, "thread", PATIENCE)
            await until(lambda: len(person.proposals) == 1)
            tasks.cancel_scope.cancel()
        await until(lambda: person.proposals[0].state == "withdrawn")


async def test_the_example_is_interrupted_and_resumed(gateway: ThreadedGateway) -> None:
    meeting, said = OverSockets(gateway), ""
    program = [sys.executable, "-u", str(EXAMPLES / "ag_ui_interrupts.py")]
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, calculator, "tools"),
            join(meeting, "reviewer") as person,
            await anyio.open_process(program, env=environment(gateway), stderr=None) as process,
        ):
            assert process.stdout is not None
            while '"type":"interrupt"' not in said:
                said += (await process.stdout.receive()).decode()
            [record] = [each async for each in person.proposals.list()]
            await person.proposals.get(record).fulfill()
            async for some in process.stdout:
                said += some.decode()
            assert await process.wait() == 0
    assert '"toolCallId":"call-1","content":"5.0"' in said.splitlines()[-2]
    assert '"outcome"' not in said.splitlines()[-1]
