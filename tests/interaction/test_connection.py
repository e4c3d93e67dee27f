"""Connections that come and go while work goes on."""

import logging

import anyio
import pytest

from meup_agent import Agent, Context, Fulfillment, Limits, Proposal, ProposalState, Withdrawal
from meup_agent.errors import NoSuchSpace, TakenOver, TokenRefused
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import (
    ONE_PLACE,
    InMemory,
    Latch,
    Meeting,
    Notes,
    OverSockets,
    gathered,
    join,
    keep_away,
    raw,
    until,
)
from tests.interaction.views import (
    all_idle,
    has_state,
    is_error,
    is_idle,
    is_response,
    lines,
    note_result,
    session_of,
    taped,
)
from tests.patience import PATIENCE


def slow_agent(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def work(ctx: Context) -> str:
        notes("runs")
        try:
            await notes.until("go on")
        finally:
            if ctx.cancelled:
                assert ctx.reason is not None
                notes(("stopped", ctx.reason.code))
        return "done"

    return agent


@pytest.mark.rule("5.request.running.connection_lost", "5.own.waiting.connection_lost")
async def test_a_tool_runs_on_while_the_gateway_is_killed(meeting: Meeting, notes: Notes) -> None:
    results: list[str] = []
    async with gathered(meeting, slow_agent(notes), "second") as (tools, caller):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_result, results.append, caller.call, "tools", "work")
            await notes.until("runs")
            meeting.kill()
            await until(lambda: not tools.connected and not caller.connected)
            notes("go on")
            meeting.restart()
        await until(lambda: is_idle(tools))
    assert results == ["done"]
    assert notes.all.count("runs") == 1


@pytest.mark.rule("4.14.on_join")
@pytest.mark.parametrize("who", ["tools", "second"])
async def test_a_result_reaches_one_that_was_away(meeting: Meeting, notes: Notes, who: str) -> None:
    results: list[str] = []
    latches = {"tools": Latch(), "second": Latch()}
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, slow_agent(notes), latch=latches["tools"]) as tools,
            join(meeting, "second", latch=latches["second"]) as caller,
            join(meeting, "observer") as observer,
            taped(observer) as tape,
        ):
            lost = {"tools": tools, "second": caller}[who]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(note_result, results.append, caller.call, "tools", "work")
                await notes.until("runs")
                await keep_away(meeting, latches[who], lost)
                notes("go on")
                if who == "second":
                    await tape.until(is_response)
                else:
                    await until(lambda: session_of(tools).table.running == 0)
                latches[who].closed = False
    assert results == ["done"]


