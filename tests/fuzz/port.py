"""Raw bytes at the message port, over a real socket, beside a member who goes on speaking.

The first line says where they begin: ``R`` at the handshake itself, anything else after one.
``|CUT|`` ends what is written at once.
"""

import asyncio
import atexit
import struct
from contextlib import suppress
from typing import Any

from meup_agent.gateway.config import Config, SpaceConfig, participant
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.gateway.server import serve
from tests.fuzz.frames import EXAMPLES
from tests.fuzz.logs import checked_log

NAME = "port"

CUT = b"|CUT|"

SECRET = "dots-own-secret"
BYSTANDERS = "bystanders-own-secret"

CONFIG = Config(
    (
        SpaceConfig(
            "demo",
            {
                "dots": participant("dots", [{"kind": "*"}], (SECRET,)),
                "bystander": participant("bystander", [{"kind": "chat"}], (BYSTANDERS,)),
            },
        ),
    ),
    port=0,
    limits=GatewayLimits(
        max_message_bytes=20_000,
        ping_interval=3_600.0,
        ping_deadline=3_600.0,
        messages_per_second=1e9,
        failed_tokens=10**9,
    ),
)


def handshake(token: str) -> bytes:
    """The head of a handshake that is let in."""
    return (
        b"GET /ws?space=demo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\n\r\n"
    )


def masked(first: int, payload: bytes) -> bytes:
    """A frame as a client sends it, with a mask that changes nothing."""
    size = len(payload)
    head = bytes((first, 0x80 | size)) if size < 126 else struct.pack("!BBH", first, 0xFE, size)
    return head + bytes(4) + payload


CHAT = EXAMPLES["meup/v0.1"][0]
STILL_HERE = CHAT.replace(b'"dots"', b'"bystander"')

SEEDS = [
    b"A\n" + b"".join(masked(0x81, each) for each in EXAMPLES["meup/v0.1"]),
    b"A\n" + masked(0x01, CHAT[:20]) + CUT + masked(0x89, b"ping") + masked(0x80, CHAT[20:]),
    b"A\n" + masked(0xC1, CHAT) + masked(0x88, b"\x03\xe8bye"),
    b"A\n\x81\xff" + struct.pack("!Q", 1 << 40) + b"mask",
    b"A\n" + masked(0x01, b"") + masked(0x00, b"") * 20 + CUT + masked(0x82, CHAT)[:30],
    b"R\n" + handshake(SECRET) + masked(0x81, CHAT),
    b"R\nGET / HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Extensions: permessage-deflate\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n" + CUT + masked(0x81, b'{"type":"join"}'),
    b"R\nPOST //[/..%2f HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello",
]


class Site:
    """A gateway, and the member who goes on speaking."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.unexpected: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _, context: self.unexpected.append(context))
        self.loop.run_until_complete(self._begin())

    async def _begin(self) -> None:
        self._serving = serve(CONFIG)
        self._gateway = await self._serving.__aenter__()
        self.reader, self.writer = await self.dial(handshake(BYSTANDERS))
        await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)

    async def dial(self, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._gateway.port)
        writer.write(first)
        return reader, writer

    async def play(self, data: bytes) -> None:
        where, _, rest = data.partition(b"\n")
        reader, writer = await self.dial(b"" if where == b"R" else handshake(SECRET))
        with suppress(OSError):
            for part in rest.split(CUT):
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)  # a turn, in which the gateway reads so far
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 20)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        self.writer.write(masked(0x81, STILL_HERE))
        await asyncio.wait_for(self.reader.readuntil(STILL_HERE), 20)
        unexpected, self.unexpected = self.unexpected, []
        assert not unexpected, unexpected

    def close(self) -> None:
        self.writer.close()
        self.loop.run_until_complete(self._serving.__aexit__(None, None, None))
        self.loop.close()


_site: list[Site] = []


def run(data: bytes) -> None:
    """Write the bytes, and see whether everybody else is as before."""
    with checked_log(SECRET, BYSTANDERS):
        if not _site:
            _site.append(Site())
            atexit.register(close)
        _site[0].loop.run_until_complete(_site[0].play(data))


def close() -> None:
    """Stop what :func:`run` began."""
    while _site:
        _site.pop().close()
