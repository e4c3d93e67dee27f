"""Transports to MCP servers: the program and its pipes, and bounds."""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
from collections import Counter, OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
)
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx2
import mcp_types as types
from anyio.abc import ObjectSendStream
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from meup_agent.errors import CannotConnect, printable
from meup_agent.mcp.bridge import windows_copier
from meup_agent.mcp.bridge.config import HttpServer, Server, StdioServer, missing_command
from meup_agent.mcp.bridge.questions import current_call
from meup_agent.mcp.sdk.messages import CAPABILITIES, ForwardingReader, Item
from meup_agent.processes.guarded import (
    LineTooLong,
    PipedProcess,
    RepeatedLines,
    StderrTail,
    read_lines,
)
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.ttl_map import keep_last

if TYPE_CHECKING:
    from meup_agent.protocol.wire.payloads import JsonObject


log = logging.getLogger("meup_agent.mcp")


# --- watched streams ---
# Streams of messages between the SDK and a server, and what passes through them.
#
# The SDK's transports give a stream to read and one to write. These stand in their places, and
# pass everything on; what its session does not tell is noted here: that the server has gone, what
# exactly it asked, and the reason of a cancellation, for which the SDK has fixed words.

MAX_ASKS_KEPT: Final = 256
"""Questions of a server whose parameters are kept until the session's callback takes them."""

MAX_OPEN_ASKS: Final = 256
"""Requests of a server that have no answer yet: each is a task of the SDK, and a server that asks
without reading would have them without an end."""

MAX_REASON_CHARS: Final = 500
"""Characters of a reason that a server is told."""


FIRST_REVISION: Final = "2024-11-05"
"""Of MCP. Servers written by hand for existing spaces name versions of their own, as ``0.1.0``,
and their bridges look at none; a revision of a later date than ours stays refused."""

MAX_VERSION_CHARS: Final = 40
"""Characters of a version in the log that MCP never had."""

_REVISION: Final = re.compile(r"\d{4}-\d{2}-\d{2}")


class ServerMonitor:
    """Notes of what passes between the SDK and one server.

    Args:
        on_end: Called when nothing more comes from the server.
        clean: Takes what is unusable out of the result of a ``tools/list``.

    Attributes:
        excess: Why the server is not listened to any more; empty while it is.
        session_lost: The server has answered that it does not know the session.
    """

    def __init__(
        self, on_end: Callable[[], None], clean: Callable[[JsonObject], Awaitable[None]]
    ) -> None:
        self.on_end = on_end
        self.excess = ""
        self._clean = clean
        self.session_lost = False
        self._asked: OrderedDict[types.RequestId, JsonObject] = OrderedDict()
        self._listing: set[types.RequestId] = set()
        self._greeting: types.RequestId | None = None
        self._open: Counter[types.RequestId] = Counter()

    def take_asked(self, request_id: types.RequestId) -> JsonObject:
        """The parameters of a server's request as they came: the SDK's types drop some."""
        return self._asked.pop(request_id, {})

    async def received(self, item: Item) -> None:
        """Note what comes from the server.

        Raises:
            EndOfStream: The server is not listened to any more.
        """
        match getattr(item, "message", None):
            case types.JSONRPCRequest(id=asked, method=method, params=params):
                self._open[asked] += 1
                if self._open.total() > MAX_OPEN_ASKS:
                    self.excess = f"has asked {MAX_OPEN_ASKS} times without taking an answer"
                    raise anyio.EndOfStream
                if method in CAPABILITIES:
                    keep_last(self._asked, asked, dict(params or {}), MAX_ASKS_KEPT)
            case types.JSONRPCResponse(id=answered, result=result) if answered in self._listing:
                self._listing.discard(answered)
                # Before the session validates it, which takes a list as a whole or not at all.
                await self._clean(result)
            case types.JSONRPCResponse(id=answered, result=result) if answered == self._greeting:
                self._greeting = None
                self._read_version(result)
            case types.JSONRPCNotification(method=kinds.CANCELLED, params=params):
                self.settled((params or {}).get("requestId"))
            case _:
                pass

    def _read_version(self, result: JsonObject) -> None:
        """Take a server that names no revision of MCP for one of the first."""
        version = result.get("protocolVersion")
        if isinstance(version, str) and not _REVISION.fullmatch(version):
            log.warning(
                "an MCP server says the revision %r, which MCP never had; taken for %s",
                printable(version[:MAX_VERSION_CHARS]),
                FIRST_REVISION,
            )
            result["protocolVersion"] = FIRST_REVISION

    def settled(self, request_id: object) -> None:
        """Note that a request of the server is answered, or that the server cancelled it."""
        if isinstance(request_id, str | int):
            self._open -= Counter((request_id,))  # which keeps no zeros

    def prepare(self, item: SessionMessage) -> SessionMessage:
        """The message to send in place of one of the session's."""
        match item.message:
            case types.JSONRPCRequest(id=asked, method=payloads.TOOL_LIST):
                self._listing.add(asked)
            case types.JSONRPCRequest(id=asked, method="initialize"):
                self._greeting = asked
            case types.JSONRPCNotification(method=kinds.CANCELLED, params=params) as message:
                call = current_call.get()
                if call is not None and call.reason is not None:
                    params = {**(params or {}), "reason": call.reason[:MAX_REASON_CHARS]}
                    ours = message.model_copy(update={"params": params})
                    return SessionMessage(ours, item.metadata)
            case _:
                pass
        return item


