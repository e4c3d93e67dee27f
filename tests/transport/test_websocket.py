"""The WebSocket alone: handshakes, and peers that misbehave on the wire."""

import logging
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from websockets.exceptions import ConnectionClosed
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from meup_agent.errors import CannotConnect, ConfigurationError, HandshakeRefused, TransportClosed
from meup_agent.transport import websocket
from tests.gateways import CloseInfo, Transport, websocket_connector
from tests.patience import PATIENCE
from tests.transport.peers import Server, SocketPeer


@asynccontextmanager
async def listening(serve: Callable[[SocketStream], Awaitable[None]]) -> AsyncGenerator[str]:
    """A TCP server in the test's own loop, which may not hang; yields its address."""
    with anyio.fail_after(PATIENCE):
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listener.serve, serve)
                yield f"ws://127.0.0.1:{listener.extra(SocketAttribute.local_port)}"
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def dialled(server: Server) -> AsyncGenerator[tuple[Transport, SocketPeer]]:
    with anyio.fail_after(PATIENCE):
        async with websocket_connector(f"ws://127.0.0.1:{server.port}")({}) as transport:
            yield transport, await server.accept()


async def cannot_connect(
    said: str, address: str, error: type[Exception] = CannotConnect, **options: Any
) -> Any:
    with anyio.fail_after(PATIENCE), pytest.raises(error, match=said) as caught:
        async with websocket_connector(address, **options)({}):
            pytest.fail("must not connect")
    return caught.value


async def shake_hands(stream: SocketStream) -> ServerProtocol:
    """Accept a connection, and leave the rest of the protocol to the test."""
    protocol = ServerProtocol()
    while True:
        protocol.receive_data(await stream.receive())
        for event in protocol.events_received():
            assert isinstance(event, Request)
            protocol.send_response(protocol.accept(event))
            for data in protocol.data_to_send():
                await stream.send(data)
            return protocol


async def read_all(stream: SocketStream) -> None:
    with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
        while True:
            await stream.receive()


