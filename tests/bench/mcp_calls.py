"""A call from an MCP client through `meup mcp --http` and a gateway, and its cancel.

Client, MCP server, gateway and tool run in processes of their own, on uvloop. In the same round the
official SDK's own server answers the same call over the same transport, and an agent of ours makes
it through the gateway alone: without a pause, and as seldom as the MCP server makes it, since
processes that have waited some milliseconds for their next message answer later.
"""

import asyncio
import json
import statistics
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from itertools import count, islice
from multiprocessing.connection import Connection
from time import monotonic_ns, perf_counter, process_time
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from meup_agent import Agent, Limits, Settings
from tests.bench import calls, peers, processes, timing
from tests.bench.figures import Figure, Program
from tests.bench.processes import Address, gateway, on_uvloop, process, result_of
from tests.bench.timing import Calls, Times, percentile

if TYPE_CHECKING:
    from mcp import Client

ALONE, TOGETHER, IN_FLIGHT = 300, 640, 32
CANCELS = 100
WARM_UP = 5
STREAMS = 500

SPACE = "demo"
EVERYTHING: list[dict[str, Any]] = [{"kind": "*"}]
PARTICIPANTS = {"tools": EVERYTHING, "caller": EVERYTHING, "client": EVERYTHING}

MODES = {"legacy": "by handshake (2025-11-25)", "auto": "2026-07-28"}
"""Modes of the SDK's client, and the revisions that they make."""


def tools(pipe: Connection, address: Address) -> None:
    """The agent with the tools."""
    agent = Agent("tools")
    running = 0
    stopped = asyncio.Queue[int]()

    @agent.tool
    async def add(a: int, b: int) -> int:
        return a + b

    @agent.tool
    async def work() -> None:
        nonlocal running
        running += 1
        try:
            await anyio.sleep_forever()
        finally:
            stopped.put_nowait(monotonic_ns())
            running -= 1

    @agent.tool
    async def when_stopped() -> int:
        return await stopped.get()

    @agent.tool
    async def count_running() -> int:
        return running

    settings = Settings(limits=Limits(handlers=2 * STREAMS, queued=2 * STREAMS))
    processes.serve(pipe, address, SPACE, agent, settings)


def mcp_server(pipe: Connection, address: Address) -> None:
    """The space over HTTP."""
    from meup_agent.mcp.server.http import mcp_app

    token = address.tokens[SPACE, "client"]
    app = mcp_app(address.url, space=SPACE, token=token, anonymous=True)
    peers.serve_http(pipe, app, lambda: len(app.streams))


@asynccontextmanager
async def client_of(url: str, mode: str) -> AsyncGenerator["Client"]:
    """The SDK's client, for as many calls at once as there are."""
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Limits(max_connections=2 * STREAMS)
    async with httpx2.AsyncClient(timeout=120, limits=limits) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


def seldom_caller(pipe: Connection, address: Address, every: float, count: int) -> None:
    """Makes plain calls, each after a pause; tells the median time of one, and its CPU time."""

    async def call_all() -> None:
        async with processes.join(address, SPACE, Agent("caller")) as space:
            took: list[float] = []
            used: list[float] = []
            for _ in range(WARM_UP + count):
                await asyncio.sleep(every)
                begun, cpu = perf_counter(), process_time()
                assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3
                took.append(perf_counter() - begun)
                used.append(process_time() - cpu)
        pipe.send((statistics.median(took[WARM_UP:]), statistics.mean(used[WARM_UP:])))

    on_uvloop(call_all())


async def number(client: "Client", tool: str) -> int:
    """The number that a tool returns."""
    structured: Any = (await client.call_tool(tool)).structured_content
    return int(structured["result"])


async def until_running(client: "Client", wanted: int) -> None:
    """Wait until so many calls run."""
    while await number(client, "tools_count_running") != wanted:
        pass


def canceller(pipe: Connection, url: str, mode: str, count: int) -> None:
    """Cancels calls one by one; tells the nanoseconds to the tool's `finally`."""

    async def cancel_all() -> None:
        took: list[int] = []
        async with client_of(url, mode) as client:
            for _ in range(WARM_UP + count):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "tools_work")
                    await until_running(client, 1)
                    cancelled = monotonic_ns()
                    tasks.cancel_scope.cancel()
                took.append(await number(client, "tools_when_stopped") - cancelled)
        pipe.send([each * 1e-9 for each in took[WARM_UP:]])

    on_uvloop(cancel_all())


