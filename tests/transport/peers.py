"""The other end of a connection under test: in memory, or a real WebSocket or HTTP server."""

import asyncio
import queue
import ssl
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qs, urlsplit

import anyio
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from tests.gateways import (
    Connector,
    MemoryTransport,
    Transport,
    memory_connector,
    websocket_connector,
)
from tests.patience import PATIENCE
from tests.wire import MAX_FRAME_BYTES

CERTIFICATE = Path(__file__).parent / "localhost.pem"
# Short, since some peers here never answer; a peer that does answers faster.
CLOSE_TIMEOUT = 1.0
ANSWER = {"MEUP-Protocol": "meup/v0.1"}
"""The other end's answer in its handshake."""

T = TypeVar("T")


class Peer(Protocol):
    async def send(self, frame: bytes, *, text: bool = True) -> None: ...
    async def receive(self) -> bytes: ...
    async def close(self, code: int, reason: str) -> None: ...
    async def vanish(self) -> None: ...
    async def end(self) -> tuple[int, str]:
        """Reads on until the connection has ended; the code and reason it saw."""
        ...


class TransportPair(Protocol):
    """Something that a connector reaches, and whose other end is then to be had."""

    tells_its_end: bool
    """Our close reaches the other end with its code and reason."""

    def connector(self) -> Connector: ...
    async def accept(self) -> Peer: ...


@asynccontextmanager
async def linked(link: TransportPair) -> AsyncGenerator[tuple[Transport, Peer]]:
    """The two ends of a connection, for the length of a block that may not hang."""
    with anyio.fail_after(PATIENCE):
        async with link.connector()({}) as transport:
            yield transport, await link.accept()


class MemoryPeer:
    def __init__(self, end: MemoryTransport) -> None:
        self._end = end

    async def send(self, frame: bytes, *, text: bool = True) -> None:
        await self._end.send(frame)

    async def receive(self) -> bytes:
        return await anext(self._end)

    async def close(self, code: int, reason: str) -> None:
        await self._end.aclose(code, reason)

    async def vanish(self) -> None:
        self._end.drop()

    async def end(self) -> tuple[int, str]:
        async for _ in self._end:
            pass
        assert self._end.closed is not None
        return self._end.closed.code, self._end.closed.reason


class MemoryLink:
    tells_its_end = True

    def __init__(self) -> None:
        self._ends: list[MemoryTransport] = []

    def connector(self) -> Connector:
        async def accept(end: MemoryTransport, headers: object) -> dict[str, str]:
            self._ends.append(end)
            return ANSWER

        return memory_connector(accept)

    async def accept(self) -> MemoryPeer:
        return MemoryPeer(self._ends.pop())


class ThreadedLoop:
    """A loop in a thread of its own, whatever loop the test runs."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.port = 0

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine in the server's thread and waits for it in the test's loop."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        return await anyio.to_thread.run_sync(future.result, PATIENCE)


class Server(ThreadedLoop):
    """A server of `websockets`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.requests: queue.SimpleQueue[Request] = queue.SimpleQueue()
        self.accepted: queue.SimpleQueue[ServerConnection] = queue.SimpleQueue()

    async def accept(self) -> "SocketPeer":
        connection = await anyio.to_thread.run_sync(lambda: self.accepted.get(timeout=PATIENCE))
        return SocketPeer(self, connection)

    async def _serve(self, connection: ServerConnection) -> None:
        self.accepted.put(connection)
        await connection.wait_closed()

    def _answer(self, connection: ServerConnection, request: Request) -> Response | None:
        """Refuses with the status, and the wait, that the query asks for."""
        self.requests.put(request)
        query = parse_qs(urlsplit(request.path).query)
        if "status" not in query:
            return None
        response = connection.respond(int(query["status"][0]), "the gateway says no\n")
        if "wait" in query:
            response.headers["Retry-After"] = query["wait"][0]
        return response

    async def run(self, ready: threading.Event, stop: asyncio.Event, tls: bool) -> None:
        context = None
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
        async with serve(
            self._serve,
            "127.0.0.1",
            0,
            ssl=context,
            process_request=self._answer,
            process_response=lambda connection, request, response: response.headers.update(ANSWER),
            max_size=MAX_FRAME_BYTES,
            compression=None,
            ping_interval=None,
            close_timeout=0.1,
        ) as server:
            (listener,) = server.sockets
            self.port = listener.getsockname()[1]
            ready.set()
            await stop.wait()


Run = Callable[[threading.Event, asyncio.Event], Coroutine[Any, Any, None]]


@contextmanager
def in_thread(loop: asyncio.AbstractEventLoop, run: Run) -> Generator[None]:
    ready, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(
        target=lambda: loop.run_until_complete(run(ready, stop)), name="test server"
    )
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        loop.close()


@contextmanager
def serving(*, tls: bool = False) -> Generator[Server]:
    server = Server(asyncio.new_event_loop())
    with in_thread(server.loop, lambda ready, stop: server.run(ready, stop, tls)):
        yield server


class SocketPeer:
    def __init__(self, server: Server, connection: ServerConnection) -> None:
        self._server = server
        self.connection = connection

    async def send(self, frame: bytes, *, text: bool = True) -> None:
        await self._server.call(self.connection.send(frame, text=text))

    async def receive(self) -> bytes:
        return await self._server.call(self.connection.recv(decode=False))

    async def close(self, code: int, reason: str) -> None:
        await self._server.call(self.connection.close(code, reason))

    async def vanish(self) -> None:
        async def abort() -> None:
            self.connection.transport.abort()

        await self._server.call(abort())

    async def end(self) -> tuple[int, str]:
        async def read() -> tuple[int, str]:
            try:
                while True:
                    await self.connection.recv(decode=False)
            except ConnectionClosed:
                pass
            assert self.connection.close_code is not None
            return self.connection.close_code, self.connection.close_reason or ""

        return await self._server.call(read())


class SocketLink:
    tells_its_end = True

    def __init__(self, server: Server, *, tls: bool = False) -> None:
        self._server = server
        self.tls = tls

    def connector(self) -> Connector:
        if not self.tls:
            address = f"ws://127.0.0.1:{self._server.port}"
            return websocket_connector(address, space="demo", close_timeout=CLOSE_TIMEOUT)
        trust = ssl.create_default_context(cafile=str(CERTIFICATE))
        address = f"wss://localhost:{self._server.port}"
        return websocket_connector(address, ssl=trust, close_timeout=CLOSE_TIMEOUT)

    async def accept(self) -> SocketPeer:
        return await self._server.accept()
