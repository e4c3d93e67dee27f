"""One connection at the message port: its handshake, its join frame, its frames, its end.

The first line is the path of the handshake, then come header lines up to an empty one, then one
step a line: ``t`` a text message, ``b`` a binary one, ``f`` ``c`` ``e`` a message's first, middle
and last fragment, ``B 900 ab`` something large, ``n 300 #@@#x`` one message so many times, ``r`` a
frame with a reserved bit, ``p`` a ping,
``x 1000`` a close frame, ``P`` ``R`` the socket is full, and takes more again, ``L`` the timers run
out, ``g`` the socket is gone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from multidict import CIMultiDict
from picows import WSCloseCode, WSMsgType

from meup_agent.gateway.auth import NotAdmitted
from meup_agent.gateway.config import Config, SpaceConfig, participant
from meup_agent.gateway.edge.handshake import Handshake, read_handshake
from meup_agent.gateway.edge.listener import WebSocketConnection
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.dialects import DIALECTS
from tests.fuzz.frames import EXAMPLES, STREAM_FRAMES, expanded, join_frame, joined, stream_examples
from tests.fuzz.logs import checked_log

NAME = "connection"

ANYTHING = [{"kind": "*"}]
SECRETS = ("alices-own-secret", "bobs-own-secret", "bystanders-own-secret")
CONFIG = Config(
    (
        SpaceConfig(
            "demo",
            {
                "dots": participant("dots", ANYTHING, (SECRETS[0],)),
                "mew": participant("mew", [{"kind": "chat"}], (SECRETS[1],)),
                "bystander": participant("bystander", ANYTHING, (SECRETS[2],)),
            },
        ),
        SpaceConfig("other", {}),
    ),
    limits=GatewayLimits(max_message_bytes=4_096, max_queued_frames=64, max_queued_bytes=50_000),
)

HEADERS = b"Authorization: Bearer alices-own-secret\nMEUP-Protocol: meup/v0.1\nMEUP-Resume: 1"
JOIN = join_frame(participantId="mew", space="demo", token=SECRETS[1], protocol="mew/v0.4")

ADMITTED = b"/ws?space=demo\n" + HEADERS + b"\n\n"
OWN = stream_examples("dots", "meup/v0.1")

SEEDS = [
    ADMITTED + joined(b"t ", EXAMPLES["meup/v0.1"]),
    b"/\n\nt " + JOIN + b"\n" + joined(b"b ", EXAMPLES["mew/v0.4"][:3]),
    b"/x/../y?space=demo&token=5\n"
    + HEADERS
    + b"\nLast-Event-ID: 17\n\nt "
    + JOIN
    + b"\np\nx 1000",
    b'/?space=other\n\nf {"type":"join",\nc "token":"made-up-token",\np\ne "space":"demo"}\nL',
    ADMITTED + b"P\nB 3000 ab\nB 5000 ab\nr x\nR\nL\ng",
    ADMITTED + joined(b"t ", OWN[:10]) + b"\n" + joined(b"b ", STREAM_FRAMES),
    ADMITTED + b"t " + OWN[0] + b"\nP\nn 300 #@@#x\nf #@@\ne #cut\nR\nn 300 #unknown#x\nB 5000 #x",
    b"/?space=demo\n\nb #early#x\nt " + JOIN,
    b"//[x]:y?space=demo&\n" + HEADERS.replace(b"Bearer", b"Basic") + b"\n\nt {}\nx 1006",
]

CODES = {0, *(code.value for code in WSCloseCode)}

MAX_STEPS = 60
MAX_BUILT_BYTES = 8 * 1024 * 1024


class Frame(NamedTuple):
    """A frame as picows hands it over."""

    msg_type: WSMsgType
    payload: bytes = b""
    fin: bool = True
    rsv1: bool = False
    rsv2: bool = False
    rsv3: bool = False
    code: int = 0

    def get_payload_as_bytes(self) -> bytes:
        return self.payload

    def get_close_code(self) -> int:
        return self.code


class Timer:
    """A loop's handle for a call that is still to come."""

    def __init__(self, due: Callable[[], None]) -> None:
        self.due = due
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """A loop without time."""

    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.timers: list[Timer] = []

    def call_soon(self, due: Callable[..., None], *args: object) -> None:
        self.soon.append(lambda: due(*args))

    def call_later(self, delay: float, due: Callable[..., None], *args: object) -> Timer:
        timer = Timer(lambda: due(*args))
        self.timers.append(timer)
        return timer

    def time(self) -> float:
        return 0.0

    def turn(self) -> None:
        for _ in range(1_000):
            if not self.soon:
                return
            self.soon.pop(0)()
        raise AssertionError("it never comes to rest")

    def run_out(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if not timer.cancelled:
                timer.due()


class Wire:
    """The socket below a connection, as picows and asyncio have it."""

    def __init__(self) -> None:
        self.written = b""
        self.close_frame: tuple[int, str] | None = None
        self.gone = False
        self.reads = True
        self.listener: WebSocketConnection | None = None

    @property
    def underlying_transport(self) -> Wire:
        return self

    @property
    def is_close_frame_sent(self) -> bool:
        return self.close_frame is not None

    @property
    def close_handshake(self) -> Any:
        code, reason = self.close_frame or (1005, "")
        return type("Closing", (), {"sent": type("Sent", (), {"code": code, "reason": reason})})

    def get_extra_info(self, name: str) -> object:
        return ("127.0.0.1", 5) if name == "peername" else None

    def write(self, packed: bytes) -> None:
        assert self.close_frame is None, "a frame after the close frame"
        self.written += packed

    def send_close(self, code: int, reason: str = "") -> None:
        assert self.close_frame is None, "closed twice"
        assert len(reason.encode()) <= 123
        assert 1000 <= code <= 4999
        assert code not in (1004, 1005, 1006, 1015), f"{code} never stands in a close frame"
        self.close_frame = (code, reason)

    def send_pong(self, payload: bytes) -> None:
        assert self.close_frame is None, "a pong after the close frame"
        assert len(payload) <= 125

    def is_closing(self) -> bool:
        return self.gone

    def pause_reading(self) -> None:
        assert self.reads
        self.reads = False

    def resume_reading(self) -> None:
        assert not self.reads
        self.reads = True

    def disconnect(self, graceful: bool = True) -> None:
        self.gone = True


class World:
    """A gateway, a member who minds its own business, and the connection of an input."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.runtime = GatewayRuntime(CONFIG, loop=cast("asyncio.AbstractEventLoop", self.loop))
        handshake = self.shake(b"/?space=demo", {"Authorization": f"Bearer {SECRETS[2]}"})
        assert handshake is not None
        self.bystander, self.heard = self.connect(handshake)

    def shake(self, path: bytes, headers: dict[str, str]) -> Handshake | None:
        named = CIMultiDict(headers)
        try:
            return read_handshake(path, named, self.runtime)
        except NotAdmitted as error:
            refused = error
        said = str(refused)
        said.encode()
        assert 400 <= refused.status <= 599
        # The gateway names the dialects by itself, and a token may be any word.
        given = set(str(named.get("Authorization", "")).split()[1:2]) - set(DIALECTS)
        assert not any(len(each) > 8 and each in said for each in (*SECRETS, *given))
        return None

    def connect(self, handshake: Handshake) -> tuple[WebSocketConnection, Wire]:
        wire, connection = Wire(), WebSocketConnection(self.runtime, handshake)
        wire.listener = connection
        for name, value in handshake.answer.items():
            assert f"{name}{value}".isprintable()
        connection.on_ws_connected(cast("Any", wire))
        self.loop.turn()
        return connection, wire

    def step(self, connection: WebSocketConnection, wire: Wire, line: bytes) -> None:
        op, rest = line[:1], line[2:]
        times = 1
        if op == b"n":
            number, _, rest = rest.partition(b" ")
            times = min(int(number), 300) if number.isdigit() and len(number) < 5 else 1
            op = b"b"
        rest = expanded(rest, self.runtime.spaces["demo"].owner.streams)
        frame = frame_of(op, rest)
        for _ in range(times if frame is not None else 0):
            if not wire.gone:
                connection.on_ws_frame(cast("Any", wire), cast("Any", frame))
        if op == b"P":
            connection.pause_writing()
        elif op == b"R":
            connection.resume_writing()
        elif op == b"L":
            self.loop.run_out()
        elif op == b"g":
            wire.gone = True
        self.loop.turn()


def frame_of(op: bytes, rest: bytes) -> Frame | None:
    """The frame that a line is."""
    match op:
        case b"t":
            return Frame(WSMsgType.TEXT, rest)
        case b"b":
            return Frame(WSMsgType.BINARY, rest)
        case b"f":
            return Frame(WSMsgType.TEXT, rest, fin=False)
        case b"c":
            return Frame(WSMsgType.CONTINUATION, rest, fin=False)
        case b"e":
            return Frame(WSMsgType.CONTINUATION, rest)
        case b"B":
            size, _, text = rest.partition(b" ")
            times = min(int(size), 20_000) if size.isdigit() and len(size) < 6 else 1
            # A placeholder is a MiB by now, and picows hands over no thousands of it.
            most = MAX_BUILT_BYTES // max(len(text), 1) + 1
            return Frame(WSMsgType.TEXT, (text or b"x") * min(times, most))
        case b"r":
            return Frame(WSMsgType.TEXT, rest, rsv1=True)
        case b"p":
            return Frame(WSMsgType.PING, rest[:125])
        case b"x":
            code = int(rest) & 0xFFFF if rest.isdigit() and len(rest) < 6 else 0
            # Picows itself answers the rest with 1002.
            return Frame(WSMsgType.CLOSE, code=code) if code >= 3000 or code in CODES else None
        case _:
            return None


def messages(written: bytes) -> list[bytes]:
    """The messages that were written, each of which must be whole; of streams, only binary ones."""
    found: list[bytes] = []
    while written:
        assert written[0] in {0x81, 0x82}
        size, start = written[1], 2
        if size >= 126:
            start = 4 if size == 126 else 10
            size = int.from_bytes(written[2:start])
        assert len(written) >= start + size
        message = written[start : start + size]
        assert (message[:1] == b"#") == (written[0] == 0x82)
        found.append(message)
        written = written[start + size :]
    return found


def run(data: bytes) -> None:
    """Play an input."""
    with checked_log(*SECRETS, "made-up-token"):
        play(data)


def play(data: bytes) -> None:
    """A handshake, and what comes after it; the bystander notices no harm."""
    lines = data.split(b"\n")
    at = lines.index(b"") if b"" in lines else len(lines)
    headers: dict[str, str] = {}
    for line in lines[1:at]:
        name, _, value = line.partition(b":")
        # As picows reads them.
        if name.isascii() and name.strip():
            headers[name.decode()] = value.strip().decode("ascii", "surrogateescape")
    world = World()
    handshake = world.shake(lines[0], headers)
    if handshake is not None:
        connection, wire = world.connect(handshake)
        for line in lines[at + 1 : at + 1 + MAX_STEPS]:
            if wire.gone:
                break
            world.step(connection, wire, line)
        for message in messages(wire.written):
            assert message[:1] == b"#" or json.loads(message)
        connection.on_ws_disconnected(cast("Any", wire))
        world.loop.turn()
        assert world.runtime.open_connections == 1, "the bystander's"
        if wire.close_frame is not None:
            assert not any(secret in wire.close_frame[1] for secret in SECRETS)
    present = {each["id"] for each in world.runtime.spaces["demo"].owner.described()}
    assert "bystander" in present
    assert not present - {"bystander"}, "who is gone has left"
    still_here = EXAMPLES["meup/v0.1"][0].replace(b'"dots"', b'"bystander"')
    world.step(world.bystander, world.heard, b"t " + still_here)
    assert messages(world.heard.written)[-1] == still_here
