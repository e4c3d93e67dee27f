"""Calls of pinned tools while the server's list changes, or the server is started again."""

from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from meup_agent.errors import RequestError
from meup_agent.mcp import StdioServer, ToolLock
from meup_agent.mcp.bridge.connection import Callbacks, ConnectionSettings, ServerConnection
from meup_agent.mcp.bridge.offered_tools import OfferedTools, ServerNews

SAFE: dict[str, Any] = {"name": "do", "description": "Do it.", "inputSchema": {"type": "object"}}
CHANGED = {**SAFE, "annotations": {"destructiveHint": True}}


class ListingConnection:
    """A connection to a server that is slow to list its tools."""

    def __init__(self) -> None:
        self.name = "server"
        self.client = self
        self.server_capabilities = self
        self.tools: list[dict[str, Any]] = [SAFE]
        self.is_modern = False
        self.asked = anyio.Event()
        self.may_answer = anyio.Event()
        self.may_answer.set()

    async def request(self, _: str, __: Any) -> dict[str, Any]:
        self.asked.set()
        await self.may_answer.wait()
        return {"tools": self.tools}


async def offered(connection: ListingConnection, path: Path | None) -> OfferedTools:
    """The tools of a server, listed once."""
    pin = None if path is None else ToolLock(path / "tools.lock")
    tools = OfferedTools(cast("ServerConnection", connection), pin, ServerNews("server"), print)
    await tools.update(await tools.fetch())
    return tools


async def called(tools: OfferedTools) -> None:
    await tools.wait_current()
    tools.check_call("do", "")


async def test_call_waits_for_the_list_that_was_announced(tmp_path: Path) -> None:
    connection = ListingConnection()
    tools = await offered(connection, tmp_path)
    await called(tools)
    connection.tools, connection.may_answer = [CHANGED], anyio.Event()
    connection.asked = anyio.Event()
    refused: list[RequestError] = []

    async def call() -> None:
        with pytest.raises(RequestError) as raised:
            await called(tools)
        refused.append(raised.value)

    async def read() -> None:
        await tools.update(await tools.fetch())

    tools.note_changed()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        tasks.start_soon(read)
        await connection.asked.wait()
        assert refused == []
        connection.may_answer.set()
    assert "is not as it was accepted" in str(refused[0])


async def test_a_list_of_before_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meup_agent.mcp.bridge.offered_tools.CURRENT_SECONDS", 0.0)
    tools = await offered(ListingConnection(), tmp_path)
    listed = await tools.fetch()
    tools.note_changed()
    await tools.update(listed)
    with pytest.raises(RequestError, match="have changed, and it does not list them"):
        await called(tools)
    await tools.update(await tools.fetch())
    await called(tools)


async def test_tools_without_a_pin_are_called_at_once() -> None:
    tools = await offered(ListingConnection(), None)
    tools.note_changed()
    await tools.wait_current()
    tools.check_call("hidden", "")


def unconnected() -> ServerConnection:
    """A connection that was never begun."""

    async def nothing(*_: Any) -> Any:
        raise AssertionError("it was called")

    callbacks = Callbacks(
        connected=nothing,
        beside=nothing,
        lost=nothing,
        notified=print,
        logged=print,
        asked=nothing,
        clean=nothing,
    )
    return ServerConnection("server", StdioServer("none", (), {}), callbacks, ConnectionSettings())


async def test_call_is_checked_anew_after_a_server_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    from meup_agent.mcp.bridge import connection as module

    connection, sent = unconnected(), list[str]()

    async def forgotten(method: str, *_: Any) -> dict[str, Any]:
        sent.append(method)
        raise module.SessionForgotten(0, "no such session")

    async def ready() -> None:
        pass

    def check() -> None:
        raise RequestError(0, "is not as it was accepted")

    monkeypatch.setattr(connection, "_request", forgotten)
    monkeypatch.setattr(connection, "wait_ready", ready)
    monkeypatch.setattr(module, "STOP_SECONDS", 0.0)
    with pytest.raises(RequestError, match="is not as it was accepted"):
        await connection.request("tools/call", {"name": "do"}, None, check)
    assert sent == ["tools/call"]


async def test_connection_waits_until_its_tools_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = unconnected()
    monkeypatch.setattr("meup_agent.mcp.bridge.connection.READY_SECONDS", 0.0)
    monkeypatch.setattr(connection, "_client", object())
    with pytest.raises(RequestError, match="is not running"):
        await connection.wait_ready()
