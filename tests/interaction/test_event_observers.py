"""Functions that observe an agent: they fail, come late, count and log."""

import json
import logging
from typing import Any, cast

import anyio
import anyio.from_thread
import pytest

from meup_agent import Agent, Counters, log_events
from meup_agent.errors import RequestError, ToolError, UsageError
from meup_agent.events import (
    Connected,
    Dropped,
    Event,
    HandlerStopped,
    HandlerStopping,
    Left,
    Observer,
)
from meup_agent.session.event_emitter import EventEmitter
from tests.interaction.cast import sleeper
from tests.interaction.people import Meeting, Notes, gathered, join, until
from tests.interaction.views import Seen, call_and_give_up, is_idle, lines, session_of
from tests.patience import PATIENCE


async def test_an_observer_that_fails_disturbs_nobody(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = sleeper(notes)

    @agent.observe
    def bad(event: Event) -> None:
        raise RuntimeError("the observer's own")

    seen = Seen(agent)
    async with gathered(meeting, agent, "second") as (_, space):
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
    assert "HandlerFinished" in seen.names()
    failures = [line for line in lines(caplog, logging.ERROR) if "an observer failed" in line]
    assert len(failures) == len(seen.all)


async def test_what_an_observer_causes_is_told_afterwards(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)
    events = EventEmitter()
    order: list[str] = []

    def first(event: Event) -> None:
        order.append(f"first {type(event).__name__}")
        if isinstance(event, Connected):
            events.left("it made that happen")

    def second(event: Event) -> None:
        order.append(f"second {type(event).__name__}")

    events.observers = [first, second]
    events.connected("me", "somewhere", "meup/v0.1")
    assert order == ["first Connected", "second Connected", "first Left", "second Left"]
    assert agent.observe(second) is second


async def test_an_observer_may_come_while_the_agent_runs(meeting: Meeting, notes: Notes) -> None:
    agent = sleeper(notes)
    async with gathered(meeting, agent, "second") as (_, space):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "sleep")
            await notes.until("sleeps")
            seen = Seen(agent)
            assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
            tasks.cancel_scope.cancel()
    assert seen.names()[:2] == ["HandlerStarted", "HandlerFinished"]
    # What began before it came has no end for it.
    assert not seen.of(HandlerStopping)
    assert not seen.of(HandlerStopped)


def test_what_cannot_be_told_is_refused() -> None:
    agent = Agent("tools")

    async def later(event: Event) -> None: ...

    class Later:
        async def __call__(self, event: Event) -> None: ...

    for observer in (later, Later()):
        with pytest.raises(UsageError, match="async"):
            agent.observe(observer)
    with pytest.raises(UsageError, match="cannot be"):
        agent.observe(cast("Observer", "events"))


async def test_where_nobody_observes_no_event_is_made(
    meeting: Meeting, notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(self: EventEmitter, event: Event) -> None:
        raise AssertionError(f"nobody asked for {event}")

    monkeypatch.setattr(EventEmitter, "emit", tell)
    monkeypatch.setattr(EventEmitter, "began", tell)
    monkeypatch.setattr(EventEmitter, "event_fields", tell)
    async with gathered(meeting, sleeper(notes), "second") as (tools, space):
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "sleep")
            await notes.until("sleeps")
            meeting.drop("tools")
            await until(lambda: session_of(tools).connections == 2)
            tasks.cancel_scope.cancel()
        await until(lambda: is_idle(tools))


async def test_events_are_counted(meeting: Meeting, notes: Notes) -> None:
    agent, caller = sleeper(notes), Agent("second")
    counters, callers = Counters(), Counters()
    agent.observe(counters)
    caller.observe(callers)
    async with gathered(meeting, agent, caller) as (tools, space):
        assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
        with pytest.raises(ToolError):
            await space.call("tools", "fail")
        for name in ("x", "y"):
            with pytest.raises(RequestError):
                await space.call("tools", name)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(space.call, "tools", "sleep")
            await notes.until("sleeps")
            handlers = counters.snapshot()["handlers"]
            assert handlers["sleep"]["running"] == 1
            tasks.cancel_scope.cancel()
        await until(lambda: is_idle(tools))
        meeting.drop("tools")
        await until(lambda: counters.snapshot()["reconnected"] == 1)
    counts = counters.snapshot()
    seconds = [each.pop("seconds") for each in counts["handlers"].values()]
    assert min(seconds) >= 0
    none = {"started": 1, "finished": 0, "failed": 0, "stopped": 0, "running": 0}
    assert counts["handlers"] == {
        "add": {**none, "finished": 1},
        "fail": {**none, "failed": 1},
        "tools/call": {**none, "started": 2, "failed": 2},
        "sleep": {**none, "stopped": 1},
    }
    assert (counts["connected"], counts["disconnected"], counts["retries"]) == (2, 2, 1)
    there = callers.snapshot()
    assert there["exchanges"] == 5
    assert there["outcomes"] == {"answered": 4, "withdrawn": 1}
    assert json.loads(json.dumps(counts)) == counts
    counts["handlers"].clear()
    assert counters.snapshot()["handlers"] != {}


async def test_events_are_logged_with_their_values(
    meeting: Meeting, notes: Notes, caplog: pytest.LogCaptureFixture
) -> None:
    agent = sleeper(notes)
    agent.observe(log_events())
    with anyio.fail_after(PATIENCE), caplog.at_level(logging.INFO):
        async with join(meeting, agent) as tools, join(meeting, "second") as space:
            with pytest.raises(ToolError):
                await space.call("tools", "fail")
            await call_and_give_up(space, "sleep", notes, "sleeps")
            await until(lambda: is_idle(tools))
    records: dict[str, Any] = {
        vars(record)["meup_event"]: record
        for record in caplog.records
        if record.name == "meup_agent.events"
    }
    assert list(records) == [
        "Connected",
        "HandlerStarted",
        "HandlerFailed",
        "HandlerStopping",
        "HandlerStopped",
        "Disconnected",
        "Left",
    ]
    failed, stopped = records["HandlerFailed"], records["HandlerStopped"]
    assert (failed.levelno, stopped.levelno) == (logging.WARNING, logging.INFO)
    assert (failed.meup_handler, failed.meup_error) == ("fail", "ToolError: no luck")
    assert stopped.meup_cause["chain"][0]["by"] == "second"
    assert stopped.meup_outcome == "stopped"
    assert stopped.getMessage().startswith("HandlerStopped me='tools' role='request'")
    assert "cause='no_longer_needed' by 'second'" in stopped.getMessage()
    fields = {name: value for name, value in vars(stopped).items() if name.startswith("meup_")}
    assert json.loads(json.dumps(fields)) == fields


def test_the_text_of_a_record_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    event = Dropped(
        space="demo",
        me="tools",
        at=0.0,
        why="forged_system",
        envelope_id="x\n%s\x1b[31m",
        kind="k" * 1000,
        sender="",
        expected=False,
    )
    log_events(logging.getLogger("somewhere"))(event)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("somewhere", logging.WARNING)
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 500
    log_events(logging.getLogger("somewhere"), logging.DEBUG)(
        Left(space="demo", me="tools", at=0.0, why="over")
    )
    assert len(caplog.records) == 1
