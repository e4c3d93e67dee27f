"""An agent's cost of one inbound request: CPU time, in memory, on asyncio; and where it goes.

A scripted peer stands in for the gateway. It feeds `tools/call` requests that were encoded before
and drains the responses. What the same feeding costs without an agent is subtracted: the other end
answers each request with bytes made before.
"""

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from time import process_time
from types import FrameType

import anyio

import meup_agent
from meup_agent import Agent, Space
from meup_agent.protocol.capability import compile_capabilities
from meup_agent.protocol.dialects import DEFAULT_DIALECT, encode
from meup_agent.protocol.space.state.state import SpaceState
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, draft
from meup_agent.transport.memory import MemoryTransport, memory_connector, memory_pair
from tests.bench.figures import Figure, Program

REQUESTS = 6000
TOGETHER = 32
"""Requests that are fed at once in the second part; less than an agent runs at a time."""

SAMPLE = 0.001
"""Seconds of CPU time between two looks at what is running."""

SHARES = {
    "decode": ("protocol/dialects", "protocol/envelope", "protocol/limits", "protocol/kinds"),
    "exchange table": ("protocol/exchange", "protocol/proposals"),
    "validation and result": (
        "agent/arguments",
        "agent/tool",
        "agent/output",
        "agent/content",
        "agent/answer",
        "agent/mcp",
        "protocol/payloads",
    ),
    "handler start and end": ("agent/", "client/"),
    "outbox, writer, reader": ("session/",),
    "memory transport": ("transport/",),
    "other": ("",),
}
PACKAGE = str(Path(meup_agent.__file__).parent) + "/"


def tool_agent() -> Agent:
    agent = Agent("tools")

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    return agent


def welcome() -> list[bytes]:
    """The gateway's words to a newcomer: the participants, and its own coming."""
    space = SpaceState()
    space.grants.configure("caller", compile_capabilities([{"kind": "mcp/request"}]))
    space.join("caller")
    space.grants.configure("tools", compile_capabilities([]))
    joined = space.join("tools")
    assert joined.presence is not None
    return [
        encode(said.replace(id=f"said-{number}"), DEFAULT_DIALECT)
        for number, said in enumerate((joined.welcome, joined.presence))
    ]


def requests(first: int, count: int) -> list[bytes]:
    """So many calls of the tool, each with an id of its own."""
    return [
        encode(request(f"{number:032x}"), DEFAULT_DIALECT) for number in range(first, first + count)
    ]


def request(request_id: str) -> Envelope:
    call = {"name": "add", "arguments": {"a": 1, "b": 2}}
    payload, ts = payloads.request("tools/call", call, request_id), "2026-01-01T00:00:00.000Z"
    return draft(kinds.MCP_REQUEST, payload, id=request_id, sender="caller", to=("tools",), ts=ts)


async def feed(peer: MemoryTransport, frames: list[bytes], together: int) -> float:
    """Feed requests and drain their answers; CPU seconds for each."""
    begun = process_time()
    for start in range(0, len(frames), together):
        batch = frames[start : start + together]
        for frame in batch:
            await peer.send(frame)
        for _ in batch:
            await anext(peer)
    return (process_time() - begun) / len(frames)


@asynccontextmanager
async def fed_agent(agent: Agent) -> AsyncGenerator[tuple[MemoryTransport, Space]]:
    """The gateway's end of an agent's connection, and the agent's space."""
    ends: list[MemoryTransport] = []

    async def accept(end: MemoryTransport, headers: Mapping[str, str]) -> None:
        for frame in welcome():
            await end.send(frame)
        ends.append(end)

    async with agent.join(memory_connector(accept), token="-") as space:
        yield ends[0], space


@asynccontextmanager
async def fed_echo() -> AsyncGenerator[MemoryTransport]:
    """The same end of a connection with nothing behind it that thinks."""
    ours, theirs = memory_pair()

    async def answer() -> None:
        async for frame in theirs:
            await theirs.send(frame)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        yield ours
        tasks.cancel_scope.cancel()


class Shares:
    """Samples of what runs, by CPU time: the innermost code that is ours, or the loop's."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def look(self, number: int, frame: FrameType | None) -> None:
        """A signal handler: note which part of the road runs."""
        self.seen[self._part(frame)] += 1

    def _part(self, frame: FrameType | None) -> str:
        found = ""
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE):
                inside = code.co_filename[len(PACKAGE) :]
                found = found or next(
                    part for part, places in SHARES.items() if inside.startswith(places)
                )
                if found != "decode":
                    return found
                if inside == "protocol/dialects/__init__.py":
                    return "encode" if code.co_name == "encode" else "decode"
            elif not found and "/asyncio/" in code.co_filename:
                return "event loop"
            elif not found and code.co_filename == __file__:
                return "the feeding peer"
            frame = frame.f_back
        return found or "event loop"


async def by_part(count: int) -> Counter[str]:
    """Samples of the time, by the part that it goes to."""
    shares = Shares()
    async with fed_agent(tool_agent()) as (peer, _):
        frames = requests(10**9, count)
        before = signal.signal(signal.SIGPROF, shares.look)
        signal.setitimer(signal.ITIMER_PROF, SAMPLE, SAMPLE)
        try:
            await feed(peer, frames, TOGETHER)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)
    return shares.seen


async def round_of(count: int) -> list[Figure]:
    figures: list[Figure] = []
    costs: dict[str, float] = {}
    for name, together, goal in (
        ("one request at a time", 1, 60),
        (f"{TOGETHER} at once", TOGETHER, 60),
    ):
        async with fed_echo() as peer:
            without = await feed(peer, requests(0, count), together)
        async with fed_agent(tool_agent()) as (peer, _):
            await feed(peer, requests(0, max(1, count // 10)), together)
            costs[name] = await feed(peer, requests(count, count), together) - without
        figures.append(Figure(name, costs[name] * 1e6, "µs", goal))
    seen = await by_part(count)
    seen.pop("the feeding peer", None)
    samples = max(1, seen.total())
    shares = ((part, seen[part] / samples * 100) for part in (*SHARES, "encode", "event loop"))
    return [*figures, *(Figure(f"share of {part}", share, "%") for part, share in shares)]


def measure(scale: float = 1.0) -> Iterator[Figure]:
    yield from asyncio.run(round_of(max(10, round(REQUESTS * scale))))


PROGRAM = Program("request", "One inbound request, CPU time of the agent in memory", measure)
