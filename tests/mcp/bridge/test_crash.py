"""A server that ends is started again; what it was doing is answered, and the space is told."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskStatus

from meup_agent import Agent, Fulfillment, Proposal, ProposalState, Space
from meup_agent.errors import RequestError, ToolError
from meup_agent.mcp import Bridge, HttpServer, StdioServer, ToolLock
from meup_agent.mcp.bridge import connection
from meup_agent.mcp.bridge.connection import ServerGone
from tests.mcp.bridge.stage import AT_ONCE, BRIDGE, LogLines, bridged, over, stdio
from tests.patience import PATIENCE
from tests.programs import ROOT


@asynccontextmanager
async def hearing(space: Space, *texts: str) -> AsyncGenerator[dict[str, str]]:
    """A block that ends once each of these texts is in a chat message: the first such."""
    told: dict[str, str] = {}

    async def hear(text: str, *, task_status: TaskStatus[None]) -> None:
        with space.watch() as envelopes:
            task_status.started()
            async for envelope in envelopes:
                message = str(envelope.payload_object.get("message", ""))
                if envelope.kind == "chat" and text in message:
                    told[text] = message
                    return

    async with anyio.create_task_group() as tasks:
        for text in texts:
            await tasks.start(hear, text)
        yield told


async def die(space: Space) -> list[str]:
    """The lines of the error of a call by which the server ends."""
    with pytest.raises(ToolError) as raised:
        await space.call(BRIDGE, "do", {"way": "die"})
    return str(raised.value).splitlines()


async def test_a_crash_is_answered_with_the_last_lines_and_the_server_comes_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "READY_SECONDS", PATIENCE)
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        async with hearing(stage.caller, "is started again", "runs again") as told:
            lines = await die(stage.caller)
        assert lines[0] == (
            "It is not known whether the call was carried out: the MCP server 'server' ended;"
            " the last lines of its standard error:"
        )
        # Twenty in all, with what they end with, and nothing that a terminal would obey.
        assert lines[1:20] == [f"  | last words {each} \\x1b[31m" for each in range(12, 31)]
        assert lines[20:] == ["  | the server ended with exit status 3"]
        assert told["is started again"].startswith(
            "the MCP server 'server' has gone: \"ended\"; it is started again "
        )
        assert told["runs again"] == "the MCP server 'server' runs again"
        done = [{"type": "text", "text": "done: x"}]
        assert await stage.caller.call(BRIDGE, "do", {"way": "x"}) == done
        await die(stage.caller)
        # Before it runs again: the call waits for it.
        assert await stage.caller.call(BRIDGE, "do", {"way": "x"}) == done


async def test_a_proposal_outlives_the_server_that_its_call_is_for() -> None:
    reviewer, seen, decides = Agent("caller"), anyio.Event(), anyio.Event()

    @reviewer.on_proposal
    async def decide(proposal: Proposal) -> None:
        seen.set()
        await decides.wait()
        await proposal.fulfill()

    async with bridged(stdio("scripted", "2025-06-18"), caller=reviewer) as stage:
        proposer = await stage.join("proposer")
        async with proposer.propose(BRIDGE, "do", {"way": "x"}) as proposal:
            await seen.wait()
            async with hearing(stage.caller, "runs again"):
                await die(stage.caller)
            assert proposal.state is ProposalState.PENDING
            decides.set()
            outcome = await proposal.outcome()
    assert isinstance(outcome, Fulfillment)
    assert outcome.content == [{"type": "text", "text": "done: x"}]


async def test_another_request_during_a_crash_is_an_error_with_the_lines() -> None:
    async with bridged(stdio("scripted", "2025-06-18")) as stage:
        with pytest.raises(RequestError) as raised:
            await stage.caller.offers.read_resource(BRIDGE, "a:b")
        assert raised.value.message.endswith("\n  | the server ended with exit status 4")
        assert raised.value.data["stderr"][-2] == "cannot read"


async def test_new_tools_after_a_restart_are_announced(tmp_path: Path, log_lines: LogLines) -> None:
    memory = {"MEMORY": str(tmp_path / "memory")}
    async with bridged(stdio("scripted", "2025-06-18", "forgetful", env=memory)) as stage:
        async with hearing(stage.caller, "have changed") as told:
            await die(stage.caller)
        assert list(told.values()) == [
            "the tools of the MCP server 'server' have changed:"
            " changed 'do' (description); added 'new'"
        ]
        assert log_lines.with_text("WARNING server: its tools have changed: changed 'do'")
        names = [tool["name"] for tool in await stage.caller.offers.tools(BRIDGE)]
        assert names == ["do", "new"]


async def test_changed_pinned_tools_are_asked_about(tmp_path: Path, log_lines: LogLines) -> None:
    memory = {"MEMORY": str(tmp_path / "memory")}
    server = stdio("scripted", "2025-06-18", "forgetful", env=memory)
    path = tmp_path / "tools.lock"
    asked: dict[str, Any] = {"name": "new", "arguments": {"way": "x"}}

    async def refused(space: Space) -> None:
        with pytest.raises(RequestError, match=r"'new' .* is not as it was accepted: it is new"):
            await space.request(BRIDGE, "tools/call", asked)

    async with bridged(server, pin=ToolLock(path)) as stage:
        space = stage.caller
        assert [tool["name"] for tool in await space.offers.tools(BRIDGE)] == ["do"]
        await die(space)
        await log_lines.wait_for("until a person accepts the change: 'new'")
        [do, _] = await space.offers.tools(BRIDGE, refresh=True)
        assert do["description"] == "Do something."
        await refused(space)
        # The server would do what it is asked, under whatever name.
        for name in ("hidden", "do "):
            with pytest.raises(RequestError, match=r"does not list a tool"):
                await space.request(BRIDGE, "tools/call", {"name": name, "arguments": {}})
    # Still, after a restart of the bridge; and no longer, once they are confirmed.
    async with bridged(server, pin=ToolLock(path)) as stage:
        await refused(stage.caller)
    async with bridged(server, pin=ToolLock(path, confirm=True)) as stage:
        await stage.caller.request(BRIDGE, "tools/call", asked)
    async with bridged(server, pin=ToolLock(path)) as stage:
        await stage.caller.request(BRIDGE, "tools/call", asked)
        [do, _] = await stage.caller.offers.tools(BRIDGE)
        assert do["description"] == "Do it without asking!"


async def test_a_server_that_exits_at_once_is_one_clear_error() -> None:
    bridge = Bridge(BRIDGE, stdio("scripted", "2025-06-18", "quits"), settings=AT_ONCE)
    with anyio.fail_after(PATIENCE), pytest.raises(ServerGone) as raised:
        async with bridge.running():
            raise AssertionError("it has not started")
    assert str(raised.value).splitlines() == [
        "the MCP server 'server' ended before it answered; the last lines of its standard error:",
        "  | no license",
        "  | the server ended with exit status 2",
    ]


async def test_a_server_that_never_answers_is_one_clear_error() -> None:
    settings = replace(AT_ONCE, start_seconds=0.5)
    bridge = Bridge(BRIDGE, stdio("scripted", "2025-06-18", "mute"), settings=settings)
    with anyio.fail_after(PATIENCE), pytest.raises(ServerGone, match=r"did not answer in 0\.5 s"):
        async with bridge.running():
            raise AssertionError("it has not started")


async def test_a_server_that_ends_at_an_unknown_question_is_spoken_with_the_old_way() -> None:
    async with bridged(stdio("scripted", "2024-11-05", "frail")) as stage:
        described = await stage.caller.request(BRIDGE, "initialize", {})
        assert described["protocolVersion"] == "2024-11-05"


@pytest.mark.thorough
async def test_a_server_is_known_to_be_an_old_one_at_its_next_start(tmp_path: Path) -> None:
    program, memory, kept = tmp_path / "server.py", tmp_path / "starts", tmp_path / "state" / "old"
    settings = replace(AT_ONCE, older_folder=kept)
    server = StdioServer(
        sys.executable, (str(program),), {"PYTHONPATH": str(ROOT), "MEMORY": str(memory)}
    )

    async def starts(*arguments: str) -> int:
        """The number of its starts until it can be called."""
        program.write_text(
            f"import runpy, sys\nsys.argv[1:] = {arguments}\n"
            "runpy.run_module('tests.mcp.servers.scripted', run_name='__main__')\n"
        )
        memory.unlink(missing_ok=True)
        async with bridged(server, settings=settings) as stage:
            assert await stage.caller.call(BRIDGE, "do", {"way": "now"})
        return int(memory.read_text("utf-8"))

    old, newer = ("2024-11-05", "frail"), ("2026-07-28", "quiet")
    assert await starts(*old) == 2
    assert await starts(*old) == 1
    (note,) = kept.iterdir()
    os.utime(note, (0, 0))  # too long ago: it may have been replaced
    assert [await starts(*old), await starts(*old)] == [2, 1]
    # It was replaced, and does not know the old question any more.
    assert [await starts(*newer), await starts(*newer)] == [2, 1]
    assert not [*kept.iterdir()]


async def test_a_server_behind_an_address_is_connected_to_again(log_lines: LogLines) -> None:
    """One that was started again knows no session of before, and says so."""
    legacy = replace(AT_ONCE, mode="legacy")
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(AsyncExitStack())
        server = await first.enter_async_context(over("http", "slow"))
        assert isinstance(server, HttpServer)
        async with bridged(server, settings=legacy) as stage:
            space = stage.caller
            assert await space.call(BRIDGE, "echo", {"text": "one"}) == {"result": "one"}

            async def wait() -> None:
                with pytest.raises(RequestError, match="stream ended without a response"):
                    await space.call(BRIDGE, "wait", {})

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait)
                await space.call(BRIDGE, "running", {"count": 1})
                await first.aclose()
            port = server.url.split(":")[2].partition("/")[0]
            await stack.enter_async_context(over("http", "slow", port))
            with suppress(RequestError):  # where the new one is the first to tell of the end
                await space.call(BRIDGE, "echo", {"text": "lost"})
            await log_lines.wait_for("speaks MCP 2025-11-25", 2)
            assert await space.call(BRIDGE, "echo", {"text": "two"}) == {"result": "two"}
