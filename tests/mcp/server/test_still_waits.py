"""Calls that are answered before their client gives up, and whose outcome is asked for later."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import pytest
from mcp.client.client import Client
from mcp_types import CallToolResult, Implementation, TextContent

from meup_agent import Agent, Proposal
from meup_agent.mcp.server import tool_calls
from meup_agent.mcp.server.tool_calls import ClientLabel, limit_of
from meup_agent.transport.base import Condition
from tests.mcp.conftest import OLD, PROPOSES, ServedSpace, Stage, served, staged
from tests.patience import PATIENCE

EDITOR = Implementation(name="editor", version="1.2")


class Desk:
    """A participant that decides when a test says so, and tools that count their calls."""

    def __init__(self) -> None:
        self.reviewer, self.tools = Agent("reviewer"), Agent("tools")
        self.calls: list[dict[str, Any]] = []
        self.proposals: list[Proposal] = []
        self.withdrawn, self.ran = anyio.Event(), anyio.Event()
        self._decided, self._seen = Condition(), Condition()
        self._verbs: dict[str, str] = {}

        @self.reviewer.on_proposal()
        async def review(proposal: Proposal) -> None:
            self.proposals.append(proposal)
            self._seen.notify_all()
            try:
                while proposal.id not in self._verbs:
                    await self._decided.wait()
            except anyio.get_cancelled_exc_class():
                self.withdrawn.set()
                raise
            if self._verbs[proposal.id] == "approve":
                await proposal.fulfill()
            else:
                await proposal.reject("unsafe")

        @self.tools.tool()
        def write(path: str) -> str:
            """Write a file."""
            self.calls.append({"path": path})
            self.ran.set()
            return f"written {len(self.calls)}"

    def decide(self, proposal: str, verb: str = "approve") -> None:
        self._verbs[proposal] = verb
        self._decided.notify_all()

    async def seen(self, count: int) -> Proposal:
        while len(self.proposals) < count:
            await self._seen.wait()
        return self.proposals[count - 1]


@asynccontextmanager
async def with_desk() -> AsyncGenerator[tuple[Desk, Stage]]:
    desk = Desk()
    async with staged(desk.reviewer, desk.tools, alice=PROPOSES, bob=PROPOSES) as stage:
        yield desk, stage


def process(stage: Stage, answer_within: float = 0.2) -> AbstractAsyncContextManager[ServedSpace]:
    """A process that serves alice's clients."""
    return served(stage, own="alice", ttl=PATIENCE, answer_within=answer_within)


@asynccontextmanager
async def waiting(answer_within: float = 0.2) -> AsyncGenerator[tuple[Desk, ServedSpace, Stage]]:
    async with with_desk() as (desk, stage), process(stage, answer_within) as server:
        yield desk, server, stage


def said(result: CallToolResult) -> str:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


def waits_as(result: CallToolResult) -> str:
    """The id of a call that still waits."""
    assert result.is_error, said(result)
    assert result.meta
    assert result.meta["dev.meup/outcome"] == "pending"
    proposal: str = result.meta["dev.meup/proposal"]
    assert f'meup_result with {{"id": "{proposal}"}}' in said(result)
    return proposal


async def outcome(client: Client, proposal: str) -> CallToolResult:
    """What became of a call, asked for until it is known."""
    while True:
        result = await client.call_tool("meup_result", {"id": proposal})
        if (result.meta or {}).get("dev.meup/outcome") != "pending":
            return result


@pytest.mark.parametrize("version", [OLD[-1], None])
async def test_a_call_that_waits_is_answered_and_carried_out_later(version: str | None) -> None:
    mode = {} if version is None else {"mode": "legacy"}
    async with waiting() as (desk, server, _), server.client(client_info=EDITOR, **mode) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]
        assert listed == ["meup_result", "tools_write"]
        proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        assert waits_as(await client.call_tool("meup_result", {"id": proposal})) == proposal
        assert desk.calls == []
        desk.decide(proposal)
        assert said(await outcome(client, proposal)) == "written 1"
        # It is told once.
        told = await client.call_tool("meup_result", {"id": proposal})
        assert told.is_error
        assert "its outcome was told already" in said(told)
        assert desk.calls == [{"path": "a"}]


async def test_the_same_call_joins_the_one_that_was_answered() -> None:
    async with waiting() as (desk, server, _), server.client(client_info=EDITOR) as client:
        proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        assert waits_as(await client.call_tool("tools_write", {"path": "a"})) == proposal
        assert waits_as(await client.call_tool("tools_write", {"path": "b"})) != proposal
        desk.decide(proposal)
        again = await client.call_tool("tools_write", {"path": "a"})
        while (again.meta or {}).get("dev.meup/outcome") == "pending":
            again = await client.call_tool("tools_write", {"path": "a"})
        assert said(again) == "written 1"
        # Told, it is over: the same call is another one.
        assert waits_as(await client.call_tool("tools_write", {"path": "a"})) != proposal


async def test_two_equal_calls_stay_two() -> None:
    async with waiting() as (desk, server, _), server.client(client_info=EDITOR) as client:
        found: list[str] = []

        async def write() -> None:
            found.append(waits_as(await client.call_tool("tools_write", {"path": "a"})))

        for _ in range(2):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                tasks.start_soon(write)
        first, second, *again = found
        assert first != second
        assert {*again} == {first, second}
        for each in (first, second):
            desk.decide(each)
        texts = {said(await outcome(client, each)) for each in (first, second)}
        assert texts == {"written 1", "written 2"}


