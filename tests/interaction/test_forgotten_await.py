"""Forgetting `await` or `async with` fails where it is forgotten, with words."""

import gc
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from meup_agent import Agent, Context, Proposal, Rejection, Space
from meup_agent.errors import NotExpressible, ToolError, UsageError
from tests.interaction.cast import calculator
from tests.interaction.people import Meeting, Notes, gathered
from tests.interaction.views import taped
from tests.patience import PATIENCE
from tests.wire import kinds


def forget(space: Space) -> None:
    space.propose("tools", "x")
    gc.collect()


async def test_propose_is_refused_where_it_is_not_entered(meeting: Meeting) -> None:
    async with gathered(meeting, "proposer") as (space,), taped(space) as tape:
        for made in (space.propose("tools", "x"), space.propose("tools", "y", to="reviewer")):
            proposal: Any = made
            with pytest.raises(UsageError, match="awaited; write: async with"):
                await proposal
            for name in ("id", "outcome", "result", "withdraw", "state"):
                with pytest.raises(UsageError, match=f"'{name}' was asked of it; write: async"):
                    getattr(proposal, name)
            with pytest.raises(UsageError, match="entered without async; write: async with"):
                with proposal:
                    raise AssertionError("it was entered")
            assert not hasattr(proposal, "__len__")
        await tape.all_said(space)
        assert tape.of(kinds.MCP_PROPOSAL) == []


async def test_propose_that_nobody_enters_warns_of_its_line(meeting: Meeting) -> None:
    async with gathered(meeting, "proposer") as (space,):
        gc.collect()  # what others have left, which has warnings of its own
        with pytest.warns(RuntimeWarning, match="never entered, so nothing was") as warned:
            forget(space)
        [warning] = [each for each in warned if each.category is RuntimeWarning]
        assert warning.filename == __file__


async def test_plain_handler_is_told_that_it_cannot_await(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    def decide(proposal: Proposal, ctx: Context, space: Space) -> None:
        verbs: list[Any] = [
            proposal.fulfill,
            lambda: proposal.reject("busy"),
            lambda: ctx.space.chat("hi"),
            lambda: ctx.space.call("tools", "x"),
            lambda: space.offers.tools("tools"),
        ]
        for verb in verbs:
            with pytest.raises(UsageError, match="decide, which is not an async function, so"):
                verb()
        notes.from_thread("refused")
        # What the event loop does for it may await, as may what it starts there.
        anyio.from_thread.run(proposal.reject, "busy")

    @reviewer.tool
    def plain(space: Space) -> str:
        space.chat("hi")  # type: ignore[unused-coroutine]  # that is what is tested
        return "done"

    async with gathered(meeting, reviewer, "proposer", "second") as (_, proposer, second):
        async with proposer.propose("tools", "x", to="reviewer") as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Rejection)
        assert (outcome.reason, notes.all) == ("busy", ["refused"])
        with pytest.raises(ToolError, match=r"chat\(\) was called by .*plain, which"):
            await second.call("reviewer", "plain")


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_another_thread_s_loop_is_told_where_to_call(meeting: Meeting, backend: str) -> None:
    """It would wake tasks of the first loop, which does not look for that, and hangs."""

    async def call(space: Space) -> None:
        verbs: list[Any] = [
            lambda: space.call("tools", "add", {"a": 1, "b": 2}),
            lambda: space.chat("hi"),
            lambda: space.control.pause("tools"),
        ]
        for verb in verbs:
            with pytest.raises(UsageError, match=r"another thread .* anyio\.from_thread\.run"):
                await verb()

    async with gathered(meeting, calculator(), "second") as (_, space):
        await anyio.to_thread.run_sync(lambda: anyio.run(call, space, backend=backend))
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3


async def test_decision_that_is_returned_is_told_to_decide_nothing(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    reviewer = Agent("reviewer")
    returning = anyio.Event()

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> bool:
        returning.set()
        return True

    async with gathered(meeting, reviewer, "proposer") as (_, space):
        async with space.propose("tools", "x", to="reviewer") as proposal:
            with anyio.fail_after(PATIENCE):
                await returning.wait()
            assert proposal.state.is_pending
    (warning,) = (each.message for each in caplog.records if each.levelname == "WARNING")
    assert "decide for 'proposer'" in warning
    assert "returned True, which decides nothing: await proposal.fulfill()" in warning


async def test_run_within_a_loop_says_what_to_write() -> None:
    with pytest.raises(UsageError, match=r"one runs here already; write: async with agent\.join"):
        Agent("tools").run("ws://localhost:1", space="demo", token="t")


async def test_argument_that_is_no_json_is_named(meeting: Meeting) -> None:
    async with gathered(meeting, "second") as (space,):
        with pytest.raises(NotExpressible, match=r"\(at params\.arguments\.lines\.1\); put an"):
            await space.call("tools", "add", {"title": "a", "lines": ["b", object()]})


async def test_place_of_an_argument_that_is_no_json_is_told_briefly(meeting: Meeting) -> None:
    value: object = object()
    for _ in range(500):
        value = [value]
    async with gathered(meeting, "second") as (space,):
        with pytest.raises(NotExpressible) as told:
            await space.call("tools", "add", {"deep": value})
    assert ".0.…); put an" in str(told.value)
    assert len(str(told.value)) < 500
