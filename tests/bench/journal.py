"""The cost of the journal, by its engine: to be accepted, and after an absence.

The gateway runs in a process of its own, and its members are sockets driven by hand. An envelope
is accepted when its sender has its own echo with a number, which comes when it is kept.
"""

import re
import socket
import statistics
import tempfile
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count, islice
from pathlib import Path
from time import perf_counter

from anyio.from_thread import start_blocking_portal

from meup_agent.cli.cluster.programs import cluster, start_all
from meup_agent.gateway.config import JournalConfig, NatsConfig, PostgresConfig
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import DELIVERED_BYTES, DRAINED, drain, empty, handshake, message
from tests.bench.processes import IN_MEMORY, ask, gateway, process
from tests.nats_servers import NatsServer
from tests.postgres_servers import PostgresServer

NAMES = ("speaker", "listener")
ALONE = 3_000
TOGETHER = 60_000
OUTSTANDING = 500
MISSED = 10_000

_numbers = count()


def fresh(many: int) -> bytes:
    """So many messages, none of which was sent before: the same again is not delivered again."""
    return b"".join(message(number) for number in islice(_numbers, many))


def resume(port: int, token: str, seen: int | None = None) -> socket.socket:
    """Join a space, or come back to it."""
    more = f"Last-Event-ID: {seen}\r\n" if seen is not None else ""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(handshake("demo", token).removesuffix(b"\r\n") + more.encode() + b"\r\n")
    return sock


def read_until(sock: socket.socket, wanted: bytes) -> None:
    """Read until something has come."""
    tail = b""
    while wanted not in tail:
        tail = tail[-len(wanted) :] + sock.recv(DRAINED)


def number_of_leave(sock: socket.socket) -> int:
    """Read until a member has left; the number of that."""
    read = b""
    while (found := re.search(rb'"leave".*"seq":(\d{16})\}', read)) is None:
        read += sock.recv(DRAINED)
    return int(found[1])


def latencies(sock: socket.socket, many: int) -> list[float]:
    """Seconds from sending to the echo, one message at a time."""
    took: list[float] = []
    for _ in range(many):
        said = fresh(1)
        begun = perf_counter()
        sock.sendall(said)
        drain([sock], DELIVERED_BYTES)
        took.append(perf_counter() - begun)
    return took


def rate(socks: list[socket.socket], many: int) -> float:
    """Messages that are accepted in a second, and that both members have got."""
    said = [fresh(OUTSTANDING) for _ in range(max(2, many // OUTSTANDING))]
    begun = perf_counter()
    socks[0].sendall(said[0])
    for burst in said[1:]:
        # One burst is read while the next one is under way.
        socks[0].sendall(burst)
        drain(socks, OUTSTANDING * DELIVERED_BYTES)
    drain(socks, OUTSTANDING * DELIVERED_BYTES)
    return len(said) * OUTSTANDING / (perf_counter() - begun)


def measured(
    name: str, journal: JournalConfig, scale: float, *, per_second: float = 20_000
) -> Iterator[Figure]:
    spaces = {"demo": {each: [{"kind": "chat"}] for each in NAMES}}
    with process(gateway, spaces, None, journal) as pipe:
        address = pipe.recv()
        tokens = [address.tokens["demo", each] for each in NAMES]
        socks = [resume(address.port, token) for token in tokens]
        ask(pipe, 5)
        for sock in socks:
            empty(sock)
        took = sorted(latencies(socks[0], max(100, round(ALONE * scale))))
        drain(socks[1:], DELIVERED_BYTES * len(took))
        yield Figure(f"accepted, {name}: median", statistics.median(took) * 1e3, "ms")
        yield Figure(f"accepted, {name}: p99", took[len(took) * 99 // 100] * 1e3, "ms", 20)
        many = rate(socks, round(TOGETHER * scale))
        yield Figure(f"accepted under load, {name}", many, "/s", per_second, at_least=True)
        # The listener is away, and misses as many.
        socks.pop().close()
        missed = max(500, round(MISSED * scale))
        left = number_of_leave(socks[0])
        for _ in range(0, missed, OUTSTANDING):
            socks[0].sendall(fresh(OUTSTANDING))
            drain(socks, OUTSTANDING * DELIVERED_BYTES)
        begun = perf_counter()
        back = resume(address.port, tokens[1], left)
        read_until(back, b'"id": "%032x"' % (next(_numbers) - 1))
        elapsed = perf_counter() - begun
        yield Figure(f"what was missed, {missed:,}, {name}", elapsed * 1e3, "ms", 1_000)
        for sock in (back, *socks):
            sock.close()


@contextmanager
def nats_servers(count: int) -> Generator[tuple[str, ...]]:
    """The addresses of so many servers of NATS, which know each other."""
    if count == 1:
        with closing(NatsServer()) as server:
            yield (server.url,)
        return

    @asynccontextmanager
    async def running() -> AsyncGenerator[tuple[str, ...]]:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            async with cluster(Path(folder), ()) as made:
                made.add_servers(count)
                await start_all(made.servers.values())
                yield made.nats_urls

    with start_blocking_portal("asyncio") as portal:
        with portal.wrap_async_context_manager(running()) as urls:
            yield urls


def measure(scale: float = 1.0) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        yield from measured("in a file", JournalConfig(path=path), scale)
    with tempfile.TemporaryDirectory() as folder:
        full = JournalConfig(path=Path(folder) / "journal.db", synchronous="full")
        in_file = list(measured("in a file, full", full, scale))
        yield from in_file
    yield from measured("in memory", IN_MEMORY, scale)
    for replicas, goal in ((1, 1.2), (3, 1.5)):
        with nats_servers(replicas) as urls:
            nats = NatsConfig(servers=urls, replicas=3 if replicas == 3 else 1)
            name = "on NATS, one replica" if replicas == 1 else "on NATS, three replicas"
            at_nats = list(measured(name, JournalConfig(nats=nats), scale, per_second=15_000))
            yield from at_nats
            times = at_nats[0].value / in_file[0].value
            yield Figure(f"accepted, {name}: times in a file, full", times, "×", goal)
    with closing(PostgresServer(fsync=True)) as server:
        postgres = JournalConfig(postgres=PostgresConfig(url=server.url))
        yield from measured("in PostgreSQL", postgres, scale, per_second=15_000)


PROGRAM = Program("journal", "The journal: acceptance and resume, 400 bytes", measure)
