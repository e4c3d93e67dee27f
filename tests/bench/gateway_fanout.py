"""What delivery costs the gateway: CPU time of its process for each frame delivered.

Run it from the repository: `python -m tests.bench.gateway_fanout`

The gateway runs in a process of its own. One member speaks, in bursts that arrive together; the
others' sockets are drained by hand, since a WebSocket client costs more than the gateway. What
writing the same bytes to as many sockets costs, with nothing around it, stands beside it.
"""

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection
from time import process_time

from websockets.frames import Frame, Opcode

from tests.bench.figures import Figure, Program, main
from tests.bench.processes import ask, gateway, process

RECEIVERS = 50
MESSAGES = 8000
ALONE_OF_THEM = 0.25
"""Share of the messages that is sent one at a time: it takes longer, and is as even."""

BURSTS = ((1, 4.5), (8, None), (200, 1.2))
"""Messages under way, and the goal in µs."""

BYTES = 400
DELIVERED_BYTES = BYTES + 4  # with the head of the WebSocket frame
DRAINED = 1 << 20


def handshake(space: str, token: str, dialect: str = "meup/v0.1") -> bytes:
    """A handshake made by hand."""
    return (
        f"GET /ws?space={space} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        f"MEUP-Protocol: {dialect}\r\nAuthorization: Bearer {token}\r\n\r\n"
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


def message(number: int) -> bytes:
    fields = {"protocol": "meup/v0.1", "id": f"{number:032x}", "from": "speaker", "kind": "chat"}
    room = BYTES - len(json.dumps({**fields, "payload": {"message": ""}}))
    text = json.dumps({**fields, "payload": {"message": "x" * room}}).encode()
    return Frame(Opcode.TEXT, text).serialize(mask=True)


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


def measure(scale: float = 1.0) -> Iterator[Figure]:
    receivers = max(2, round(RECEIVERS * min(1.0, scale * 10)))
    names = ["speaker", *(f"r{number}" for number in range(receivers))]
    members = len(names)
    with process(gateway, {"demo": {name: [{"kind": "chat"}] for name in names}}) as pipe:
        address = pipe.recv()
        socks = [dial(address.port, "demo", address.tokens["demo", name]) for name in names]
        # Each hears a welcome, and a presence for itself and everybody after it.
        ask(pipe, members + members * (members + 1) // 2)
        for sock in socks:
            empty(sock)
        for burst, goal in BURSTS:
            messages = round(MESSAGES * scale * (ALONE_OF_THEM if burst == 1 else 1))
            bursts = max(1, messages // burst)
            before = ask(pipe).cpu
            for turn in range(bursts):
                said = b"".join(message(turn * burst + n) for n in range(burst))
                socks[0].sendall(said)
                # Bounded: a burst is read by all before the next one comes.
                drain(socks, burst * DELIVERED_BYTES)
            used = (ask(pipe).cpu - before) / (bursts * burst * members)
            name = "one at a time" if burst == 1 else f"{burst} outstanding"
            yield Figure(f"a delivery, {name}", used * 1e6, "µs", goal)
        for sock in socks:
            sock.close()
    cost = bare(receivers, max(1, round(MESSAGES * scale * ALONE_OF_THEM)))
    yield Figure("a bare `send` of the same bytes", cost * 1e6, "µs")


PROGRAM = Program(
    "gateway_fanout", "CPU time of the gateway for a delivery, 50 receivers, 400 bytes", measure
)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
