"""The set-up of a connection: until its welcome has been read, or its answer.

The gateway runs in a process of its own; connections come one after the other, by plain sockets.
What the one port adds, beside a port that is told what it serves, is to read the first request's
head and to hand the connection over; that is measured alone.
"""

import asyncio
import socket
import ssl
import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from time import perf_counter, process_time

from meup_agent.gateway.config import Config, HttpConfig, SpaceConfig, TlsConfig, participant
from meup_agent.gateway.edge.listener import HandshakeLimiter, WholeReads
from meup_agent.gateway.server import Gateway
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import handshake
from tests.bench.processes import UNBOUNDED, answer, on_uvloop, process

CONNECTIONS = 400
PIECES = 20
"""Parts of a round, in which the ports take turns: the machine is not always as fast."""

CERTIFICATE = Path(__file__).parents[1] / "transport" / "localhost.pem"
HANDED_OVER = 20_000

TOKEN = "a-token"
WELCOME = b'"kind":"system.welcome"'
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def gateway(pipe: Connection, http: HttpConfig | None, secure: bool) -> None:
    """A gateway: tells its port, and that of HTTP; then its CPU seconds, whenever asked."""
    members = {"speaker": participant("speaker", [{"kind": "chat"}], (TOKEN,))}
    config = Config(
        (SpaceConfig("demo", members),),
        http=http,
        limits=replace(UNBOUNDED, joins_per_second=1e9, joins_burst=10**9),
        tls=TlsConfig(CERTIFICATE, CERTIFICATE) if secure else None,
    )

    async def main() -> None:
        async with Gateway(config=config) as it:
            pipe.send((it.port, int(it.http_url.rpartition(":")[2])))
            await answer(pipe, lambda _: process_time())

    on_uvloop(main())


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(CERTIFICATE))


def timed(port: int, said: bytes, wanted: bytes, trust: ssl.SSLContext | None) -> float:
    """Seconds from dialling until something wanted has been read."""
    begun = perf_counter()
    sock = socket.create_connection(("127.0.0.1", port))
    if trust is not None:
        sock = trust.wrap_socket(sock, server_hostname="localhost")
    with closing(sock):
        sock.sendall(said)
        heard = b""
        while wanted not in heard:
            came = sock.recv(1 << 16)
            assert came, heard
            heard += came
        return perf_counter() - begun


class Silent(asyncio.Transport):
    """A transport that nothing is written to."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        pass

    def is_closing(self) -> bool:
        return False


class Taker(asyncio.BufferedProtocol):
    """A protocol that takes a connection over, and reads nothing of it."""

    def __init__(self) -> None:
        self._room = bytearray(1 << 14)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._room


async def hand_over(times: int, head: bytes) -> float:
    """CPU seconds from a connection's acceptance until another protocol has its head."""
    handshakes, transport, taker = HandshakeLimiter(times, 10.0), Silent(), Taker()
    begun = process_time()
    for _ in range(times):
        request = WholeReads(lambda *_: taker, handshakes)
        request.connection_made(transport)
        request.data_received(head)
    return (process_time() - begun) / times


Setup = Callable[[], float]


def measure(scale: float = 1.0) -> Iterator[Figure]:
    join = handshake("demo", TOKEN)
    trust = client_context()
    ways: dict[str, Setup] = {}

    def way(port: int, said: bytes, wanted: bytes, used: ssl.SSLContext | None) -> Setup:
        return lambda: timed(port, said, wanted, used)

    with ExitStack() as stack:
        for words, used in (("", None), (" with TLS", trust)):
            pipe = stack.enter_context(process(gateway, None, used is not None))
            port, _ = pipe.recv()
            pipe = stack.enter_context(process(gateway, HttpConfig(port=0), used is not None))
            _, own = pipe.recv()
            ways[f"WebSocket{words}"] = way(port, join, WELCOME, used)
            ways[f"HTTP{words}"] = way(port, HEALTH, b'"ok"', used)
            ways[f"HTTP{words}, at a port of its own"] = way(own, HEALTH, b'"ok"', used)
        took: dict[str, list[float]] = {name: [] for name in ways}
        each = max(1, round(CONNECTIONS * scale / PIECES))
        for setup in ways.values():
            setup()
        for _ in range(PIECES):
            for name, setup in ways.items():
                took[name] += [setup() for _ in range(each)]
    for name, values in took.items():
        yield Figure(name, statistics.median(values) * 1e6, "µs")
    cost = asyncio.run(hand_over(max(1, round(HANDED_OVER * scale)), join))
    yield Figure("of that, what the first request's head decides", cost * 1e6, "µs", 50)


PROGRAM = Program("gateway_setup", "A connection that is set up, one after the other", measure)
