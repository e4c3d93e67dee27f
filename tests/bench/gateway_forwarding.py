"""The time that passing through a gateway adds, on the way to the one that owns the space.

Two gateways share three servers of NATS, and two members of one space are sockets driven by hand:
one at the owner, and one at the other gateway. They take turns, so both see the same machine.
"""

import socket
import statistics
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from itertools import count
from pathlib import Path
from time import perf_counter

import anyio
from anyio.from_thread import start_blocking_portal
from websockets.frames import Frame, Opcode

from meup_agent.cli.cluster.checker import LogReader
from meup_agent.cli.cluster.programs import SPACE, Cluster, cluster, start_all
from meup_agent.gateway.cluster.membership import STEADY_SECONDS
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import DELIVERED_BYTES, dial, drain, said
from tests.bench.journal import read_until

PLACES = ("at the owner", "through another gateway")
NAMES = (b"speaker", b"another")  # of one length, as the messages
TURNS = 1_000
PING, PONG = b"\x89\x80\0\0\0\0", b"\x8a\0"
SETTLED_SECONDS = STEADY_SECONDS + 2.0
"""Until the space has moved, if it is to be at the gateway that started later."""

MOST = 300
"""Microseconds that passing through may add."""

Ports = tuple[int, int]

_numbers = count()


@asynccontextmanager
async def two_gateways() -> AsyncGenerator[tuple[Cluster, Ports]]:
    """Two gateways, and the port of the one that owns the space before that of the other."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with cluster(Path(folder), [name.decode() for name in NAMES]) as made:
            made.add_servers(3)
            made.add_gateways(2)
            await start_all(made.servers.values())
            await start_all(made.gateways.values())
            with closing(LogReader(made.nats_urls)) as reader:
                await reader.open()
                await anyio.sleep(SETTLED_SECONDS)
                owner = await reader.owner()
            ports = {name: each.port or 0 for name, each in made.gateways.items()}
            first = ports.pop(owner)
            (second,) = ports.values()
            yield made, (first, second)


@contextmanager
def running() -> Generator[tuple[Cluster, Ports]]:
    with start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(two_gateways()) as made:
            yield made


def chat(at: int) -> bytes:
    """A message of one of the two, which was not sent before."""
    return Frame(Opcode.TEXT, said(next(_numbers)).replace(NAMES[0], NAMES[at])).serialize(
        mask=True
    )


def added(
    what: str, once: Callable[[int], object], turns: int, goal: float | None = None
) -> Iterator[Figure]:
    """Medians of something that is done at both by turns, and their difference."""
    took: tuple[list[float], list[float]] = ([], [])
    for turn in range(2 * turns):
        begun = perf_counter()
        once(turn % 2)
        took[turn % 2].append(perf_counter() - begun)
    medians = [statistics.median(each) * 1e6 for each in took]
    for name, median in zip(PLACES, medians, strict=True):
        yield Figure(f"{what}, {name}", median, "µs")
    yield Figure(f"{what}: passing adds", medians[1] - medians[0], "µs", goal)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    turns = max(10, round(TURNS * scale))
    with running() as (made, ports), ExitStack() as stack:
        tokens = [made.tokens[name.decode()] for name in NAMES]
        socks: list[socket.socket] = []
        for port, token in zip(ports, tokens, strict=True):
            socks.append(stack.enter_context(dial(port, SPACE, token)))
            read_until(socks[-1], b"system.welcome")

        def ping(at: int) -> None:
            socks[at].sendall(PING)
            read_until(socks[at], PONG)

        # Nothing of their joins is on its way any more when both have heard this.
        socks[1].sendall(chat(1))
        for at, sock in enumerate(socks):
            read_until(sock, b'"message"')
            ping(at)

        def say(at: int) -> None:
            socks[at].sendall(chat(at))
            drain([socks[at]], DELIVERED_BYTES)
            # The other reads it before its own turn.
            drain([socks[1 - at]], DELIVERED_BYTES)

        def ask(at: int) -> None:
            head = f"GET /spaces/{SPACE}/participants HTTP/1.1\r\nHost: x\r\n"
            with socket.create_connection(("127.0.0.1", ports[at])) as sock:
                sock.sendall(f"{head}Authorization: Bearer {tokens[at]}\r\n\r\n".encode())
                while sock.recv(1 << 16):
                    pass

        yield from added("a ping and its answer", ping, turns, MOST)
        yield from added("a chat that both hear, accepted", say, turns, MOST)
        yield from added("a request over HTTP, on a connection of its own", ask, turns // 4 + 1)


PROGRAM = Program("gateway_forwarding", "Passing through a second gateway", measure)
