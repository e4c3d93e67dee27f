"""Agents that play in several of these tests."""

from typing import Any

import anyio

from meup_agent import Agent, Context, Proposal
from meup_agent.errors import RequestError, ToolError
from tests.interaction.people import Notes


def calculator() -> Agent:
    tools = Agent("tools")

    @tools.tool
    def add(a: int, b: int) -> int:
        return a + b

    @tools.tool
    def divide(a: int, b: int) -> float:
        return a / b

    @tools.tool
    async def read(path: str) -> dict[str, str]:
        return {"path": path, "text": "…"}

    return tools


def willing(name: str = "reviewer") -> Agent:
    reviewer = Agent(name)

    @reviewer.on_proposal
    async def approve(proposal: Proposal) -> None:
        await proposal.fulfill()

    return reviewer


def unwilling(reason: str = "unsafe", name: str = "reviewer", **more: Any) -> Agent:
    reviewer = Agent(name)

    @reviewer.on_proposal
    async def refuse(proposal: Proposal) -> None:
        await proposal.reject(reason, **more)

    return reviewer


def onlooking(notes: Notes, name: str = "reviewer") -> Agent:
    """An agent that decides nothing, and notes the proposals that it is shown."""
    agent = Agent(name)

    @agent.on_proposal
    async def look(proposal: Proposal) -> None:
        notes(proposal.id)

    return agent


async def sleep_until_stopped(notes: Notes, ctx: Context, begun: Any = "runs") -> None:
    """Note that it begins, and by whom and why it is stopped."""
    notes(begun)
    try:
        await anyio.sleep_forever()
    finally:
        assert ctx.reason is not None
        notes((ctx.reason.by, str(ctx.reason)))


def sleeper(notes: Notes, name: str = "tools") -> Agent:
    agent = Agent(name)

    @agent.tool
    async def sleep() -> None:
        notes("sleeps")
        await anyio.sleep_forever()

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.tool
    async def fail() -> None:
        raise ToolError("no luck")

    @agent.tool
    async def answer_with_an_error() -> None:
        raise RequestError(-32099, "not today")

    return agent


def adder(*middleware: Any) -> Agent:
    """A tool owner with one tool, behind some middleware."""
    agent = Agent("tools", middleware=middleware)

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return agent


def noting_adder(notes: Notes, name: str = "tools") -> Agent:
    """A tool owner with the same tool, which notes its name at each call."""
    agent = Agent(name)

    @agent.tool
    async def add(a: int, b: int) -> int:
        notes(name)
        return a + b

    return agent
