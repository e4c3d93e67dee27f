"""An agent that publishes its positions to all, as long as there are any.

Run it as one that may stream: as tools.
"""

import json
from collections.abc import AsyncIterator

import anyio

from meup_agent import Agent, Space


async def positions() -> AsyncIterator[dict[str, int]]:
    for step in range(3):
        yield {"x": step, "y": step * step}


async def publish(space: Space) -> None:
    about = "where the robot is"
    async with space.streams.open(format="jsonl", description=about) as out:
        async for position in positions():
            await out.send(json.dumps(position))


async def main() -> None:
    async with Agent("reviewer").join() as space:
        await publish(space)


if __name__ == "__main__":
    anyio.run(main)
