"""Transports of the SDK, with the limits that it leaves to its users."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import httpx2
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client

from meup_agent.errors import CannotConnect
from meup_agent.mcp import stdio_guard
from meup_agent.mcp.servers import HttpServer, Server, StdioServer
from meup_agent.mcp.watched_streams import Traffic, WatchedReader, WatchedWriter

if TYPE_CHECKING:
    from meup_agent.mcp.stderr_tail import StderrTail

log = logging.getLogger("meup_agent.mcp")

MAX_MESSAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of a server's message that are read: twice what fits a message of the space."""

STDERR_SECONDS: Final = 1.0
"""After its end a server's last words are waited for so long; a child may hold the pipe open."""

CONNECT_SECONDS: Final = 30.0
"""Seconds to connect to a server over HTTP, and to send a request."""

READ_SECONDS: Final = 3600.0
"""Seconds without a byte after which an answer over HTTP is given up. Callers give up sooner, by
their own timeouts; a stream of events may be silent for long."""


_SESSION: Final = "mcp-session-id"
_NOT_FOUND: Final = 404
"""The status of a request in a session that the server does not know (MCP 2025-03-26)."""


@asynccontextmanager
async def connect(server: Server, traffic: Traffic, tail: StderrTail) -> AsyncGenerator[Any]:
    """The streams to and from a server, which is started, for the length of a block.

    Raises:
        CannotConnect: There is no such command or folder.
    """
    opened = _stdio(server, tail) if isinstance(server, StdioServer) else _http(server, traffic)
    async with opened as (read, write):
        yield WatchedReader(read, traffic), WatchedWriter(write, traffic)


@asynccontextmanager
async def _stdio(server: StdioServer, tail: StderrTail) -> AsyncGenerator[tuple[Any, Any]]:
    environment = {**get_default_environment(), **server.env}
    if server.cwd is not None and not server.cwd.is_dir():
        raise CannotConnect(f"there is no folder {str(server.cwd)!r}")
    path = server.command
    if os.sep in path and server.cwd is not None:
        path = str(server.cwd / path)
    if shutil.which(path, path=environment.get("PATH")) is None:
        raise CannotConnect(f"there is no command {server.command!r}")
    parameters = StdioServerParameters(
        command=sys.executable,
        # Isolated and without site-packages: it starts in 15 ms.
        args=[
            "-IS",
            str(Path(stdio_guard.__file__)),
            str(MAX_MESSAGE_BYTES),
            server.command,
            *server.args,
        ],
        env=dict(server.env),
        cwd=server.cwd,
        # One wrong byte in a message is the message's fault, and not the connection's.
        encoding_error_handler="replace",
    )
    with tail.pipe() as (source, file):
        read_all = anyio.Event()

        async def read() -> None:
            await tail.read(source)
            read_all.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read)
            async with stdio_client(parameters, errlog=file) as streams:
                file.close()
                yield streams
            with anyio.move_on_after(STDERR_SECONDS):
                await read_all.wait()
            tasks.cancel_scope.cancel()


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
        if not isinstance(response.stream, (_Compressed, _Limited)):
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
        response.stream = _Limited(cast("httpx2.AsyncByteStream", response.stream))


class _Compressed(httpx2.AsyncByteStream):
    """An answer that is not read: it was asked for as it is."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    def __aiter__(self) -> AsyncIterator[bytes]:
        raise httpx2.StreamError("the answer is compressed")

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Limited(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = MAX_MESSAGE_BYTES
        async for chunk in self._inner:
            left -= len(chunk)
            if left < 0:
                raise httpx2.StreamError(f"the answer is longer than {MAX_MESSAGE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


class _LimitedEvents(httpx2.AsyncByteStream):
    """A stream of events, each of which is limited."""

    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._inner:
            end = max(chunk.rfind(each) for each in (b"\n\n", b"\r\n\r\n", b"\r\r"))
            size = size + len(chunk) if end < 0 else len(chunk) - end
            if size > MAX_MESSAGE_BYTES:
                raise httpx2.StreamError(f"an event is longer than {MAX_MESSAGE_BYTES} bytes")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
