"""Cancelled event streams: the bytes of the last event, what is freed, and who may cancel what."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from meup_agent import Agent, Context, Envelope
from meup_agent.causes import MAX_REASON_CHARS
from meup_agent.mcp.server import cancellation
from meup_agent.mcp.server.cancellation import CancellationLayer, OpenStreams
from meup_agent.mcp.server.space_server import SpaceHandlers, make_server
from meup_agent.mcp.server.tool_calls import CallSettings
from tests.mcp.conftest import (
    ANYTHING,
    BOTH,
    OLD,
    PROPOSES,
    ServedSpace,
    Stage,
    hello,
    served,
    staged,
)
from tests.patience import PATIENCE

LAST = (
    b"event: message\r\n"
    b'data: {"jsonrpc":"2.0","id":%s,"result":{"content":[{"text":"Operation cancelled",'
    b'"type":"text"}],"isError":true}}\r\n\r\n'
)
"""The last event of a cancelled stream."""


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
async def space_with(slow: Slow) -> AsyncGenerator[tuple[Stage, ServedSpace]]:
    """A space with a slow tool."""
    async with (
        staged(slow.agent, alice=ANYTHING, bob=ANYTHING, carol=PROPOSES) as stage,
        served(stage, own="alice") as server,
    ):
        yield stage, server


class Session:
    """A client's session, on the wire."""

    def __init__(self, http: httpx2.AsyncClient, url: str, version: str, session: str) -> None:
        self.http = http
        self.url = url
        self.headers = {**BOTH, "mcp-protocol-version": version, "mcp-session-id": session}

    def taken_by(self, http: httpx2.AsyncClient) -> "Session":
        """The same session in the hands of another client."""
        return Session(http, self.url, OLD[-1], self.headers["mcp-session-id"])

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
    server: ServedSpace, version: str = OLD[-1], token: str | None = None
) -> AsyncGenerator[Session]:
    """A session of a client that speaks a revision."""
    async with server.http(token) as http:
        answer = await http.post(server.url, json=hello(version), headers=BOTH)
        opened = Session(http, server.url, version, answer.headers["mcp-session-id"])
        await opened.post({"method": "notifications/initialized"})
        yield opened


@dataclass
class Running:
    """A call of the slow tool that runs, and its stream."""

    slow: Slow
    stage: Stage
    server: ServedSpace
    client: Session
    stream: httpx2.Response


@asynccontextmanager
async def running(version: str = OLD[-1], request_id: int | str = 7) -> AsyncGenerator[Running]:
    """A call of a client that speaks a revision."""
    slow = Slow()
    async with space_with(slow) as (stage, server), session(server, version) as client:
        async with client.call(request_id) as stream:
            await slow.began.wait()
            yield Running(slow, stage, server, client, stream)


@pytest.mark.rule("4.7.stream", "4.7.stream.freed", "4.7.stream.logged")
@pytest.mark.parametrize("version", OLD)
async def test_cancelled_streams_last_event(version: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meup_agent.mcp")
    async with running(version) as call:
        assert await call.client.cancel(reason="the user\nclicked stop") == 202
        assert await call.stream.aread() == LAST % b"7"
        await call.slow.ended.wait()
    assert call.slow.reason == "no_longer_needed: the user\\nclicked stop"
    assert len(call.server.app.streams) == 0
    said = [each.getMessage() for each in caplog.records if "call 7" in each.getMessage()]
    assert said == ["call 7 was cancelled: the user\\nclicked stop"]


async def test_ids_compare_as_the_sdk_compares_them() -> None:
    async with running(request_id="7") as call:
        assert await call.client.cancel(7) == 202
        assert await call.stream.aread() == LAST % b'"7"'


@pytest.mark.rule("4.7.stream.key")
async def test_other_sessions_and_participants_cancel_nothing() -> None:
    async with running() as call, session(call.server) as second:
        assert await second.cancel() == 202  # as of what has ended already
        async with call.server.http(call.stage.token("bob")) as bob:
            stranger = call.client.taken_by(bob)
            assert await stranger.cancel() == 404
        assert not call.slow.ended.is_set()
        assert len(call.server.app.streams) == 1
        assert await call.client.cancel() == 202
        await call.stream.aread()


@pytest.mark.rule("4.7.stream.freed")
async def test_a_stream_that_ends_by_itself_leaves_nothing_behind() -> None:
    slow = Slow()

    @slow.agent.tool
    async def echo(text: str) -> str:
        return text

    async with space_with(slow) as (_, server):
        async with server.client(mode="legacy") as client:
            await client.call_tool("slow_echo", {"text": "x"})
        assert len(server.app.streams) == 0


@pytest.mark.rule("4.7.stream.closed", "4.7.stream.logged")
async def test_in_2026_a_closed_stream_cancels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meup_agent.mcp")
    slow = Slow()
    async with space_with(slow) as (_, server), server.client() as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "slow_wait")
            await slow.began.wait()
            tasks.cancel_scope.cancel()
        await slow.ended.wait()
        while len(server.app.streams):
            await anyio.lowlevel.checkpoint()
    assert slow.reason == "no_longer_needed: stream closed by the client"
    said = [each.getMessage() for each in caplog.records]
    (line,) = [each for each in said if each.startswith("call ")]
    assert line.endswith("was cancelled: stream closed by the client")


