"""Transports of the SDK, with the limits that it leaves to its users."""

from __future__ import annotations

import logging
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from meup_agent.mcp import windows_copier
from meup_agent.mcp.server_config import HttpServer, Server, StdioServer
from meup_agent.mcp.server_process import (
    MAX_MESSAGE_BYTES,
    ServerProcess,
    ServerStarter,
    check_startable,
)
from meup_agent.mcp.watched_streams import Traffic, WatchedReader, WatchedWriter

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from meup_agent.processes.output_tail import StderrTail

log = logging.getLogger("meup_agent.mcp")

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
    server: Server, traffic: Traffic, tail: StderrTail, starter: ServerStarter | None = None
) -> AsyncGenerator[Any]:
    """The streams to and from a server, which is started, for the length of a block.

    Raises:
        CannotConnect: There is no such command or folder.
    """
    if isinstance(server, HttpServer):
        opened = _http(server, traffic)
    elif sys.platform == "win32":
        opened = _stdio_of_the_sdk(server, tail)
    else:
        opened = _stdio(starter or ServerStarter(server), tail, traffic)
    async with opened as (read, write):
        yield WatchedReader(read, traffic), WatchedWriter(write, traffic)


@asynccontextmanager
async def _stdio(
    starter: ServerStarter, tail: StderrTail, traffic: Traffic
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

            async def send() -> None:
                try:
                    with sending:
                        await _send(process, to_send, received)
                finally:
                    sent.set()

            with received, read, write, to_send:
                tasks.start_soon(_receive, process, received, traffic)
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


async def _receive(
    process: ServerProcess,
    received: MemoryObjectSendStream[SessionMessage | Exception],
    traffic: Traffic,
) -> None:
    """Hand a server's messages to the session, until the server's output ends."""
    async with received:
        rest: list[bytes] = []
        size = 0
        while chunk := await process.read():
            first, *others = chunk.split(b"\n")
            rest.append(first)
            size += len(first)
            if size > MAX_MESSAGE_BYTES:
                traffic.excess = f"sent a message of more than {MAX_MESSAGE_BYTES} bytes"
                process.terminate()
                break
            for line in others:
                with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                    await received.send(_message(b"".join(rest)))
                rest, size = [line], len(line)
    # A server that writes on could not end.
    while await process.read():
        pass


def _message(line: bytes) -> SessionMessage | Exception:
    # One wrong byte in a message is the message's fault, and not the connection's.
    text = line.decode(errors="replace")
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError as error:
        return error


async def _send(
    process: ServerProcess,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Write the session's messages to a server, until one of both ends."""
    async with to_send:
        async for item in to_send:
            said = item.message.model_dump_json(by_alias=True, exclude_unset=True)
            try:
                await process.write(said.encode() + b"\n")
            except OSError:
                # It reads no more, and may still run: to the session this is its end.
                await received.aclose()
                return


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
    environment = {**get_default_environment(), **server.env}
    check_startable(server, environment)
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
async def _http(server: HttpServer, traffic: Traffic) -> AsyncGenerator[tuple[Any, Any]]:
    if server.sse:
        async with sse_client(
            server.url,
            headers=dict(server.headers),
            timeout=CONNECT_SECONDS,
            sse_read_timeout=READ_SECONDS,
            httpx_client_factory=_limited_client,
        ) as opened:
            yield opened
        return

    async def note_session(response: httpx2.Response) -> None:
        if response.status_code == _NOT_FOUND and _SESSION in response.request.headers:
            traffic.session_lost = True

    client = httpx2.AsyncClient(
        # What is limited is what is read, and a compressed answer is a thousand times larger.
        headers={"accept-encoding": "identity", **server.headers},
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=READ_SECONDS),
        event_hooks={"response": [_limit_response, note_session]},
    )
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

    async def limit(response: httpx2.Response) -> None:
        await _limit_response(response)
        if not isinstance(response.stream, (_Compressed, _LimitedStream)):
            response.stream = _LimitedEvents(cast("httpx2.AsyncByteStream", response.stream))

    return httpx2.AsyncClient(
        headers={"accept-encoding": "identity", **(headers or {})},
        timeout=timeout,
        auth=auth,
        event_hooks={"response": [limit]},
    )


async def _limit_response(response: httpx2.Response) -> None:
    """Bound what is read of an answer that is no stream of events: those have a limit each."""
    if response.headers.get("content-encoding", "identity").lower() != "identity":
        response.stream = _Compressed(cast("httpx2.AsyncByteStream", response.stream))
        return
    if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
        response.stream = _LimitedStream(cast("httpx2.AsyncByteStream", response.stream))


class _AnswerStream(httpx2.AsyncByteStream):
    """The stream of an answer in place of the client's own, which it closes."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

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
