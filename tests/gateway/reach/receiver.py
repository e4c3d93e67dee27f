"""A server of HTTP on this machine that takes what a gateway sends it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """The server; `status` is its answer, and 0 none at all."""

    url: str
    status: int = 200
    headers: str = ""
    received: list[Received] = field(default_factory=list[Received])
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def take(self) -> Received:
        """The next request."""
        while not self.received:
            await self.changed.wait()
        return self.received.pop(0)

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            reading = BufferedByteReceiveStream(stream)
            head = (await reading.receive_until(b"\r\n\r\n", 65_536)).decode()
            first, *lines = head.split("\r\n")
            headers = {
                name.lower(): value.strip() for name, _, value in (e.partition(":") for e in lines)
            }
            size = int(headers.get("content-length", 0))
            body = await reading.receive_exactly(size) if size else b""
            self.received.append(Received(first.split()[1], headers, body))
            self.changed.set()
            self.changed = anyio.Event()
            if self.status:
                await stream.send(
                    f"HTTP/1.1 {self.status} x\r\n{self.headers}"
                    "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
                )
            else:
                await anyio.sleep_forever()


@asynccontextmanager
async def receive() -> AsyncGenerator[Receiver]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    receiver = Receiver(f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}/hook")
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, receiver.serve)
        yield receiver
        tasks.cancel_scope.cancel()
