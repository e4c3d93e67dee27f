"""Cancellation passes the middleware: its cause, its end, and a layer that swallows it."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Proposal, ProposalState, Reason
from meup_agent.errors import HandlerCancelled
from meup_agent.types import CallNext, InboundMessage, OutboundMessage
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import call_and_give_up, has_state, is_idle, taped
from tests.patience import PATIENCE
from tests.wire import kinds


async def test_withdrawal_ends_the_onion_with_its_reason(meeting: Meeting, notes: Notes) -> None:
    async def around(message: InboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        finally:
            notes(("middleware", message.reason and message.reason.code))

    agent = Agent("reviewer", middleware=[around])

    @agent.on_proposal
    async def decide(proposal: Proposal, ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, "begun")

    async with gathered(meeting, agent, "proposer") as (reviewer, proposer):
        async with proposer.propose("tools", "add", to="reviewer") as proposal:
            await notes.until("begun")
            await proposal.withdraw(Reason.DUPLICATE)
        await until(lambda: is_idle(reviewer))
    assert notes.all == ["begun", ("proposer", "duplicate"), ("middleware", "duplicate")]


@pytest.mark.parametrize("waits", [True, False], ids=["before", "after"])
async def test_swallowed_cancellation_answers_nothing(
    meeting: Meeting, notes: Notes, waits: bool
) -> None:
    """Swallowed before the handler, which then does not run, or as it comes out of it."""

    async def swallow(message: InboundMessage, call_next: CallNext) -> Any:
        try:
            await (wait() if waits else call_next(message))
        except BaseException:
            notes("swallowed")
        return await call_next(message) if waits else 42

    async def wait() -> None:
        notes("begun")
        await anyio.sleep_forever()

    agent = Agent("tools", middleware=[swallow])
    agent.tool(name="run")(wait)
    async with gathered(meeting, agent, "second") as (tools, second), taped(second) as tape:
        await call_and_give_up(second, "run", notes, "begun")
        await notes.until("swallowed")
        await until(lambda: is_idle(tools))
        await tape.all_said(tools)
        assert tape.of(kinds.MCP_RESPONSE, sender="tools") == []
    assert notes.all == ["begun", "swallowed"]


@pytest.mark.parametrize("waits", [True, False])
async def test_handler_in_a_layers_task_is_ended(
    meeting: Meeting, notes: Notes, waits: bool
) -> None:
    """A withdrawal reaches it there, and it does not outlive a layer that left without it."""

    async def elsewhere(message: InboundMessage, call_next: CallNext) -> Any:
        done = anyio.Event()

        async def run() -> None:
            try:
                await call_next(message)
            except HandlerCancelled:
                notes("told")
            finally:
                done.set()

        tasks.start_soon(run)
        if waits:
            await done.wait()
        else:
            await notes.until("begun")

    agent = Agent("reviewer", middleware=[elsewhere])

    @agent.on_proposal
    async def decide(proposal: Proposal, ctx: Context) -> None:
        notes("begun")
        try:
            await anyio.sleep_forever()
        finally:
            notes(ctx.reason and ctx.reason.code)

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            async with join(meeting, agent) as reviewer, join(meeting, "proposer") as proposer:
                async with proposer.propose("tools", "add", to="reviewer") as proposal:
                    await notes.until("begun")
                    if not waits:
                        await notes.until("told")
                    await proposal.withdraw(Reason.DUPLICATE)
                await until(lambda: is_idle(reviewer))
                await notes.until("told")
    assert notes.all == ["begun", "duplicate" if waits else None, "told"]


async def test_cancelled_caller_ends_the_layers(meeting: Meeting, notes: Notes) -> None:
    async def around(message: OutboundMessage, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        finally:
            notes(f"{message.verb} ended")

    tools = Agent("tools")

    @tools.tool
    async def run() -> None:
        notes("begun")
        try:
            await anyio.sleep_forever()
        finally:
            notes("stopped")

    async with gathered(meeting, tools, Agent("second", middleware=[around])) as (_, second):
        await call_and_give_up(second, "run", notes, "begun")
        await notes.until("invoke ended", "stopped")
        with anyio.CancelScope() as scope:
            async with second.propose("tools", "run", to="reviewer") as proposal:
                scope.cancel()
                await anyio.sleep_forever()
        await notes.until("propose ended")
        await until(lambda: has_state(second, proposal.id, ProposalState.WITHDRAWN))
