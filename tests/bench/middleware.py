"""The cost of middleware: CPU time of one message through an agent, in memory, on asyncio.

A message that is handled is a request for a tool, fed as in `tests.bench.request`; one that is sent
is a chat. A middleware passes on what it gets. Agents without any, with one and with five take
turns, and beside them one whose runner has no place for middleware.
"""

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from itertools import count
from time import process_time
from typing import Any
from unittest import mock

from meup_agent import Space
from meup_agent.agent.decorators import Invocation
from meup_agent.agent.runner import Runner
from meup_agent.agent.tool import encode_result
from meup_agent.transport.memory import MemoryTransport
from meup_agent.types import CallNext, InboundMessage, OutboundMessage
from tests.bench.figures import Figure, Program
from tests.bench.request import fed_agent, fed_echo, feed, requests, tool_agent

MESSAGES = 200
"""Messages in a turn."""

TURNS = 40

LAYERS = {"without any": 0, "with one": 1, "with five": 5}
WITHOUT_PLACE = "without a place for any"


async def passing(message: InboundMessage | OutboundMessage, call_next: CallNext) -> Any:
    """A middleware that does nothing else."""
    return await call_next(message)


class StraightRunner(Runner):
    """A runner without a place for middleware: it runs a tool's handler itself."""

    async def _tool_result(self, run: Invocation) -> Any:
        value = await self._run_handlers(run)
        tool = run.match.handlers[0].tool
        assert tool is not None
        return encode_result(tool.result(value))


TimedTurn = Callable[[], Awaitable[float]]
"""Some messages; CPU seconds of each."""


def handling(peer: MemoryTransport, messages: int) -> TimedTurn:
    """Requests that an agent, or an echo, answers one by one."""
    starts = count(step=messages)
    return lambda: feed(peer, requests(next(starts), messages), 1)


def sending(peer: MemoryTransport, space: Space, messages: int) -> TimedTurn:
    """Chats that an agent sends one by one."""

    async def say() -> float:
        begun = process_time()
        for _ in range(messages):
            await space.chat("hello")
            await anext(peer)
        return (process_time() - begun) / messages

    return say


async def in_turns(turns: dict[str, TimedTurn]) -> dict[str, float]:
    """Microseconds of a message in each way: the median of its turns after the first."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(TURNS + 1):
        for name, turn in turns.items():
            found[name].append(await turn() * 1e6)
    return {name: statistics.median(took[1:]) for name, took in found.items()}


async def round_of(messages: int) -> list[Figure]:
    handled: dict[str, TimedTurn] = {}
    sent: dict[str, TimedTurn] = {}
    async with AsyncExitStack() as stack:
        echo = await stack.enter_async_context(fed_echo())
        for name, layers in {WITHOUT_PLACE: 0, **LAYERS}.items():
            agent = tool_agent()
            for _ in range(layers):
                agent.middleware(passing)
            runner = StraightRunner if name == WITHOUT_PLACE else Runner
            with mock.patch("meup_agent.agent.agent.Runner", runner):
                peer, space = await stack.enter_async_context(fed_agent(agent))
            handled[name] = handling(peer, messages)
            sent[name] = sending(peer, space, messages)
        # An agent without middleware gives its handlers the plain space: there is no place in it.
        del sent[WITHOUT_PLACE]
        costs = await in_turns({"echo": handling(echo, messages), **handled})
        without = costs.pop("echo")
        costs = {name: each - without for name, each in costs.items()}
        said = await in_turns(sent)
    times = costs["without any"] / costs[WITHOUT_PLACE]
    return [
        *(Figure(f"a message that is handled, {name}", each, "µs") for name, each in costs.items()),
        Figure("without any, times without a place for any", times, "×", 1.05),
        *(Figure(f"a message that is sent, {name}", each, "µs") for name, each in said.items()),
    ]


def measure(scale: float = 1.0) -> Iterator[Figure]:
    yield from asyncio.run(round_of(max(1, round(MESSAGES * scale))))


PROGRAM = Program("middleware", "Middleware: CPU time of one message, in memory", measure)
