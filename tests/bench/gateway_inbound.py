"""What an envelope costs the gateway from the socket it comes in at to those it leaves by.

Run it from the repository: `python -m tests.bench.gateway_inbound`

One of three members calls a tool of another; 16 requests arrive together, as they do when as many
are under way. CPU time of the gateway's process for each request, everything counted: reading and
checking it, deciding, keeping it in the journal, and three deliveries.
"""

import json
import sys
from collections.abc import Iterator

from websockets.frames import Frame, Opcode

from tests.bench.figures import Figure, Program, main
from tests.bench.gateway_fanout import dial, drain, empty
from tests.bench.processes import ask, gateway, process

MESSAGES = 16_000
OUTSTANDING = 16
NAMES = ("caller", "tools", "onlooker")
MAY = [{"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"kind": "chat"}]


def request(number: int) -> bytes:
    """A tool call of some 300 bytes, as the SDK writes it."""
    id = f"{number:032x}"
    fields = {
        "protocol": "meup/v0.1",
        "id": id,
        "ts": "2025-01-01T00:00:00.000Z",
        "from": "caller",
        "to": ["tools"],
        "kind": "mcp.request",
        "payload": {
            "jsonrpc": "2.0",
            "id": id,
            "method": "tools/call",
            "params": {"name": "write_file", "arguments": {"path": "a.txt", "text": "hi"}},
        },
    }
    return json.dumps(fields, separators=(",", ":")).encode()


def measure(scale: float = 1.0) -> Iterator[Figure]:
    bursts = max(1, round(MESSAGES * scale) // OUTSTANDING)
    members = len(NAMES)
    with process(gateway, {"demo": dict.fromkeys(NAMES, MAY)}) as pipe:
        address = pipe.recv()
        socks = [dial(address.port, "demo", address.tokens["demo", name]) for name in NAMES]
        ask(pipe, members + members * (members + 1) // 2)
        for sock in socks:
            empty(sock)
        size = len(Frame(Opcode.TEXT, request(0)).serialize(mask=False))
        before = ask(pipe).cpu
        for turn in range(bursts):
            sent = (request(turn * OUTSTANDING + number) for number in range(OUTSTANDING))
            socks[0].sendall(
                b"".join(Frame(Opcode.TEXT, text).serialize(mask=True) for text in sent)
            )
            drain(socks, OUTSTANDING * size)
        used = (ask(pipe).cpu - before) / (bursts * OUTSTANDING)
        yield Figure("one inbound request, 16 outstanding", used * 1e6, "µs", 12)
        for sock in socks:
            sock.close()


PROGRAM = Program(
    "gateway_inbound", "CPU time of the gateway for an inbound request, three members", measure
)

if __name__ == "__main__":
    main([PROGRAM], sys.argv[1:])
