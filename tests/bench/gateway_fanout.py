"""What delivery costs the gateway: CPU time of its process for each frame delivered.

Run it from the repository: `.venv/bin/python -m tests.bench.gateway_fanout [receivers] [messages]`

The gateway runs in a process of its own. One member speaks, in bursts that arrive together; the
others' sockets are drained by hand, since a WebSocket client costs more than the gateway.
"""

import asyncio
import contextlib
import json
import multiprocessing
import resource
import socket
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection

import uvloop
from websockets.frames import Frame, Opcode

from meup_agent.gateway.embedded import Gateway

BURSTS = (1, 8, 64)
BYTES = 450
DELIVERED_BYTES = BYTES + 4  # with the head of the WebSocket frame
DRAINED = 1 << 20


def gateway(receivers: int, pipe: Connection) -> None:
    """The measured process: answers each question with the CPU seconds it has used."""

    async def main() -> None:
        names = ["speaker", *(f"r{number}" for number in range(receivers))]
        async with Gateway(participants={name: [{"kind": "chat"}] for name in names}) as it:
            pipe.send((it.port, [it.token(name) for name in names]))
            loop = asyncio.get_running_loop()
            stopped = asyncio.Event()

            def answer() -> None:
                if pipe.recv() == "stop":
                    stopped.set()
                    return
                used = resource.getrusage(resource.RUSAGE_SELF)
                pipe.send((used.ru_utime + used.ru_stime, it.counters.delivered))

            loop.add_reader(pipe.fileno(), answer)
            await stopped.wait()
            loop.remove_reader(pipe.fileno())

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def dial(port: int, token: str) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(
        b"GET /ws?space=demo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
    )
    return sock


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


def ask(pipe: Connection, delivered: int) -> float:
    """CPU seconds that the gateway has used when so many frames have been delivered."""
    while True:
        pipe.send("how much")
        cpu, so_far = pipe.recv()
        if so_far >= delivered:
            return float(cpu)


def run(receivers: int, messages: int) -> Iterator[str]:
    """Lines of the report."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=gateway, args=(receivers, theirs))
    process.start()
    port, tokens = ours.recv()
    members = len(tokens)
    socks = [dial(port, token) for token in tokens]
    # Each hears a welcome, and a presence for itself and everybody after it.
    ask(ours, members + members * (members + 1) // 2)
    for sock in socks:
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while sock.recv(DRAINED):
                pass
        sock.setblocking(True)
    yield f"{receivers} receivers and the speaker, {messages} messages of {BYTES} bytes"
    for burst in BURSTS:
        before = ask(ours, 0)
        for start in range(0, messages, burst):
            socks[0].sendall(b"".join(message(start + n) for n in range(burst)))
            # Bounded: a burst is read by all before the next one comes.
            drain(socks, burst * DELIVERED_BYTES)
        used = (ask(ours, 0) - before) / messages / members
        yield f"bursts of {burst:2}: {used * 1e6:5.2f} µs of CPU a delivery"
    ours.send("stop")
    for sock in socks:
        sock.close()
    process.join()


if __name__ == "__main__":
    for line in run(*(int(argument) for argument in sys.argv[1:] or ("50", "6400"))):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
