"""WebSocket and HTTP at one port: the head of the first request decides, however it comes."""

import asyncio
import contextlib
import json
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest

from meup_agent.gateway import Gateway, GatewayLimits, TlsConfig
from meup_agent.gateway.edge import listener
from meup_agent.gateway.edge.http import server
from meup_agent.gateway.edge.listener import MAX_HEAD_BYTES, STRANGER_READ_BYTES, max_handshakes
from meup_agent.gateway.logs import LINES_BURST
from tests.gateway.own_loop import HOSTILE, running
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.raw_client import Streams, frames, masked, raw
from tests.gateway.test_attacks import dial, ended, head, undisturbed
from tests.gateways import one_space_config
from tests.no_tls import ALONE
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
BODY = b'{"kind": "chat", "payload": {"message": "hello"}}'


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Status and body of the next HTTP answer."""
    with anyio.fail_after(PATIENCE):
        said = (await reader.readuntil(b"\r\n\r\n")).lower()
        size = int(said.partition(b"content-length:")[2].split()[0])
        return int(said.split()[1]), await reader.readexactly(size)


async def greeted(reader: asyncio.StreamReader) -> None:
    """Read the answer to an upgrade, and the welcome."""
    with anyio.fail_after(PATIENCE):
        assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        async for _, payload in frames(reader):
            assert json.loads(payload)["kind"] == "system.welcome"
            break


def post(gateway: Gateway) -> bytes:
    return (
        b"POST /participants/bob/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
        % (gateway.token("bob").encode(), len(BODY), BODY)
    )


@asynccontextmanager
async def secured(**limits: float) -> AsyncGenerator[Gateway]:
    config = one_space_config("demo", HOSTILE, GatewayLimits(**limits))  # type: ignore[arg-type]
    async with Gateway(config=replace(config, tls=TlsConfig(CERTIFICATE, CERTIFICATE))) as gateway:
        yield gateway


@asynccontextmanager
async def over_tls(gateway: Gateway) -> AsyncGenerator[Streams]:
    trust = ssl.create_default_context(cafile=str(CERTIFICATE))
    name = "localhost"
    streams = await asyncio.open_connection(
        "127.0.0.1", gateway.port, ssl=trust, server_hostname=name
    )
    try:
        yield streams
    finally:
        streams[1].close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await streams[1].wait_closed()


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """The data in pieces, of which the last one is the rest."""
    pieces, begin = [], 0
    for size in sizes:
        pieces.append(data[begin : begin + size])
        begin += size
    return [*pieces, data[begin:]]


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([1] * 200, id="byte by byte"),
        pytest.param([30], id="upgrade in the second packet"),
        pytest.param([20, 1, 100], id="three packets"),
        pytest.param([], id="at once"),
    ],
)
async def test_head_comes_as_it_likes(sizes: list[int], secure: bool) -> None:
    opened = secured() if secure else running()
    async with opened as gateway:
        assert gateway.http_url == gateway.url.replace("ws", "http", 1)
        connection = over_tls if secure else raw
        for said in (head(gateway, "bob"), post(gateway)):
            async with connection(gateway) as (reader, writer):
                for piece in split(said, sizes):
                    writer.write(piece)
                    await writer.drain()
                    await anyio.lowlevel.checkpoint()
                if said.startswith(b"POST"):
                    assert (await answer(reader))[0] == 200
                    writer.write(HEALTH)
                    assert await answer(reader) == (200, b'{"status":"ok"}')
                else:
                    await greeted(reader)


@pytest.mark.parametrize("filler", [0, 3_000, 15_000])
async def test_what_stands_behind_an_upgrade_is_not_lost(filler: int) -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        pings = b"".join(masked(0x89, b"%d" % number) for number in range(100))
        writer.write(head(gateway, "mallory", f"X-Filler: {'x' * filler}") + pings)
        with anyio.fail_after(PATIENCE):
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            heard: list[bytes] = []
            async for opcode, payload in frames(reader):
                heard += [payload] if opcode == 0xA else []
                if len(heard) == 100:
                    break
        assert heard == [b"%d" % number for number in range(100)]


async def test_an_upgrade_with_much_behind_it_is_refused() -> None:
    """All of it would be looked at before others are, and no client may send before the answer.

    An older aiofastnet has no transport to move to: there the head is read a little at a time.
    """
    async with running() as gateway, raw(gateway) as (reader, writer):
        empty = masked(0x80, b"")
        writer.write(head(gateway, "mallory") + empty * (STRANGER_READ_BYTES // len(empty) + 1))
        if listener.SelectorSocketTransport is None:
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        else:
            status, said = await answer(reader)
            assert (status, b"waits for the answer" in said) == (400, True)
        async with dial(gateway, "bob") as bob:
            await undisturbed(bob)


async def test_requests_behind_the_first_one_are_answered() -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        writer.write(post(gateway) + HEALTH + post(gateway))
        assert [(await answer(reader))[0] for _ in range(3)] == [200, 200, 200]


async def test_large_body_goes_on_behind_the_first_read() -> None:
    async with running() as gateway:
        text = {"kind": "chat", "payload": {"message": "x" * 500_000}}
        async with httpx.AsyncClient(**ALONE) as client:
            done = await client.post(
                f"{gateway.http_url}/participants/bob/messages",
                json=text,
                headers={"Authorization": f"Bearer {gateway.token('bob')}"},
            )
        assert done.status_code == 200


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("size", [STRANGER_READ_BYTES, 100_000, 1_000_000])
async def test_body_that_comes_with_its_head_is_read(size: int, secure: bool) -> None:
    async with secured() if secure else running() as gateway:
        request = post(gateway).removesuffix(BODY).rpartition(b"Content-Length: ")[0]
        body = json.dumps({"kind": "chat", "payload": {"message": "x" * size}}).encode()
        async with over_tls(gateway) if secure else raw(gateway) as (reader, writer):
            writer.write(request + b"Content-Length: %d\r\n\r\n" % len(body) + body + HEALTH)
            assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize("together", [False, True], ids=["later", "in one packet"])
async def test_upgrade_as_a_second_request_gets_426(together: bool) -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        writer.write(HEALTH)
        if not together:
            assert (await answer(reader))[0] == 200
        writer.write(head(gateway, "bob"))
        if together:
            assert (await answer(reader))[0] == 200
        status, said = await answer(reader)
        assert (status, b"first request" in said) == (426, True)
        writer.write(HEALTH)
        assert (await answer(reader))[0] == 200


@pytest.mark.parametrize(
    ("more", "status"),
    [("Upgrade: h2c", 404), ("X-Upgrade: websocket", 404), ("UPGRADE:WebSocket", 400)],
)
async def test_only_an_upgrade_to_websocket_is_one(more: str, status: int) -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        writer.write(f"GET /ws HTTP/1.1\r\nHost: x\r\n{more}\r\nConnection: close\r\n\r\n".encode())
        with anyio.fail_after(PATIENCE):
            assert int((await reader.readline()).split()[1]) == status


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["first", "later"])
async def test_a_request_of_two_lengths_closes_its_connection(before: bytes) -> None:
    """Of what follows it a proxy may think that it belongs to its body."""
    async with running() as gateway, raw(gateway) as (reader, writer):
        both = b"\r\nTransfer-Encoding: chunked\r\nContent-Length: "
        request = post(gateway).replace(b"\r\nContent-Length: ", both).replace(BODY, b"0\r\n\r\n")
        writer.write(before + request + HEALTH)
        if before:
            assert (await answer(reader))[0] == 200
        assert (await answer(reader))[0] == 400
        with anyio.fail_after(PATIENCE):
            assert await reader.read() == b""


CHUNKED = b"POST /healthz HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("answered", [False, True], ids=["at once", "after its answer"])
async def test_a_body_that_is_broken_is_answered_once(
    answered: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        writer.write(CHUNKED)
        if answered:
            assert (await answer(reader))[0] == 405
        writer.write(b"no length\r\n")
        said = await ended(reader)
        assert said.count(b"HTTP/1.1 ") == (0 if answered else 1)
    assert not [each for each in caplog.records if each.exc_info]


async def test_strangers_who_speak_no_http_do_not_fill_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    async with running() as gateway:
        for _ in range(2 * LINES_BURST):
            async with raw(gateway) as (reader, writer):
                writer.write(b"no HTTP\r\n\r\n")
                assert (await ended(reader)).startswith(b"HTTP/1.1 400 ")
    said = [each for each in caplog.messages if "Invalid HTTP request" in each]
    # However slow the machine is, one more a second.
    assert len(said) < 2 * LINES_BURST


async def test_upgrade_that_only_http_reads_to_its_end_is_none() -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        writer.write(head(gateway, "bob").replace(b"\r\n", b"\n"))
        assert (await answer(reader))[0] == 426


@pytest.mark.limit("handshake_timeout")
async def test_heads_that_never_end_are_dropped() -> None:
    async with running(handshake_timeout=0.2) as gateway, contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(raw(gateway)) for _ in range(3)]
        for (_, writer), said in zip(slow, (b"", HEALTH[:1], HEALTH[:-2]), strict=True):
            writer.write(said)
        assert [await ended(reader) for reader, _ in slow] == [b""] * 3


@pytest.mark.parametrize("size", [10, 1], ids=["a part", "all of it"])
async def test_a_body_after_its_answer_keeps_no_connection(size: int) -> None:
    async with running(handshake_timeout=0.2) as gateway, raw(gateway) as (reader, writer):
        more = b"Content-Length: %d\r\n\r\n" % size
        writer.write(HEALTH.removesuffix(b"\r\n") + more)
        assert (await answer(reader))[0] == 200
        writer.write(b"a")
        assert await ended(reader) == b""


async def write_on(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"GET ")
        await writer.drain()
        await anyio.lowlevel.checkpoint()


async def test_caller_who_reads_no_answer_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "STALL_SECONDS", 0.05)
    async with running() as gateway, raw(gateway, small=True) as (_, writer):
        # Many more bytes of answers than the two sockets hold.
        writer.write(b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n" * 500)
        with anyio.fail_after(PATIENCE), pytest.raises(ConnectionError):
            await write_on(writer)


async def test_line_that_dribbles_gets_no_longer() -> None:
    async with running(handshake_timeout=0.2) as gateway, raw(gateway) as (reader, writer):
        async with anyio.create_task_group() as tasks:

            async def dribble() -> None:
                with contextlib.suppress(ConnectionError):
                    while True:
                        writer.write(b"x")
                        await writer.drain()
                        await anyio.lowlevel.checkpoint()

            tasks.start_soon(dribble)
            # Dropped, or refused for its size where the loop is fast.
            assert (await ended(reader))[:12] in (b"", b"HTTP/1.1 431")
            tasks.cancel_scope.cancel()


async def test_tls_has_the_same_deadline() -> None:
    async with secured(handshake_timeout=0.5) as gateway, raw(gateway) as (half, writer):
        writer.write(b"\x16\x03\x01")
        assert await ended(half) == b""
        reader = None
        while reader is None:  # ours may come as late, where the machine is slow
            with contextlib.suppress(OSError):
                async with over_tls(gateway) as (reader, _):
                    assert await ended(reader) == b""


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"], ids=["without an end", "with an end"])
@pytest.mark.parametrize("upgrade", [b"", b"Upgrade: websocket\r\n"], ids=["HTTP", "WebSocket"])
async def test_head_that_is_too_large_is_told(end: bytes, upgrade: bytes) -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        begun = b"GET / HTTP/1.1\r\n" + upgrade + b"X-Filler: "
        writer.write(begun + b"x" * (MAX_HEAD_BYTES + 1 - len(begun) - len(end)) + end)
        assert (await ended(reader)).startswith(b"HTTP/1.1 431 ")
        async with dial(gateway, "bob") as bob:
            await undisturbed(bob)


async def test_head_of_the_largest_size_is_read() -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        begun = HEALTH[:-2] + b"X-Filler: "
        writer.write(begun + b"x" * (MAX_HEAD_BYTES - len(begun) - 4) + b"\r\n\r\n")
        assert (await answer(reader))[0] == 200


async def test_plain_words_at_a_tls_port_are_no_request() -> None:
    async with secured() as gateway, raw(gateway) as (reader, writer):
        writer.write(HEALTH)
        assert b"HTTP" not in await ended(reader)
        async with over_tls(gateway) as (reader, writer):
            writer.write(HEALTH)
            assert (await answer(reader))[0] == 200


async def test_tls_at_a_plain_port_is_no_request() -> None:
    async with running(handshake_timeout=3.0) as gateway:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with over_tls(gateway):
                pass
        async with dial(gateway, "bob") as bob:
            await undisturbed(bob)


HALF_OPEN = 5_000


@contextlib.contextmanager
def open_files(count: int) -> Generator[None]:
    """Let this process have so many files open for the length of a block."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def half_open(port: int, stack: contextlib.ExitStack) -> list[socket.socket]:
    """Connections whose first requests were begun, each broken off at another byte."""
    begun = []
    for number in range(HALF_OPEN):
        begun.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE)))
        begun[-1].sendall(HEALTH[: number % len(HEALTH)])
    return begun


