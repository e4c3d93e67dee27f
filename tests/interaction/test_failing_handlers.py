"""Handlers that fail: each for itself, and each told in the words that fit."""

import asyncio
import logging
import threading

import anyio
import pytest

from meup_agent import Agent, Chat, Context, Proposal, ProposalState, Reason, Rejection
from meup_agent.errors import RequestError, ToolError
from tests.interaction.cast import adder
from tests.interaction.people import Meeting, Notes, ended, gathered, join, raw, until
from tests.interaction.views import is_idle, lines, session_of
from tests.patience import PATIENCE


async def test_several_handlers_of_one_notice_fail_and_stop_each_for_itself(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("tools")

    @agent.on_chat
    async def first(chat: Chat) -> None:
        raise LookupError("the first fails")

    @agent.on_chat
    async def second(chat: Chat, ctx: Context) -> None:
        notes("second runs")
        try:
            await anyio.sleep_forever()
        finally:
            assert ctx.cancelled
            notes("second stopped")

    @agent.on_chat
    def third(chat: Chat, ctx: Context) -> None:
        notes.from_thread("third runs")
        while True:
            pause.wait(0.001)
            if ctx.cancelled:
                notes.from_thread("third stopped")
            ctx.check_cancelled()

    pause = threading.Event()
    async with gathered(meeting, "second") as (speaker,):
        async with join(meeting, agent, grace=0):
            await speaker.chat("hi")
            await notes.until("second runs", "third runs")
            await until(lambda: any("failed" in line for line in lines(caplog)))
        assert {"second stopped", "third stopped"} <= set(notes.all)
    (failed,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], LookupError)


@pytest.mark.rule("5.proposal.running.raises")
async def test_a_reviewer_that_fails_rejects_what_was_addressed_to_it(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def review(proposal: Proposal) -> None:
        raise LookupError("no rules")

    async with gathered(meeting, agent, "proposer") as (reviewers, proposers):
        async with proposers.propose("tools", "write", to="reviewer") as proposal:
            outcome = await ended(proposal, Rejection)
            assert outcome.reason == Reason.OTHER
        async with proposers.propose("tools", "write") as proposal:
            await until(lambda: len(caplog.records) > 0 and is_idle(reviewers))
            assert proposal.state is ProposalState.PENDING
    assert "no rules" in caplog.text


@pytest.mark.rule("5.proposal.running.raises")
async def test_a_reviewer_that_fails_after_its_request_is_only_logged(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        await proposal.fulfill()
        raise LookupError("afterwards")

    async with gathered(meeting, adder(), reviewer, "proposer") as (_, reviewers, proposers):
        assert await proposers.call("tools", "add", {"a": 1, "b": 2}, to="reviewer") == 3
        await until(lambda: "afterwards" in caplog.text and is_idle(reviewers))
        assert reviewers.proposals[0].state is ProposalState.FULFILLED
        assert reviewers.proposals[0].rejections == ()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no futures
async def test_a_future_that_was_cancelled_is_a_failure_of_its_handler(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def broken() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    async with gathered(meeting, agent, "second") as (_, second):
        with pytest.raises(Exception, match="interrupted"):
            await second.call("tools", "broken")
        assert await second.request("tools", "ping") == {}


async def test_a_name_that_is_no_text_harms_only_who_asks_for_it(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    # The log would hold the name as it is, which no test report can.
    caplog.set_level(logging.CRITICAL, logger="meup_agent.agent")
    with anyio.fail_after(PATIENCE):
        async with join(meeting, Agent("bot-\udcff"), "tools"), join(meeting, "second") as second:
            with pytest.raises(RequestError, match="failed") as caught:
                await second.request("tools", "initialize")
            assert caught.value.code == -32603
            assert await second.request("tools", "ping") == {}


class Unusual(BaseException):
    """An exception that a library may raise, and `except Exception` lets through."""


@pytest.mark.parametrize(
    "error",
    [
        SystemExit(2),
        GeneratorExit("odd"),
        Unusual("odd"),
        BaseExceptionGroup("odd", [GeneratorExit(), Unusual("odd")]),
    ],
    ids=["exit", "generator", "unusual", "group"],
)
async def test_a_tool_cannot_end_the_program(meeting: Meeting, error: BaseException) -> None:
    agent = Agent("tools")

    @agent.tool
    async def asynchronous() -> None:
        raise error

    @agent.tool
    def in_a_thread() -> None:
        raise error

    @agent.on_proposal
    async def review() -> None:
        raise error

    async with gathered(meeting, agent, "second") as (_, second):
        for name in ("asynchronous", "in_a_thread"):
            with pytest.raises(ToolError, match=r"SystemExit|GeneratorExit|Unusual"):
                await second.call("tools", name)
        async with second.propose("tools", "x", to="tools") as proposal:
            assert isinstance(await proposal.outcome(), Rejection)
        assert await second.request("tools", "ping") == {}


async def test_what_a_tool_raises_in_a_group_is_said_without_the_group(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def work() -> None:
        async def fail() -> None:
            raise LookupError("inside")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)

    async with gathered(meeting, agent, "second") as (_, second):
        with pytest.raises(ToolError, match=r"^LookupError: inside$"):
            await second.call("tools", "work")


@pytest.mark.parametrize("field", ["kind", "reason", "tool"])
async def test_a_stranger_s_words_do_not_forge_lines_of_the_log(
    meeting: Meeting, caplog: pytest.LogCaptureFixture, field: str
) -> None:
    forged = "x\n2025-01-01 ERROR the gateway is down\x1b[2J"
    agent = Agent("tools")

    @agent.on_proposal
    async def review(proposal: Proposal) -> None:
        await anyio.sleep_forever()

    with anyio.fail_after(PATIENCE), caplog.at_level(logging.INFO, "meup_agent"):
        async with join(meeting, agent) as tools, raw(meeting) as mallory:
            words = {"kind": "mcp/response", "reason": "unsafe", "tool": "write"}
            words[field] = forged if field != "kind" else f"mcp/response{forged}"
            params = {"name": words["tool"], "arguments": {}}
            await mallory.propose(params, id="p")
            await until(lambda: session_of(tools).table.running == 1)
            await mallory.withdraw("p", id="w", reason=words["reason"])
            await until(lambda: is_idle(tools))
            await mallory.say(words["kind"], {}, id="r", to=("tools",), correlation=("none",))
            await mallory.call("tools", words["tool"], id="c")
            await mallory.response("c")
    for line in lines(caplog):
        assert "\n" not in line
        assert "\x1b" not in line
