"""Cancels that come early, late, twice, in thousands, or to code that does not want to stop."""

import threading
from functools import partial
from typing import Any

import anyio
import pytest

from meup_agent import (
    Agent,
    Conflict,
    Context,
    Fulfillment,
    Proposal,
    ProposalState,
    Reason,
    Rejection,
    Space,
)
from meup_agent.agent import agent as agent_module
from meup_agent.agent import runner as runner_module
from meup_agent.errors import (
    AlreadyInProgress,
    HandlerCancelled,
    OutcomeUnknown,
    RequestTimeout,
    ToolError,
)
from meup_agent.protocol import kinds, payloads
from tests.interaction.people import (
    PATIENCE,
    Meeting,
    Notes,
    call_of,
    gathered,
    has_state,
    is_idle,
    join,
    lines,
    raw,
    session_of,
    state_of,
    taped,
    until,
)

pytestmark = pytest.mark.anyio

SOON = 0.05
"""Stands for the second after which a handler that goes on is named, and for the grace."""


LONG_ENOUGH = 0.5
"""For a call to arrive and its handler to begin."""


async def call_and_give_up(caller: Space, tool: str, notes: Notes) -> None:
    """Call a tool, and cancel the call when it runs."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(caller.call, "tools", tool)
        await notes.until("runs")
        tasks.cancel_scope.cancel()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "LATE_SECONDS", SOON)
    monkeypatch.setattr(agent_module, "GRACE", SOON)


# --- the caller gives up ---


@pytest.mark.rule("4.8.our_cancel", "4.12.unchosen", "5.own.waiting.deadline")
async def test_a_call_that_times_out_is_cancelled_where_it_runs(
    meeting: Meeting, notes: Notes
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def slow(ctx: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            assert ctx.reason is not None
            notes((ctx.reason.code, ctx.reason.by))

    async with (
        gathered(meeting, tools, "second") as (tools_space, caller),
        taped(tools_space) as tape,
    ):
        with pytest.raises(RequestTimeout, match="was cancelled"):
            await caller.call("tools", "slow", timeout=LONG_ENOUGH)
        await notes.until(("timeout", "second"))
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space, caller)
        (cancel,) = tape.calls(kinds.CANCELLED)
        (request,) = tape.calls("tools/call")
        assert cancel.to == ("tools",)
        assert cancel.correlation == (request.id,)
        assert call_of(cancel).params["requestId"] == request.id == call_of(request).rpc_id
        assert tape.of(kinds.MCP_RESPONSE) == []


async def test_a_cancelled_call_is_cancelled_where_it_runs(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def slow(ctx: Context) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            assert ctx.reason is not None
            notes((ctx.reason.code, ctx.reason.by))

    async with gathered(meeting, tools, "second") as (tools_space, caller):
        await call_and_give_up(caller, "slow", notes)
        await notes.until(("no_longer_needed", "second"))
        await until(lambda: is_idle(tools_space))
        await until(lambda: is_idle(caller))


@pytest.mark.rule("5.children")
async def test_what_a_handler_leaves_behind_ends_with_it(meeting: Meeting, notes: Notes) -> None:
    """A call in a task that outlives its handler is a child of the handler all the same."""
    tools, deep = Agent("tools"), Agent("deep")

    @deep.tool
    async def slow() -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            notes("stopped")

    with anyio.fail_after(PATIENCE):
        async with (
            anyio.create_task_group() as outside,
            join(meeting, deep) as deeps,
        ):

            @tools.tool
            async def begin(ctx: Context) -> str:
                async def call() -> None:
                    with pytest.raises(OutcomeUnknown):
                        await ctx.call("deep", "slow")
                    notes("the caller knows")

                outside.start_soon(call)
                await notes.until("runs")
                return "begun"

            async with join(meeting, tools), join(meeting, "second") as caller:
                assert await caller.call("tools", "begin") == "begun"
                await notes.until("stopped", "the caller knows")
                await until(lambda: is_idle(deeps))


async def test_a_call_in_a_clean_up_is_no_child_of_what_was_cancelled(
    meeting: Meeting, notes: Notes
) -> None:
    tools, deep = Agent("tools"), Agent("deep")

    @deep.tool
    async def release(name: str) -> str:
        return f"{name} released"

    @tools.tool
    async def hold(ctx: Context) -> None:
        notes("holds")
        try:
            await anyio.sleep_forever()
        finally:
            async with ctx.cleanup(PATIENCE):
                notes(await ctx.call("deep", "release", {"name": "lock"}))

    async with gathered(meeting, deep, tools, "second") as (_, tools_space, caller):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(caller.call, "tools", "hold")
            await notes.until("holds")
            tasks.cancel_scope.cancel()
        await notes.until("lock released")
        await until(lambda: is_idle(tools_space))


# --- whose cancel, and when ---


@pytest.mark.rule("5.tombstone", "4.8.request_id")
async def test_a_cancel_may_come_before_its_request(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(envelope_of: Context) -> str:
        notes(envelope_of.envelope.id)
        return "done"

    async with (
        gathered(meeting, tools) as (tools_space,),
        raw(meeting) as mallory,
    ):
        await mallory.cancel("tools", "r1", id="c1")
        await mallory.cancel("tools", 7, id="c2")
        await mallory.call("tools", "work", id="r1")
        await mallory.call("tools", "work", id="r2", rpc_id=7)
        await mallory.call("tools", "work", id="r3", rpc_id=8)
        await mallory.response("r3")
        assert notes.all == ["r3"]
        assert session_of(tools_space).counters["cancelled_before"] == 2


@pytest.mark.rule("4.8.key_by_sender", "race.same_id")
async def test_two_requesters_may_both_use_id_1(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> str:
        notes(("runs", ctx.sender))
        try:
            await notes.until("go on")
        finally:
            if ctx.cancelled:
                notes(("cancelled", ctx.sender))
        return ctx.sender

    async with (
        gathered(meeting, tools) as (tools_space,),
        raw(meeting, "mallory") as mallory,
        raw(meeting, "second") as second,
    ):
        await mallory.call("tools", "work", id="m", rpc_id=1)
        await second.call("tools", "work", id="s", rpc_id=1)
        await notes.until(("runs", "mallory"), ("runs", "second"))
        await second.cancel("tools", 1, id="c")
        await notes.until(("cancelled", "second"))
        assert ("cancelled", "mallory") not in notes.all
        notes("go on")
        response = await mallory.response("m")
        assert response.payload["id"] == 1
        assert response.payload["result"]["structuredContent"] == {"result": "mallory"}
        await until(lambda: is_idle(tools_space))


@pytest.mark.rule("4.7.same_sender", "5.who.cancel")
async def test_nobody_cancels_what_another_requested(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> str:
        notes(ctx.envelope.id)
        await notes.until("go on")
        assert not ctx.cancelled
        return "done"

    async with (
        gathered(meeting, tools, "second") as (_, caller),
        raw(meeting) as mallory,
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            notes(await caller.call("tools", "work"))

        tasks.start_soon(ask)
        await until(lambda: len(notes.all) == 1)
        request_id = notes.all[0]
        await mallory.cancel("tools", request_id, id="c1")
        # Its request gets the same id as the other's: ids are each sender's own.
        await mallory.call("tools", "nothing", id="own")
        await mallory.response("own")
        notes("go on")
        await notes.until("done")


@pytest.mark.rule("4.7.ignored")
async def test_what_is_malformed_cancels_nothing(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> str:
        notes("runs")
        await notes.until("go on")
        assert not ctx.cancelled
        return "done"

    async with (
        gathered(meeting, tools) as (tools_space,),
        raw(meeting) as mallory,
    ):
        await mallory.call("tools", "work", id="True")
        await notes.until("runs")
        malformed: list[Any] = [None, True, 1.5, {}, ["True"]]
        for number, bad in enumerate(malformed):
            await mallory.cancel("tools", bad, id=f"c{number}")
        await until(lambda: session_of(tools_space).counters["malformed_cancel"] == 5)
        notes("go on")
        await mallory.response("True")


@pytest.mark.rule("4.7.initialize")
async def test_initialize_is_never_cancelled(meeting: Meeting) -> None:
    async with (
        gathered(meeting, Agent("tools")),
        raw(meeting) as mallory,
    ):
        await mallory.request("tools", "initialize", {}, id="i")
        await mallory.cancel("tools", "i", id="c")
        assert "result" in (await mallory.response("i")).payload


@pytest.mark.rule("6.cause", "4.7.optional_reason")
async def test_a_stranger_s_cause_is_taken_with_care(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> None:
        notes("runs")
        try:
            await anyio.sleep_forever()
        finally:
            notes(ctx.reason)

    lies: dict[str, Any] = {
        "reason": "the user pressed stop",
        "_meta": {
            "dev.meup/cause": [
                {"by": "admin", "id": "x", "reason": "policy", "text": "because"},
                {"by": "somebody", "id": "y", "reason": "policy"},
                {"by": 5},
                "nonsense",
            ]
        },
    }
    async with (
        gathered(meeting, tools) as (tools_space,),
        raw(meeting) as mallory,
    ):
        await mallory.call("tools", "work", id="r")
        await notes.until("runs")
        await mallory.cancel("tools", "r", id="c", **lies)
        await until(lambda: len(notes.all) == 2)
        cause = notes.all[1]
        assert cause.by == "mallory", "whatever it says: the sender has ended it"
        assert cause.chain[0].by == "mallory"
        assert [link.by for link in cause.chain] == ["mallory", "somebody"]
        await until(lambda: is_idle(tools_space))


@pytest.mark.rule("race.many_unknown_cancels")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is long, and no loop's own matter
async def test_ten_thousand_cancels_for_nothing_disturb_nobody(
    meeting: Meeting, caplog: pytest.LogCaptureFixture
) -> None:
    tools = Agent("tools")

    @tools.tool
    async def double(n: int) -> int:
        await anyio.lowlevel.checkpoint()
        return 2 * n

    with anyio.fail_after(3 * PATIENCE):
        async with (
            join(meeting, tools) as tools_space,
            join(meeting, "second") as caller,
            raw(meeting) as mallory,
            anyio.create_task_group() as tasks,
        ):

            async def drain() -> None:
                async for _ in mallory.transport:
                    pass

            async def flood() -> None:
                for number in range(10_000):
                    await mallory.cancel("tools", f"unknown {number}", id=f"c{number}")

            tasks.start_soon(drain)
            async with anyio.create_task_group() as flooding:
                flooding.start_soon(flood)
                for number in range(100):
                    assert await caller.call("tools", "double", {"n": number}) == 2 * number
            assert await caller.call("tools", "double", {"n": 21}) == 42
            assert is_idle(tools_space)
            assert session_of(tools_space).table.connected
            tasks.cancel_scope.cancel()
    assert not [line for line in lines(caplog) if "unknown" in line], "nor fill the log"


# --- handlers that do not want to stop ---


@pytest.mark.rule("5.request.cancelling.returns")
@pytest.mark.usefixtures("impatient")
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

    async with (
        gathered(meeting, tools, "second") as (tools_space, caller),
        taped(caller) as tape,
    ):
        await call_and_give_up(caller, "stubborn", notes)
        await notes.until("swallowed")
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space)
        assert tape.of(kinds.MCP_RESPONSE) == []
    (line,) = [line for line in lines(caplog) if "goes on" in line]
    assert line.startswith("'stubborn' for 'second'")


@pytest.mark.usefixtures("impatient")
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
@pytest.mark.usefixtures("impatient")
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

    async with (
        gathered(meeting, tools, "second") as (tools_space, caller),
        taped(caller) as tape,
    ):
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


@pytest.mark.usefixtures("impatient")
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

    async with (
        gathered(meeting, tools, "second") as (tools_space, caller),
        taped(caller) as tape,
    ):
        await call_and_give_up(caller, "deaf", notes)
        await until(lambda: any("'deaf'" in line and "goes on" in line for line in lines(caplog)))
        assert session_of(tools_space).table.running == 1
        go_on.set()
        await until(lambda: is_idle(tools_space))
        await tape.all_said(tools_space)
        assert tape.of(kinds.MCP_RESPONSE) == []


@pytest.mark.usefixtures("impatient")
async def test_a_thread_is_abandoned_when_the_agent_goes(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")
    go_on = threading.Event()

    @tools.tool
    def deaf() -> str:
        notes.from_thread("runs")
        go_on.wait(PATIENCE)
        return "too late"

    async with (
        gathered(meeting, "second") as (caller,),
        anyio.create_task_group() as tasks,
    ):

        async def ask() -> None:
            with pytest.raises(Exception, match="cancelled"):
                await caller.call("tools", "deaf")
            notes("answered")

        async with join(meeting, tools, grace=SOON):
            tasks.start_soon(ask)
            await notes.until("runs")
        assert not go_on.is_set()
        go_on.set()
        await notes.until("answered")


# --- crossings ---


@pytest.mark.rule("race.response_after_cancel", "4.7.no_response")
async def test_a_response_after_the_cancel_is_ignored_and_counted(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
        async with raw(meeting) as mallory, join(meeting, "second") as caller:
            with pytest.raises(RequestTimeout):
                await caller.request("mallory", "work", timeout=LONG_ENOUGH)
            request = await mallory.hear(lambda e: e.kind == kinds.MCP_REQUEST)
            await mallory.hear(lambda e: call_of(e).method == kinds.CANCELLED)
            await mallory.say(
                kinds.MCP_RESPONSE,
                payloads.result(request.id, "late"),
                id="r",
                to=("second",),
                correlation=(request.id,),
            )
            await until(lambda: session_of(caller).counters["late_response"] == 1)


@pytest.mark.rule("5.own.given_up.response", "4.13.loser_is_reported")
async def test_a_result_for_what_was_withdrawn_is_a_conflict(
    meeting: Meeting, notes: Notes
) -> None:
    """The executor had not seen the cancel when it answered: the proposer learns of it."""
    proposer, reviewer = Agent("proposer"), Agent("reviewer")

    @proposer.on_conflict
    async def conflict(conflict: Conflict) -> None:
        assert conflict.outcome is not None
        notes((conflict.proposal_id, conflict.outcome.result, type(conflict.after).__name__))

    @reviewer.on_proposal
    async def review(proposal: Proposal) -> None:
        await proposal.fulfill()

    with anyio.fail_after(PATIENCE):
        async with (
            raw(meeting) as mallory,
            join(meeting, reviewer),
            join(meeting, proposer) as proposers,
        ):
            async with proposers.propose("mallory", "pay") as proposal:
                request = await mallory.hear(lambda e: e.kind == kinds.MCP_REQUEST)
            await mallory.hear(lambda e: call_of(e).method == kinds.CANCELLED)
            await mallory.say(
                kinds.MCP_RESPONSE,
                payloads.result(request.id, "paid"),
                id="r",
                to=("reviewer",),
                correlation=(request.id,),
            )
            await notes.until((proposal.id, "paid", "Withdrawal"))
            assert proposal.state is ProposalState.WITHDRAWN


@pytest.mark.rule("race.two_fulfillers", "4.4.already_in_progress")
async def test_of_two_who_fulfill_one_executes(meeting: Meeting, notes: Notes) -> None:
    tools, reviewer, second = Agent("tools"), Agent("reviewer"), Agent("second")

    @tools.tool
    async def pay() -> str:
        notes("paid")
        await notes.until("one came too late")
        return "paid"

    async def both() -> None:
        while notes.all.count("reviewing") < 2:
            await anyio.lowlevel.checkpoint()

    async def review(proposal: Proposal, ctx: Context) -> None:
        notes("reviewing")
        await both()
        try:
            fulfilled = await proposal.fulfill()
            notes(("fulfilled", fulfilled.by))
        except AlreadyInProgress as error:
            notes("one came too late")
            notes(("too late for", error.by))

    reviewer.on_proposal(review)
    second.on_proposal(review)
    async with gathered(meeting, tools, reviewer, second, "proposer") as (
        tools_space,
        reviewers,
        seconds,
        proposers,
    ):
        async with proposers.propose("tools", "pay") as proposal:
            outcome = await proposal.outcome()
        assert isinstance(outcome, Fulfillment)
        assert not outcome.is_error
        for space in (tools_space, reviewers, seconds, proposers):
            await until(partial(is_idle, space))
            await until(partial(has_state, space, proposal.id, ProposalState.FULFILLED))
    assert notes.all.count("paid") == 1
    assert sorted(note[0] for note in notes.all if isinstance(note, tuple)) == [
        "fulfilled",
        "too late for",
    ]
    assert {note[1] for note in notes.all if isinstance(note, tuple)} == {outcome.by}


@pytest.mark.rule("race.reject_crosses_fulfillment")
async def test_a_reject_that_crosses_a_fulfillment_has_one_outcome(
    meeting: Meeting, notes: Notes
) -> None:
    """The gateway's order decides, and everybody ends with the same."""
    tools, reviewer, second = Agent("tools"), Agent("reviewer"), Agent("second")

    @tools.tool
    async def pay() -> str:
        return "paid"

    async def both() -> None:
        while notes.all.count("reviewing") < 2:
            await anyio.lowlevel.checkpoint()

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        notes("reviewing")
        await both()
        await proposal.fulfill()

    @second.on_proposal
    async def refuse(proposal: Proposal) -> None:
        notes("reviewing")
        await both()
        try:
            await proposal.reject(Reason.DISAGREE)
        except AlreadyInProgress:
            notes("the fulfillment came first")

    async with gathered(meeting, tools, reviewer, second, "proposer") as (
        tools_space,
        reviewers,
        seconds,
        proposers,
    ):
        to = ["reviewer", "second"]
        async with proposers.propose("tools", "pay", to=to) as proposal:
            outcome = await proposal.outcome()
        everybody = (tools_space, reviewers, seconds, proposers)
        for space in everybody:
            await until(partial(is_idle, space))
            # What this one has said is with the others when it has come back to itself.
            async with taped(space) as own:
                await own.all_said(*everybody)
        others = {state_of(space, proposal.id) for space in (tools_space, reviewers, seconds)}
        if isinstance(outcome, Fulfillment):
            assert proposal.state is ProposalState.FULFILLED
            assert others == {ProposalState.FULFILLED}
        else:
            assert isinstance(outcome, Rejection)
            assert proposal.state is ProposalState.REJECTED
            assert len(others) == 1, "in the gateway's order"
            assert others <= {ProposalState.WITHDRAWN, ProposalState.FULFILLED}


@pytest.mark.rule("4.2.refusal_completes_nothing")
async def test_a_tool_that_is_refused_inside_another_is_no_refusal_of_that(
    meeting: Meeting, notes: Notes
) -> None:
    """What a tool is answered when it asks on is its failure, not its requester's answer."""
    tools = Agent("tools")

    @tools.tool
    async def outer(ctx: Context) -> None:
        notes("half done")
        await ctx.space.request("mallory", "inner")

    with anyio.fail_after(PATIENCE):
        async with (
            raw(meeting) as mallory,
            join(meeting, tools),
            join(meeting, "second") as caller,
            anyio.create_task_group() as tasks,
        ):

            async def ask() -> None:
                with pytest.raises(ToolError, match="refused"):
                    await caller.call("tools", "outer")
                notes("failed")

            tasks.start_soon(ask)
            request = await mallory.hear(lambda e: call_of(e).method == "inner")
            refusal = payloads.error(request.id, -32000, "refused: no", {"reason": "refused"})
            await mallory.say(
                kinds.MCP_RESPONSE, refusal, id="r", to=("tools",), correlation=(request.id,)
            )
            await notes.until("failed")
