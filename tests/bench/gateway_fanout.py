"""The gateway's cost of delivery: CPU time of its process for each frame delivered.

The gateway runs in a process of its own. One member speaks, in bursts that arrive together; the
others' sockets are drained by hand, since a WebSocket client costs more than the gateway. What
writing the same bytes to as many sockets costs, with nothing around it, stands beside it.
"""

import contextlib
import json
import socket
import tempfile
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from time import process_time

from websockets.frames import Frame, Opcode

from meup_agent.gateway.config import JournalConfig
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.wire.membership import numbered
from tests.bench.figures import Figure, Program
from tests.bench.processes import IN_MEMORY, ask, gateway, process

RECEIVERS = 50
MESSAGES = 8000
ALONE_OF_THEM = 0.25
"""Share of the messages that is sent one at a time: it takes longer, and is as even."""

BURSTS = ((1, 4.5), (8, None), (200, 1.2))
"""Messages under way, and the goal in µs."""

CROWDS = (50, 200, 1_000)
ONE_SPACE = 2_000
OUTSTANDING = 200
TURNS = 4

BYTES = 400
SEQ = 10**15
"""A number of 16 digits, as every envelope has until the year 2286."""

DELIVERED_BYTES = len(numbered(b"x" * BYTES, SEQ)) + 4  # with the head of the WebSocket frame
DRAINED = 1 << 20


