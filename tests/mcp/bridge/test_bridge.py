"""An MCP server as a participant: calls, cancellation, progress."""

import anyio
import pytest

from meup_agent import CallScope, Progress
from meup_agent.errors import RequestError
from tests.mcp.bridge.stage import BRIDGE, LogLines, bridged, log_lines, stdio

pytestmark = pytest.mark.anyio

__all__ = ["log_lines"]


async def test_a_tool_is_listed_and_called() -> None:
    async with bridged(stdio("slow")) as stage:
        names = [tool["name"] for tool in await stage.caller.tools(BRIDGE)]
        assert names == ["wait", "running", "ended", "echo"]
        assert await stage.caller.call(BRIDGE, "echo", {"text": "hello"}) == {"result": "hello"}


async def test_a_cancel_ends_the_call_in_the_server_with_our_reason(log_lines: LogLines) -> None:
    begun = anyio.Event()

    def note(progress: Progress) -> None:
        assert (progress.done, progress.total, progress.message) == (1, 10, "begun")
        begun.set()

    async with bridged(stdio("slow")) as stage:
        with CallScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    lambda: stage.caller.call(BRIDGE, "wait", {}, on_progress=note), name="call"
                )
                await begun.wait()
                scope.cancel(text="the user pressed stop")
        assert scope.cancelled
        await log_lines.wait_for("server: wait ended")
        line = await log_lines.wait_for("is cancelled: no_longer_needed: the user pressed stop")
        assert line.startswith("INFO server: wait for 'caller'")


async def test_what_the_server_refuses_is_its_own_error() -> None:
    async with bridged(stdio("slow")) as stage:
        with pytest.raises(RequestError, match="has no completions") as raised:
            await stage.caller.complete(BRIDGE, {"type": "ref/prompt", "name": "none"}, "a", "b")
        assert raised.value.code == -32601