async def test_handshake_carries_space_and_headers_and_logs_no_token(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    while not server.requests.empty():
        server.requests.get()
    connector = websocket_connector(f"ws://127.0.0.1:{server.port}", space="a b")
    with anyio.fail_after(PATIENCE):
        async with connector({"Authorization": "Bearer secret", "MEUP-Protocol": "meup/v0.1"}):
            await server.accept()
    request = server.requests.get_nowait()
    assert request.path == "/ws?space=a%20b"
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["MEUP-Protocol"] == "meup/v0.1"
    assert "Sec-WebSocket-Extensions" not in request.headers
    ours = [record for record in caplog.records if record.name == "websockets.client"]
    assert "secret" not in "".join(record.getMessage() for record in ours)


@pytest.mark.parametrize(
    ("status", "wait", "seconds"),
    [(401, "", None), (404, "", None), (503, "", None), (503, "7", 7.0), (429, "soon", None)],
)
async def test_refusal_says_why(
    server: Server, status: int, wait: str, seconds: float | None
) -> None:
    query = f"status={status}" + (f"&wait={wait}" if wait else "")
    address = f"ws://127.0.0.1:{server.port}/ws?{query}"
    refused = await cannot_connect(str(status), address, HandshakeRefused, space="demo")
    assert (refused.status, refused.retry_after) == (status, seconds)
    assert refused.body == "the gateway says no"


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        await cannot_connect(f"{where}: connection refused", f"ws://{where}")


async def test_name_does_not_exist() -> None:
    await cannot_connect(r"nowhere\.invalid:8420: ", "ws://nowhere.invalid:8420")


def test_unusable_address_fails_before_anything_is_dialled() -> None:
    with pytest.raises(ConfigurationError, match="ws://localhost:8420"):
        websocket_connector("http://localhost:8420")


async def test_header_with_a_line_break_is_not_sent(server: Server) -> None:
    with pytest.raises(ConfigurationError, match="Authorization"):
        async with websocket_connector(f"ws://127.0.0.1:{server.port}")({"Authorization": "t\n"}):
            pytest.fail("must not connect")


async def test_peer_without_tls(server: Server) -> None:
    where = f"localhost:{server.port}"
    await cannot_connect(f"{where}: ", f"wss://{where}")


async def test_certificate_that_nobody_trusts(tls_server: Server) -> None:
    address, trusts = f"wss://localhost:{tls_server.port}", ssl.create_default_context()
    await cannot_connect("is not to be trusted: self-signed", address, ssl=trusts)


@pytest.mark.parametrize(
    "answer", [b"", b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 101 Switching Protocols\r\n\r\n"]
)
async def test_peer_that_is_no_gateway(answer: bytes) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await stream.receive()
            if answer:
                await stream.send(answer)

    async with listening(serve) as address:
        await cannot_connect(address.removeprefix("ws://"), address)


async def test_peer_that_never_answers_the_handshake() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await anyio.sleep_forever()

    async with listening(serve) as address:
        await cannot_connect(r"no answer within 0\.1 seconds", address, handshake_timeout=0.1)


async def test_attempt_cancelled_at_any_step_leaves_no_connection() -> None:
    """Cancels after each number of turns of the loop until one attempt gets through."""
    served = 0
    ended = 0

    async def serve(stream: SocketStream) -> None:
        nonlocal served, ended
        served += 1
        async with stream:
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                await shake_hands(stream)
            await read_all(stream)
            ended += 1

    async def cancel_after(turns: int, scope: anyio.CancelScope) -> None:
        for _ in range(turns):
            await anyio.lowlevel.checkpoint()
        scope.cancel()

    async with listening(serve) as address:
        for turns in range(1_000):
            through = False
            async with anyio.create_task_group() as tasks:
                with anyio.CancelScope() as scope:
                    tasks.start_soon(cancel_after, turns, scope)
                    async with websocket_connector(address, close_timeout=0.1)({}) as transport:
                        through = True
                        # Nobody answers the close frame here.
                        await transport.aclose()
            if through:
                break
        while ended < served:
            await anyio.lowlevel.checkpoint()
    assert through


async def test_message_that_is_no_utf8_is_the_peers_to_refuse(server: Server) -> None:
    async def read(peer: SocketPeer) -> None:
        with pytest.raises(ConnectionClosed):
            await server.call(peer.connection.recv())

    async with dialled(server) as (transport, peer):
        await transport.send(b'{"\xff"')
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(read, peer)
            assert [frame async for frame in transport] == []
        assert transport.closed is not None
        assert (transport.closed.code, transport.closed.local) == (1007, False)


async def test_fragments_become_one_message(server: Server) -> None:
    async with dialled(server) as (transport, peer):
        await server.call(peer.connection.send(["one ", "two ", "three"]))
        assert await anext(transport) == b"one two three"


@pytest.mark.parametrize("reads", [True, False], ids=["reads", "does not even read"])
async def test_peer_that_never_answers_a_ping_is_lost(reads: bool) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await shake_hands(stream)
            if not reads:
                await lost.wait()
            await read_all(stream)

    lost = anyio.Event()
    async with listening(serve) as address:
        connector = websocket_connector(
            address, ping_interval=0.05, ping_deadline=0.1, close_timeout=0.1
        )
        async with connector({}) as transport:

            async def send() -> None:
                with suppress(TransportClosed):
                    while True:
                        await transport.send(bytes(1_000_000))

            async with anyio.create_task_group() as tasks:
                if not reads:
                    tasks.start_soon(send)
                assert [frame async for frame in transport] == []
            assert transport.closed == CloseInfo(1011, "no pong within 0.1 seconds", local=True)
            lost.set()


async def test_peer_that_answers_pings_is_kept() -> None:
    async def serve(stream: SocketStream) -> None:
        pings = 0
        async with stream:
            protocol = await shake_hands(stream)
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    protocol.receive_data(await stream.receive())
                    pings += len(protocol.events_received())
                    if pings == 3:
                        protocol.send_text(b"kept")
                    for data in protocol.data_to_send():
                        await stream.send(data)

    async with listening(serve) as address:
        connector = websocket_connector(
            address, ping_interval=0.01, ping_deadline=PATIENCE, close_timeout=0.1
        )
        async with connector({}) as transport:
            assert await anext(transport) == b"kept"
            assert transport.closed is None


def frame(opcode: Opcode, payload: bytes) -> bytes:
    return Frame(opcode, payload).serialize(mask=False)


CUT = [frame(Opcode.TEXT, b"whole"), frame(Opcode.TEXT, b"x" * 1_000)[:500]]


@pytest.mark.parametrize(
    ("frames", "read", "code"),
    [([frame(Opcode.CLOSE, b"")], [], 1005), (CUT, [b"whole"], 1006)],
    ids=["close without a code", "end in the middle of a message"],
)
async def test_end_that_says_nothing(frames: list[bytes], read: list[bytes], code: int) -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await shake_hands(stream)
            await stream.send(b"".join(frames))
            if code == 1005:
                await stream.receive()

    async with listening(serve) as address, websocket_connector(address)({}) as transport:
        assert [frame async for frame in transport] == read
        assert transport.closed == CloseInfo(code)


async def test_peer_that_breaks_the_protocol() -> None:
    async def serve(stream: SocketStream) -> None:
        async with stream:
            await shake_hands(stream)
            await stream.send(frame(Opcode.CONT, b"of nothing"))
            answer = bytearray(await stream.receive())
            mask, payload = answer[2:6], answer[6:]
            payload = bytearray(b ^ mask[i % 4] for i, b in enumerate(payload))
            codes.append(int(Close.parse(bytes(payload)).code))

    codes: list[int] = []
    async with listening(serve) as address, websocket_connector(address)({}) as transport:
        assert [frame async for frame in transport] == []
        assert transport.closed is not None
        assert (transport.closed.code, transport.closed.local) == (1002, True)
    assert codes == [1002]


async def test_two_connections_of_one_connector(server: Server) -> None:
    connector = websocket_connector(f"ws://127.0.0.1:{server.port}")
    with anyio.fail_after(PATIENCE):
        async with connector({}) as first:
            left = await server.accept()
            async with connector({}) as second:
                right = await server.accept()
                await left.send(b"left")
                await right.send(b"right")
                assert (await anext(first), await anext(second)) == (b"left", b"right")


@pytest.mark.parametrize("installed", ["16.0", "16.1.2", "17.0", "17.0.0rc1"])
async def test_library_too_old_for_trio_is_refused(
    installed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("websockets.version.version", installed)
    monkeypatch.setattr(websocket, "runs_on_asyncio", lambda: False)
    said = rf"17\.0\.1 or newer, and {installed} is"
    await cannot_connect(said, "ws://localhost:9", ConfigurationError)
