"""`meup mcp --http` as strangers find it: without a token, through a proxy, and many at once."""

import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.cli.processes import environment
from tests.mcp.conftest import ANYTHING, BOTH, staged
from tests.mcp.server.test_identity import HELLO
from tests.mcp.server.test_mcp_command import ECHO, http_server, variables
from tests.patience import PATIENCE
from tests.programs import ROOT

NEW = 200
BUSY = 10

TWO_LENGTHS = (
    b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %b\r\nAccept: application/json, text/event-stream\r\n"
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    b"GET /mcp HTTP/1.1\r\nHost: localhost\r\n\r\n"
)
"""A request that one reader ends before, and another one behind, the request that follows it."""

GET = b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAuthorization: none\r\n\r\n"
"""A request that is refused at once."""


async def hello(url: str, token: str | None = None, **headers: str) -> httpx2.Response:
    """Begin a session."""
    authorization = {} if token is None else {"authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        return await http.post(url, json=HELLO, headers={**BOTH, **authorization, **headers})


async def test_a_client_without_a_token_is_nobody() -> None:
    """Also where the process has one: a program in front of it may bring strangers."""
    async with staged(alice=ANYTHING) as stage:
        async with http_server(stage, "--http", "127.0.0.1:0") as url:
            assert (await hello(url)).status_code == 401
            assert (await hello(url, stage.token("alice"))).status_code == 200


async def test_anonymous_clients_are_those_of_this_machine() -> None:
    async with staged(alice=ANYTHING) as stage:
        async with http_server(stage, "--http", "127.0.0.1:0", "--anonymous") as url:
            statuses = [
                (await hello(url, **headers)).status_code
                for headers in (
                    {},
                    {"x-forwarded-for": "203.0.113.7"},
                    {"host": "localhost:1.evil.example"},
                    {"authorization": "Bearer wrong"},
                )
            ]
    assert statuses == [200, 401, 421, 401]


async def test_one_agent_over_http_is_for_anonymous_clients() -> None:
    async with staged(alice=ANYTHING) as stage:
        options = (f"{ECHO}:agent", "--http", "127.0.0.1:0", "--anonymous")
        async with http_server(stage, *options) as url:
            assert (await hello(url)).status_code == 200
            assert (await hello(url, "any")).status_code == 401


async def answers(sent: bytes, port: int) -> bytes:
    """All that comes on a connection until the other end closes it."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(sent)
        return b"".join([chunk async for chunk in stream])


async def test_a_request_of_two_lengths_closes_its_connection() -> None:
    async with staged(alice=ANYTHING) as stage:
        async with http_server(stage, "--http", "127.0.0.1:0") as url:
            sent = TWO_LENGTHS % stage.token("alice").encode()
            came = await answers(sent, urlsplit(url).port or 0)
    assert came.startswith(b"HTTP/1.1 400 ")
    assert b"connection: close" in came.lower()
    assert came.count(b"HTTP/1.1 ") == 1


@pytest.mark.thorough
async def test_new_connections_are_taken_beside_busy_ones() -> None:
    """Where one is taken in a turn of the loop, the last one waits for all that others ask.

    The server stands still until all have asked, so its turns are the same whatever the machine
    does.
    """
    async with staged(alice=ANYTHING) as stage, AsyncExitStack() as streams:
        env = environment(variables(stage, "alice"))
        program = [sys.executable, "-m", "tests.mcp.server.noted_requests"]
        process = await anyio.open_process(
            [*program, "mcp", "--http", "127.0.0.1:0"], env=env, cwd=ROOT
        )
        streams.push_async_callback(process.aclose)
        streams.callback(process.kill)
        assert process.stdout is not None
        assert process.stderr is not None
        said = await process.stdout.receive()
        port = urlsplit(said.decode().split()[-1]).port or 0

        async def connect() -> SocketStream:
            return await streams.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))

        busy = [await connect() for _ in range(BUSY)]
        for stream in busy:
            await stream.send(GET)
            await stream.receive()
        process.send_signal(signal.SIGSTOP)
        fresh = [await connect() for _ in range(NEW)]
        for stream in busy:
            await stream.send(GET * NEW)
        for stream in fresh:
            await stream.send(GET)
        process.send_signal(signal.SIGCONT)
        new = {each.extra(SocketAttribute.local_port) for each in fresh}
        came: Counter[bool] = Counter()  # `True`: on a new connection
        lines = BufferedByteReceiveStream(process.stderr)
        while came[True] < NEW:
            line = (await lines.receive_until(b"\n", 65_536)).decode()
            if line.startswith("asked from "):
                came[int(line.split()[-1]) in new] += 1
    assert came[False] < NEW
