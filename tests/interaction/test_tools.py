"""Tool lists: kept until they change, asked for once, and calls checked by them."""

from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Space
from meup_agent.client import offers
from meup_agent.errors import InvalidArguments, RequestError, RequestTimeout, UsageError
from tests.interaction.offer_lists import LIST, READ, WRITE, ask, lister, names, writer
from tests.interaction.people import (
    ONE_PLACE,
    Latch,
    Meeting,
    Notes,
    gathered,
    join,
    keep_away,
    until,
)
from tests.interaction.views import call_of, is_, is_idle, note_result, of_kind, session_of, taped
from tests.wire import kinds, payloads


async def test_a_list_is_asked_for_once(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        first = await space.offers.tools("tools")
        assert names(first) == ["write", "read"]
        first.clear()
        second = await space.offers.tools("tools")
        second[0]["inputSchema"].clear()
        assert (await space.offers.tools("tools"))[0]["inputSchema"]["required"] == ["path"]
        assert len(tape.calls(LIST)) == 1
        assert names(await space.offers.tools("tools", refresh=True)) == ["write", "read"]
        assert len(tape.calls(LIST)) == 2


async def test_an_agent_says_that_its_list_does_not_change(meeting: Meeting, notes: Notes) -> None:
    agent = writer(notes)
    async with gathered(meeting, agent, "second") as (_, space):
        answer = await space.request("tools", "initialize")
        assert answer["capabilities"]["tools"] == {"listChanged": False}
        # And it keeps its word.
        with pytest.raises(UsageError, match="the agent has started"):
            agent.tool(name="late")(lambda: None)


async def test_each_participant_has_its_own_list(meeting: Meeting, notes: Notes) -> None:
    deep = Agent("deep")
    async with gathered(meeting, writer(notes), deep, "second") as (_, _, space):
        assert names(await space.offers.tools("tools")) == ["write", "read"]
        assert await space.offers.tools("deep") == []
        assert names(await space.offers.tools("tools")) == ["write", "read"]


async def test_it_is_asked_for_again_after_a_change_was_announced(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(1), WRITE)
        await ask(space, lists)
        async with taped(space) as tape:
            await mallory.say_changed("changed")
            await tape.until(is_("changed"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(2), READ)
    assert [names(each) for each in lists] == [["write"], ["write"], ["read"]]


async def test_a_list_that_changed_on_its_way_is_given_and_not_kept(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            first = await mallory.asked(1)
            await mallory.say_changed("changed")
            await mallory.give(first, WRITE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(2), READ)
        await ask(space, lists)
    assert [names(each) for each in lists] == [["write"], ["read"], ["read"]]


async def test_a_list_of_one_that_came_anew_is_new(meeting: Meeting, notes: Notes) -> None:
    changed = Agent("tools")

    @changed.tool
    async def erase() -> None: ...

    async with gathered(meeting, "second") as (space,), taped(space) as tape:
        async with join(meeting, writer(notes)):
            assert names(await space.offers.tools("tools")) == ["write", "read"]
        async with join(meeting, changed):
            await tape.until(of_kind(kinds.SYSTEM_PRESENCE), 3)
            assert names(await space.offers.tools("tools")) == ["erase"]


async def test_a_list_is_asked_for_on_a_new_connection(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        await space.offers.tools("tools")
        meeting.drop("second")
        await until(lambda: session_of(space).connections == 2)
        assert names(await space.offers.tools("tools")) == ["write", "read"]
        assert len(tape.calls(LIST)) == 2
        await space.offers.tools("tools")
        assert len(tape.calls(LIST)) == 2


async def test_a_list_asked_for_while_away_is_kept(meeting: Meeting, notes: Notes) -> None:
    latch, lists = Latch(), list[Any]()
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second", latch=latch) as space,
    ):
        await space.offers.tools("tools")
        await keep_away(meeting, latch, space)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(note_result, lists.append, space.offers.tools, "tools")
            await until(lambda: session_of(space).table.waiting == 1)
            latch.closed = False
        lists.append(await space.offers.tools("tools"))
        assert len(tape.calls(LIST)) == 2
    assert [names(each) for each in lists] == [["write", "read"], ["write", "read"]]


async def test_a_list_of_several_pages_is_one(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(1), WRITE, nextCursor="2")
            second = await mallory.asked(2)
            assert call_of(second).params["cursor"] == "2"
            await mallory.give(second, tools=["nonsense"], nextCursor="3")
            await mallory.give(await mallory.asked(3), READ)
        await ask(space, lists)
        with pytest.raises(InvalidArguments, match="has no tool 'x'; it has 'write', 'read'"):
            await space.call("mallory", "x")
    assert lists == [[WRITE, {}, READ]] * 2


async def test_a_list_without_room_displaces_no_other(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch, notes: Notes
) -> None:
    monkeypatch.setattr(offers, "MAX_KEPT_CHARS", 2_000)
    async with (
        gathered(meeting, writer(notes)),
        lister(meeting) as mallory,
        join(meeting, "second") as space,
        taped(space) as tape,
    ):
        await space.offers.tools("tools")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, [])
            await mallory.give(await mallory.asked(1), {**READ, "description": "x" * 2_000})
        await space.offers.tools("tools")
        assert [each.participant for each in await space.offers.find("read")] == ["tools"]
        assert [each.to for each in tape.of(kinds.MCP_REQUEST, sender="second")] == [
            ("tools",),
            ("mallory",),
        ]


async def ask_in_vain(space: Space, into: list[Any]) -> None:
    with pytest.raises(RequestError) as failed:
        await space.offers.tools("mallory")
    into.append(failed.value.message)


async def test_an_answer_that_is_no_list_refuses_no_call(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_in_vain, space, lists)
            await mallory.give(await mallory.asked(1), tools={"write": WRITE})
        assert await space.offers.find("write") == []
        async with space.propose("mallory", "write", {"path": "a"}):
            pass
    assert lists == ["tools/list to 'mallory' was answered without a list of tools"]


async def test_a_caller_who_goes_leaves_the_request_to_the_others(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(ask, space, lists)
                request = await mallory.asked(1)
                tasks.start_soon(ask, space, lists)
                tasks.start_soon(ask, space, lists)
                await anyio.wait_all_tasks_blocked()
                impatient.cancel_scope.cancel()
            await mallory.give(request, WRITE)
        marker = await space.chat("so far")
        await mallory.tape.until(is_(marker))
        assert len(mallory.tape.calls(LIST)) == 1
        assert mallory.tape.calls(kinds.CANCELLED) == []
    assert [names(each) for each in lists] == [["write"], ["write"]]


async def test_when_the_last_one_has_gone_the_request_is_cancelled(meeting: Meeting) -> None:
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, [])
            tasks.start_soon(ask, space, [])
            request = await mallory.asked(1)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
        cancel = await mallory.cancelled()
        assert call_of(cancel).params["requestId"] == request.id
        await until(lambda: is_idle(space))


async def test_a_handler_that_is_cancelled_passes_its_cause_on(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def look(ctx: Context) -> None:
        await ctx.space.offers.tools("mallory")

    async with lister(meeting) as mallory, join(meeting, agent), join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "look")
            request = await mallory.asked(1)
            tasks.cancel_scope.cancel()
        cancel = await mallory.tape.until(
            lambda e: e.sender == "tools" and kinds.CANCELLED.encode() in e.raw_payload
        )
        assert call_of(cancel).params["requestId"] == request.id
        by = [link["by"] for link in call_of(cancel).meta[payloads.CAUSE]]
        assert by == ["tools", "second"]


async def test_a_deadline_is_its_own_callers(meeting: Meeting) -> None:
    lists: list[Any] = []
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:

            async def ask_in_haste() -> None:
                with pytest.raises(RequestTimeout):
                    await space.offers.tools("mallory", timeout=0.5)  # it has left by then

            tasks.start_soon(ask_in_haste)
            await mallory.asked(1)
            tasks.start_soon(ask, space, lists)
            again = await mallory.asked(2)
            assert (await mallory.cancelled()).sender == "second"
            await mallory.give(again, WRITE)
    assert [names(each) for each in lists] == [["write"]]


async def test_a_lone_caller_who_gives_up_says_that_its_time_was_over(meeting: Meeting) -> None:
    async with lister(meeting) as mallory, join(meeting, "second") as space:
        with pytest.raises(RequestTimeout, match="tools/list to 'mallory'"):
            await space.offers.tools("mallory", timeout=0.5)  # what has not left needs no cancel
        cancel = await mallory.cancelled()
        assert call_of(cancel).params["reason"].startswith("timeout")


async def test_everybody_gets_the_same_error_and_nothing_is_kept(meeting: Meeting) -> None:
    failed: list[str] = []
    lists: list[Any] = []

    async def ask_and_fail(space: Space) -> None:
        with pytest.raises(RequestError, match="not now"):
            await space.offers.tools("mallory")
        failed.append("yes")

    async with lister(meeting) as mallory, join(meeting, "second") as space:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask_and_fail, space)
            tasks.start_soon(ask_and_fail, space)
            request = await mallory.asked(1)
            await anyio.wait_all_tasks_blocked()
            await mallory.raw.answer(request, payloads.error(request.id, -32000, "not now"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, space, lists)
            await mallory.give(await mallory.asked(2), READ)
    assert failed == ["yes", "yes"]


async def test_waiting_for_a_list_keeps_no_other_handler_from_running(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def own_tools(ctx: Context) -> list[str]:
        return names(await ctx.space.offers.tools("tools", refresh=True))

    async with gathered(meeting, join(meeting, agent, settings=ONE_PLACE), "second") as (_, space):
        assert await space.call("tools", "own_tools") == ["own_tools"]


async def test_leaving_the_space_ends_the_wait(meeting: Meeting) -> None:
    async with lister(meeting) as mallory:
        async with anyio.create_task_group() as tasks:
            failures: list[str] = []

            async def ask_in_vain(space: Space) -> None:
                with pytest.raises(Exception, match="tools/list to 'mallory'") as caught:
                    await space.offers.tools("mallory")
                failures.append(type(caught.value).__name__)

            async with join(meeting, "second") as space:
                tasks.start_soon(ask_in_vain, space)
                await mallory.asked(1)
        assert failures == ["OutcomeUnknown"]
        with pytest.raises(Exception, match="was not"):
            await space.offers.tools("mallory")