def handshake(space: str, token: str, dialect: str = "meup/v0.1") -> bytes:
    """A handshake as an agent makes it, which resumes."""
    return (
        f"GET /ws?space={space} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"MEUP-Protocol: {dialect}\r\nMEUP-Resume: 1\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()


def dial(port: int, space: str, token: str, dialect: str = "meup/v0.1") -> socket.socket:
    """Join a space."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(handshake(space, token, dialect))
    return sock


def empty(sock: socket.socket) -> None:
    """Read what there is."""
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.recv(DRAINED):
            pass
    sock.setblocking(True)


def said(number: int) -> bytes:
    fields = {"protocol": "meup/v0.1", "id": f"{number:032x}", "from": "speaker", "kind": "chat"}
    room = BYTES - len(json.dumps({**fields, "payload": {"message": ""}}))
    return json.dumps({**fields, "payload": {"message": "x" * room}}).encode()


def message(number: int) -> bytes:
    return Frame(Opcode.TEXT, said(number)).serialize(mask=True)


def drain(socks: list[socket.socket], each: int) -> None:
    """Read so many bytes from every socket."""
    for sock in socks:
        missing = each
        while missing:
            missing -= len(sock.recv(min(missing, DRAINED)))


def bare_sender(pipe: Connection, port: int, receivers: int, messages: int) -> None:
    """Sends the same bytes by bare system calls; tells the CPU seconds of one."""
    socks = [socket.create_connection(("127.0.0.1", port)) for _ in range(receivers)]
    frame = b"x" * DELIVERED_BYTES
    used = 0.0
    for _ in range(messages):
        pipe.recv()
        begun = process_time()
        for sock in socks:
            sock.send(frame)
        used += process_time() - begun
    pipe.send(used / messages / receivers)
    pipe.recv()


def bare(receivers: int, messages: int) -> float:
    """CPU seconds of one `send` to a socket, message after message."""
    with socket.create_server(("127.0.0.1", 0), backlog=receivers) as server:
        port = server.getsockname()[1]
        with process(bare_sender, port, receivers, messages) as sender:
            socks = [server.accept()[0] for _ in range(receivers)]
            for _ in range(messages):
                sender.send("go")
                drain(socks, DELIVERED_BYTES)
            cost: float = sender.recv()
            for sock in socks:
                sock.close()
            return cost


def as_delivered(frame: bytes, dialect: str) -> int:
    """Bytes of a message, with its WebSocket head, for those who speak a dialect."""
    written = numbered(encode(decode(frame), dialect), SEQ)
    return len(Frame(Opcode.TEXT, written).serialize(mask=False))


class Crowd:
    """A gateway in a process, with a speaker and so many receivers.

    With two dialects, every second member speaks the other one.
    """

    def __init__(self, pipe: Connection, names: Sequence[str], dialects: Sequence[str]) -> None:
        self.members = len(names)
        self._pipe = pipe
        self._said = 0
        address = pipe.recv()
        begun = ask(pipe).cpu
        spoken = [dialects[number % len(dialects)] for number in range(len(names))]
        self.socks = [
            dial(address.port, "demo", address.tokens["demo", name], dialect)
            for name, dialect in zip(names, spoken, strict=True)
        ]
        # Each hears a welcome, and a presence for itself and everybody after it.
        heard = self.members + self.members * (self.members + 1) // 2
        self.joining = ask(pipe, heard).cpu - begun
        """CPU seconds in which all have joined."""
        for sock in self.socks:
            empty(sock)
        self._sizes = [as_delivered(said(0), dialect) for dialect in spoken]

    def burst(self, count: int) -> None:
        """Say so much at once, and let everybody read it."""
        # Each under an id of its own: what comes again is not delivered.
        numbers = range(self._said, self._said + count)
        self._said += count
        self.socks[0].sendall(b"".join(map(message, numbers)))
        # Bounded: a burst is read by all before the next one comes.
        for sock, size in zip(self.socks, self._sizes, strict=True):
            drain([sock], count * size)

    def cost(self, messages: int, burst: int) -> float:
        """CPU seconds of one delivery."""
        bursts = max(1, messages // burst)
        before = ask(self._pipe).cpu
        for _ in range(bursts):
            self.burst(burst)
        return (ask(self._pipe).cpu - before) / (bursts * burst * self.members)

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


@contextlib.contextmanager
def crowd(
    receivers: int, dialects: Sequence[str] = ("meup/v0.1",), journal: JournalConfig = IN_MEMORY
) -> Iterator[Crowd]:
    """A gateway with so many receivers."""
    names = ["speaker", *(f"r{number}" for number in range(receivers))]
    spaces = {"demo": {name: [{"kind": "chat"}] for name in names}}
    with process(gateway, spaces, None, journal) as pipe:
        gathered = Crowd(pipe, names, dialects)
        yield gathered
        gathered.close()


def measure(scale: float = 1.0) -> Iterator[Figure]:
    receivers = max(2, round(RECEIVERS * min(1.0, scale * 10)))
    with crowd(receivers) as alone:
        for burst, goal in BURSTS:
            messages = round(MESSAGES * scale * (ALONE_OF_THEM if burst == 1 else 1))
            name = "one at a time" if burst == 1 else f"{burst} outstanding"
            yield Figure(f"a delivery, {name}", alone.cost(messages, burst) * 1e6, "µs", goal)
    cost = bare(receivers, max(1, round(MESSAGES * scale * ALONE_OF_THEM)))
    yield Figure("a bare `send` of the same bytes", cost * 1e6, "µs")


def measure_crowds(scale: float = 1.0) -> Iterator[Figure]:
    messages = max(1, round(MESSAGES * scale))
    with tempfile.TemporaryDirectory() as folder:
        for full in CROWDS:
            kept = JournalConfig(path=Path(folder) / f"{full}.sqlite")
            receivers = max(2, round(full * min(1.0, scale * 10)))
            # As many deliveries whatever the size of the crowd.
            each_says = max(TURNS, messages * CROWDS[0] // full)
            with crowd(receivers) as one, crowd(receivers, ("meup/v0.1", "mew/v0.4")) as two:
                with crowd(receivers, journal=kept) as sqlite:
                    # In turns, since the machine is not always as fast.
                    costs = [
                        [each.cost(each_says // TURNS, OUTSTANDING) for each in (one, two, sqlite)]
                        for _ in range(TURNS)
                    ]
            plain, translated, written = map(sum, zip(*costs, strict=True))
            yield Figure(f"a delivery, {full:,} receivers", plain / TURNS * 1e6, "µs", 1.2)
            yield Figure(f"…with two dialects, {full:,}", translated / plain, "×", 1.3)
            yield Figure(f"…with the SQLite journal, {full:,}", written / plain, "×", 1.3)
    most = max(2, round(ONE_SPACE * min(1.0, scale * 10)))
    with crowd(most) as one:
        yield Figure(f"{most + 1:,} members join one space", one.joining, "s")
        cost = one.cost(max(TURNS, messages * CROWDS[0] // most), OUTSTANDING)
        yield Figure(f"a delivery, {most:,} receivers", cost * 1e6, "µs", 1.2)


PROGRAM = Program(
    "gateway_fanout", "CPU time of the gateway for a delivery, 50 receivers, 400 bytes", measure
)

CROWD_PROGRAM = Program(
    "gateway_crowds",
    "CPU time of the gateway for a delivery, 200 outstanding, 400 bytes",
    measure_crowds,
)
