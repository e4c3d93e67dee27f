"""A tool call, agent → gateway → agent and back: alone, and with 32 under way.

Caller, gateway and tool run in processes of their own, on uvloop. In the same round, messages of
the same sizes make the same way without any of our code, two NATS clients make the same call
through a server that checks and keeps nothing, and the official SDK makes it between two processes.
"""

from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from meup_agent import Agent
from tests.bench import peers
from tests.bench.figures import Figure, Program
from tests.bench.processes import Address, adder, gateway, join, on_uvloop, process, result_of
from tests.bench.timing import Calls, Times, measured

ALONE, TOGETHER, IN_FLIGHT = 1500, 6400, 32
OF_MCP = 0.2
"""Share of these that the SDK makes: its calls take longer, and are as even."""

SPACE = "demo"
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {"caller": [{"kind": "mcp/request"}], "tools": []}


class Seen(NamedTuple):
    """A caller's figures: the times, and the sizes of a request and its answer."""

    times: Times
    asked_bytes: int
    answer_bytes: int


def caller(pipe: Connection, address: Address, wanted: Calls) -> None:
    """The agent that calls."""

    async def call_all() -> None:
        async with join(address, SPACE, Agent("caller")) as space:

            async def call() -> None:
                assert await space.call("tools", "add", {"a": 1, "b": 2}) == 3

            times = await measured(call, wanted)
            with space.watch() as heard:
                await call()
                request, response = await anext(heard), await anext(heard)
            pipe.send(Seen(times, len(request.frame), len(response.frame)))

    on_uvloop(call_all())


def ours(wanted: Calls) -> Seen:
    with process(gateway, {SPACE: PARTICIPANTS}) as middle:
        address = middle.recv()
        with process(adder, address, SPACE) as tool:
            tool.recv()
            seen: Seen = result_of(caller, address, wanted)
            return seen


def bare_echo(wanted: Calls, asked_bytes: int, answer_bytes: int) -> Times:
    with process(peers.relay) as middle:
        port = middle.recv()
        with process(peers.echo, port, answer_bytes) as far:
            far.recv()
            times: Times = result_of(peers.echo_caller, port, asked_bytes, wanted)
            return times


def nats(wanted: Calls) -> Times:
    with peers.nats_server() as url, process(peers.nats_tool, url) as tool:
        tool.recv()
        times: Times = result_of(peers.nats_caller, url, wanted)
        return times


def mcp_over_http(wanted: Calls, *, json_response: bool) -> Times:
    with process(peers.mcp_http_server, json_response) as server:
        url = f"http://127.0.0.1:{server.recv()}/mcp"
        times: Times = result_of(peers.mcp_caller, url, wanted)
        return times


def measure(scale: float = 1.0) -> Iterator[Figure]:
    wanted = Calls(max(1, round(ALONE * scale)), max(1, round(TOGETHER * scale)), IN_FLIGHT)
    fewer = Calls(
        max(1, round(wanted.alone * OF_MCP)), max(1, round(wanted.together * OF_MCP)), IN_FLIGHT
    )
    seen = ours(wanted)
    our = seen.times
    bare = bare_echo(wanted._replace(together=1), seen.asked_bytes, seen.answer_bytes)
    fastest = nats(wanted)
    http = mcp_over_http(fewer, json_response=False)
    plain = mcp_over_http(fewer, json_response=True)
    stdio: Times = result_of(peers.mcp_caller, None, fewer)
    compared = (
        ("a call", our),
        ("bare echo, same processes and sizes", bare),
        ("NATS request and reply", fastest),
        ("`mcp` over HTTP, event stream", http),
        ("`mcp` over HTTP, JSON", plain),
        ("`mcp` over stdio", stdio),
    )
    for name, times in compared:
        yield Figure(name, times.median * 1e6, "µs")
        yield Figure(f"{name}: p99", times.p99 * 1e6, "µs")
    yield Figure("a call: times the bare echo", our.median / bare.median, "×", 2)
    for name, peer, goal in (
        ("`mcp` over HTTP, event stream", http, 8),
        ("`mcp` over HTTP, JSON", plain, None),
        ("`mcp` over stdio", stdio, 4),
    ):
        yield Figure(f"faster than {name}", peer.median / our.median, "×", goal, at_least=True)
    for name, times in compared:
        if times is not bare:
            yield Figure(f"{name}, 32 under way", times.rate, "/s")
    yield Figure(
        "more calls than `mcp` over HTTP, event stream", our.rate / http.rate, "×", 10, True
    )


PROGRAM = Program("calls", "A tool call through the gateway", measure)
