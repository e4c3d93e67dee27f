"""Participants that are paused, asked, restarted and shut down, in memory and over real sockets."""

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import pytest

from meup_agent import Agent, Context, Space
from meup_agent.errors import OutcomeUnknown, Refused, RemoteShutdown, RequestError
from meup_agent.gateway import Gateway
from meup_agent.types import (
    Compact,
    ParticipantStatus,
    Pause,
    Restart,
    Resumption,
    Shutdown,
    StatusRequest,
)
from tests.interaction.cast import sleep_until_stopped
from tests.interaction.people import (
    Meeting,
    Notes,
    OverSockets,
    gathered,
    join,
    open_meeting,
    until,
)
from tests.interaction.views import run_within
from tests.patience import PATIENCE

WORKS: list[dict[str, Any]] = [{"kind": "mcp/*"}, {"kind": "chat"}]
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "boss": [{"kind": "participant/*"}, *WORKS],
    "worker": WORKS,
    "other": WORKS,
}


@pytest.fixture(params=["memory", "sockets"])
def controlled(request: pytest.FixtureRequest) -> Generator[Meeting]:
    """A space with a participant that may control the others."""
    with open_meeting(request.param, PARTICIPANTS) as meeting:
        yield meeting


def worker(notes: Notes) -> Agent:
    agent = Agent("worker")

    @agent.tool
    async def work() -> str:
        return "done"

    @agent.tool
    async def wait(ctx: Context) -> None:
        await sleep_until_stopped(notes, ctx, "waiting")

    @agent.on_control("pause")
    async def paused(pause: Pause, space: Space) -> None:
        notes(("paused", pause.by, pause.reason, space.control.paused == pause))

    @agent.on_control("resume")
    async def resumed(resumption: Resumption) -> None:
        notes(("resumed", resumption.by))

    @agent.on_control("request_status")
    async def status(asked: StatusRequest) -> dict[str, Any]:
        return {"tokens": 12, "asked_by": asked.by}

    @agent.on_control("request_status")
    async def load(asked: StatusRequest) -> dict[str, Any]:
        return {"load": 0.5}

    @agent.on_control("compact")
    async def compact(compact: Compact) -> dict[str, Any]:
        return {"freed_tokens": compact.target_tokens}

    @agent.on_control("restart")
    async def restarted(restart: Restart) -> None:
        notes(("restarted", restart.reason))

    @agent.on_control("shutdown")
    async def last(shutdown: Shutdown) -> None:
        notes(("shut down", shutdown.by, shutdown.reason))

    return agent


@pytest.mark.rule("5.control.paused", "3.control.held", "3.control.who")
async def test_pause_and_resume(controlled: Meeting, notes: Notes) -> None:
    agent = worker(notes)
    async with gathered(controlled, agent, "boss", "other") as (space, boss, other):
        with pytest.raises(Refused, match="capabilities"):
            await other.control.pause("worker")
        pause = await boss.control.pause("worker", reason="too loud")
        await notes.until(("paused", "boss", "too loud", True))
        with pytest.raises(RequestError, match="busy: paused for now"):
            await boss.call("worker", "work")
        with pytest.raises(Refused, match="'boss' has paused us: too loud"):
            await space.call("other", "anything")
        with pytest.raises(Refused):
            await other.control.resume("worker", pause=pause)
        # A new connection is told that it is paused.
        controlled.drop("worker")
        status = await until_status(boss, "paused")
        assert status.fields["paused_by"] == "boss"
        await boss.control.resume("worker", pause=pause)
        await notes.until(("resumed", "boss"))
        assert await boss.call("worker", "work") == "done"
        assert space.control.paused is None


async def until_status(boss: Space, word: str) -> ParticipantStatus:
    """The status, once a participant is there again and has that one."""
    while True:
        await boss.present("worker")
        try:
            status = await boss.control.request_status("worker", timeout=PATIENCE)
        except OutcomeUnknown:
            continue
        if status.status == word:
            return status


@pytest.mark.rule("5.control.status", "5.control.memory", "5.control.restart")
async def test_status_compaction_and_restart(controlled: Meeting, notes: Notes) -> None:
    async with gathered(controlled, worker(notes), "boss") as (_, boss):
        status = await boss.control.request_status("worker", ["tokens", "load", "handlers"])
        assert status.fields == {
            "messages_in_context": 0,
            "handlers": 0,
            "tokens": 12,
            "load": 0.5,
            "status": "active",
        }
        done = await boss.control.compact("worker", target_tokens=16000)
        assert (done.skipped, done.fields["freed_tokens"]) == (False, 16000)
        await boss.control.forget("worker", entries=3)
        await boss.control.clear("worker")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(
                run_within,
                pytest.raises(RequestError, match="cancelled"),
                boss.call,
                "worker",
                "wait",
            )
            await notes.until("waiting")
            await boss.control.restart("worker", reason="stuck")
        await notes.until(("boss", "no_longer_needed: stuck"), ("restarted", "stuck"))
        assert (await boss.control.request_status("worker")).status == "active"


async def test_status_that_is_told_unasked(controlled: Meeting, notes: Notes) -> None:
    listener = Agent("other")

    @listener.on_control("status")
    async def told(status: ParticipantStatus) -> None:
        notes((status.participant, status.status, status.fields["tokens"]))

    async with gathered(controlled, listener, "boss", "worker") as (_, boss, told_nobody):
        await boss.control.report_status("nearly full", {"tokens": 190_000}, to="other")
        await notes.until(("boss", "nearly full", 190_000))
        with pytest.raises(Refused, match="capabilities"):
            await told_nobody.control.report_status("nearly full")


def test_script_ends_well_when_it_is_shut_down() -> None:
    agent = worker(Notes())
    with Gateway(participants=PARTICIPANTS).in_thread() as gateway:

        async def shut_down() -> None:
            async with join(OverSockets(gateway), "boss") as boss:
                await boss.present("worker")
                await boss.control.shutdown("worker")

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(anyio.run, shut_down)
            agent.run(gateway.url, space="demo", token=gateway.token("worker"), log_level=None)
            done.result(PATIENCE)


async def be_shut_down(meeting: Meeting, boss: Space, notes: Notes) -> None:
    async with join(meeting, worker(notes)):
        await boss.control.shutdown("worker", reason="enough")
        await anyio.sleep_forever()


@pytest.mark.rule("5.control.shutdown", "3.control.rejoin")
async def test_shutdown_drains_and_ends_the_block(controlled: Meeting, notes: Notes) -> None:
    async with gathered(controlled, "boss") as (boss,):
        with pytest.raises(
            RemoteShutdown, match="'boss' shut this participant down: enough"
        ) as end:
            await be_shut_down(controlled, boss, notes)
        assert (end.value.by, end.value.reason) == ("boss", "enough")
        await notes.until(("shut down", "boss", "enough"))
        await until(lambda: all(each.id != "worker" for each in boss.participants))
        # It may join again, and work.
        async with join(controlled, worker(notes)):
            assert await boss.call("worker", "work") == "done"
