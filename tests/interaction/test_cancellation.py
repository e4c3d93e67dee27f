"""Cancels: the caller gives up, and cancels that come early, twice or in thousands."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context
from meup_agent.errors import OutcomeUnknown, RequestTimeout
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import LONG_ENOUGH, Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import (
    call_and_give_up,
    call_of,
    is_idle,
    lines,
    note_result,
    session_of,
    taped,
)
from tests.patience import PATIENCE
from tests.wire import kinds


@pytest.mark.rule("4.8.our_cancel", "4.12.unchosen", "5.own.waiting.deadline")
async def test_a_timed_out_call_is_cancelled_where_it_runs(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def slow(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx)

    async with (
        gathered(meeting, tools, "second") as (tools_space, caller),
        taped(tools_space) as tape,
    ):
        with pytest.raises(RequestTimeout, match="was cancelled"):
            await caller.call("tools", "slow", timeout=LONG_ENOUGH)
        await until(lambda: is_idle(tools_space))
        (by, why) = notes.all[-1]
        assert (by, why.partition(":")[0]) == ("second", "timeout")
        await tape.all_said(tools_space, caller)
        (cancel,) = tape.calls(kinds.CANCELLED)
        (request,) = tape.calls("tools/call")
        assert cancel.to == ("tools",)
        assert cancel.correlation == (request.id,)
        assert call_of(cancel).params["requestId"] == request.id == call_of(request).rpc_id
        assert tape.of(kinds.MCP_RESPONSE) == []


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

    async with anyio.create_task_group() as outside, gathered(meeting, deep) as (deeps,):

        @tools.tool
        async def begin(ctx: Context) -> str:
            async def call() -> None:
                with pytest.raises(OutcomeUnknown):
                    await ctx.space.call("deep", "slow")
                notes("the caller knows")

            outside.start_soon(call)
            await notes.until("runs")
            return "begun"

        async with join(meeting, tools), join(meeting, "second") as caller:
            assert await caller.call("tools", "begin") == "begun"
            await notes.until("stopped", "the caller knows")
            await until(lambda: is_idle(deeps))


async def test_a_call_in_a_clean_up_is_no_cancelled_child(meeting: Meeting, notes: Notes) -> None:
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
                notes(await ctx.space.call("deep", "release", {"name": "lock"}))

    async with gathered(meeting, deep, tools, "second") as (_, tools_space, caller):
        await call_and_give_up(caller, "hold", notes, "holds")
        await notes.until("lock released")
        await until(lambda: is_idle(tools_space))


@pytest.mark.rule("5.tombstone", "4.8.request_id")
async def test_a_cancel_may_come_before_its_request(meeting: Meeting, notes: Notes) -> None:
    tools = Agent("tools")

    @tools.tool
    async def work(ctx: Context) -> str:
        notes(ctx.envelope.id)
        return "done"

    async with gathered(meeting, tools) as (tools_space,), raw(meeting) as mallory:
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
        tasks.start_soon(note_result, notes, caller.call, "tools", "work")
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

    async with gathered(meeting, tools) as (tools_space,), raw(meeting) as mallory:
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
    async with gathered(meeting, Agent("tools")), raw(meeting) as mallory:
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
    async with gathered(meeting, tools) as (tools_space,), raw(meeting) as mallory:
        await mallory.call("tools", "work", id="r")
        await notes.until("runs")
        await mallory.cancel("tools", "r", id="c", **lies)
        await until(lambda: len(notes.all) == 2)
        cause = notes.all[1]
        assert cause.by == "mallory", "whatever it says: the sender has ended it"
        assert cause.chain[0].by == "mallory"
        assert [link.by for link in cause.chain] == ["mallory", "somebody"]
        await until(lambda: is_idle(tools_space))


@pytest.mark.thorough
@pytest.mark.rule("race.many_unknown_cancels")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it is long, and no loop's own matter
async def test_thousands_of_cancels_for_nothing_disturb_nobody(
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
                for number in range(3_000):
                    await mallory.cancel("tools", f"unknown {number}", id=f"c{number}")

            tasks.start_soon(drain)
            async with anyio.create_task_group() as flooding:
                flooding.start_soon(flood)
                for number in range(50):
                    assert await caller.call("tools", "double", {"n": number}) == 2 * number
            assert await caller.call("tools", "double", {"n": 21}) == 42
            assert is_idle(tools_space)
            assert session_of(tools_space).table.connected
            tasks.cancel_scope.cancel()
    assert not [line for line in lines(caplog) if "unknown" in line], "nor fill the log"
