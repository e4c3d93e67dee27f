"""Events: what an agent tells the functions that observe it."""

import threading

import anyio
import anyio.from_thread
import pytest

from meup_agent import Agent, Context, Limits, Participant, Reason, Settings
from meup_agent.agent import agent as agent_module
from meup_agent.errors import RequestError, SessionEnded, ToolError
from meup_agent.events import (
    Connected,
    Disconnected,
    Dropped,
    Event,
    ExchangeBegan,
    ExchangeEnded,
    HandlerEvent,
    HandlerFailed,
    HandlerFinished,
    HandlerStarted,
    HandlerStopped,
    HandlerStopping,
    Left,
    Resumed,
    Retrying,
)
from tests.interaction.cast import sleeper, willing
from tests.interaction.people import QUICK, Meeting, Notes, gathered, join, raw, until
from tests.interaction.views import Seen, call_and_give_up, is_idle, run_within
from tests.patience import PATIENCE
from tests.wire import kinds


async def test_a_call_is_followed_to_its_end(meeting: Meeting, notes: Notes) -> None:
    agent, caller = sleeper(notes), Agent("second")
    here, there = Seen(caller), Seen(agent)
    async with gathered(meeting, join(meeting, agent, space="demo"), caller) as (_, space):
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
    began, ended = here.only(ExchangeBegan), here.only(ExchangeEnded)
    started, finished = there.only(HandlerStarted), there.only(HandlerFinished)
    assert began.exchange == ended.exchange == started.exchange == finished.exchange
    assert (began.kind, began.method, began.tool) == (kinds.MCP_REQUEST, "tools/call", "add")
    assert (began.to, began.parent) == (("tools",), "")
    answered = ("answered", "tools", False, None)
    assert (ended.outcome, ended.by, ended.is_error, ended.cause) == answered
    assert (started.role, started.handler, started.sender) == ("request", "add", "second")
    assert (finished.role, finished.handler, finished.sender) == ("request", "add", "second")
    assert (started.me, started.space, began.me, began.space) == ("tools", "demo", "second", "")
    assert finished.seconds == finished.at - started.at
    assert ended.seconds == pytest.approx(ended.at - began.at, abs=1)
    names = "Connected HandlerStarted HandlerFinished Disconnected Left"
    assert " ".join(there.names()) == names
    connected = there.only(Connected)
    assert (connected.dialect, connected.reconnect, connected.me) == ("meup/v0.1", False, "tools")
    assert there.only(Disconnected).code is None
    assert there.only(Left).why == "we have left the space"


@pytest.mark.parametrize(
    ("tool", "arguments", "handler", "error"),
    [
        ("fail", {}, "fail", ToolError),
        ("answer_with_an_error", {}, "answer_with_an_error", RequestError),
        ("add", {"a": 1}, "add", RequestError),
        ("nothing", {}, "tools/call", RequestError),
    ],
)
async def test_a_failure_has_its_error(
    meeting: Meeting,
    notes: Notes,
    tool: str,
    arguments: dict[str, int],
    handler: str,
    error: type[Exception],
) -> None:
    agent, caller = sleeper(notes), Agent("second")
    here, there = Seen(caller), Seen(agent)
    async with gathered(meeting, agent, caller) as (_, space):
        with pytest.raises((ToolError, RequestError)):
            await space.call("tools", tool, arguments)
    failed = there.only(HandlerFailed)
    assert failed.handler == handler
    assert isinstance(failed.error, error)
    assert failed.exchange == here.only(ExchangeEnded).exchange
    assert here.only(ExchangeEnded).is_error
    assert there.of(HandlerFinished) == []


