"""An agent with one tool, for `meup mcp module:agent`."""

from meup_agent import Agent

agent = Agent("echo")


@agent.tool
async def echo(text: str) -> str:
    """Say it again."""
    print("this must not reach the client")  # noqa: T201
    return text
