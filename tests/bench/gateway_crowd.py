"""The gateway's cost of many members: while they are idle, and when they all come back at once.

It needs Linux, and 12,000 open files.

Members are bare sockets, 20 in each space. The idle ones are joined first; then nothing is said for
some time, in which the gateway pings each of them. The others dial a gateway that has just taken
the place of one that was killed, all together and without any delay, as agents do with their jitter
off.
"""

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import handshake
from tests.bench.memory import PONG, members, spaces
from tests.bench.processes import Address, ask, gateway, process

IDLE = 5_000
FEW = 100
"""Members that the gateway has when its memory is first looked at."""

IDLE_SECONDS = 21.0
"""Longer than the interval of pings: each member is pinged once."""

BACK = 2_000


def idle(many: int, few: int, seconds: float) -> tuple[float, float]:
    """Bytes for each idle member, and the share of a core that all of them take."""
    with process(gateway, spaces(many)) as pipe, members(pipe, few, many) as (socks, memory):
        before = ask(pipe).cpu
        with selectors.DefaultSelector() as selector:
            for sock in socks:
                selector.register(sock, selectors.EVENT_READ, sock)
            end = time.monotonic() + seconds
            while (left := end - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    answered: socket.socket = key.data
                    # All that comes is a ping: two bytes.
                    if answered.recv(2):
                        answered.sendall(PONG)
        return memory, (ask(pipe).cpu - before) / seconds


def come_back(members: int) -> tuple[float, int]:
    """Seconds until all are welcomed who dial a restarted gateway, and how many were not."""
    crowd = spaces(members)
    with process(gateway, crowd) as pipe:
        address: Address = pipe.recv()
    with process(gateway, crowd, address) as pipe:
        pipe.recv()
        begun = time.monotonic()
        refused = 0
        waiting: dict[socket.socket, bytes] = {}
        with ExitStack() as opened, selectors.DefaultSelector() as selector:
            for (space, _), token in address.tokens.items():
                sock = opened.enter_context(socket.socket())
                sock.setblocking(False)
                sock.connect_ex(("127.0.0.1", address.port))
                waiting[sock] = b""
                selector.register(sock, selectors.EVENT_WRITE, handshake(space, token))
            while waiting and time.monotonic() - begun < 60:
                for key, events in selector.select(1):
                    sock = key.fileobj  # type: ignore[assignment]  # all of them are sockets
                    if events & selectors.EVENT_WRITE:
                        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                            refused += 1
                            selector.unregister(sock)
                            del waiting[sock]
                            continue
                        sock.send(key.data)
                        selector.modify(sock, selectors.EVENT_READ)
                        continue
                    data = sock.recv(1 << 16)
                    waiting[sock] = heard = waiting[sock] + data
                    if b"system.welcome" in heard or not data:
                        refused += b"system.welcome" not in heard
                        selector.unregister(sock)
                        del waiting[sock]
        return time.monotonic() - begun, refused + len(waiting)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    many = max(4, round(IDLE * scale))
    few = max(1, round(FEW * scale))
    memory, share = idle(many, few, max(0.2, IDLE_SECONDS * min(1.0, scale * 10)))
    yield Figure(f"each of {many:,} idle members", memory / 1024, "KiB", 40)
    yield Figure(f"{many:,} idle members, of a core", share * 100, "%", 1)
    back = max(4, round(BACK * scale))
    seconds, refused = come_back(back)
    yield Figure(f"{back:,} members come back", seconds, "s", 5)
    yield Figure("refused among them", refused, "", 0)


PROGRAM = Program(
    "gateway_crowd", "Many members: idle ones, and a restart of their gateway", measure
)