async def test_a_withdrawal_is_followed_through_every_agent(meeting: Meeting, notes: Notes) -> None:
    tools, reviewer, proposer = sleeper(notes), willing(), Agent("proposer")
    at_tools, at_reviewer, at_proposer = Seen(tools), Seen(reviewer), Seen(proposer)
    async with gathered(meeting, tools, reviewer, proposer) as (tools_space, reviewer_space, space):
        async with space.propose("tools", "sleep", to="reviewer") as proposal:
            await notes.until("sleeps")
            await proposal.withdraw(Reason.DUPLICATE)
        await until(lambda: is_idle(tools_space) and is_idle(reviewer_space))
    ended = at_proposer.only(ExchangeEnded)
    assert (ended.outcome, ended.by, ended.reason) == ("withdrawn", "proposer", "duplicate")

    stopping, stopped = at_reviewer.only(HandlerStopping), at_reviewer.only(HandlerStopped)
    assert stopping.exchange == stopped.exchange == proposal.id
    assert stopping.handler == stopped.handler
    assert stopping.handler.endswith("approve")
    assert stopping.cause is stopped.cause
    assert (stopped.cause.code, stopped.cause.by) == ("duplicate", "proposer")
    assert (stopped.outcome, stopped.error) == ("stopped", None)

    began, given_up = at_reviewer.only(ExchangeBegan), at_reviewer.only(ExchangeEnded)
    assert began.parent == proposal.id
    assert given_up.exchange == began.exchange
    assert given_up.outcome == "withdrawn"
    assert given_up.cause is not None
    assert given_up.cause.code == "duplicate"

    last = at_tools.only(HandlerStopped)
    assert last.exchange == began.exchange
    assert (last.outcome, last.cause.code) == ("stopped", "duplicate")
    assert [link.by for link in last.cause.chain] == ["reviewer", "proposer"]
    names = at_tools.names()
    assert names.index("HandlerStopping") < names.index("HandlerStopped")


async def test_what_is_known_of_stopped_work_is_told(meeting: Meeting, notes: Notes) -> None:
    agent = Agent("tools")

    @agent.tool
    async def swallow() -> str:
        notes("swallow")
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            pass
        return "done all the same"

    @agent.tool
    async def protect() -> str:
        with anyio.CancelScope(shield=True):
            notes("protect")
            await notes.until(("asked", "protect"))
        return "done all the same"

    @agent.tool
    async def fail() -> None:
        notes("fail")
        try:
            await anyio.sleep_forever()
        finally:
            raise RuntimeError("while it was cancelled")

    @agent.tool
    def loop(ctx: Context) -> None:
        notes.from_thread("loop")
        while True:
            ctx.check_cancelled()
            threading.Event().wait(0.001)

    @agent.observe
    def see(event: Event) -> None:
        if isinstance(event, HandlerStopping):
            notes(("asked", event.handler))

    seen = Seen(agent)
    async with gathered(meeting, agent, "second") as (_, space):
        for number, tool in enumerate(("swallow", "protect", "fail", "loop"), 1):
            await call_and_give_up(space, tool, notes, tool)
            await seen.until(HandlerStopped, number)
    told = {event.handler: (event.outcome, str(event.error)) for event in seen.of(HandlerStopped)}
    assert told == {
        "swallow": ("completed", "None"),
        "protect": ("completed", "None"),
        "fail": ("unknown", "while it was cancelled"),
        "loop": ("stopped", "None"),
    }


async def test_of_a_thread_that_is_left_behind_nothing_is_known(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_module, "GRACE", 0.05)
    agent, over = Agent("tools"), threading.Event()

    @agent.tool
    def block() -> None:
        notes.from_thread("blocks")
        over.wait(PATIENCE)

    seen = Seen(agent)
    try:
        async with gathered(meeting, "second") as (space,), anyio.create_task_group() as tasks:
            async with join(meeting, agent, grace=0):
                tasks.start_soon(
                    run_within,
                    pytest.raises(RequestError, match="cancelled"),
                    space.call,
                    "tools",
                    "block",
                )
                await notes.until("blocks")
    finally:
        over.set()
    stopped = seen.only(HandlerStopped)
    assert (stopped.outcome, stopped.cause.text) == ("unknown", "the agent shuts down")
    assert seen.names()[-1] == "Left"


async def test_connections_come_and_go(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)
    seen = Seen(agent)
    async with gathered(meeting, agent) as (space,):
        meeting.drop("tools")
        await seen.until(Resumed, 1)
        assert space.connected
    assert seen.names() == [
        "Connected",
        "Disconnected",
        "Retrying",
        "Connected",
        "Resumed",
        "Disconnected",
        "Left",
    ]
    assert [event.reconnect for event in seen.of(Connected)] == [False, True]
    lost, left = seen.of(Disconnected)
    assert lost.code is not None
    assert left.code is None
    assert seen.only(Retrying).delay >= 0
    assert str(lost.code) in str(seen.only(Retrying).error)