async def test_a_cancelled_proposal_is_withdrawn() -> None:
    async with space_with(Slow()) as (stage, server):
        with stage.spaces["slow"].watch() as envelopes:
            async with session(server, token=stage.token("carol")) as client:
                async with client.call() as stream:
                    await until(envelopes, "mcp/proposal")
                    assert await client.cancel(reason="changed my mind") == 202
                    withdraw = await until(envelopes, "mcp/withdraw")
                    assert await stream.aread() == LAST % b"7"
    assert withdraw.sender == "carol"
    assert withdraw.payload["reason"] == "no_longer_needed"


async def until(envelopes: AsyncIterable[Envelope], kind: str) -> Envelope:
    """The next envelope of a kind."""
    return await anext(each async for each in envelopes if each.kind == kind)


@pytest.mark.parametrize(
    "params",
    [{}, {"requestId": None}, {"requestId": [7]}, {"requestId": True}, {"requestId": 8}, []],
)
@pytest.mark.rule("4.7.ignored")
async def test_a_cancel_that_names_no_call_changes_nothing(params: Any) -> None:
    async with running() as call:
        message = {"method": "notifications/cancelled", "params": params}
        assert (await call.client.post(message)).status_code in (202, 400)
        assert len(call.server.app.streams) == 1
        assert await call.client.cancel(reason=["no", "text"]) == 202
        assert await call.stream.aread() == LAST % b"7"
    assert call.slow.reason == "no_longer_needed"


async def test_a_cancel_that_is_written_otherwise_is_the_same() -> None:
    written = (
        b'{"params": {"reason": "x", "requestId": 7},'
        b' "method": "notifications\\/cancelled", "jsonrpc": "2.0"}'
    )
    async with running() as call:
        client = call.client
        answer = await client.http.post(client.url, content=written, headers=client.headers)
        assert answer.status_code == 202
        assert await call.stream.aread() == LAST % b"7"


class NeverReached:
    """An application behind the layer, whose handler has not begun."""

    def __init__(self) -> None:
        self.called = anyio.Event()
        self.go_on = anyio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Take the call, and go on when it is told to."""
        self.scope = scope
        self.called.set()
        await self.go_on.wait()


@pytest.mark.parametrize("begun", [b"", b'{"id": 7,'], ids=["no body", "half a body"])
async def test_a_client_that_goes_before_its_request_is_whole_asks_nothing(begun: bytes) -> None:
    """The SDK would raise, and its server log a traceback, as often as a stranger likes."""
    behind = NeverReached()
    parts: list[dict[str, Any]] = [
        {"type": "http.request", "body": begun, "more_body": True},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return parts.pop(0)

    async def send(part: Any) -> None:
        raise AssertionError(part)

    layer = CancellationLayer(behind, OpenStreams(), 1 << 20)
    await layer({"type": "http", "method": "POST", "headers": []}, receive, send)
    assert not behind.called.is_set()


async def test_a_cancel_may_come_before_the_handler_begins() -> None:
    streams, behind = OpenStreams(), NeverReached()
    layer = CancellationLayer(behind, streams, 1 << 20)

    def posted(message: dict[str, Any]) -> tuple[dict[str, Any], Any, list[Any], Any]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": json.dumps(message).encode()}

        async def send(part: Any) -> None:
            sent.append(part)

        headers = [(b"mcp-session-id", b"s")]
        return {"type": "http", "method": "POST", "headers": headers}, receive, sent, send

    scope, receive, _, send = posted({"id": 7, "method": "tools/call"})
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(layer, scope, receive, send)
        with anyio.fail_after(PATIENCE):
            await behind.called.wait()
        cancel = {"method": "notifications/cancelled", "params": {"requestId": 7}}
        other, receive, sent, send = posted(cancel)
        await layer(other, receive, send)
        assert sent[0]["status"] == 202
        behind.go_on.set()
    assert len(streams) == 0


@pytest.mark.rule("4.7.stream.early")
@pytest.mark.parametrize("version", OLD)
async def test_a_cancel_that_overtakes_its_call_keeps_it_from_beginning(version: str) -> None:
    slow = Slow()
    async with space_with(slow) as (_, server), session(server, version) as client:
        assert await client.cancel(reason="stop") == 202
        async with client.call() as stream:
            assert await stream.aread() == LAST % b"7"
        assert len(server.app.streams) == 0
        assert not slow.began.is_set()


@pytest.mark.rule("4.7.stream.early")
async def test_an_overtaken_call_is_not_proposed() -> None:
    async with space_with(Slow()) as (stage, server):
        with stage.spaces["slow"].watch() as envelopes:
            async with session(server, token=stage.token("carol")) as client:

                async def propose(request_id: int) -> int:
                    """Envelopes so far, with a proposal and its withdraw."""
                    async with client.call(request_id) as stream:
                        await until(envelopes, "mcp/proposal")
                        assert await client.cancel(request_id) == 202
                        await until(envelopes, "mcp/withdraw")
                        await stream.aread()
                    return stage.gateway.counters.accepted

                before = await propose(6)
                assert await client.cancel(7) == 202
                async with client.call(7) as stream:
                    assert await stream.aread() == LAST % b"7"
                assert await propose(8) == before + 2


@pytest.mark.rule("4.7.stream.early", "4.7.stream.key")
async def test_an_early_cancel_is_of_its_own_session_and_token_alone() -> None:
    slow = Slow()
    async with space_with(slow) as (stage, server), session(server) as client:
        async with session(server) as second, server.http(stage.token("bob")) as bob:
            assert await client.taken_by(bob).cancel() == 404
            assert await second.cancel() == 202
        async with client.call() as stream:
            await slow.began.wait()
            assert await client.cancel() == 202
            await stream.aread()


@pytest.mark.rule("4.7.stream.early")
async def test_without_a_session_no_cancel_is_remembered() -> None:
    """In 2026-07-28 ids are of one request, and a header that names a session is nobody's."""
    async with space_with(Slow()) as (_, server), server.http() as http:
        modern = Session(http, server.url, "2026-07-28", "any")
        assert await modern.cancel(1) == 202
        del modern.headers["mcp-session-id"]
        assert await modern.cancel(1) == 202
    assert len(server.app.streams.cancelled) == 0


