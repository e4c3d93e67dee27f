"""Scenes of seconds or hours, on a clock that jumps: in memory, on trio, without threads."""

import re
from math import inf
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Backoff,
    Context,
    Expiry,
    Gone,
    Progress,
    Proposal,
    ProposalState,
    Reason,
    Settings,
)
from meup_agent.errors import (
    OutcomeUnknown,
    ParticipantGone,
    ProposalExpired,
    RequestError,
    RequestTimeout,
    UsageError,
)
from meup_agent.testing import MemorySpace
from meup_agent.types import Cause
from tests.interaction.people import PROPOSALS, InMemory, Latch, Notes, join, keep_away, raw, until
from tests.interaction.views import has_state, is_idle, lines
from tests.virtual_time import anyio_backend as anyio_backend
from tests.wire import kinds, payloads

NEVER_BACK = Settings(backoff=Backoff(first=1e6, longest=1e6))


@pytest.fixture
def meeting(anyio_backend: object) -> InMemory:
    return InMemory()


def elapsed() -> float:
    """Seconds since the test began: trio's mock clock starts at 0."""
    return anyio.current_time()


def worker(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.on_proposal
    async def keep(proposal: Proposal) -> None:
        notes("kept")

    async def advance(ctx: Context, every: float, steps: float) -> str:
        notes("runs")
        done = 0
        try:
            while done < steps:
                await anyio.sleep(every)
                done += 1
                ctx.progress(done)
        finally:
            notes((elapsed(), ctx.reason))
        return "done"

    @agent.tool
    async def work(ctx: Context) -> str:
        return await advance(ctx, 3600, 1)

    @agent.tool
    async def slow(ctx: Context) -> str:
        return await advance(ctx, 50, 5)

    @agent.tool
    async def endless(ctx: Context) -> str:
        return await advance(ctx, 50, inf)

    @agent.tool
    async def stuck(ctx: Context) -> str:
        await anyio.sleep(30)
        ctx.progress(1)
        return await advance(ctx, inf, 1)

    return agent


def reviewing(notes: Notes) -> Agent:
    agent = Agent("reviewer")

    @agent.on_proposal
    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        try:
            await proposal.fulfill(timeout=None)
        finally:
            notes((elapsed(), ctx.reason))

    return agent


def listen(_: Progress) -> None: ...


@pytest.mark.rule("4.9.extends")
@pytest.mark.parametrize(
    ("tool", "options", "seconds", "result"),
    [
        ("work", {"timeout": None}, 3600, "done"),
        ("work", {}, 300, None),
        ("slow", {"on_progress": listen, "timeout": 60.0}, 250, "done"),
        ("endless", {"on_progress": listen, "timeout": 60.0}, 600, None),
        ("endless", {"on_progress": listen, "timeout": 70.0}, 700, None),
        ("endless", {"on_progress": listen, "timeout": 60.0, "total_timeout": 60.0}, 60, None),
        ("endless", {"on_progress": listen, "timeout": 60.0, "total_timeout": 130.0}, 130, None),
        ("stuck", {"on_progress": listen, "timeout": 60.0}, 90, None),
    ],
)
async def test_call_waits_from_its_last_progress_up_to_a_limit(
    meeting: InMemory,
    notes: Notes,
    tool: str,
    options: dict[str, Any],
    seconds: float,
    result: str | None,
) -> None:
    async with join(meeting, worker(notes)), join(meeting, "second") as caller:
        if result is not None:
            assert await caller.call("tools", tool, **options) == result
            assert elapsed() == pytest.approx(seconds)
        else:
            with pytest.raises(RequestTimeout, match="was cancelled"):
                await caller.call("tools", tool, **options)
            assert elapsed() == pytest.approx(seconds)
            await until(lambda: any(isinstance(each, tuple) for each in notes.all))
            at, why = notes.all[-1]
            assert (at, why.code) == (pytest.approx(seconds), Reason.TIMEOUT)


@pytest.mark.parametrize(
    ("tool", "options", "seconds"),
    [("work", {}, 60), ("endless", {"on_progress": listen, "total_timeout": 130.0}, 130)],
)
async def test_a_request_gives_up_after_a_minute_without_progress(
    meeting: InMemory, notes: Notes, tool: str, options: dict[str, Any], seconds: float
) -> None:
    async with join(meeting, worker(notes)), join(meeting, "second") as caller:
        with pytest.raises(RequestTimeout, match="was cancelled"):
            await caller.request("tools", "tools/call", {"name": tool}, **options)
        assert elapsed() == pytest.approx(seconds)


async def test_a_proposal_waits_five_minutes_and_so_does_a_proposed_call(meeting: InMemory) -> None:
    async with join(meeting, "reviewer"), join(meeting, "proposer") as proposers:
        async with proposers.propose("tools", "work") as proposal:
            await proposal.outcome()
        assert proposal.state is ProposalState.EXPIRED
        assert elapsed() == pytest.approx(300)
        with pytest.raises(ProposalExpired):
            await proposers.call("tools", "work")
        assert elapsed() == pytest.approx(600)


@pytest.mark.rule("race.proposer_dies", "5.proposal.running.sender_leaves")
async def test_what_a_dead_proposer_began_ends(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, worker(notes)) as tools,
        join(meeting, reviewing(notes)) as reviewers,
        anyio.create_task_group() as tasks,
    ):

        async def propose_and_die() -> None:
            async with join(meeting, "proposer", settings=NEVER_BACK) as proposers:
                async with proposers.propose("tools", "work", to="reviewer", ttl=None):
                    await anyio.sleep_forever()

        tasks.start_soon(propose_and_die)
        await notes.until("runs")
        meeting.drop("proposer")
        began = elapsed()
        await anyio.sleep(29)
        assert not is_idle(tools)
        await anyio.sleep(2)
        assert is_idle(tools)
        assert is_idle(reviewers)
        (at_reviewer, why), (at_tools, chained) = [n for n in notes.all if isinstance(n, tuple)]
        assert at_reviewer == at_tools == pytest.approx(began + 30)
        assert isinstance(why, Cause)
        assert (why.by, why.text) == ("proposer", "its sender left the space")
        assert [link.by for link in chained.chain] == ["reviewer", "proposer"]
        tasks.cancel_scope.cancel()