def closed(sock: socket.socket) -> bool:
    """Read to the end; a half-open connection gets no answer."""
    with contextlib.suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="has no limit of open files to raise")
async def test_half_open_connections_keep_no_one_out() -> None:
    connections = HALF_OPEN
    limits = {"max_connections": connections, "handshake_timeout": 3_600.0}
    held = max_handshakes(GatewayLimits(max_connections=connections))
    # Both ends of each are in this process.
    with open_files(2 * HALF_OPEN + 1_000), contextlib.ExitStack() as stack:
        async with running(**limits) as gateway:
            begun = await anyio.to_thread.run_sync(half_open, gateway.port, stack)
            async with dial(gateway, "bob") as bob, raw(gateway) as (reader, writer):
                await undisturbed(bob)
                writer.write(HEALTH)
                assert (await answer(reader))[0] == 200
                oldest = begun[: HALF_OPEN - held]
                assert await anyio.to_thread.run_sync(lambda: all(map(closed, oldest)))


async def test_as_many_callers_by_http_as_connections() -> None:
    async with running(max_connections=4) as gateway, contextlib.AsyncExitStack() as stack:
        statuses = []
        for _ in range(5):
            reader, writer = await stack.enter_async_context(raw(gateway))
            writer.write(HEALTH)
            statuses.append(int((await reader.readuntil(b"\r\n\r\n")).split()[1]))
        assert statuses == [200, 200, 200, 503, 503]
        async with dial(gateway, "bob") as bob:
            await undisturbed(bob)


async def test_gateway_that_stops_waits_for_no_head() -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with running(handshake_timeout=3_600.0, stop_timeout=60.0) as gateway:
            begun = [await stack.enter_async_context(raw(gateway)) for _ in range(3)]
            for _, writer in begun:
                writer.write(HEALTH[:10])
            async with dial(gateway, "bob") as bob:
                await undisturbed(bob)
        for reader, _ in begun:
            assert await ended(reader) == b""
