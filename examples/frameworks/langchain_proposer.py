"""Tools of a space in LangChain: each call waits for a decision.

Give the tools to any model that can call tools (`model.bind_tools(tools)`), or
to an agent of LangGraph; here one is called by hand.
"""

import asyncio

from meup_agent import Agent
from meup_agent.adapters.langchain import space_tools


async def main() -> None:
    async with Agent("writer").join() as space:
        tools = {each.name: each for each in await space_tools(space)}
        print(await tools["tools_add"].ainvoke({"a": 2, "b": 3}))


if __name__ == "__main__":
    asyncio.run(main())
