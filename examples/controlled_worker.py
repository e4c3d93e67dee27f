"""A worker that can be paused, asked how it is, and shut down."""

from typing import Any

import anyio
import anyio.lowlevel

from meup_agent import Agent
from meup_agent.types import Compact, Pause, Shutdown, StatusRequest

agent = Agent("worker")

context: list[str] = []  # what a model would be given


@agent.tool
async def note(text: str) -> str:
    """Keep a note."""
    await anyio.lowlevel.checkpoint()
    context.append(text)
    return f"{len(context)} notes"


@agent.on_control("pause")
async def paused(pause: Pause) -> None:
    print(f"paused by {pause.by}: {pause.reason}")


@agent.on_control("request_status")
async def status(_: StatusRequest) -> dict[str, Any]:
    tokens = sum(map(len, context)) // 4
    return {"messages_in_context": len(context), "tokens": tokens}


@agent.on_control("compact")
async def compact(_: Compact) -> dict[str, Any]:
    freed = len(context) - 1
    context[:] = [f"{len(context)} notes in short"]
    return {"freed_messages": freed}


@agent.on_control("shutdown")
async def last(shutdown: Shutdown) -> None:
    print(f"shut down by {shutdown.by}")


if __name__ == "__main__":
    agent.run()  # ends when it was shut down; run again, it is back
