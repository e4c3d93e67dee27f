"""The one port beside ports of their own: CPU time of the gateway for a connection and a delivery.

Run it from the repository: `python -m tests.bench.one_port`

Two gateways in processes of their own, one with HTTP at the port for WebSocket and one with a port
for each, take turns; the same with TLS. Of a connection it is the least of the turns: whatever else
runs on the machine adds to it.
"""

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from time import process_time

from meup_agent.gateway.config import Config, HttpConfig, SpaceConfig, TlsConfig, participant
from meup_agent.gateway.embedded import Gateway
from tests.bench.figures import Figure, Program, main
from tests.bench.gateway_fanout import crowd, handshake
from tests.bench.gateway_setup import CERTIFICATE, HEALTH, TOKEN, WELCOME, client_context, timed
from tests.bench.processes import UNBOUNDED, answer, on_uvloop, process

CONNECTIONS = 400
RECEIVERS = 50
MESSAGES, BURST = 4_000, 8
PIECES = 10
"""Parts of a round, in which the gateways take turns: the machine is not always as fast."""

GOAL = 50


def gateway(pipe: Connection, shared: bool, secure: bool) -> None:
    """A gateway: tells its ports, and the CPU seconds of its process."""
    members = {"speaker": participant("speaker", [{"kind": "chat"}], (TOKEN,))}
    config = Config(
        (SpaceConfig("demo", members),),
        http=None if shared else HttpConfig(port=0),
        limits=replace(UNBOUNDED, joins_per_second=1e9, joins_burst=10**9),
        tls=TlsConfig(CERTIFICATE, CERTIFICATE) if secure else None,
    )

    async def run() -> None:
        async with Gateway(config=config) as it:
            pipe.send((it.port, int(it.http_url.rpartition(":")[2])))
            await answer(pipe, lambda _: process_time())

    on_uvloop(run())


def used(pipe: Connection) -> float:
    """CPU seconds of a gateway so far."""
    pipe.send(None)
    seconds: float = pipe.recv()
    return seconds


def connections(scale: float, secure: bool) -> Iterator[Figure]:
    words, trust = (" with TLS", client_context()) if secure else ("", None)
    each = max(1, round(CONNECTIONS * scale / PIECES))
    found: dict[str, list[float]] = {}
    with ExitStack() as stack:
        pipes = [stack.enter_context(process(gateway, shared, secure)) for shared in (True, False)]
        ports = [pipe.recv() for pipe in pipes]
        for piece in range(1 + PIECES):
            for pipe, at, (port, http) in zip(pipes, ("one", "own"), ports, strict=True):
                for kind, number, asked, wanted in (
                    ("a WebSocket", port, handshake("demo", TOKEN), WELCOME),
                    ("HTTP", http, HEALTH, b'"ok"'),
                ):
                    before = used(pipe)
                    for _ in range(each):
                        timed(number, asked, wanted, trust)
                    if piece:  # the first loads what it needs
                        taken = (used(pipe) - before) / each * 1e6
                        found.setdefault(f"{kind}{words}, at {at}", []).append(taken)
    for kind in ("a WebSocket", "HTTP"):
        own, one = (min(found[f"{kind}{words}, at {at}"]) for at in ("own", "one"))
        yield Figure(f"{kind}{words}, ports of their own, CPU", own, "µs")
        yield Figure(f"{kind}{words}, what the one port adds, CPU", one - own, "µs", GOAL)


def deliveries(scale: float) -> Iterator[Figure]:
    messages = max(BURST, round(MESSAGES * scale / PIECES))
    receivers = max(2, round(RECEIVERS * min(1.0, scale * 10)))
    one: list[float] = []
    own: list[float] = []
    with crowd(receivers) as shared, crowd(receivers, http=HttpConfig(port=0)) as apart:
        for piece in range(1 + PIECES):
            for there, found in ((shared, one), (apart, own)):
                cost = there.cost(messages, BURST)
                if piece:
                    found.append(cost)
    cost = statistics.median(own)
    yield Figure("a delivery, ports of their own, CPU", cost * 1e6, "µs")
    yield Figure("a delivery at the one port: times that", statistics.median(one) / cost, "×")


def measure(scale: float = 1.0) -> Iterator[Figure]:
    for secure in (False, True):
        yield from connections(scale, secure)
    yield from deliveries(scale)


PROGRAM = Program("one_port", "HTTP and WebSocket at one port, beside a port for each", measure)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
