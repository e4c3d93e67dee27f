"""A tool owner that writes down what happens to it."""

import logging
import sys

import anyio

from meup_agent import Agent, Counters, log_events
from meup_agent.events import Event, HandlerStopped

agent = Agent("patient")

events = logging.getLogger("meup_agent.events")
events.addHandler(logging.StreamHandler(sys.stdout))
events.propagate = False
agent.observe(log_events(events))

counters = Counters()
agent.observe(counters)


@agent.observe
def say_who_stopped_what(event: Event) -> None:
    if isinstance(event, HandlerStopped):
        print(f"{event.handler} was {event.outcome} by {event.cause.by}")


@agent.tool
async def wait(seconds: float) -> str:
    """Do nothing for a while."""
    if seconds < 0:
        raise ValueError("nobody has gone back yet")
    await anyio.sleep(seconds)
    return "waited"


if __name__ == "__main__":
    events.setLevel(logging.INFO)
    agent.run()
    for name, counts in counters.snapshot()["handlers"].items():
        print(name, counts)
