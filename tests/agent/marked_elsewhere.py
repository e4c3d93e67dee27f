"""Marked functions that another module imports: one to use it, one to offer it."""

from meup_agent.agent.decorators import Decorators

tool = Decorators().tool


@tool
async def helper(name: str) -> str:
    return f"bye {name}"


@tool
async def exported(name: str) -> str:
    return name
