"""The one port beside ports of their own: CPU time of the gateway for a connection and a delivery.

Two gateways in processes of their own, one with HTTP at the port for WebSocket and one with a port
for each, take turns; the same with TLS. Of a connection it is the least of the turns: whatever else
runs on the machine adds to it.
"""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection

from meup_agent.gateway.config import HttpConfig
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import crowd, handshake
from tests.bench.gateway_setup import HEALTH, TOKEN, WELCOME, client_context, gateway, timed
from tests.bench.processes import process

CONNECTIONS = 400
RECEIVERS = 50
MESSAGES, BURST = 4_000, 8
PIECES = 10
"""Parts of a round, in which the gateways take turns: the machine is not always as fast."""

GOAL = 50


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
        ways = (None, HttpConfig(port=0))
        pipes = [stack.enter_context(process(gateway, http, secure)) for http in ways]
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