async def test_cancelled_calls_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "CANCELLED_SECONDS", 0.0)
    slow = Slow()
    async with space_with(slow) as (_, server), session(server) as client:
        assert await client.cancel() == 202
        async with client.call() as stream:
            await slow.began.wait()
            assert await client.cancel() == 202
            await stream.aread()


async def test_cancelled_calls_of_a_token_push_out_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancellation, "MAX_CANCELLED_CALLS", 3)
    slow = Slow()
    async with space_with(slow) as (stage, server), session(server) as alice:
        assert await alice.cancel() == 202
        async with session(server, token=stage.token("bob")) as bob:
            for request_id in range(10):
                assert await bob.cancel(request_id) == 202
        assert len(server.app.streams.cancelled) == 4
        async with alice.call() as stream:
            assert await stream.aread() == LAST % b"7"
    assert not slow.began.is_set()


async def test_what_is_remembered_of_a_cancelled_call_is_small() -> None:
    async with space_with(Slow()) as (_, server), session(server) as client:
        kept = server.app.streams.cancelled
        assert await client.cancel("x" * (cancellation.MAX_KEY_CHARS + 1)) == 202
        assert len(kept) == 0
        assert await client.cancel(7, reason="y" * 100_000) == 202
        async with client.call() as stream:
            assert await stream.aread() == LAST % b"7"
        assert len(kept) == 1
        key = ("", client.headers["mcp-session-id"], 7)
        assert len(kept.get("", key, anyio.current_time()) or "") == MAX_REASON_CHARS


async def test_a_client_over_stdio_that_goes_withdraws() -> None:
    slow = Slow()
    async with staged(slow.agent, alice=ANYTHING) as stage:
        pool = stage.pool("alice")
        async with pool.run():
            login = await pool.get(None)
            assert login is not None
            member = login.member
            handlers = SpaceHandlers(lambda _: member, OpenStreams(), CallSettings())
            server = make_server(handlers)
            to_server, read = anyio.create_memory_object_stream[SessionMessage | Exception](9)
            write, from_server = anyio.create_memory_object_stream[SessionMessage](9)

            async def serve() -> None:
                async with handlers.tasks:
                    options = server.create_initialization_options()
                    await server.run(read, write, options)

            def message(**fields: Any) -> SessionMessage:
                given = {"jsonrpc": "2.0", **fields}
                return SessionMessage(types.jsonrpc_message_adapter.validate_python(given))

            async with anyio.create_task_group() as tasks, from_server:
                tasks.start_soon(serve)
                async with to_server:
                    await to_server.send(message(**hello(OLD[0])))
                    await to_server.send(message(method="notifications/initialized"))
                    call = {"name": "slow_wait", "arguments": {}}
                    await to_server.send(message(id=1, method="tools/call", params=call))
                    await slow.began.wait()
                await slow.ended.wait()