async def test_no_other_client_joins_or_reads() -> None:
    async with waiting() as (desk, server, stage), server.client(client_info=EDITOR) as client:
        proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        renamed = Implementation(name="editor", version="1.3")
        async with server.client(client_info=renamed) as other:
            assert waits_as(await other.call_tool("tools_write", {"path": "a"})) != proposal
        async with server.client(token=stage.token("bob"), client_info=EDITOR) as bob:
            assert waits_as(await bob.call_tool("tools_write", {"path": "a"})) != proposal
            assert "No call of yours waits" in said(
                await bob.call_tool("meup_result", {"id": proposal})
            )
        assert [each.client for each in desk.proposals] == [
            *("editor 1.2", "editor 1.3", "editor 1.2")
        ]


async def test_a_rejection_is_told_to_who_asks() -> None:
    async with waiting() as (desk, server, _), server.client(client_info=EDITOR) as client:
        proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        desk.decide(proposal, "reject")
        rejected = await outcome(client, proposal)
        assert (rejected.meta or {})["dev.meup/outcome"] == "rejected"
        assert "was rejected as unsafe by reviewer" in said(rejected)
        assert desk.calls == []


async def test_a_decision_outlives_its_client() -> None:
    async with waiting() as (desk, server, _):
        async with server.client(client_info=EDITOR) as client:
            proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        desk.decide(proposal)
        async with server.client(client_info=EDITOR) as client:
            assert said(await outcome(client, proposal)) == "written 1"


@pytest.mark.rule("4.2.outlives")
@pytest.mark.parametrize("when", ["while it is gone", "after the next has begun"])
async def test_a_decision_outlives_the_process_of_its_proposer(when: str) -> None:
    async with with_desk() as (desk, stage):
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            approved = waits_as(await client.call_tool("tools_write", {"path": "a"}))
            rejected = waits_as(await client.call_tool("tools_write", {"path": "b"}))
            pending = waits_as(await client.call_tool("tools_write", {"path": "c"}))
        if when == "while it is gone":
            desk.decide(approved)
            desk.decide(rejected, "reject")
            await desk.ran.wait()
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            assert waits_as(await client.call_tool("meup_result", {"id": pending})) == pending
            desk.decide(approved)
            desk.decide(rejected, "reject")
            assert said(await outcome(client, approved)) == "written 1"
            assert "was rejected as unsafe by reviewer" in said(await outcome(client, rejected))
            unknown = await client.call_tool("meup_result", {"id": pending[:8]})
            assert "No call of yours waits" in said(unknown)
            async with server.client(token=stage.token("bob")) as bob:
                told = await bob.call_tool("meup_result", {"id": approved})
                assert "No call of yours waits" in said(told)
        assert desk.calls == [{"path": "a"}]


@pytest.mark.parametrize("first", ["is gone", "goes on"])
async def test_the_same_call_joins_that_of_another_process(
    first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_calls, "TOLD_MARGIN", -PATIENCE)
    async with with_desk() as (desk, stage), AsyncExitStack() as stack:
        earlier = await stack.enter_async_context(AsyncExitStack())
        server = await earlier.enter_async_context(process(stage))
        client = await earlier.enter_async_context(server.client(client_info=EDITOR))
        proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        if first == "is gone":
            await earlier.aclose()
        server = await stack.enter_async_context(process(stage))
        client = await stack.enter_async_context(server.client(client_info=EDITOR))
        assert waits_as(await client.call_tool("tools_write", {"path": "a"})) == proposal
        assert waits_as(await client.call_tool("tools_write", {"path": "b"})) != proposal
        renamed = Implementation(name="editor", version="1.3")
        async with server.client(client_info=renamed) as other:
            assert waits_as(await other.call_tool("tools_write", {"path": "a"})) != proposal
        async with server.client(token=stage.token("bob"), client_info=EDITOR) as bob:
            assert waits_as(await bob.call_tool("tools_write", {"path": "a"})) != proposal
        desk.decide(proposal)
        await desk.ran.wait()
        # It is decided, and may have been told: the same call is another one.
        assert said(await outcome(client, proposal)) == "written 1"
        assert waits_as(await client.call_tool("tools_write", {"path": "a"})) != proposal


async def test_a_call_that_was_not_answered_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "TOLD_MARGIN", PATIENCE)
    async with with_desk() as (desk, stage):
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            proposal = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            assert waits_as(await client.call_tool("tools_write", {"path": "a"})) != proposal
        await desk.seen(2)


async def test_of_two_equal_calls_one_joins_that_of_another_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tool_calls, "TOLD_MARGIN", -PATIENCE)
    async with with_desk() as (_, stage):
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            left = waits_as(await client.call_tool("tools_write", {"path": "a"}))
        async with process(stage) as server, server.client(client_info=EDITOR) as client:
            found: list[str] = []

            async def write() -> None:
                found.append(waits_as(await client.call_tool("tools_write", {"path": "a"})))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                tasks.start_soon(write)
            assert left in found
            assert len({*found}) == 2


async def test_a_call_that_its_client_gives_up_before_is_withdrawn() -> None:
    async with waiting(PATIENCE) as (desk, server, _), server.client(client_info=EDITOR) as client:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "tools_write", {"path": "a"})
                await desk.seen(1)
                scope.cancel()
        await desk.withdrawn.wait()


@pytest.mark.parametrize(
    ("name", "version", "limit"),
    [
        ("editor", "1.0", 60.0),
        ("claude-ai", "0.1.0", 60.0),
        ("claude-code", "2.1.154", None),
        ("claude-code", "0.2.9", 60.0),
        ("claude-code-like", "2", 60.0),
        ("mcp", "0.1.0", None),
        ("", "", 60.0),
    ],
)
async def test_the_limit_of_a_client_is_known_from_its_name(
    name: str, version: str, limit: float | None
) -> None:
    assert limit_of(ClientLabel(name, version)) == limit
