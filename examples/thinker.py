"""A tool that thinks aloud: others follow it, and those who may can stop it."""

from meup_agent import Agent, Context
from meup_agent.errors import ReasoningCancelled

agent = Agent("thinker")


@agent.tool
async def oldest(names: list[str], ctx: Context) -> str:
    """The oldest of some files."""
    try:
        async with ctx.reasoning("which of them is the oldest?") as reasoning:
            best = names[0]
            for name in names:
                await reasoning.thought(f"{name} may be older than {best}")
                best = min(best, name)
            await reasoning.conclude(f"it is {best}")
            return best
    except ReasoningCancelled as cancelled:
        return f"{cancelled.by} stopped the search: {cancelled.reason}"


if __name__ == "__main__":
    agent.run()
