"""Malicious MCP clients of a space over HTTP: each harms its own sessions alone."""

import logging
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp.shared.exceptions import MCPError

from meup_agent.mcp.server import client_calls, client_member, http, tool_calls
from meup_agent.mcp.server.http import MAX_WRONG_TOKENS, ParticipantUser
from tests.gateways import new_token
from tests.mcp.conftest import ANYTHING, BOTH, served, staged
from tests.mcp.server.test_cancellation import Slow, session, space_with
from tests.mcp.server.test_identity import HELLO

DEEP = b"[" * 100_000 + b"]" * 100_000


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc": "2.0", "method": "tools/call", "id": %s}' % DEEP,
        b'{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": %s}}'
        % DEEP,
        b'{"jsonrpc": "2.0", "method": "tools/call\xff", "id": 1}',
    ],
    ids=["deep-id", "deep-cancel", "no-utf-8"],
)
async def test_a_body_that_breaks_a_decoder_is_a_wrong_body(body: bytes) -> None:
    async with space_with(Slow()) as (_, server), session(server) as client:
        answer = await client.http.post(client.url, content=body, headers=client.headers)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == -32700


async def test_a_handshake_that_ends_again_and_again_begins_nothing() -> None:
    """Each end of a handshake starts what tells the session of changes, until its end."""
    async with space_with(Slow()) as (_, server), session(server) as client:
        await client.post({"id": 1, "method": "ping"})
        before = len(anyio.get_running_tasks())
        for _ in range(20):
            await client.post({"method": "notifications/initialized"})
        await client.post({"id": 2, "method": "ping"})
        assert len(anyio.get_running_tasks()) < before + 10


async def test_a_participant_of_many_sessions_ends_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_PARTICIPANT_SESSIONS", 3)
    async with staged(alice=ANYTHING, bob=ANYTHING) as stage, served(stage, own="alice") as server:
        async with session(server) as alice, server.http(stage.token("bob")) as bob:
            ids: list[str] = []
            ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

            async def status(of: str) -> int:
                headers = {**BOTH, "mcp-session-id": of}
                return (await bob.post(server.url, json=ping, headers=headers)).status_code

            for _ in range(4):
                hello = await bob.post(server.url, json=HELLO, headers=BOTH)
                ids.append(hello.headers["mcp-session-id"])
                assert await status(ids[0]) == 200  # in use, so another one ends
            while await status(ids[1]) != 404:
                await anyio.lowlevel.checkpoint()
            assert [await status(each) for each in ids] == [200, 404, 200, 200]
            assert (await alice.post({"id": 1, "method": "ping"})).status_code == 200


async def test_wrong_tokens_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meup_agent.mcp")
    async with staged(alice=ANYTHING) as stage, served(stage) as server, server.http() as http:
        for _ in range(20):
            headers = {**BOTH, "authorization": f"Bearer {new_token()}"}
            assert (await http.post(server.url, json=HELLO, headers=headers)).status_code == 401
    said = [each for each in caplog.records if "refused" in each.getMessage()]
    assert len(said) == 1


async def test_guesses_at_once_are_as_few_as_those_in_turn() -> None:
    statuses: list[int] = []
    async with staged(alice=ANYTHING) as stage, served(stage) as server, server.http() as http:

        async def guess(number: int) -> None:
            headers = {**BOTH, "authorization": f"Bearer guess{number}"}
            answer = await http.post(server.url, json=HELLO, headers=headers)
            statuses.append(answer.status_code)

        async with anyio.create_task_group() as tasks:
            for number in range(3 * MAX_WRONG_TOKENS):
                tasks.start_soon(guess, number)
    assert Counter(statuses) == {401: MAX_WRONG_TOKENS, 429: 2 * MAX_WRONG_TOKENS}


async def test_a_session_of_another_participant_is_not_counted_as_mine() -> None:
    """A guessed id must not push one of the guesser's, or the owner's, out of its place."""
    async with staged(alice=ANYTHING, bob=ANYTHING) as stage:
        pool = stage.pool("alice")
        async with pool.run():
            logins = [await pool.get(None), await pool.get(stage.token("bob"))]
            alice, bob = (ParticipantUser(each) for each in logins if each is not None)
            ids = http.SessionIds()
            assert ids.note(alice, "a") is None
            ids.touch(bob, "a")
            for at in range(http.MAX_PARTICIPANT_SESSIONS):
                assert ids.note(bob, f"b{at}") is None
            assert ids.note(bob, "last") == ("b0", bob)


async def test_a_participants_requests_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all of its sessions, and of its alone; the next one finds room where one has ended."""
    for module in (client_calls, tool_calls, client_member):
        monkeypatch.setattr(module, "MAX_REQUESTS", 2)
    slow = Slow()
    uri = "memo://now"

    @slow.agent.on_request("resources/list")
    async def listed() -> dict[str, Any]:
        return {"resources": [{"uri": uri, "name": "now"}]}

    @slow.agent.on_request("resources/read")
    async def read() -> dict[str, Any]:
        return {"contents": [{"uri": uri, "text": "now"}]}

    async with space_with(slow) as (stage, server):
        token = stage.token("bob")
        async with (
            server.client(token) as one,
            server.client(token) as two,
            anyio.create_task_group() as tasks,
        ):
            for client in (one, two):
                slow.began = anyio.Event()
                tasks.start_soon(client.call_tool, "slow_wait", {})
                await slow.began.wait()
            for client in (one, two):
                with pytest.raises(MCPError, match="2 requests of this participant wait"):
                    await client.call_tool("slow_wait", {})
                with pytest.raises(MCPError, match="2 requests of this participant wait"):
                    await client.read_resource(uri)
            async with server.client() as alice:
                await alice.read_resource(uri)
            tasks.cancel_scope.cancel()
        async with server.client(token) as again:
            await slow.ended.wait()
            await again.read_resource(uri)
