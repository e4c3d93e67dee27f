"""Bounds of what participants and servers can make this package keep."""

import gzip
import json
from collections.abc import AsyncGenerator
from typing import Any

import anyio
import httpx2
import mcp_types as types
import pytest

from meup_agent import Agent, Space
from meup_agent.cli.render.logs import PacedLines
from meup_agent.client import offers
from meup_agent.errors import RequestError
from meup_agent.mcp import HttpServer
from meup_agent.mcp.bridge.transports import MAX_MESSAGE_BYTES, _limited_client
from meup_agent.mcp.sdk.naming import OwnName
from meup_agent.mcp.server.client_member import SubscribedResources
from tests.mcp.bridge.stage import bridged
from tests.mcp.client import client_beside
from tests.mcp.conftest import ANYTHING, PROPOSES, serving, staged
from tests.mcp.server.test_asks import asking_by_result
from tests.mcp.server.test_tool_calls import MODES, reviewer, text


async def test_a_list_is_bounded_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offers, "MAX_LIST_CHARS", 10_000)
    agent = Agent("large")

    @agent.on_request("tools/list")
    async def listed() -> dict[str, Any]:
        schema = {"type": "object"}
        tools = [
            {"name": f"t{at}", "description": "x" * 1_000, "inputSchema": schema}
            for at in range(100)
        ]
        return {"tools": tools}

    async with client_beside(agent) as client:
        tools = (await client.list_tools()).tools
    assert 5 < len(tools) < 10


async def test_subscriptions_at_once_are_counted_once_each() -> None:
    """One that fails meanwhile leaves no count behind, and none that waits for it."""
    agent, asked, unsubscribed = Agent("files"), 0, anyio.Event()

    @agent.on_request("resources/subscribe")
    async def subscribe() -> dict[str, Any]:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise RequestError(-32000, "not now")
        return {}

    @agent.on_request("resources/unsubscribe")
    async def unsubscribe() -> dict[str, Any]:
        unsubscribed.set()
        return {}

    async with staged(agent, alice=ANYTHING) as stage:
        space: Space = await stage.join("alice")
        async with anyio.create_task_group() as tasks:
            subscribed = SubscribedResources(space, tasks.start_soon)
            resource, refused, added = OwnName("files", "file:///x"), 0, 0

            async def add() -> None:
                nonlocal refused, added
                try:
                    await subscribed.add(resource)
                    added += 1
                except RequestError:
                    refused += 1

            async with anyio.create_task_group() as adding:
                for _ in range(4):
                    adding.start_soon(add)
            assert (refused, added, asked) == (1, 3, 2)
            for _ in range(added):
                assert not unsubscribed.is_set()
                subscribed.discard(resource)
            await unsubscribed.wait()


@pytest.mark.parametrize("mode", MODES)
async def test_a_question_in_the_result_of_a_proposal_is_no_result(mode: str) -> None:
    async def elicited(_: Any, __: types.ElicitRequestParams) -> types.ElicitResult:
        raise AssertionError("the client was asked")

    agents = asking_by_result("elicitation/create"), reviewer()
    async with client_beside(
        *agents, may=PROPOSES, mode=mode, elicitation_callback=elicited
    ) as client:
        result = await client.call_tool("asker_several")
    assert result.is_error
    assert "a proposed call cannot be continued" in text(result)


def answered(body: AsyncGenerator[bytes], **headers: str) -> httpx2.AsyncClient:
    """The client of a server that answers with a body."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client = _limited_client()
    client._transport = httpx2.MockTransport(
        lambda _: httpx2.Response(200, headers=named, content=body)
    )
    return client


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_compressed_answer_is_not_read(kind: str) -> None:
    """The limit counts what comes over the wire; 1.5 MB were 1.5 GB, and the end of the process."""

    async def bomb() -> AsyncGenerator[bytes]:
        yield gzip.compress(b"x" * (2 * MAX_MESSAGE_BYTES))

    async with answered(bomb(), content_type=kind, content_encoding="gzip") as client:
        with pytest.raises(httpx2.StreamError, match="compressed"):
            await client.get("http://server/mcp")


async def test_an_event_of_an_old_stream_is_bounded() -> None:
    async def body() -> AsyncGenerator[bytes]:
        yield b"event: endpoint\ndata: /messages\n\n"
        for _ in range(MAX_MESSAGE_BYTES // 65_536 + 2):
            yield b"x" * 65_536

    client, read = answered(body(), content_type="text/event-stream"), 0
    async with client, client.stream("GET", "http://server/sse") as response:
        stream = response.aiter_bytes()

        async def read_all() -> None:
            nonlocal read
            async for chunk in stream:
                read += len(chunk)

        with pytest.raises(httpx2.StreamError, match="an event is longer"):
            await read_all()
    assert read <= MAX_MESSAGE_BYTES + 65_536


async def asks_for_ever(scope: Any, receive: Any, send: Any) -> None:
    """A server over HTTP that asks on the stream of a call, and takes no answer."""
    if scope["type"] != "http":
        return
    message = await receive()
    request = json.loads(message.get("body") or b"{}")
    results = {
        "initialize": {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "evil", "version": "1"},
        },
        "tools/list": {"tools": [{"name": "do", "inputSchema": {"type": "object"}}]},
    }
    method, streams = request.get("method"), request.get("method") == "tools/call"
    kind = b"text/event-stream" if streams else b"application/json"
    known = method in results or streams
    start = {"type": "http.response.start", "status": 200 if known else 400}
    await send({**start, "headers": [(b"content-type", kind)]})
    if streams:
        for at in range(300):
            ask = json.dumps({"jsonrpc": "2.0", "id": f"q{at}", "method": "roots/list"})
            body = f"event: message\ndata: {ask}\n\n".encode()
            await send({"type": "http.response.body", "body": body, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    answer = {"jsonrpc": "2.0", "id": request.get("id"), "result": results.get(str(method), {})}
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


@pytest.mark.thorough
async def test_a_server_over_http_that_asks_for_ever_is_ended_with_its_reason() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for each in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{each}.complete"})
            return
        await asks_for_ever(scope, receive, send)

    async with serving(app) as port:
        async with bridged(HttpServer(f"http://127.0.0.1:{port}/mcp")) as stage:
            result = await stage.caller.request(
                "server", "tools/call", {"name": "do", "arguments": {}}
            )
    assert "asked 256 times without taking an answer" in str(result)


def test_lines_of_the_sdk_are_paced() -> None:
    import logging

    paced = PacedLines(("mcp",), per_second=3)
    record = logging.LogRecord("mcp.server", logging.WARNING, "x", 1, "again", (), None)
    ours = logging.LogRecord("meup_agent.mcp", logging.WARNING, "x", 1, "again", (), None)
    assert sum(paced.filter(record) for _ in range(1000)) < 10
    assert all(paced.filter(ours) for _ in range(100))