async def test_an_end_that_the_gateway_brings_has_its_reason(meeting: Meeting) -> None:
    agent = Agent("tools")
    seen = Seen(agent)
    with anyio.fail_after(PATIENCE):
        with pytest.raises(SessionEnded):
            async with join(meeting, agent), join(meeting, "tools"):
                await anyio.sleep_forever()
    assert seen.names() == ["Connected", "Disconnected", "Left"]
    assert seen.only(Disconnected).code == 4409
    assert "took over" in seen.only(Left).why


async def test_what_is_left_out_is_told(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)
    seen = Seen(agent)
    async with gathered(meeting, agent, "second") as (_, space):
        async with anyio.create_task_group() as tasks, raw(meeting) as mallory:
            tasks.start_soon(space.call, "tools", "sleep")
            await notes.until("sleeps")
            exchange = seen.only(HandlerStarted).exchange
            await mallory.cancel("tools", exchange, id="not mine")
            await seen.until(Dropped)
            tasks.cancel_scope.cancel()
    dropped = seen.of(Dropped)[0]
    assert (dropped.why, dropped.envelope_id) == ("cancel_by_another", "not mine")
    assert (dropped.kind, dropped.sender) == (kinds.MCP_REQUEST, "mallory")
    assert dropped.expected is False


async def test_too_much_to_do_is_told(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)
    seen = Seen(agent)
    settings = Settings(backoff=QUICK.backoff, limits=Limits(handlers=1, queued=1))
    async with gathered(meeting, join(meeting, agent, settings=settings), "second") as (_, space):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "sleep")
            await notes.until("sleeps")
            tasks.start_soon(space.call, "tools", "sleep")
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(RequestError, match="busy"):
                await space.call("tools", "add", {"a": 1, "b": 2})
            tasks.cancel_scope.cancel()
    overflow = [event for event in seen.of(Dropped) if event.why == "overflow"]
    assert len(overflow) == 1
    assert overflow[0].sender == "second"


async def test_several_handlers_of_the_same_are_one(meeting: Meeting) -> None:
    agent = Agent("tools")

    @agent.on_join
    async def first(participant: Participant) -> None:
        raise ValueError("first")

    @agent.on_join
    async def second(participant: Participant) -> None:
        raise ValueError("second")

    seen = Seen(agent)
    async with gathered(meeting, agent), join(meeting, "second"):
        await seen.until(HandlerFailed)
    failed = seen.only(HandlerFailed)
    assert (failed.role, failed.sender) == ("join", kinds.GATEWAY)
    assert [name.rpartition(".")[2] for name in failed.handler.split(", ")] == ["first", "second"]
    assert isinstance(failed.error, ExceptionGroup)
    assert {str(error) for error in failed.error.exceptions} == {"first", "second"}


async def test_each_beginning_has_one_end(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)

    @agent.on_chat
    async def hear() -> None: ...

    seen = Seen(agent)
    async with gathered(meeting, agent, "second") as (_, space):
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(space.call, "tools", "sleep")
                tasks.start_soon(space.offers.tools, "tools")
                tasks.start_soon(space.call, "tools", "add", {"a": 1, "b": 2})
                tasks.start_soon(space.chat, "hello")
            await until(lambda: notes.all.count("sleeps") == 5)
            await until(lambda: len(seen.of(HandlerFinished)) >= 11)
            tasks.cancel_scope.cancel()
        await seen.until(HandlerStopped, 5)
    open_now: dict[tuple[str, str], int] = {}
    for event in seen.of(HandlerEvent):
        name = (event.exchange, event.handler)
        match event:
            case HandlerStarted():
                open_now[name] = open_now.get(name, 0) + 1
            case HandlerStopping():
                assert open_now[name] == 1
            case _:
                open_now[name] -= 1
    assert set(open_now.values()) == {0}