class WatchedReader(ForwardingReader):
    """The stream of a server's messages, which notes them and their end."""

    def __init__(self, inner: Any, traffic: ServerMonitor) -> None:
        super().__init__(inner)
        self._traffic = traffic

    async def receive(self) -> Item:
        """The next message."""
        try:
            item = await super().receive()
            await self._traffic.received(item)
        except anyio.EndOfStream:
            self._traffic.on_end()
            raise
        return item


class WatchedWriter(ObjectSendStream[SessionMessage]):
    """The stream of messages to a server, which puts our reason into a cancellation."""

    def __init__(self, inner: Any, traffic: ServerMonitor) -> None:
        self._inner = inner
        self._traffic = traffic

    async def send(self, item: SessionMessage) -> None:
        await self._inner.send(self._traffic.prepare(item))
        if isinstance(item.message, types.JSONRPCResponse | types.JSONRPCError):
            self._traffic.settled(item.message.id)

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()


# --- server process ---
# The program of a server over standard input and output: its process and its pipes.
#
# A server can be started before it is needed (`ServerStarter`): one that is on the SDK takes a
# second. Its guard ends all of it, also where this process is killed.

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a server's message that are read: twice what fits a message of the space."""


def server_environment(server: StdioServer) -> dict[str, str]:
    """The environment of a server: few variables of ours, and its own."""
    return {**get_default_environment(), **server.env}


def check_startable(server: StdioServer) -> None:
    """Check that the command and the folder of a server are there.

    Raises:
        CannotConnect: One is not.
    """
    if server.cwd is not None and not server.cwd.is_dir():
        raise CannotConnect(f"there is no folder {str(server.cwd)!r}")
    path = server.command
    if os.sep in path and server.cwd is not None:
        path = str(server.cwd / path)
    if shutil.which(path, path=server_environment(server).get("PATH")) is None:
        raise CannotConnect(missing_command(server.command))


class ServerProcess(PipedProcess):
    """A server's program that runs.

    Args:
        server: The server.

    Attributes:
        stderr: The end to read of its standard error, which does not block.

    Raises:
        CannotConnect: It cannot be started.
    """

    def __init__(self, server: StdioServer) -> None:
        check_startable(server)
        self.stderr, errors = os.pipe()
        os.set_blocking(self.stderr, False)
        try:
            super().__init__(
                (server.command, *server.args),
                server_environment(server),
                server.cwd,
                stderr=errors,
            )
        except CannotConnect:
            os.close(self.stderr)
            raise
        finally:
            os.close(errors)

    def close(self) -> None:
        """Kill what still runs of it, and close the pipes."""
        super().close()
        os.close(self.stderr)


