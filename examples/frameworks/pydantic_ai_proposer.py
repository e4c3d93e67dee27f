"""A pydantic-ai agent whose calls of a space's tools wait for a decision.

MODEL names any model that pydantic-ai knows, `anthropic:…`, `openai:…`; without
it a scripted one calls every tool once.
"""

import asyncio
import os

from pydantic_ai import Agent as ModelAgent

from meup_agent import Agent
from meup_agent.adapters.pydantic_ai import SpaceToolset


async def main() -> None:
    async with Agent("writer").join() as space:
        model = os.environ.get("MODEL", "test")
        agent = ModelAgent(model, toolsets=[SpaceToolset(space)])
        result = await agent.run("Add 2 and 3.")
        print(result.output)


if __name__ == "__main__":
    asyncio.run(main())
