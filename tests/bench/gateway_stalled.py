"""The cost of a member that does not read, for the others and the gateway's memory.

It needs Linux.

One member speaks, 50 read. In the one gateway a 51st does not read; its socket is full, and what
is for it waits in its queue. In turns, messages are said one at a time, and the time is taken until
all 50 have read each of them.
"""

import selectors
import socket
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection

from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import DELIVERED_BYTES, Crowd, drain, message
from tests.bench.processes import UNBOUNDED, ask, gateway, process

READERS = 50
MESSAGES = 2_000
TURNS = 10

QUEUE_BEGUN = 512 * 1024
"""Bytes of the gateway's memory that show that the socket of who does not read takes no more; its
queue has room for the messages that are timed, too."""

MOST_BEFORE = 40_000
"""Messages until then, at most."""


class PartlyRead(Crowd):
    """A gateway, a speaker, so many readers, and perhaps one who does not read."""

    def __init__(self, pipe: Connection, names: Sequence[str], readers: int) -> None:
        super().__init__(pipe, names, ("meup/v0.1",))
        self._reading = self.socks[: readers + 1]

    def say(self, count: int) -> None:
        """Say something at once, and let the readers read it."""
        for _ in range(count // 100):
            burst = (message(self._said + number) for number in range(100))
            self._reading[0].sendall(b"".join(burst))
            drain(self._reading, 100 * DELIVERED_BYTES)
            self._said += 100

    def times(self, count: int) -> list[float]:
        """Seconds until all readers have read a message."""
        found = []
        with selectors.DefaultSelector() as selector:
            for sock in self._reading:
                selector.register(sock, selectors.EVENT_READ, sock)
            for _ in range(count):
                missing = dict.fromkeys(self._reading, DELIVERED_BYTES)
                self._said += 1
                begun = time.perf_counter()
                self._reading[0].sendall(message(self._said))
                while missing:
                    for key, _ in selector.select():
                        reader: socket.socket = key.data
                        missing[reader] -= len(reader.recv(missing[reader]))
                        if not missing[reader]:
                            del missing[reader]
                found.append(time.perf_counter() - begun)
        return found

    def memory(self) -> int:
        return ask(self._pipe).memory


def measure(scale: float = 1.0) -> Iterator[Figure]:
    readers = max(2, round(READERS * min(1.0, scale * 10)))
    names = ["speaker", *(f"r{number}" for number in range(readers))]
    with_one = [*names, "stalled"]
    each = max(2, round(MESSAGES * scale) // TURNS)
    with (
        process(gateway, {"demo": {name: [{"kind": "chat"}] for name in names}}) as pipe,
        process(gateway, {"demo": {name: [{"kind": "chat"}] for name in with_one}}) as other,
    ):
        alone = PartlyRead(pipe, names, readers)
        beside = PartlyRead(other, with_one, readers)
        ahead = beside.memory() - alone.memory()
        for _ in range(max(1, round(MOST_BEFORE * scale) // 100)):
            alone.say(100)
            beside.say(100)
            if beside.memory() - alone.memory() - ahead > QUEUE_BEGUN:
                break
        # In turns, since the machine is not always as fast.
        plain: list[float] = []
        stalled: list[float] = []
        for _ in range(TURNS):
            plain += alone.times(each)
            stalled += beside.times(each)
        grown = beside.memory() - alone.memory() - ahead
        alone.close()
        beside.close()
    p99, others = (statistics.quantiles(found, n=100)[98] for found in (plain, stalled))
    yield Figure("p99 until 50 have read a message", p99 * 1e3, "ms")
    yield Figure("…beside one who does not read", others / p99, "×", 1.2)
    queue = UNBOUNDED.max_queued_bytes / 2**20
    yield Figure("memory for who does not read", grown / 2**20, "MiB", queue)


PROGRAM = Program("gateway_stalled", "A member that does not read, beside 50 that do", measure)
