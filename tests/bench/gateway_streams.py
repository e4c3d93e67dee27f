"""The gateway's cost of a stream beside as many chats: a second of 1,000, to 200 readers.

The gateway runs in a process of its own, and its readers are sockets that are drained by hand. One
member says chats and frames in turns, 20 at a time as they come in 20 ms, of as many bytes each.
"""

import json
from collections.abc import Iterator

from websockets.frames import Frame, Opcode

from meup_agent.protocol.wire.streams import write_frame
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import BYTES, Crowd, drain, empty
from tests.bench.processes import ask, gateway, process

READERS = 200
A_SECOND = 1_000
OUTSTANDING = 20
TURNS = 4


class StreamCrowd(Crowd):
    """A crowd whose speaker has a stream open."""

    def open(self) -> None:
        """Open a stream; everybody has heard of it."""
        fields = {"protocol": "meup/v0.1", "id": "r", "from": "speaker", "kind": "stream.request"}
        said = json.dumps({**fields, "payload": {"direction": "upload"}}).encode()
        speaker = self.socks[0]
        speaker.sendall(Frame(Opcode.TEXT, said).serialize(mask=True))
        heard = b""
        while b"stream.open" not in heard or not heard.endswith(b"}"):
            heard += speaker.recv(1 << 16)
        heard = heard[heard.index(b'"stream_id":"') + 13 :]
        stream = heard[: heard.index(b'"')].decode()
        head = write_frame(stream, b"")
        frame = head + b"x" * (BYTES - len(head))
        self._frame = Frame(Opcode.BINARY, frame).serialize(mask=True)
        self._size = len(Frame(Opcode.BINARY, frame).serialize(mask=False))
        self.let_all_read()

    def let_all_read(self) -> None:
        """Let everybody read what it has heard so far."""
        ask(self._pipe, ask(self._pipe).delivered)
        for sock in self.socks:
            empty(sock)

    def write(self, count: int) -> None:
        """Write so many frames at once, and let everybody read them."""
        self.socks[0].sendall(self._frame * count)
        drain(self.socks, count * self._size)

    def seconds(self, number: int, *, frames: bool) -> float:
        """CPU seconds of the gateway for so many chats, or frames."""
        say = self.write if frames else self.burst
        before = ask(self._pipe).cpu
        for _ in range(max(1, number // OUTSTANDING)):
            say(min(number, OUTSTANDING))
        return ask(self._pipe).cpu - before


def measure(scale: float = 1.0) -> Iterator[Figure]:
    readers = max(2, round(READERS * min(1.0, scale * 10)))
    number = max(1, round(A_SECOND * scale))
    names = ["speaker", *(f"r{number}" for number in range(readers - 1))]
    may = [{"kind": "chat"}, {"kind": "stream/request"}]
    with process(gateway, {"demo": dict.fromkeys(names, may)}) as pipe:
        crowd = StreamCrowd(pipe, names, ("meup/v0.1",))
        crowd.open()
        crowd.seconds(number, frames=True)
        crowd.seconds(number, frames=False)
        # In turns, since the machine is not always as fast.
        turns = [
            [crowd.seconds(number, frames=frames) for frames in (False, True)] for _ in range(TURNS)
        ]
        crowd.close()
    chats, frames = (sum(each) / TURNS for each in zip(*turns, strict=True))
    yield Figure(f"{number:,} chats to {readers} readers", chats * 1e3, "ms")
    yield Figure(f"{number:,} frames of a stream to {readers} readers", frames * 1e3, "ms")
    yield Figure("frames beside chats", frames / chats, "×", 1.2)


PROGRAM = Program(
    "gateway_streams", "CPU time of the gateway for a stream beside chats, 400 bytes", measure
)
