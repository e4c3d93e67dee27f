"""A client by hand: sockets that say what no WebSocket library would."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
from websockets.frames import Opcode

from meup_agent.gateway import Gateway
from tests.patience import PATIENCE

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def raw(gateway: Gateway, *, small: bool = False) -> AsyncGenerator[Streams]:
    sock = socket.socket()
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", gateway.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def handshake(path: str = "/ws?space=demo", token: str = "", *more: str) -> bytes:
    """The request for a WebSocket, with a token if one is given, and more headers."""
    lines = [f"GET {path} HTTP/1.1", "Host: x", "Upgrade: websocket", "Connection: Upgrade"]
    lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]
    lines += [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([*lines, *more, "", ""]).encode()


@asynccontextmanager
async def shaken(
    gateway: Gateway, who: str = "carol", *, small: bool = False
) -> AsyncGenerator[Streams]:
    """A socket after its handshake, which answers nothing by itself."""
    async with raw(gateway, small=small) as (reader, writer):
        writer.write(handshake(token=gateway.token(who)))
        with anyio.fail_after(PATIENCE):
            head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        yield reader, writer


async def frames(reader: asyncio.StreamReader) -> AsyncGenerator[tuple[int, bytes]]:
    """Opcode and payload of each frame that the gateway sends."""
    while True:
        first, size = await reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await reader.readexactly(8))
        yield first & 0x0F, await reader.readexactly(size)


async def said_close(reader: asyncio.StreamReader) -> int:
    """The code of the close frame, after whatever else comes."""
    with anyio.fail_after(PATIENCE):
        async for opcode, payload in frames(reader):
            if opcode == Opcode.CLOSE:
                return int.from_bytes(payload[:2])
    raise AssertionError


def masked(first: int, payload: bytes = b"") -> bytes:
    return bytes((first, 0x80 | len(payload))) + bytes(4) + payload
