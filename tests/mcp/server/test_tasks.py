"""Calls through a space as tasks: what each end of a proposal is for a client that polls."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.shared.exceptions import MCPError

from meup_agent import Agent, Proposal, Reason, Withdrawal
from meup_agent.errors import RequestError
from meup_agent.mcp import TasksClientExtension
from tests.mcp.conftest import ANYTHING, PROPOSES, ServedSpace, Stage, served, staged
from tests.mcp.server.test_mcp_command import command
from tests.mcp.task_stage import ask, call, until
from tests.patience import PATIENCE


class Reviewer:
    """Decides a proposal when the test says how."""

    def __init__(self) -> None:
        self.agent = Agent("reviewer")
        self.proposed = anyio.Event()
        self.withdrawn = anyio.Event()
        self.decided = anyio.Event()
        self.reject: Reason | None = None
        self.proposal: Proposal | None = None
        self.agent.on_proposal(self.decide)
        self.agent.on_withdraw(self.see_withdrawal)

    async def decide(self, proposal: Proposal) -> None:
        self.proposal = proposal
        self.proposed.set()
        await self.decided.wait()
        if self.reject is None:
            await proposal.fulfill()
        else:
            await proposal.reject(self.reject)

    async def see_withdrawal(self, withdrawal: Withdrawal) -> None:
        self.withdrawn.set()


def files() -> Agent:
    agent = Agent("files")

    @agent.tool
    async def add(a: int, b: int) -> int:
        if a < 0:
            raise RequestError(-32050, "out of order")
        return a + b

    return agent


@asynccontextmanager
async def space_with(
    reviewer: Reviewer, **settings: Any
) -> AsyncGenerator[tuple[Stage, ServedSpace]]:
    async with (
        staged(files(), reviewer.agent, alice=PROPOSES, bob=ANYTHING) as stage,
        served(stage, own="alice", **settings) as server,
    ):
        yield stage, server


@asynccontextmanager
async def polling(server: ServedSpace, token: str | None = None) -> AsyncGenerator[Client]:
    async with server.client(token, extensions=[TasksClientExtension()]) as client:
        yield client


@asynccontextmanager
async def proposing(**arguments: int) -> AsyncGenerator[tuple[Stage, Reviewer, Client, str]]:
    """A task whose proposal waits: of adding these numbers."""
    reviewer = Reviewer()
    async with space_with(reviewer) as (stage, server), polling(server) as client:
        task_id = await added(client, **arguments)
        await reviewer.proposed.wait()
        yield stage, reviewer, client, task_id


async def added(client: Client, **arguments: int) -> str:
    """The task of adding one and two, or other numbers."""
    return (await call(client, "files_add", **{"a": 1, "b": 2, **arguments})).task_id


async def test_an_undecided_proposal_is_a_task_that_says_who_decides() -> None:
    async with proposing() as (_, reviewer, client, task_id):
        task = await ask(client, "tasks/get", taskId=task_id)
        assert task["status"] == "working"
        assert task["statusMessage"] == "waiting for a decision by files or reviewer, 30 s left"
        reviewer.decided.set()
        task = await until(client, task_id, "completed")
    assert task["result"]["structuredContent"] == {"result": 3}


async def test_a_rejection_completes_its_task_with_an_error() -> None:
    async with proposing() as (_, reviewer, client, task_id):
        reviewer.reject = Reason.UNSAFE
        reviewer.decided.set()
        task = await until(client, task_id, "completed")
    assert task["result"]["isError"] is True
    assert "rejected as unsafe by reviewer" in task["result"]["content"][0]["text"]


async def test_an_expiry_completes_its_task_with_an_error() -> None:
    async with space_with(Reviewer(), ttl=0.3) as (_, server), polling(server) as client:
        task = await until(client, await added(client), "completed")
    assert task["result"]["isError"] is True
    assert "No participant decided" in task["result"]["content"][0]["text"]


async def test_a_cancelled_task_withdraws_its_proposal() -> None:
    async with proposing() as (_, reviewer, client, task_id):
        await ask(client, "tasks/cancel", taskId=task_id)
        await until(client, task_id, "cancelled")
        await reviewer.withdrawn.wait()


async def test_a_withdrawal_by_the_participant_itself_cancels_the_task() -> None:
    """By another hand, beside the one that proposed."""
    async with proposing() as (stage, reviewer, client, task_id):
        assert reviewer.proposal is not None
        token, url = stage.token("alice"), stage.gateway.url
        async with Agent("hand").join(url, space="demo", token=token, beside=True) as hand:
            withdraw = {"reason": "no_longer_needed"}
            await hand.send("mcp/withdraw", withdraw, correlation=reviewer.proposal.id)
        task = await until(client, task_id, "cancelled")
    assert "result" not in task.model_dump()


async def test_an_error_of_the_protocol_fails_the_task() -> None:
    async with proposing(a=-1) as (_, reviewer, client, task_id):
        reviewer.decided.set()
        task = await until(client, task_id, "failed")
    assert task["error"] == {"code": -32050, "message": "out of order"}


async def test_a_task_is_its_participants_alone() -> None:
    reviewer = Reviewer()
    async with space_with(reviewer) as (stage, server), polling(server) as client:
        task_id = await added(client)
        async with polling(server, stage.token("bob")) as other:
            for method in ("tasks/get", "tasks/cancel"):
                with pytest.raises(MCPError, match="no task has this id"):
                    await ask(other, method, taskId=task_id)
        assert (await ask(client, "tasks/get", taskId=task_id))["status"] == "working"


async def test_a_task_over_stdio() -> None:
    server = command("tests.conformance_mcp.tasks_agent:agent")
    with anyio.fail_after(PATIENCE):
        async with Client(stdio_client(server), extensions=[TasksClientExtension()]) as client:
            task_id = (await call(client, "failing_job")).task_id
            task = await until(client, task_id, "completed")
            result = await client.call_tool("slow_compute", {"seconds": 0.2, "label": "it"})
    assert task["result"]["isError"] is True
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    assert content.text == "it took 0.2 s"


async def test_a_client_that_disconnects_leaves_its_task_at_work() -> None:
    reviewer = Reviewer()
    async with space_with(reviewer) as (_, server):
        async with polling(server) as client:
            task_id = await added(client)
        reviewer.decided.set()
        async with polling(server) as client:
            task = await until(client, task_id, "completed")
    assert task["result"]["structuredContent"] == {"result": 3}