def crowd(pipe: Connection, url: str, streams: int) -> None:
    """Opens streams at once in one session and cancels them all, each time it is asked to."""
    import httpx2

    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2025-11-25",
    }
    limits = httpx2.Limits(max_connections=2 * STREAMS)

    async def cancel_all() -> None:
        loop = asyncio.get_running_loop()
        async with httpx2.AsyncClient(timeout=300, limits=limits, headers=headers) as http:

            async def post(**message: Any) -> httpx2.Response:
                return await http.post(url, json={"jsonrpc": "2.0", **message})

            info = {"name": "crowd", "version": "1"}
            hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
            answer = await post(id=0, method="initialize", params=hello)
            http.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
            await post(method="notifications/initialized")

            async def stream(number: int) -> None:
                call = {"name": "tools_work", "arguments": {}}
                answer = await post(id=number, method="tools/call", params=call)
                assert "Operation cancelled" in answer.text

            async def running() -> int:
                call = {"name": "tools_count_running", "arguments": {}}
                answer = await post(id="count", method="tools/call", params=call)
                data = json.loads(answer.text.split("data: ")[1])
                return int(data["result"]["structuredContent"]["result"])

            ids = count(1)  # a session uses none twice
            while True:
                await loop.run_in_executor(None, pipe.recv)
                numbers = list(islice(ids, streams))
                async with anyio.create_task_group() as tasks:
                    for number in numbers:
                        tasks.start_soon(stream, number)
                    while await running() < streams:
                        pass
                    for number in numbers:
                        cancel = {"requestId": number, "reason": "all of them"}
                        await post(method="notifications/cancelled", params=cancel)
                assert await running() == 0
                pipe.send(None)

    on_uvloop(cancel_all())


class Called(NamedTuple):
    """The times of calls, and the server's CPU time for each."""

    times: Times
    cpu: float


def called(server: Connection, url: str, mode: str, tool: str, wanted: Calls) -> Called:
    before: peers.ServerUsage = asked(server)
    times: Times = result_of(peers.mcp_caller, url, wanted, tool, mode)
    after: peers.ServerUsage = asked(server)
    made = timing.WARM_UP + wanted.alone + wanted.together
    return Called(times, (after.cpu - before.cpu) / made)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    wanted = Calls(max(1, round(ALONE * scale)), max(1, round(TOGETHER * scale)), IN_FLIGHT)
    plain = calls.ours(wanted).times.median
    yield Figure("a plain call of ours", plain * 1e6, "µs")
    with process(gateway, {SPACE: PARTICIPANTS}) as middle:
        address = middle.recv()
        with process(tools, address) as tool, process(mcp_server, address) as server:
            tool.recv()
            url = f"http://127.0.0.1:{server.recv()}/mcp"
            for mode, revision in MODES.items():
                yield from compared(server, url, mode, revision, wanted, address)
                yield from cancelled(url, mode, revision, max(1, round(CANCELS * scale)))
            yield from crowded(url, server, max(1, round(STREAMS * scale)))


def compared(
    server: Connection, url: str, mode: str, revision: str, wanted: Calls, address: Address
) -> Iterator[Figure]:
    """The same call through a space, and to the SDK's own server."""
    ours = called(server, url, mode, "tools_add", wanted)
    with process(peers.mcp_http_server, False) as its:
        its_url = f"http://127.0.0.1:{its.recv()}/mcp"
        sdk = called(its, its_url, mode, "add", wanted)
    plain, plain_cpu = result_of(seldom_caller, address, sdk.times.median, wanted.alone)
    yield Figure(f"a call through `meup mcp --http`, {revision}", ours.times.median * 1e6, "µs")
    yield Figure(f"the SDK's own server, {revision}", sdk.times.median * 1e6, "µs")
    yield Figure(f"a plain call of ours, as seldom, {revision}", plain * 1e6, "µs")
    share = (ours.times.median - plain) / sdk.times.median
    yield Figure(f"less a plain call, times the SDK's, {revision}", share, "×", 1.3)
    yield Figure(f"CPU time of our server for a call, {revision}", ours.cpu * 1e6, "µs")
    yield Figure(f"CPU time of the SDK's server, {revision}", sdk.cpu * 1e6, "µs")
    yield Figure(f"CPU time of a plain call's caller, {revision}", plain_cpu * 1e6, "µs")
    share = (ours.cpu - plain_cpu) / sdk.cpu
    yield Figure(f"less a plain caller's, times the SDK's, {revision}", share, "×", 1.3)
    yield Figure(f"calls through it, {IN_FLIGHT} under way, {revision}", ours.times.rate, "/s")
    yield Figure(f"calls of the SDK's, {IN_FLIGHT} under way, {revision}", sdk.times.rate, "/s")


def cancelled(url: str, mode: str, revision: str, count: int) -> Iterator[Figure]:
    """From the client's cancel to the tool's `finally`."""
    took: list[float] = result_of(canceller, url, mode, count)
    yield Figure(f"from a cancel to `finally`, {revision}", statistics.median(took) * 1e3, "ms", 10)
    yield Figure(f"from a cancel to `finally`, {revision}: p99", percentile(took, 0.99) * 1e3, "ms")


def asked(pipe: Connection) -> Any:
    """The answer of a process."""
    pipe.send(None)
    return pipe.recv()


def crowded(url: str, server: Connection, streams: int) -> Iterator[Figure]:
    """The remains of many streams that were all cancelled."""
    with process(crowd, url, streams) as clients:
        asked(clients)  # what a first time makes, stays
        before: peers.ServerUsage = asked(server)
        asked(clients)
        after: peers.ServerUsage = asked(server)
    left = (after.memory - before.memory) / 1e6
    yield Figure("streams that are left of 500 cancelled ones", after.streams, "", 0)
    yield Figure("memory that they leave, of the MCP server", left, "MB", 1)


PROGRAM = Program("mcp_calls", "A call from an MCP client through a space, and its cancel", measure)
