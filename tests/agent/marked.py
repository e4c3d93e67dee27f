"""A module of marked functions, as a program would include it."""

from tests.agent.marked_elsewhere import exported, helper, tool

__all__ = ["exported", "greet"]


@tool
async def greet(name: str) -> str:
    return f"hello {name}"


@tool(name="bye")
async def farewell(name: str) -> str:
    return await helper(name)


async def unmarked(name: str) -> str:
    return name
