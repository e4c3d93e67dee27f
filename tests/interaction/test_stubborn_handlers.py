"""Handlers that do not want to stop: they swallow the cancellation, hang, fail or do not look."""

import threading

import anyio
import pytest

from meup_agent import Agent, Context, Proposal
from meup_agent.agent import agent as agent_module
from meup_agent.agent import runner as runner_module
from meup_agent.errors import HandlerCancelled, ParticipantGone, RequestError
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import call_and_give_up, is_idle, lines, session_of, taped
from tests.patience import PATIENCE
from tests.wire import kinds

SOON = 0.05
"""Stands for the second after which a handler that goes on is named, and for the grace."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LATE_SECONDS", SOON)
    monkeypatch.setattr(agent_module, "GRACE", SOON)


@pytest.mark.rule("5.request.cancelling.returns")
async def test_a_handler_that_swallows_it_is_named_and_its_result_discarded(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def stubborn(ctx: Context) -> str:
        notes("runs")
        while not any("goes on" in line for line in lines(caplog)):
            try:
                await anyio.sleep(0.001)
            except anyio.get_cancelled_exc_class():
                notes("swallowed")
        assert ctx.cancelled
        return "a result that nobody wants"

    async with gathered(meeting, tools, "second") as (tools_space, caller), taped(caller) as tape:
        await call_and_give_up(caller, "stubborn", notes)
        await notes.until("swallowed")
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space)
        assert tape.of(kinds.MCP_RESPONSE) == []
    (line,) = [line for line in lines(caplog) if "goes on" in line]
    assert line.startswith("'stubborn' for 'second'")


async def test_a_clean_up_that_hangs_is_cut_off(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def careful(ctx: Context) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            async with ctx.cleanup(SOON):
                notes("cleans up")
                await anyio.sleep_forever()
            notes("cut off")

    async with gathered(meeting, tools, "second") as (tools_space, caller):
        await call_and_give_up(caller, "careful", notes)
        await notes.until("cut off")
        await until(lambda: is_idle(tools_space))
    assert notes.all == ["runs", "cleans up", "cut off"]
    assert any("the clean-up of 'careful'" in line for line in lines(caplog))


@pytest.mark.rule("5.request.cancelling.raises")
async def test_a_handler_that_fails_while_it_is_cancelled_answers_nothing(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def clumsy() -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            raise LookupError("in the clean-up")

    async with gathered(meeting, tools, "second") as (tools_space, caller), taped(caller) as tape:
        await call_and_give_up(caller, "clumsy", notes)
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space)
        assert tape.of(kinds.MCP_RESPONSE) == []


async def test_a_thread_that_looks_stops(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")
    never = threading.Event()

    @tools.tool
    def loop(ctx: Context) -> str:
        notes.from_thread("runs")
        try:
            while True:
                never.wait(0.001)
                ctx.check_cancelled()
        except HandlerCancelled:
            assert ctx.reason is not None
            notes.from_thread(("stopped", ctx.reason.code))
            raise

    async with gathered(meeting, tools, "second") as (tools_space, caller):
        await call_and_give_up(caller, "loop", notes)
        await notes.until(("stopped", "no_longer_needed"))
        await until(lambda: is_idle(tools_space))


async def test_a_reviewer_in_a_thread_stops(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")
    never = threading.Event()

    @reviewer.on_proposal
    def review(proposal: Proposal, ctx: Context) -> None:
        notes.from_thread("runs")
        while True:
            never.wait(0.001)
            ctx.check_cancelled()

    async with gathered(meeting, reviewer, "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write"):
            await notes.until("runs")
        await until(lambda: is_idle(reviewers))
        assert session_of(reviewers).table.connected


async def test_a_thread_that_does_not_look_ends_when_it_ends(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("tools")
    go_on = threading.Event()

    @tools.tool
    def deaf(ctx: Context) -> str:
        notes.from_thread("runs")
        assert go_on.wait(PATIENCE)
        assert ctx.cancelled
        return "a result that nobody wants"

    async with gathered(meeting, tools, "second") as (tools_space, caller), taped(caller) as tape:
        await call_and_give_up(caller, "deaf", notes)
        await until(lambda: any("'deaf'" in line and "goes on" in line for line in lines(caplog)))
        assert session_of(tools_space).table.running == 1
        go_on.set()
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space)
        assert tape.of(kinds.MCP_RESPONSE) == []


async def test_a_thread_is_abandoned_when_the_agent_goes(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")
    go_on = threading.Event()

    @tools.tool
    def deaf() -> str:
        notes.from_thread("runs")
        go_on.wait(PATIENCE)
        return "too late"

    async with gathered(meeting, "second") as (caller,), anyio.create_task_group() as tasks:

        async def ask() -> None:
            # Its word may be late: then the gateway's comes, that it is gone.
            with pytest.raises((RequestError, ParticipantGone), match=r"cancelled|left"):
                await caller.call("tools", "deaf")
            notes("answered")

        async with join(meeting, tools, grace=SOON):
            tasks.start_soon(ask)
            await notes.until("runs")
        assert not go_on.is_set()
        go_on.set()
        await notes.until("answered")
