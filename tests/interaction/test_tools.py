"""Tool lists: kept until they change, asked for once, and calls checked by them."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Envelope, Limits, Proposal, Settings, Space
from meup_agent.client import tool_lists
from meup_agent.errors import InvalidArguments, RequestError, RequestTimeout, UsageError
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import decode
from tests.interaction.people import (
    PATIENCE,
    QUICK,
    Latch,
    Meeting,
    Notes,
    Raw,
    Tape,
    call_of,
    gathered,
    is_idle,
    join,
    raw,
    session_of,
    taped,
    until,
)

pytestmark = pytest.mark.anyio

LIST = "tools/list"
WRITE = {
    "name": "write",
    "inputSchema": {
        "type": "object",
        "properties": {"path": {"type": "string"}, "size": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": False,
    },
}
READ = {"name": "read", "inputSchema": {"type": "object"}}


def writer(notes: Notes) -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def write(path: str, size: int = 0) -> str:
        notes(("write", path, size))
        return path

    @agent.tool
    async def read() -> str:
        return "text"

    return agent


def names(tools: list[dict[str, Any]]) -> list[str]:
    return [tool["name"] for tool in tools]


class Lister:
    """A participant that gives its list of tools when it is told to, and counts who asked."""

    def __init__(self, by_hand: Raw) -> None:
        self.raw = by_hand
        self.tape = Tape()

    async def hear(self) -> None:
        async for frame in self.raw.transport:
            self.tape.put(decode(frame))

    async def asked(self, count: int) -> Envelope:
        """Wait until the list was asked for so many times; the latest request."""

        def asks(envelope: Envelope) -> bool:
            return envelope.kind == kinds.MCP_REQUEST and call_of(envelope).method == LIST

        return await self.tape.until(asks, count)

    async def give(self, request: Envelope, *tools: dict[str, Any], **more: Any) -> None:
        payload = payloads.result(request.id, {"tools": tools} | more)
        await self.raw.say(
            kinds.MCP_RESPONSE,
            payload,
            id=f"list for {request.id}",
            to=(request.sender,),
            correlation=(request.id,),
        )

    async def say_changed(self, id: str) -> None:
        method = "notifications/tools/list_changed"
        await self.raw.say(kinds.MCP_REQUEST, payloads.notification(method, {}), id=id)

    async def cancelled(self) -> Envelope:
        def cancels(envelope: Envelope) -> bool:
            return (
                envelope.kind == kinds.MCP_REQUEST and call_of(envelope).method == kinds.CANCELLED
            )

        return await self.tape.until(cancels)


@asynccontextmanager
async def lister(meeting: Meeting) -> AsyncGenerator[Lister]:
    async with raw(meeting) as by_hand, anyio.create_task_group() as tasks:
        lists = Lister(by_hand)
        tasks.start_soon(lists.hear)
        yield lists
        tasks.cancel_scope.cancel()


async def ask(space: Space, into: list[Any], **options: Any) -> None:
    into.append(await space.tools("mallory", **options))


# --- kept, until it changes ---


async def test_a_list_is_asked_for_once(meeting: Meeting, notes: Notes) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        first = await space.tools("tools")
        assert names(first) == ["write", "read"]
        first.clear()
        second = await space.tools("tools")
        second[0]["inputSchema"].clear()
        assert (await space.tools("tools"))[0]["inputSchema"]["required"] == ["path"]
        assert len(tape.calls(LIST)) == 1
        assert names(await space.tools("tools", refresh=True)) == ["write", "read"]
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
        assert names(await space.tools("tools")) == ["write", "read"]
        assert await space.tools("deep") == []
        assert names(await space.tools("tools")) == ["write", "read"]


async def test_it_is_asked_for_again_after_a_change_was_announced(meeting: Meeting) -> None:
    lists: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(1), WRITE)
            await ask(space, lists)
            async with taped(space) as tape:
                await mallory.say_changed("changed")
                await tape.until(lambda e: e.id == "changed")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(2), READ)
    assert [names(each) for each in lists] == [["write"], ["write"], ["read"]]


async def test_a_list_that_changed_on_its_way_is_given_and_not_kept(meeting: Meeting) -> None:
    lists: list[Any] = []
    with anyio.fail_after(PATIENCE):
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


async def test_it_is_asked_for_again_when_its_participant_has_come_anew(
    meeting: Meeting, notes: Notes
) -> None:
    changed = Agent("tools")

    @changed.tool
    async def erase() -> None: ...

    async with (
        gathered(meeting, "second") as (space,),
        taped(space) as tape,
    ):
        async with join(meeting, writer(notes)):
            assert names(await space.tools("tools")) == ["write", "read"]
        async with join(meeting, changed):
            await tape.until(lambda e: e.kind == kinds.SYSTEM_PRESENCE, 3)
            assert names(await space.tools("tools")) == ["erase"]


async def test_it_is_asked_for_again_on_a_new_connection_of_our_own(
    meeting: Meeting, notes: Notes
) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        await space.tools("tools")
        meeting.drop("second")
        await until(lambda: session_of(space).connections == 2)
        assert names(await space.tools("tools")) == ["write", "read"]
        assert len(tape.calls(LIST)) == 2
        await space.tools("tools")
        assert len(tape.calls(LIST)) == 2


async def test_a_list_that_was_asked_for_while_we_were_away_is_kept(
    meeting: Meeting, notes: Notes
) -> None:
    latch, lists = Latch(), list[Any]()
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second", latch=latch) as space,
    ):
        await space.tools("tools")
        latch.closed = True
        meeting.drop("second")
        await until(lambda: not space.connected)
        async with anyio.create_task_group() as tasks:

            async def ask_from_away() -> None:
                lists.append(await space.tools("tools"))

            tasks.start_soon(ask_from_away)
            await until(lambda: session_of(space).table.waiting == 1)
            latch.closed = False
        lists.append(await space.tools("tools"))
        assert len(tape.calls(LIST)) == 2
    assert [names(each) for each in lists] == [["write", "read"], ["write", "read"]]


async def test_a_list_of_several_pages_is_one(meeting: Meeting) -> None:
    lists: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(1), WRITE, nextCursor="2")
                second = await mallory.asked(2)
                assert call_of(second).params["cursor"] == "2"
                await mallory.give(second, READ)
            await ask(space, lists)
            with pytest.raises(InvalidArguments, match="has no tool 'x'; it has 'write', 'read'"):
                await space.call("mallory", "x")
    assert lists == [[WRITE, READ], [WRITE, READ]]


async def test_an_answer_that_is_no_list_refuses_no_call(meeting: Meeting) -> None:
    lists: list[Any] = []
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(1), tools={"write": WRITE})
            async with space.propose("mallory", "write", {"path": "a"}):
                pass
    assert lists == [[]]


# --- asked for by several at once ---


async def test_a_caller_who_goes_leaves_the_request_to_the_others(meeting: Meeting) -> None:
    lists: list[Any] = []
    with anyio.fail_after(PATIENCE):
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
            await mallory.tape.until(lambda e: e.id == marker)
            assert len(mallory.tape.calls(LIST)) == 1
            assert mallory.tape.calls(kinds.CANCELLED) == []
    assert [names(each) for each in lists] == [["write"], ["write"]]


async def test_when_the_last_one_has_gone_the_request_is_cancelled(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
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
        await ctx.space.tools("mallory")

    with anyio.fail_after(PATIENCE):
        async with (
            lister(meeting) as mallory,
            join(meeting, agent),
            join(meeting, "second") as space,
        ):
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
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:

                async def ask_in_haste() -> None:
                    with pytest.raises(RequestTimeout):
                        await space.tools("mallory", timeout=0.05)

                tasks.start_soon(ask_in_haste)
                await mallory.asked(1)
                tasks.start_soon(ask, space, lists)
                again = await mallory.asked(2)
                assert (await mallory.cancelled()).sender == "second"
                await mallory.give(again, WRITE)
    assert [names(each) for each in lists] == [["write"]]


async def test_a_lone_caller_who_gives_up_says_that_its_time_was_over(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            with pytest.raises(RequestTimeout, match="tools/list to 'mallory'"):
                await space.tools("mallory", timeout=0.01)
            cancel = await mallory.cancelled()
            assert call_of(cancel).params["reason"].startswith("timeout")


async def test_everybody_gets_the_same_error_and_nothing_is_kept(meeting: Meeting) -> None:
    failed: list[str] = []
    lists: list[Any] = []

    async def ask_and_fail(space: Space) -> None:
        with pytest.raises(RequestError, match="not now"):
            await space.tools("mallory")
        failed.append("yes")

    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask_and_fail, space)
                tasks.start_soon(ask_and_fail, space)
                request = await mallory.asked(1)
                await anyio.wait_all_tasks_blocked()
                await mallory.raw.say(
                    kinds.MCP_RESPONSE,
                    payloads.error(request.id, -32000, "not now"),
                    id="error",
                    to=("second",),
                    correlation=(request.id,),
                )
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(2), READ)
    assert failed == ["yes", "yes"]


async def test_waiting_for_a_list_keeps_no_other_handler_from_running(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.tool
    async def own_tools(ctx: Context) -> list[str]:
        return names(await ctx.space.tools("tools", refresh=True))

    settings = Settings(backoff=QUICK.backoff, limits=Limits(handlers=1))
    with anyio.fail_after(PATIENCE):
        async with join(meeting, agent, settings=settings), join(meeting, "second") as space:
            assert await space.call("tools", "own_tools") == ["own_tools"]


async def test_leaving_the_space_ends_the_wait(meeting: Meeting) -> None:
    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory:
            async with anyio.create_task_group() as tasks:
                failures: list[str] = []

                async def ask_in_vain(space: Space) -> None:
                    with pytest.raises(Exception, match="tools/list to 'mallory'") as caught:
                        await space.tools("mallory")
                    failures.append(type(caught.value).__name__)

                async with join(meeting, "second") as space:
                    tasks.start_soon(ask_in_vain, space)
                    await mallory.asked(1)
            assert failures == ["OutcomeUnknown"]
            with pytest.raises(Exception, match="was not"):
                await space.tools("mallory")


# --- calls are checked by it ---

WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "'path' is required"),
    ({"path": 3}, "'path' should be string, not number"),
    ({"path": "a", "size": "big"}, "'size' should be integer, not string"),
    ({"path": "a", "mode": 1}, "'mode' is not known; there is 'path', 'size'"),
]


async def nothing_is_sent(
    tape: Tape, space: Space, verb: Callable[[], Awaitable[object]], match: str
) -> InvalidArguments:
    """The verb refuses, and says nothing."""
    await tape.all_said(space)  # the list that was asked for, too
    before = len(tape.envelopes)
    with pytest.raises(InvalidArguments, match=match) as caught:
        await verb()
    await tape.all_said(space)
    assert [envelope.kind for envelope in tape.envelopes[before:]] == [kinds.CHAT]
    return caught.value


@pytest.mark.parametrize(("arguments", "problem"), WRONG)
async def test_wrong_arguments_are_not_sent(
    meeting: Meeting, notes: Notes, arguments: dict[str, Any], problem: str
) -> None:
    async with (
        gathered(meeting, writer(notes)) as (tools,),
        taped(tools) as tape,
        join(meeting, "second") as space,
    ):
        await space.tools("tools")

        async def call() -> None:
            await space.call("tools", "write", arguments)

        async def propose() -> None:
            async with space.propose("tools", "write", arguments):
                pass

        said = f"tool 'write' of 'tools' does not take these arguments: {problem}"
        error = await nothing_is_sent(tape, space, call, said)
        assert f"{error.problems[0]['argument']!r} {error.problems[0]['problem']}" == problem
        await nothing_is_sent(tape, space, propose, said)
        await nothing_is_sent(
            tape, space, lambda: space.call("tools", "erase"), "it has 'write', 'read'"
        )
        # The tool takes both, so both are sent.
        for size in (3, "3"):
            assert await space.call("tools", "write", {"path": "a", "size": size}) == "a"
    assert notes.all == [("write", "a", 3), ("write", "a", 3)]


async def test_an_old_list_refuses_nothing_before_it_was_asked_for_again(
    meeting: Meeting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not everybody says when theirs changes."""
    monkeypatch.setattr(tool_lists, "SURE_SECONDS", 0.0)
    lists: list[Any] = []

    async def propose(space: Space, tool: str) -> None:
        async with space.propose("mallory", tool, {"path": "a"}):
            pass

    with anyio.fail_after(PATIENCE):
        async with lister(meeting) as mallory, join(meeting, "second") as space:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, space, lists)
                await mallory.give(await mallory.asked(1), WRITE)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(propose, space, "read")
                await mallory.give(await mallory.asked(2), WRITE, READ)
            async with anyio.create_task_group() as tasks:

                async def refused() -> None:
                    with pytest.raises(InvalidArguments, match="it has 'write', 'read'"):
                        await propose(space, "erase")

                tasks.start_soon(refused)
                await mallory.give(await mallory.asked(3), WRITE, READ)
            await propose(space, "write")
            await propose(space, "read")
            # Who does not answer has the last word on the call itself.
            monkeypatch.setattr(tool_lists, "ASKING_SECONDS", 0.0)
            await propose(space, "erase")