class ServerStarter:
    """Starts a server's program for each connection; the first may be started before it is needed.

    Args:
        server: The server.

    Attributes:
        repeated: The lines of its starts.
    """

    def __init__(self, server: StdioServer) -> None:
        self.repeated = RepeatedLines()
        self._server = server
        self._first: ServerProcess | None = None

    def begin(self) -> None:
        """Start it now, for the first connection; if it cannot be, that connection says so."""
        with suppress(CannotConnect):
            self._first = ServerProcess(self._server)

    def take(self) -> ServerProcess:
        """The program that was started before, or a new one; the caller's to close.

        Raises:
            CannotConnect: It cannot be started.
        """
        first, self._first = self._first, None
        return first or ServerProcess(self._server)

    def discard(self) -> None:
        """End what was started and has no connection."""
        if self._first is not None:
            self.take().close()


# --- sdk transports ---

FLUSH_SECONDS: Final = 0.5
"""Seconds for the last messages to a server to be written, before its input is closed."""

STDERR_SECONDS: Final = 1.0
"""After its end a server's last words are waited for so long; a child may hold the pipe open."""

CONNECT_SECONDS: Final = 30.0
"""Seconds to connect to a server over HTTP, and to send a request."""

READ_SECONDS: Final = 3600.0
"""Seconds without a byte after which an answer over HTTP is given up. Callers give up sooner, by
their own timeouts; a stream of events may be silent for long."""


COPIER: Final = str(Path(windows_copier.__file__))

_SESSION: Final = "mcp-session-id"
_NOT_FOUND: Final = 404
"""The status of a request in a session that the server does not know (MCP 2025-03-26)."""


@asynccontextmanager
async def connect(
    server: Server,
    traffic: ServerMonitor,
    tail: StderrTail,
    starter: ServerStarter | None = None,
    auth: httpx2.Auth | None = None,
) -> AsyncGenerator[Any]:
    """The streams to and from a server, which is started, for the length of a block.

    Raises:
        CannotConnect: There is no such command or folder.
    """
    if isinstance(server, HttpServer):
        opened = _http(server, traffic, auth)
    elif sys.platform == "win32":
        opened = _stdio_of_the_sdk(server, tail)
    else:
        opened = _stdio(starter or ServerStarter(server), tail, traffic)
    async with opened as (read, write):
        yield WatchedReader(read, traffic), WatchedWriter(write, traffic)


@asynccontextmanager
async def _stdio(
    starter: ServerStarter, tail: StderrTail, traffic: ServerMonitor
) -> AsyncGenerator[tuple[Any, Any]]:
    """As the SDK's ``stdio_client``, of a program that may have been started before.

    The SDK keeps a line until it ends; here it is bounded.
    """
    process = starter.take()
    try:
        async with _reading(tail, process.stderr), anyio.create_task_group() as tasks:
            received, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
            write, to_send = anyio.create_memory_object_stream[SessionMessage](0)
            sent = anyio.Event()
            sending = anyio.CancelScope()

            async def receive() -> None:
                """Hand the server's messages to the session, until the server's output ends."""
                async with received:
                    try:
                        async for line in read_lines(process.read, MAX_MESSAGE_BYTES):
                            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                                await received.send(_message(line))
                    except LineTooLong:
                        traffic.excess = f"sent a message of more than {MAX_MESSAGE_BYTES} bytes"
                        process.terminate()
                # A server that writes on could not end.
                while await process.read():
                    pass

            async def send() -> None:
                """Write the session's messages to the server, until one of both ends."""
                try:
                    with sending:
                        async with to_send:
                            async for item in to_send:
                                said = item.message.model_dump_json(
                                    by_alias=True, exclude_unset=True
                                )
                                await process.write(said.encode() + b"\n")
                except OSError:
                    # It reads no more, and may still run: to the session this is its end.
                    await received.aclose()
                finally:
                    sent.set()

            with received, read, write, to_send:
                tasks.start_soon(receive)
                tasks.start_soon(send)
                try:
                    yield read, write
                finally:
                    with anyio.CancelScope(shield=True):
                        # What comes from now on is thrown away, so that the server can end.
                        read.close()
                        write.close()
                        with anyio.move_on_after(FLUSH_SECONDS):
                            await sent.wait()
                        sending.cancel()
                        await sent.wait()
                        await process.end()
                    tasks.cancel_scope.cancel()
    finally:
        process.close()
        tail.feed(process.last_words.encode())


