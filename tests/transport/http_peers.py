"""The other end of an HTTP connection under test: an event stream, and the POSTs beside it."""

import asyncio
import contextlib
import itertools
import json
import queue
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager

import anyio

from tests.gateways import Connector, http_connector
from tests.patience import PATIENCE
from tests.transport.peers import ANSWER, ThreadedLoop, in_thread

STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nMEUP-Observe: 1\r\n"
TAKEN = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
MAX_HEAD_BYTES = 65_536
MAX_UNREAD = 64


class HttpPeer:
    """One participant's stream; POSTs are answered as long as there is room for their frames."""

    def __init__(self, server: "HttpServer", stream: asyncio.StreamWriter) -> None:
        self._server = server
        self._stream = stream
        self.posts: asyncio.Queue[bytes] = asyncio.Queue(MAX_UNREAD)
        self.connections = [stream]
        self.ended = asyncio.Event()

    async def send(self, frame: bytes, *, text: bool = True) -> None:
        await self._server.call(self._write(b"data: " + frame + b"\n\n"))

    async def receive(self) -> bytes:
        return await self._server.call(self.posts.get())

    async def close(self, code: int, reason: str) -> None:
        async def say() -> None:
            said = json.dumps({"code": code, "reason": reason}).encode()
            await self._write(b"event: close\ndata: " + said + b"\n\n")
            self._stream.close()

        await self._server.call(say())

    async def vanish(self) -> None:
        async def abort() -> None:
            for connection in self.connections:
                connection.transport.abort()

        await self._server.call(abort())

    async def end(self) -> tuple[int, str]:
        """Of a stream the client can only leave: no code comes with that."""

        async def read() -> None:
            ended = asyncio.create_task(self.ended.wait())
            while not ended.done():
                received = asyncio.create_task(self.posts.get())
                await asyncio.wait({ended, received}, return_when=asyncio.FIRST_COMPLETED)
                received.cancel()

        await self._server.call(read())
        return (1006, "")

    async def _write(self, data: bytes) -> None:
        self._stream.write(data)
        await self._stream.drain()


class HttpServer(ThreadedLoop):
    """A server of streams and POSTs, told apart by the participant in their paths."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.numbers = itertools.count()
        self.accepted: queue.SimpleQueue[HttpPeer] = queue.SimpleQueue()
        self._peers: dict[str, HttpPeer] = {}

    async def accept(self) -> HttpPeer:
        return await anyio.to_thread.run_sync(lambda: self.accepted.get(timeout=PATIENCE))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError), closing(writer):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                method, path, _ = head.split(" ", 2)
                name = path.split("/")[2]
                if method == "GET":
                    await self._stream(name, reader, writer)
                    break
                fields = dict(line.lower().split(": ", 1) for line in head.splitlines()[1:-1])
                body = await reader.readexactly(int(fields["content-length"]))
                peer = self._peers[name]
                peer.connections.append(writer)
                await peer.posts.put(body)
                writer.write(TAKEN)

    async def _stream(
        self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        answer = "".join(f"{key}: {value}\r\n" for key, value in ANSWER.items())
        writer.write(f"{STREAM}{answer}\r\n".encode())
        peer = self._peers[name] = HttpPeer(self, writer)
        self.accepted.put(peer)
        try:
            await reader.read()
        finally:
            peer.ended.set()

    async def run(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MAX_HEAD_BYTES)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


@contextmanager
def serving_http() -> Generator[HttpServer]:
    server = HttpServer(asyncio.new_event_loop())
    with in_thread(server.loop, server.run):
        yield server


class HttpLink:
    tells_its_end = False

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._name = f"p{next(server.numbers)}"

    def connector(self) -> Connector:
        address = f"http://127.0.0.1:{self._server.port}"
        return http_connector(address, space=self._name, participant=self._name)

    async def accept(self) -> HttpPeer:
        return await self._server.accept()
