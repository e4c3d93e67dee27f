"""A tool owner: others call its tools, and it needs no permission to answer.

Arguments are checked against the annotations before a function is called. Plain
functions run in worker threads, so that a slow one holds up nobody else.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from meup_agent import Agent

agent = Agent("calculator")


@agent.tool(read_only=True)
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


Digits = Annotated[int, Field(ge=0, description="digits behind the point")]


@agent.tool(read_only=True)
def divide(dividend: float, divisor: float, digits: Digits = 3) -> float:
    """Divide one number by another."""
    # By zero this raises. The caller gets a ToolError that says so, and our log
    # gets the traceback.
    return round(dividend / divisor, digits)


@dataclass
class Summary:
    count: int
    smallest: float
    largest: float
    mean: float


@agent.tool(read_only=True)
def summarize(numbers: Annotated[list[float], Field(min_length=1)]) -> Summary:
    """Count some numbers, and find the smallest, the largest and the mean."""
    # The caller gets an object with these keys.
    count = len(numbers)
    return Summary(count, min(numbers), max(numbers), sum(numbers) / count)


if __name__ == "__main__":
    agent.run()
