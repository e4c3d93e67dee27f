"""An agent as a script, run by test_script.py: `python script.py <backend> <grace>`."""

import sys
import time

import anyio

from meup_agent import Agent, Context
from meup_agent.agent import agent as agent_module

# What is a matter of seconds outside of a test.
agent_module.GRACE = 0.2  # type: ignore[misc]

agent = Agent("tools")


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


@agent.tool
async def finish(ctx: Context) -> str:
    """Runs until the agent is told to stop, and then finishes in time."""
    say("finish runs")
    while "stopping" not in seen:  # noqa: ASYNC110 - only the log tells
        await anyio.sleep(0.01)
    return "finished"


@agent.tool
async def endless(ctx: Context) -> None:
    say("endless runs")
    try:
        await anyio.sleep_forever()
    finally:
        assert ctx.reason is not None
        say("endless stopped:", ctx.reason)


@agent.tool
def deaf() -> None:
    say("deaf runs")
    time.sleep(3600)


@agent.tool
async def stubborn() -> None:
    say("stubborn runs")
    with anyio.CancelScope(shield=True):
        await anyio.sleep_forever()


class Seen(list[str]):
    """The log of the agent, for a handler that waits for what only the log tells."""

    def write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()
        self.extend(text.replace(":", " ").split())

    def flush(self) -> None: ...


seen = Seen()

if __name__ == "__main__":
    import logging

    backend, grace = sys.argv[1:]
    assert backend in ("asyncio", "trio")
    logging.basicConfig(level="INFO", stream=seen, format="%(message)s")
    agent.run(backend=backend, grace=float(grace))  # type: ignore[arg-type]
