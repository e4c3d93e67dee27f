"""A tool streams its partial result beside its answer; its caller shows it.

Start it as tools with `tools` behind its name first, then as fulfiller.
"""

import sys

import anyio

from meup_agent import Agent, Context, Space, StreamReader
from meup_agent.errors import ParticipantGone

tools = Agent("tools")


@tools.tool
async def draft(topic: str, ctx: Context) -> str:
    """Write a draft, and show each word as it is written."""
    words = f"A draft about {topic} ends well".split()
    async with ctx.stream(content_type="text/plain") as out:
        for word in words:
            await out.send(f"{word} ")  # waits where the connection is slow
    return " ".join(words)


async def show(stream: StreamReader) -> None:
    async for chunk in stream:  # bytes, as they were sent
        print(chunk.decode(), end="", flush=True)
    print(f"| {stream.ended}, {stream.lost} lost")


async def ask(space: Space) -> str:
    return str(
        await space.call("tools", "draft", {"topic": "streams"}, on_stream=show)
    )


async def main() -> None:
    async with Agent("reviewer").join() as space:
        try:
            await space.present("tools", timeout=5)
        except ParticipantGone as gone:
            sys.exit(f"start this with `tools` first, as tools: {gone}")
        print(await ask(space))


if __name__ == "__main__":
    if sys.argv[1:] == ["tools"]:
        tools.run()
    else:
        anyio.run(main)