def _message(line: bytes) -> SessionMessage | Exception:
    # One wrong byte in a message is the message's fault, and not the connection's.
    text = line.decode(errors="replace")
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        return error


@asynccontextmanager
async def _reading(tail: StderrTail, source: int) -> AsyncGenerator[None]:
    """The block in which a server's standard error is read, and its last words a little longer."""
    read_all = anyio.Event()

    async def read() -> None:
        await tail.read(source)
        read_all.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        yield
        with anyio.move_on_after(STDERR_SECONDS):
            await read_all.wait()
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _stdio_of_the_sdk(
    server: StdioServer, tail: StderrTail
) -> AsyncGenerator[tuple[Any, Any]]:
    """A server on Windows, whose pipes cannot be waited for: the SDK reads them in threads."""
    check_startable(server)
    parameters = StdioServerParameters(
        command=sys.executable,
        args=["-IS", COPIER, str(MAX_MESSAGE_BYTES), server.command, *server.args],
        env=dict(server.env),
        cwd=server.cwd,
        encoding_error_handler="replace",
    )
    with tail.pipe() as (source, file):
        async with _reading(tail, source), stdio_client(parameters, errlog=file) as streams:
            file.close()
            yield streams


@asynccontextmanager
async def _http(
    server: HttpServer, traffic: ServerMonitor, auth: httpx2.Auth | None
) -> AsyncGenerator[tuple[Any, Any]]:
    if server.sse:
        async with sse_client(
            server.url,
            headers=dict(server.headers),
            timeout=CONNECT_SECONDS,
            sse_read_timeout=READ_SECONDS,
            httpx_client_factory=_limited_client,
            auth=auth,
        ) as opened:
            yield opened
        return

    async def note_session(response: httpx2.Response) -> None:
        if response.status_code == _NOT_FOUND and _SESSION in response.request.headers:
            traffic.session_lost = True

    timeout = httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS)
    client = _limited_client(dict(server.headers), timeout, auth)
    # The SDK bounds events here itself.
    client.event_hooks = {"response": [_limit_response, note_session]}
    async with (
        client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


def _limited_client(
    headers: dict[str, str] | None = None,
    timeout: httpx2.Timeout | None = None,
    auth: httpx2.Auth | None = None,
) -> httpx2.AsyncClient:
    """A client whose streams of events are bounded, too: the SDK reads those of 2024 unbounded."""
    return httpx2.AsyncClient(
        # What is limited is what is read, and a compressed answer is a thousand times larger.
        headers={"accept-encoding": "identity", **(headers or {})},
        timeout=timeout,
        auth=auth,
        event_hooks={"response": [_limit_response, _limit_events]},
    )


async def _limit_response(response: httpx2.Response) -> None:
    """Bound what is read of an answer that is not a stream of events: those have a limit each."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        response.stream = _Compressed(response)
    elif not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _LimitedStream(response)


async def _limit_events(response: httpx2.Response) -> None:
    if not isinstance(response.stream, _AnswerStream):
        response.stream = _LimitedEvents(response)


class _AnswerStream(httpx2.AsyncByteStream):
    """The stream of an answer in place of the client's own, which it closes."""

    def __init__(self, response: httpx2.Response) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Compressed(_AnswerStream):
    """An answer that is not read: it was asked for as it is."""

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.StreamError("the answer is compressed")


class _LimitedStream(_AnswerStream):
    """An answer of limited length."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.StreamError(f"the answer is longer than {MAX_MESSAGE_BYTES} bytes")
            yield chunk


class _LimitedEvents(_AnswerStream):
    """A stream of events, each of which is limited."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            end = max(chunk.rfind(each) for each in (b"\n\n", b"\r\n\r\n", b"\r\r"))
            size = size + len(chunk) if end < 0 else len(chunk) - end
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"an event is longer than {MAX_MESSAGE_BYTES} bytes")
            yield chunk