async def test_a_proposal_is_fulfilled_across_a_restart(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        notes("reviewing")
        await notes.until("decide")
        await proposal.fulfill()

    async with (
        gathered(meeting, slow_agent(notes), reviewer, "proposer") as (tools, reviewers, proposers),
        proposers.propose("tools", "work", to="reviewer") as proposal,
    ):
        await notes.until("reviewing")
        meeting.kill()
        everybody = (tools, reviewers, proposers)
        await until(lambda: not any(space.connected for space in everybody))
        meeting.restart()
        await until(lambda: all(s.connected and len(s.participants) == 3 for s in everybody))
        notes("decide")
        notes("go on")
        assert isinstance(await proposal.outcome(), Fulfillment)


@pytest.mark.rule("5.own.given_up.connection_lost")
async def test_what_is_given_up_while_away_stops_later(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        try:
            await proposal.fulfill()
        finally:
            assert ctx.reason is not None
            notes(("reviewer", ctx.reason.code))

    latch = Latch()
    async with gathered(
        meeting, slow_agent(notes), reviewer, join(meeting, "proposer", latch=latch)
    ) as (tools, reviewers, proposers):
        async with proposers.propose("tools", "work", to="reviewer") as proposal:
            await notes.until("runs")
            await keep_away(meeting, latch, proposers)
            await proposal.withdraw("unsafe")
            assert isinstance(await proposal.outcome(), Withdrawal)
            assert notes.all == ["runs"]
            latch.closed = False
        await notes.until(("reviewer", "unsafe"), ("stopped", "unsafe"))
        await all_idle(tools, reviewers, proposers)
        assert has_state(reviewers, proposal.id, ProposalState.WITHDRAWN)


@pytest.mark.rule("4.14.on_join")
async def test_a_missed_withdraw_reaches_a_reviewer_later(meeting: Meeting, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx)

    latch = Latch()
    async with gathered(meeting, join(meeting, reviewer, latch=latch), "proposer") as (
        reviewers,
        proposers,
    ):
        async with proposers.propose("tools", "work", to="reviewer"):
            await notes.until("runs")
            latch.closed = True
            meeting.drop("reviewer")
            await until(lambda: "reviewer" not in {p.id for p in proposers.participants})
        await until(lambda: is_idle(proposers))
        latch.closed = False
        await notes.until(("proposer", "no_longer_needed"))
        await until(lambda: is_idle(reviewers))


@pytest.mark.rule("3.takeover")
async def test_the_newer_connection_of_a_participant_takes_over(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    async def older() -> None:
        with pytest.raises(TakenOver, match="token of its own"):  # noqa: PT012
            async with join(meeting, slow_agent(notes)):
                notes("older")
                await anyio.sleep_forever()
        notes("taken over")

    caplog.set_level(logging.INFO, "meup_agent")
    async with gathered(meeting, "second") as (caller,), anyio.create_task_group() as tasks:
        tasks.start_soon(older)
        await notes.until("older")
        tasks.start_soon(caller.call, "tools", "work")
        await notes.until("runs")
        later = Notes()
        async with join(meeting, slow_agent(later)) as newer:
            await notes.until(("stopped", "no_longer_needed"), "taken over")
            later("go on")
            assert await caller.call("tools", "work") == "done"
            assert newer.connected
        tasks.cancel_scope.cancel()
    assert any("took over" in line for line in lines(caplog))


async def test_a_wrong_token_is_refused(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
        with pytest.raises(TokenRefused, match="refused the token"):
            async with Agent("tools").join(meeting.connector("tools"), token="wrong"):
                pytest.fail("it is not a token")


async def test_a_space_that_is_none(meeting: Meeting) -> None:
    token = meeting.token("tools")
    if isinstance(meeting, InMemory):
        connector = meeting.space.connector(space="nowhere")
        joining = Agent("tools").join(connector, token=token)
    else:
        assert isinstance(meeting, OverSockets)
        joining = Agent("tools").join(meeting.gateway.url, space="nowhere", token=token)
    with anyio.fail_after(PATIENCE):
        with pytest.raises((NoSuchSpace, TokenRefused)):
            async with joining:
                pytest.fail("there is no such space")


@pytest.mark.rule(
    "5.overflow.limits",
    "5.overflow.busy",
    "5.overflow.ends_are_not_dropped",
    "5.request.queued.cancel",
)
async def test_beyond_its_limits_an_agent_says_busy(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")
    limits = Limits()
    total = limits.handlers + limits.queued

    @agent.tool
    async def work() -> str:
        notes("runs")
        await notes.until("go on")
        return "done"

    async with gathered(meeting, agent) as (tools,), raw(meeting) as mallory:
        for number in range(total + 3):
            await mallory.call("tools", "work", id=f"r{number}")
        busy = [await mallory.hear(is_response) for _ in range(3)]
        assert [e.correlation for e in busy] == [(f"r{total + n}",) for n in range(3)]
        assert {e.payload["error"]["data"]["reason"] for e in busy} == {"busy"}
        assert (limits.handlers, limits.queued) == (64, 256)
        assert notes.all == ["runs"] * 64
        # Withdraws and cancels are never too much.
        await mallory.cancel("tools", "r0", id="c0")
        await mallory.cancel("tools", "r300", id="c1")
        await until(lambda: session_of(tools).counters["cancelled_in_queue"] == 1)
        notes("go on")
        done = set()
        for _ in range(total - 2):
            done |= set((await mallory.hear(is_response)).correlation)
        assert len(done) == total - 2
        assert not {"r0", "r300"} & done
        await until(lambda: is_idle(tools))


@pytest.mark.rule("5.overflow.waiting_does_not_count")
async def test_a_handler_that_waits_takes_no_place(meeting: Meeting, notes: Notes) -> None:
    agent, deep = Agent("tools"), Agent("deep")

    @agent.tool
    async def ask(ctx: Context) -> str:
        return str(await ctx.space.call("deep", "answer"))

    @deep.tool
    async def answer() -> str:
        notes("asked")
        await notes.until("go on")
        return "done"

    results: list[str] = []
    with anyio.fail_after(PATIENCE):
        async with (
            join(meeting, agent, settings=ONE_PLACE),
            join(meeting, deep),
            join(meeting, "second") as caller,
            anyio.create_task_group() as tasks,
        ):
            for _ in range(10):
                tasks.start_soon(note_result, results.append, caller.call, "tools", "ask")
            await until(lambda: notes.all.count("asked") == 10)
            notes("go on")
    assert results == ["done"] * 10


async def test_frames_that_are_none_end_nobody_s_connection_but_their_sender_s(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        gathered(meeting, slow_agent(notes), "second") as (tools, caller),
        taped(caller) as tape,
    ):
        notes("go on")
        for bad in (
            b"{",
            b"[]",
            b"{}",
            b'{"kind":"chat","id":"1","from":"tools","payload":{}}',
            b'{"kind":"chat","id":"1","from":"mallory","payload":{"a":"\xff"}}',
            b'{"kind":"chat","id":"1","from":"mallory","payload":' + b"[" * 200 + b"]" * 200,
            b'{"kind":"system.welcome","id":"1","from":"mallory","payload":{}}',
        ):
            try:
                async with raw(meeting) as mallory:
                    await mallory.transport.send(bad)
                    await mallory.hear(is_error)
            except AssertionError:
                assert mallory.transport.closed is not None
            assert await caller.call("tools", "work") == "done"
        assert tools.connected
        assert caller.connected
        assert not [e for e in tape.of("chat") if e.sender == "mallory"]
    assert [r for r in caplog.records if r.name.startswith("meup_agent.session")] == []
