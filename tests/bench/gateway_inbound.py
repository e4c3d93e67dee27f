"""The CPU time of an envelope at the gateway, from the socket it comes in at to those it leaves by.

The members resume, as every agent does, so each envelope is numbered and looked up as a repeat. Of
three members one chats, and calls a tool of another; 16 envelopes arrive together, as they do
when as many are under way. CPU time of the gateway's process for each envelope, everything counted:
reading and checking it, deciding, keeping it in the journal, and three deliveries.
"""

from collections.abc import Callable, Iterator

from websockets.frames import Frame, Opcode

from meup_agent.protocol.wire.membership import numbered
from tests.bench import envelopes
from tests.bench.figures import Figure, Program
from tests.bench.gateway_fanout import SEQ, Crowd, drain
from tests.bench.processes import ask, gateway, process

MESSAGES = 16_000
OUTSTANDING = 16
NAMES = ("caller", "tools", "onlooker")
MAY = [{"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"kind": "chat"}]


def chat(number: int) -> bytes:
    return envelopes.chat(f"c{number:031x}", "caller")


def request(number: int) -> bytes:
    return envelopes.request(f"{number:032x}", "caller")


def response(number: int) -> bytes:
    return envelopes.response(f"r{number:031x}", f"{number:032x}", "caller")


def framed(say: Callable[[int], bytes], burst: int) -> bytes:
    """So many messages, as a client sends them."""
    numbers = range(burst * OUTSTANDING, (burst + 1) * OUTSTANDING)
    return b"".join(Frame(Opcode.TEXT, say(number)).serialize(mask=True) for number in numbers)


def delivered(say: Callable[[int], bytes]) -> int:
    """Bytes of as many, as the gateway delivers them."""
    written = numbered(say(0), SEQ)
    return OUTSTANDING * len(Frame(Opcode.TEXT, written).serialize(mask=False))


def measure(scale: float = 1.0) -> Iterator[Figure]:
    bursts = max(1, round(MESSAGES * scale) // OUTSTANDING)
    with process(gateway, {"demo": dict.fromkeys(NAMES, MAY)}) as pipe:
        crowd = Crowd(pipe, NAMES, ("meup/v0.1",))
        socks = crowd.socks
        caller, tools, _ = socks
        begun = ask(pipe).cpu
        for burst in range(bursts):
            caller.sendall(framed(chat, burst))
            drain(socks, delivered(chat))
        between = ask(pipe).cpu
        for burst in range(bursts):
            caller.sendall(framed(request, burst))
            drain(socks, delivered(request))
            tools.sendall(framed(response, burst))
            drain(socks, delivered(response))
        ended = ask(pipe).cpu
        each = bursts * OUTSTANDING / 1e6
        yield Figure("a chat message, 16 outstanding", (between - begun) / each, "µs", 12)
        calls = (ended - between) / each / 2
        yield Figure("a request or its response, 16 outstanding", calls, "µs", 12)
        crowd.close()


PROGRAM = Program(
    "gateway_inbound", "CPU time of the gateway for an inbound request, three members", measure
)
