"""A proposer that tries to print without asking."""

import anyio

from meup_agent import Agent
from meup_agent.errors import Refused

agent = Agent("proposer")


async def main() -> None:
    arguments = {"title": "Moby Dick", "pages": 3}
    call = {"name": "print_pages", "arguments": arguments}
    async with agent.join() as space:
        try:
            await space.request("tools", "tools/call", call)
        except Refused as refused:
            print(f"refused: {refused.error}")


if __name__ == "__main__":
    anyio.run(main)
