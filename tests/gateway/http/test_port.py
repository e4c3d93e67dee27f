"""HTTP at a port of its own: TLS, callers who say nothing, and how it begins and ends."""

import contextlib
import os
import socket
import ssl
from collections.abc import Generator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.responses import PlainTextResponse
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Gateway, HttpConfig, TlsConfig
from meup_agent.gateway.edge.http.server import AsgiServer
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.http.conftest import LIMITS, Api, config, served
from tests.no_tls import ALONE
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

OWN = HttpConfig(port=0)


@pytest.fixture
def api() -> Generator[Api]:
    with served(http=OWN) as found:
        assert found.gateway.http_url.rpartition(":")[2] != found.gateway.url.rpartition(":")[2]
        yield found


def connected(api: Api) -> socket.socket:
    parts = urlsplit(api.gateway.http_url)
    return socket.create_connection((str(parts.hostname), parts.port or 0), timeout=PATIENCE)


def test_it_speaks_tls_as_the_other_port_does() -> None:
    tls = TlsConfig(CERTIFICATE, CERTIFICATE)
    with Gateway(config=replace(config(), http=OWN, tls=tls)).in_thread() as gateway:
        trusted = ssl.create_default_context(cafile=str(CERTIFICATE))
        url = gateway.http_url.replace("127.0.0.1", "localhost")
        assert url.startswith("https://")
        answer = httpx.get(f"{url}/healthz", verify=trusted, trust_env=False, timeout=PATIENCE)
        assert answer.json() == {"status": "ok"}


def test_websocket_is_told_of_the_right_port(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    dialled = api.gateway.http_url.replace("http", "ws")
    with pytest.raises(InvalidStatus) as raised:
        connect(
            f"{dialled}/ws?space=demo",
            additional_headers=api.header("alice"),
            proxy=None,
            open_timeout=PATIENCE,
        )
    response = raised.value.response
    assert response.status_code == 400
    assert response.body is not None
    assert api.gateway.url in response.body.decode()
    # Uvicorn says to install what speaks WebSocket.
    assert not [each for each in caplog.records if each.name.startswith("uvicorn")]


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        other = replace(config(), http=HttpConfig("127.0.0.1", port))
        with pytest.raises(ConfigurationError, match=f"127.0.0.1:{port} for HTTP"):
            with Gateway(config=other).in_thread():
                pass


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: "])
def test_who_never_ends_the_head_is_dropped(said: bytes) -> None:
    with served(replace(LIMITS, handshake_timeout=0.2), http=OWN) as api:
        with connected(api) as slow:
            slow.sendall(said)
            with contextlib.suppress(ConnectionResetError):
                assert slow.recv(100) == b""
        for _ in range(10):  # ours may come as late, where the machine is slow
            with contextlib.suppress(httpx.TransportError):
                assert api.client.get("/healthz").status_code == 200
                break
        else:
            raise AssertionError("it answers nobody")


def test_who_never_ends_the_body_is_told() -> None:
    with served(replace(LIMITS, join_timeout=0.2), http=OWN) as api, connected(api) as slow:
        slow.sendall(
            b"POST /participants/alice/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n"
            b"Authorization: " + api.header("alice")["Authorization"].encode() + b"\r\n\r\n{"
        )
        assert slow.makefile("rb").read().startswith(b"HTTP/1.1 408 ")


def test_it_listens_again_after_a_restart(api: Api) -> None:
    api.gateway.restart()
    with httpx.Client(base_url=api.gateway.http_url, **ALONE) as client:
        assert client.get("/readyz").status_code == 200


@pytest.mark.anyio
async def test_an_answer_in_parts_waits_for_no_acknowledgement() -> None:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("there")(scope, receive, send)

    server = AsgiServer(answer, max_connections=8, head_seconds=PATIENCE, stop_seconds=1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        await server.start(listening)
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as client:
            port = listening.getsockname()[1]
            async with client.stream("GET", f"http://127.0.0.1:{port}/") as answered:
                ours = answered.extensions["network_stream"].get_extra_info("client_addr")
                assert has_no_delay(other_end(ours))
        await server.stop()


def other_end(address: tuple[str, int]) -> socket.socket:
    """This process's end of a connection that was dialled from an address."""
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):
            found = socket.socket(fileno=os.dup(number))
            with contextlib.suppress(OSError):
                if found.getpeername() == address:
                    return found
            found.close()
    raise AssertionError(f"nobody is connected to {address}")


def has_no_delay(connection: socket.socket) -> bool:
    with connection:
        return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
