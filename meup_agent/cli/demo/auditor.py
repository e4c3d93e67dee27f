"""The auditor: an agent that only listens. It may send nothing, and it sees everything."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from meup_agent import Agent, Envelope, Space
from meup_agent.cli.demo.arrivals import EventLog


def auditor_agent() -> Agent:
    """The agent; it has no handlers, since it takes no part in anything."""
    return Agent("auditor")


async def listen(
    space: Space, seen: EventLog[Envelope], show: Callable[[Envelope], Awaitable[None]]
) -> None:
    """Take down every envelope of a space, in the gateway's order; until cancelled.

    Args:
        space: Where the auditor is.
        seen: Takes the envelopes.
        show: Shows one; awaited before it counts as seen.
    """
    with space.watch() as envelopes:
        async for envelope in envelopes:
            await show(envelope)
            seen.add(envelope)
