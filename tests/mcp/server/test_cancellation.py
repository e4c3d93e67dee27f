"""Cancelled event streams: the bytes of the last event, what is freed, and who may cancel what."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest

from meup_agent import Agent, Context
from tests.mcp.conftest import ANYTHING, PROPOSES, Served, Stage, served, staged

pytestmark = pytest.mark.anyio

OLD = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
"""Revisions in which a cancelled call is answered."""

ACCEPT = {"accept": "application/json, text/event-stream"}
BOTH = {**ACCEPT, "content-type": "application/json"}

LAST = {
    "jsonrpc": "2.0",
    "id": 7,
    "result": {"content": [{"type": "text", "text": "Operation cancelled"}], "isError": True},
}


class Slow:
    """An agent with a tool that never returns, and what became of its calls."""

    def __init__(self) -> None:
        self.agent = Agent("slow")
        self.began = anyio.Event()
        self.ended = anyio.Event()
        self.reason = ""
        self.agent.tool(self.wait)

    async def wait(self, ctx: Context) -> str:
        """Wait for ever."""
        self.began.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.reason = str(ctx.reason)
            self.ended.set()
        raise AssertionError


@asynccontextmanager
async def space_with(slow: Slow) -> AsyncGenerator[tuple[Stage, Served]]:
    """A space with a slow tool."""
    async with staged(slow=ANYTHING, alice=ANYTHING, bob=ANYTHING, carol=PROPOSES) as stage:
        await stage.join("slow", slow.agent)
        async with served(stage, own="alice") as server:
            yield stage, server


class Session:
    """A client's session, on the wire."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str, session: str) -> None:
        self.http = http
        self.url = url
        self.headers = {**BOTH, "mcp-protocol-version": version, "mcp-session-id": session}

    async def post(self, message: dict[str, Any]) -> httpx2.Response:
        """Post a message; the whole answer."""
        return await self.http.post(
            self.url, json={"jsonrpc": "2.0", **message}, headers=self.headers
        )

    @asynccontextmanager
    async def call(self, request_id: int | str = 7) -> AsyncGenerator[httpx2.Response]:
        """Call the slow tool; its stream."""
        message = {
            "jsonrpc": "2.0",
            "id": request_id,
            "method": "tools/call",
            "params": {"name": "slow_wait", "arguments": {}},
        }
        request = self.http.build_request("POST", self.url, json=message, headers=self.headers)
        response = await self.http.send(request, stream=True)
        try:
            yield response
        finally:
            await response.aclose()

    async def cancel(self, request_id: int | str = 7, **params: Any) -> int:
        """Cancel a call; the status of the answer."""
        params = {"requestId": request_id, **params}
        answer = await self.post({"method": "notifications/cancelled", "params": params})
        return int(answer.status_code)


@asynccontextmanager
async def session(
    server: Served, version: str, token: str | None = None
) -> AsyncGenerator[Session]:
    """A session of a client that speaks a revision."""
    async with server.http(token) as http:
        hello = {
            "protocolVersion": version,
            "capabilities": {},
            "clientInfo": {"name": "wire", "version": "1"},
        }
        message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello}
        answer = await http.post(server.url, json=message, headers=BOTH)
        opened = Session(http, server.url, version, answer.headers["mcp-session-id"])
        await opened.post({"method": "notifications/initialized"})
        yield opened


@pytest.mark.parametrize("version", OLD)
async def test_the_last_event_of_a_cancelled_stream(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meup_agent.mcp")
    slow = Slow()
    async with space_with(slow) as (_, server), session(server, version) as client:
        async with client.call() as stream:
            with anyio.fail_after(5):
                await slow.began.wait()
            assert await client.cancel(reason="the user\nclicked stop") == 202
            with anyio.fail_after(5):
                body = await stream.aread()
                await slow.ended.wait()
    (event,) = [each for each in body.decode().split("\r\n\r\n") if each]
    kind, data = event.split("\r\n")
    assert kind == "event: message"
    assert json.loads(data.removeprefix("data: ")) == LAST
    assert slow.reason == "no_longer_needed: the user\\nclicked stop"
    assert len(server.app.streams) == 0
    said = [each.getMessage() for each in caplog.records if "call 7" in each.getMessage()]
    assert said == ["call 7 was cancelled: the user\\nclicked stop"]


async def test_ids_compare_as_the_sdk_compares_them() -> None:
    slow = Slow()
    async with space_with(slow) as (_, server), session(server, OLD[-1]) as client:
        async with client.call("7") as stream:
            with anyio.fail_after(5):
                await slow.began.wait()
                assert await client.cancel(7) == 202
                body = await stream.aread()
    assert json.loads(body.decode().split("data: ")[1]) == {**LAST, "id": "7"}


async def test_ids_of_two_sessions_never_meet() -> None:
    slow = Slow()
    async with space_with(slow) as (_, server):
        async with session(server, OLD[-1]) as first, session(server, OLD[-1]) as second:
            async with first.call() as stream:
                with anyio.fail_after(5):
                    await slow.began.wait()
                    assert await second.cancel() == 202  # as of what has ended already
                    assert not slow.ended.is_set()
                    assert len(server.app.streams) == 1
                    assert await first.cancel() == 202
                    await stream.aread()


async def test_another_participant_cancels_nothing() -> None:
    slow = Slow()
    async with space_with(slow) as (stage, server), session(server, OLD[-1]) as client:
        async with client.call() as stream, server.http(stage.token("bob")) as bob:
            with anyio.fail_after(5):
                await slow.began.wait()
                other = Session(bob, server.url, OLD[-1], client.headers["mcp-session-id"])
                assert await other.cancel() == 404
                assert not slow.ended.is_set()
                assert await client.cancel() == 202
                await stream.aread()


async def test_a_stream_that_ends_by_itself_leaves_nothing_behind() -> None:
    slow = Slow()

    @slow.agent.tool
    async def echo(text: str) -> str:
        return text

    async with space_with(slow) as (_, server):
        async with server.client(mode="legacy") as client:
            await client.call_tool("slow_echo", {"text": "x"})
        assert len(server.app.streams) == 0


async def test_in_2026_a_closed_stream_cancels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meup_agent.mcp")
    slow = Slow()
    async with space_with(slow) as (_, server), server.client() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "slow_wait")
            with anyio.fail_after(5):
                await slow.began.wait()
                tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await slow.ended.wait()
            while len(server.app.streams):
                await anyio.lowlevel.checkpoint()
    assert slow.reason == "no_longer_needed: stream closed by the client"
    said = [each.getMessage() for each in caplog.records if each.getMessage().startswith("call ")]
    assert len(said) == 1
    assert said[0].endswith("was cancelled: stream closed by the client")


async def test_a_cancelled_proposal_is_withdrawn() -> None:
    slow = Slow()
    async with space_with(slow) as (stage, server):
        watched = stage.spaces["slow"]
        async with session(server, OLD[-1], stage.token("carol")) as client:
            with watched.watch() as envelopes:
                async with client.call() as stream:
                    with anyio.fail_after(5):
                        async for envelope in envelopes:
                            if envelope.kind == "mcp/proposal":
                                break
                        assert await client.cancel(reason="changed my mind") == 202
                        async for envelope in envelopes:
                            if envelope.kind == "mcp/withdraw":
                                break
                        body = await stream.aread()
    assert json.loads(body.decode().split("data: ")[-1]) == LAST
    assert envelope.sender == "carol"
    assert envelope.payload["reason"] == "no_longer_needed"
