"""A tool owner whose calls are traced, by the SDK that it is started with."""

from meup_agent import Agent
from meup_agent.tracing import tracing

agent = Agent("traced")
agent.use(tracing())


@agent.tool
async def divide(dividend: float, divisor: float) -> float:
    """Divide a number by another."""
    return dividend / divisor


if __name__ == "__main__":
    agent.run()
