"""Many calls at once: none stands in line behind the others' log-in, lists or connections."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.lowlevel
import pytest

from meup_agent import Agent, Space
from meup_agent.errors import ConnectionFailed
from meup_agent.mcp.server import catalog, client_member
from meup_agent.mcp.server.catalog import Catalog
from meup_agent.mcp.server.client_member import ClientMembers, TooManyMembers
from tests.mcp.conftest import ANYTHING, staged

MANY = 100

AT_ONCE = 10
"""Turns of the loop within which callers that waited for one thing have all gone on."""


async def turns_between(call: Callable[[], Awaitable[object]]) -> int:
    """Turns of the loop from the first to the last end of a call that many make at once."""
    turn, ended = 0, list[int]()

    async def count() -> None:
        nonlocal turn
        while len(ended) < MANY:
            await anyio.lowlevel.checkpoint()
            turn += 1

    async def make() -> None:
        await call()
        ended.append(turn)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(count)
        for _ in range(MANY):
            tasks.start_soon(make)
    return ended[-1] - ended[0]


async def test_requests_with_a_new_token_go_on_together() -> None:
    async with staged(alice=ANYTHING) as stage:
        pool = stage.pool("")
        async with pool.run():
            assert await turns_between(lambda: pool.get(stage.token("alice"))) < AT_ONCE


@asynccontextmanager
async def catalog_beside(agent: Agent) -> AsyncGenerator[Catalog]:
    """What an MCP client is offered by an agent."""
    async with staged(agent, alice=ANYTHING) as stage:
        pool = stage.pool("alice")
        async with pool.run():
            login = await pool.get(None)
            assert login is not None
            yield login.member.catalog


async def test_calls_that_wait_for_a_list_go_on_together() -> None:
    files = Agent("files")

    @files.tool
    async def read() -> str:
        return ""

    async with catalog_beside(files) as offers:
        assert await turns_between(lambda: offers.find("tools", "files_read")) < AT_ONCE


async def test_a_wait_for_the_silent_is_that_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "LIST_SECONDS", 0.05)
    silent, asked = Agent("silent"), 0

    @silent.on_request("tools/list")
    async def listed() -> None:
        nonlocal asked
        asked += 1
        await anyio.sleep_forever()

    async with catalog_beside(silent) as offers, anyio.create_task_group() as tasks:
        for _ in range(MANY):
            tasks.start_soon(offers.find, "tools", "silent_read")
    assert asked == 1


async def test_a_caller_that_goes_leaves_the_others_their_list() -> None:
    files, asked, answer = Agent("files"), anyio.Event(), anyio.Event()
    found = list[object]()

    @files.on_request("tools/list")
    async def listed() -> dict[str, object]:
        asked.set()
        await answer.wait()
        return {"tools": [{"name": "read", "inputSchema": {"type": "object"}}]}

    async def find() -> None:
        found.append(await offers.find("tools", "files_read"))

    async with catalog_beside(files) as offers, anyio.create_task_group() as others:
        async with anyio.create_task_group() as first:
            first.start_soon(find)
            await asked.wait()
            for _ in range(MANY):
                others.start_soon(find)
            await anyio.lowlevel.checkpoint()
            first.cancel_scope.cancel()
        answer.set()
    assert len(found) == MANY
    assert None not in found


def unreachable(counted: list[str | None]) -> ClientMembers:
    """Participants of a space whose gateway is away."""

    def join(
        agent: Agent, token: str | None, /, *, observe: bool = False
    ) -> AbstractAsyncContextManager[Space]:
        counted.append(token)
        raise ConnectionFailed("there is no gateway")

    return ClientMembers(join)


async def test_requests_share_the_attempt_that_fails() -> None:
    """Where each would make its own in turn, the last one would wait for all of their deadlines."""
    attempts: list[str | None] = []
    pool = unreachable(attempts)
    failed = 0

    async def get() -> None:
        nonlocal failed
        with pytest.raises(ConnectionFailed):
            await pool.get("token")
        failed += 1

    async with pool.run(), anyio.create_task_group() as tasks:
        for _ in range(MANY):
            tasks.start_soon(get)
    assert (failed, attempts) == (MANY, ["token"])


async def test_tokens_that_wait_to_be_tried_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_member, "MAX_ATTEMPTS", 2)
    attempts: list[str | None] = []
    pool = unreachable(attempts)

    async def get(token: str) -> None:
        with pytest.raises(ConnectionFailed):
            await pool.get(token)

    async with pool.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(get, "one")
        tasks.start_soon(get, "two")
        await anyio.lowlevel.checkpoint()
        with pytest.raises(TooManyMembers, match="2 tokens are tried already"):
            await pool.get("three")
    assert attempts == ["one", "two"]
