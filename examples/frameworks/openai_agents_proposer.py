"""An agent of the OpenAI Agents SDK whose calls wait for a decision in a space.

Needs OPENAI_API_KEY, or another model given to `main`.
"""

import asyncio

from agents import Agent as ModelAgent
from agents import Model, Runner

from meup_agent import Agent
from meup_agent.adapters.openai_agents import space_tools


async def main(model: str | Model = "gpt-5") -> None:
    async with Agent("writer").join() as space:
        tools = await space_tools(space)
        agent = ModelAgent(name="writer", model=model, tools=[*tools])
        result = await Runner.run(agent, "Add 2 and 3.")
        print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