async def test_a_proposer_that_comes_back_loses_nothing(meeting: InMemory, notes: Notes) -> None:
    later = Settings(backoff=Backoff(first=25, longest=25))
    async with (
        join(meeting, worker(notes)),
        join(meeting, reviewing(notes)),
        join(meeting, "proposer", settings=later) as proposers,
        proposers.propose("tools", "work", to="reviewer", ttl=None) as proposal,
    ):
        await notes.until("runs")
        for _ in range(3):
            meeting.drop("proposer")
            await anyio.sleep(26)
            assert proposers.connected
        await proposal.outcome()
        assert proposal.state is ProposalState.FULFILLED


@pytest.mark.thorough
@pytest.mark.rule("5.request.running.sender_leaves")
async def test_a_caller_that_was_away_for_long_is_told_that_its_call_was_ended(
    meeting: InMemory, notes: Notes
) -> None:
    latch = Latch()
    async with (
        join(meeting, worker(notes)),
        join(meeting, "second", latch=latch) as caller,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            with pytest.raises(RequestError, match="cancelled: its sender left the space"):
                await caller.call("tools", "work", timeout=None)
            notes("told")

        tasks.start_soon(call)
        await notes.until("runs")
        await keep_away(meeting, latch, caller)
        await anyio.sleep(40)
        assert "told" not in notes.all
        latch.closed = False
        with anyio.fail_after(60):
            await notes.until("told")


@pytest.mark.rule("5.proposal.running.sender_leaves")
async def test_a_proposer_that_was_away_for_long_is_decided_when_it_is_back(
    meeting: InMemory, notes: Notes
) -> None:
    reviewer, latch = Agent("reviewer"), Latch()

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        notes("looks")
        await anyio.sleep(50)
        await proposal.reject("unsafe")

    async with (
        join(meeting, reviewer),
        join(meeting, "proposer", latch=latch) as proposers,
        proposers.propose("tools", "work", to="reviewer", ttl=None) as proposal,
    ):
        await notes.until("looks")
        await keep_away(meeting, latch, proposers)
        await anyio.sleep(40)
        latch.closed = False
        with anyio.fail_after(100):
            await proposal.outcome()
        assert proposal.state is ProposalState.REJECTED
    assert notes.all == ["looks", "looks"]


@pytest.mark.rule("4.6.gone", "5.own.waiting.gone")
async def test_a_wait_ends_when_nobody_can_answer(meeting: InMemory, notes: Notes) -> None:
    async with (
        join(meeting, worker(notes), settings=NEVER_BACK),
        join(meeting, "second") as caller,
        join(meeting, "proposer") as proposers,
        proposers.propose("tools", "work", to="tools", ttl=None) as proposal,
        anyio.create_task_group() as tasks,
    ):

        async def call() -> None:
            with pytest.raises(ParticipantGone, match="tools"):
                await caller.call("tools", "work", timeout=None)
            notes(("gone", elapsed()))

        tasks.start_soon(call)
        await notes.until("runs")
        await anyio.sleep(100)
        meeting.drop("tools")
        outcome = await proposal.outcome()
        assert outcome == Gone(proposal.id, ("tools",))
        await anyio.wait_all_tasks_blocked()
        assert ("gone", pytest.approx(130)) in notes.all
        assert elapsed() == pytest.approx(130)


@pytest.mark.rule("4.6.from_our_welcome")
async def test_who_was_never_there_is_gone_too(meeting: InMemory) -> None:
    async with join(meeting, "second") as caller:
        with pytest.raises(ParticipantGone):
            await caller.call("tools", "work")
        assert elapsed() == pytest.approx(30)


async def test_handlers_get_five_seconds_and_five_to_clean_up(
    meeting: InMemory, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("tools")
    left: list[float] = []

    @agent.tool
    async def slow(ctx: Context) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            notes(("cancelled", elapsed() - left[0]))
            async with ctx.cleanup():
                await anyio.sleep_forever()
            notes(("cut off", elapsed() - left[0]))

    async with join(meeting, "second") as caller, anyio.create_task_group() as tasks:

        async def call() -> None:
            with pytest.raises(RequestError, match="cancelled"):
                await caller.call("tools", "slow", timeout=None)

        async with join(meeting, agent):
            tasks.start_soon(call)
            await notes.until("runs")
            left.append(elapsed())
    assert notes.all == ["runs", ("cancelled", pytest.approx(5)), ("cut off", pytest.approx(10))]
    assert any("goes on 1 s after its cancellation" in line for line in lines(caplog))
    assert any("took more than 5 s" in line for line in lines(caplog))


@pytest.mark.rule("4.2.withdrawn_stays_visible")
async def test_a_withdrawn_proposal_stays_visible(meeting: InMemory) -> None:
    async with join(meeting, "reviewer") as reviewers, join(meeting, "proposer") as proposers:
        async with proposers.propose("tools", "work") as proposal:
            await anyio.sleep(1)
        await anyio.sleep(3000)
        assert has_state(reviewers, proposal.id, ProposalState.WITHDRAWN)
        assert has_state(proposers, proposal.id, ProposalState.WITHDRAWN)


@pytest.mark.rule("5.own.waiting.deadline")
async def test_an_outcome_that_cannot_be_known(meeting: InMemory, notes: Notes) -> None:
    """The proposer was away when its proposal was carried out, and the gateway forgot it."""
    tools, latch = Agent("tools"), Latch()

    @tools.tool
    async def work() -> str:
        return "done"

    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        await anyio.sleep(10)
        await proposal.fulfill()
        notes("fulfilled")

    async with (
        join(meeting, tools),
        join(meeting, reviewer),
        join(meeting, "proposer", latch=latch) as proposers,
        proposers.propose("tools", "work", to="reviewer") as proposal,
    ):
        await anyio.sleep(5)
        latch.closed = True
        meeting.drop("proposer")
        await notes.until("fulfilled")
        meeting.restart()
        latch.closed = False
        with pytest.raises(OutcomeUnknown, match="connection was lost"):
            await proposal.outcome()
        assert elapsed() == pytest.approx(300)


@pytest.mark.rule("4.9.extends")
@pytest.mark.parametrize("total", [59.0, -1.0, float("nan")])
async def test_total_below_the_timeout_is_refused(meeting: InMemory, total: float) -> None:
    async with join(meeting, "second") as caller:
        with pytest.raises(UsageError, match="total_timeout"):
            await caller.request("tools", "ping", total_timeout=total)


@pytest.mark.rule("4.7.initialize")
async def test_initialize_is_not_said_to_be_cancelled(meeting: InMemory) -> None:
    async with raw(meeting), join(meeting, "second") as caller:
        with pytest.raises(RequestTimeout, match="it is never cancelled, so it may still"):
            await caller.request("mallory", "initialize")


@pytest.mark.rule("4.2.expiry.tried")
async def test_executor_that_left_is_told_with_the_expiry(meeting: InMemory, notes: Notes) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        with pytest.raises(ParticipantGone):
            await proposal.fulfill(timeout=None)

    tools = join(meeting, worker(notes), settings=NEVER_BACK)
    async with join(meeting, reviewer), tools, join(meeting, "proposer") as space:
        async with space.propose("tools", "endless", ttl=100) as proposal:
            await notes.until("runs")
            meeting.drop("tools")
            expiry = await proposal.outcome()
    assert isinstance(expiry, Expiry)
    assert expiry.failed is not None
    assert (expiry.failed.by, expiry.failed.refused) == ("reviewer", False)
    assert str(expiry.failed.cause) == "no_longer_needed: tools left the space"
    with pytest.raises(ProposalExpired, match="'reviewer' had tried to fulfill it, which"):
        expiry.result()


@pytest.mark.rule("4.6.missing")
async def test_proposal_that_nobody_here_may_carry_out_says_who_could(meeting: InMemory) -> None:
    people = {"proposer": PROPOSALS, "reviewer": [{"kind": "mcp/reject"}], "files": []}
    meeting.space = MemorySpace(participants=people)
    meeting.token, meeting.connector = meeting.space.token, meeting.space.connector
    async with join(meeting, "reviewer"), join(meeting, "proposer") as space:
        words = (
            'nobody here may call files.write; reviewer could, if granted {"kind": "mcp/request"'
        )
        with pytest.raises(ParticipantGone, match=re.escape(words)):
            await space.call("files", "write", {"path": "a"})
        assert elapsed() == pytest.approx(30)


@pytest.mark.rule("4.4.gone_before_us")
async def test_nothing_is_carried_out_for_the_dead(meeting: InMemory, notes: Notes) -> None:
    async with join(meeting, worker(notes)), join(meeting, "second") as onlooker:
        async with raw(meeting, "proposer") as peer:
            params = {"name": "work", "arguments": {}, "_meta": {payloads.TARGET: "tools"}}
            body = payloads.proposal("tools/call", params)
            await peer.say(kinds.MCP_PROPOSAL, body, id="p1")
            await until(lambda: bool(onlooker.proposals))
        await anyio.sleep(10)
        async with join(meeting, "reviewer") as reviewer:
            await until(lambda: bool(reviewer.proposals))
            await anyio.sleep(25)
            with pytest.raises(ParticipantGone, match="'proposer', whose it is, has left"):
                await reviewer.proposals.get("p1").fulfill()
    assert "runs" not in notes.all
