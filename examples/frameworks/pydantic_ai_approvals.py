"""A pydantic-ai agent whose own tools run only when a space approves."""

import asyncio
import os

from pydantic_ai import Agent as ModelAgent
from pydantic_ai.capabilities import HandleDeferredToolCalls

from meup_agent.adapters.approvals import Door, approve_calls


def delete(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


async def main() -> None:
    async with Door("cleaner").join() as space:
        agent = ModelAgent(
            os.environ.get("MODEL", "test"),
            capabilities=[HandleDeferredToolCalls(approve_calls(space))],
        )
        agent.tool_plain(requires_approval=True)(delete)
        print((await agent.run("Delete the old logs.")).output)


if __name__ == "__main__":
    asyncio.run(main())
