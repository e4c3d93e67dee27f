"""A cancel or a withdrawal in the space ends the call in the server, as its revision says."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from meup_agent import Agent, CallScope, Proposal, Space
from meup_agent.mcp.bridge.config import Server
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, LogLines, bridged, over, stdio


async def cancelled(space: Space, begun: Callable[[], Awaitable[object]], **arguments: Any) -> None:
    """Call the server's tool, and cancel the call once it has begun there."""
    with CallScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: space.call(BRIDGE, arguments.pop("tool"), arguments))
            await begun()
            scope.cancel(text="the user pressed stop")
    assert scope.cancelled


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-11-25", "2026-07-28"])
async def test_a_notification_over_stdio_has_our_reason(revision: str, log_lines: LogLines) -> None:
    async with bridged(stdio("scripted", revision)) as stage:
        await cancelled(
            stage.caller, lambda: log_lines.wait_for('"tools/call"'), tool="do", way="wait"
        )
        call = json.loads((await log_lines.wait_for('"tools/call"')).partition("got ")[2])
        line = await log_lines.wait_for('"notifications/cancelled"')
        assert json.loads(line.partition("got ")[2])["params"] == {
            "requestId": call["id"],
            "reason": "the user pressed stop",
        }
        await log_lines.wait_for("is cancelled: the user pressed stop")


@pytest.mark.parametrize(
    ("way", "mode"), [("http", "legacy"), ("http", "auto"), ("json", "legacy")]
)
async def test_a_call_over_http_is_cancelled(way: str, mode: str, log_lines: LogLines) -> None:
    async with over(way, "slow") as server:
        async with bridged(server, settings=replace(AT_ONCE, mode=mode)) as stage:
            space = stage.caller
            await cancelled(space, lambda: until(space, "running", 1), tool="wait")
            assert await until(space, "ended", 1) == 1
            line = await log_lines.wait_for("is cancelled: ")
            closed = "stream closed by the client; " if mode == "auto" else ""
            assert line.endswith(f": {closed}the user pressed stop")


async def until(space: Space, tool: str, count: int) -> int:
    """Wait until so many calls run in the slow server, or have ended there."""
    return int((await space.call(BRIDGE, tool, {"count": count}))["result"])


async def test_a_withdrawal_that_reaches_the_fulfiller_ends_the_call(log_lines: LogLines) -> None:
    reviewer = Agent("other")

    @reviewer.on_proposal
    async def fulfill(proposal: Proposal) -> None:
        await proposal.fulfill()

    async with bridged(stdio("slow")) as stage:
        await stage.join("other", reviewer)
        proposer = await stage.join("proposer")
        async with proposer.propose(BRIDGE, "wait", {}) as proposal:
            await log_lines.wait_for("server: wait began")
            await proposal.withdraw()
        await log_lines.wait_for("server: wait ended")
        assert (await log_lines.wait_for("is cancelled: ")).startswith("INFO server: wait for")


async def test_a_bridge_that_ends_cancels_what_runs_in_the_server(log_lines: LogLines) -> None:
    async with bridged(stdio("slow")) as stage, anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: stage.caller.call(BRIDGE, "wait", {}))
        await log_lines.wait_for("server: wait began")
        tasks.cancel_scope.cancel()
    assert log_lines.with_text("server: wait ended")


async def test_thirty_calls_are_cancelled_each_by_itself(log_lines: LogLines) -> None:
    server: Server = stdio("slow")
    async with bridged(server) as stage:
        space = stage.caller
        scopes = [anyio.CancelScope() for _ in range(30)]

        async def call(scope: anyio.CancelScope) -> None:
            with scope:
                await space.call(BRIDGE, "wait", {})

        async with anyio.create_task_group() as tasks:
            for scope in scopes:
                tasks.start_soon(call, scope)
            await until(space, "running", 30)
            for scope in scopes[:29]:
                scope.cancel()
            assert await until(space, "ended", 29) == 29
            assert log_lines.with_text("is cancelled: ") != []
            scopes[29].cancel()
        assert await until(space, "ended", 30) == 30
