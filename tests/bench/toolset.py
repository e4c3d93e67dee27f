"""A call through the toolset of an agent framework, beside `space.call`, over a gateway.

Run it from the repository, where the frameworks are: `.venv/frameworks/bin/python -m
tests.bench.toolset`

Caller, gateway and tool owner are three processes; the ways to call take turns in one round. What
is called is the adapter's function, as the framework calls it; of LangChain also the `ainvoke`
around it, in which it looks for callbacks and copies contexts. No model is in it.
"""

import gc
import json
import statistics
import sys
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

from meup_agent import Agent, Space
from tests.bench.figures import Figure, Program, main
from tests.bench.processes import Address, adder, gateway, join, on_uvloop, process, result_of

CALLS = 400
TOGETHER = 10
"""Calls of one way before it is another's turn."""

WARM_UP = 30
GOAL = 1.2
SPACE = "demo"
EVERYTHING: list[dict[str, Any]] = [{"kind": "*"}]
PARTICIPANTS = {"tools": EVERYTHING, "caller": EVERYTHING}
ARGUMENTS = {"a": 1, "b": 2}

AROUND = "langchain's ainvoke around it"

Call = Callable[[], Awaitable[object]]


async def ways(space: Space) -> dict[str, Call]:
    """The ways to call the tool."""
    from meup_agent.adapters import langchain, openai_agents
    from meup_agent.adapters.pydantic_ai import SpaceToolset

    anything: Any = None
    toolset: Any = SpaceToolset(space)
    [[name, tool]] = (await toolset.get_tools(anything)).items()
    [function] = await openai_agents.space_tools(space)
    [structured] = await langchain.space_tools(space)
    said = json.dumps(ARGUMENTS)
    assert structured.coroutine is not None
    coroutine = structured.coroutine
    return {
        "space.call": lambda: space.call("tools", "add", ARGUMENTS),
        "pydantic-ai": lambda: toolset.call_tool(name, ARGUMENTS, anything, tool),
        "openai-agents": lambda: function.on_invoke_tool(anything, said),
        "langchain": lambda: coroutine(**ARGUMENTS),
        AROUND: lambda: structured.ainvoke(ARGUMENTS),
    }


def caller(pipe: Connection, address: Address, calls: int) -> None:
    """Makes the calls; tells the seconds of each way."""

    async def call_all() -> None:
        async with join(address, SPACE, Agent("caller")) as space:
            await space.present("tools")
            took: dict[str, list[float]] = {}
            every = await ways(space)
            for call in every.values():
                for _ in range(WARM_UP):
                    await call()
            gc.collect()
            while min((len(each) for each in took.values()), default=0) < calls:
                for way, call in every.items():
                    for _ in range(TOGETHER):
                        begun = perf_counter()
                        await call()
                        took.setdefault(way, []).append(perf_counter() - begun)
        pipe.send(took)

    on_uvloop(call_all())


def measure(scale: float = 1.0) -> Iterator[Figure]:
    with process(gateway, {SPACE: PARTICIPANTS}) as middle:
        address = middle.recv()
        with process(adder, address, SPACE) as tool:
            tool.recv()
            calls = max(1, round(CALLS * scale))
            took: dict[str, list[float]] = result_of(caller, address, calls)
    plain = statistics.median(took["space.call"])
    for way, seconds in took.items():
        median = statistics.median(seconds)
        yield Figure(way, median * 1e6, "µs")
        if way != "space.call":
            goal = None if way == AROUND else GOAL
            yield Figure(f"{way}: times space.call", median / plain, "×", goal)


PROGRAM = Program("toolset", "A call through a framework's toolset", measure)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