async def test_what_is_not_known_is_sent_and_the_tool_has_its_own_word(
    meeting: Meeting, notes: Notes
) -> None:
    async with gathered(meeting, writer(notes), "second") as (_, space):
        with pytest.raises(RequestError, match="'path'") as caught:
            await space.call("tools", "write")
        assert caught.value.code == payloads.INVALID_PARAMS
        await space.tools("tools")
        meeting.drop("second")
        await until(lambda: session_of(space).connections == 2)
        with pytest.raises(RequestError, match="'path'"):
            await space.call("tools", "write")


async def test_edited_arguments_of_a_fulfillment_are_checked(
    meeting: Meeting, notes: Notes
) -> None:
    reviewer = Agent("reviewer")

    @reviewer.on_proposal
    async def review(proposal: Proposal, space: Space) -> None:
        await space.tools("tools")
        with pytest.raises(InvalidArguments, match="'size' should be integer"):
            await proposal.fulfill({"path": "b", "size": "big"})
        assert proposal.state == "pending"
        await proposal.fulfill({"path": "b"})

    async with gathered(meeting, writer(notes), reviewer, "proposer") as (_, _, space):
        async with space.propose("tools", "write", {"path": "a"}) as proposal:
            assert await proposal.result(accept_edits=True) == "b"
    assert notes.all == [("write", "b", 0)]
