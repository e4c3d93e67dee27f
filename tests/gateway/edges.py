"""A gateway at each of its edges: its port, and mounted."""

import json
import re
import socket
import struct
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Gateway, GatewayLimits, ThreadedGateway
from tests.gateway.conftest import PARTICIPANTS
from tests.gateway.http.conftest import Api
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import one_space_config
from tests.patience import PATIENCE


class Speaker(Thread):
    """Writes messages to a socket, and reads it meanwhile without looking into what comes."""

    def __init__(self, found: socket.socket) -> None:
        super().__init__(daemon=True)
        self._socket = found
        self.start()

    def send(self, message: bytes) -> None:
        """Send a message; the mask is 0, which changes nothing."""
        self._socket.sendall(struct.pack("!BBQ4x", 0x81, 0xFF, len(message)) + message)

    def run(self) -> None:
        with suppress(OSError):
            while self._socket.recv(1 << 20):
                pass


class Edge(NamedTuple):
    """A gateway, its HTTP API, and how to join it."""

    place: ThreadedGateway | MountedPlace
    api: Api

    @contextmanager
    def join(self, who: str, **options: Any) -> Generator[ClientConnection]:
        header = self.api.header(who)
        address = f"{self.place.url.removesuffix('/ws')}/ws?space=demo"
        options = {"proxy": None, "compression": None, "max_size": None, **options}
        with connect(
            address, additional_headers=header, **options, open_timeout=PATIENCE
        ) as socket:
            assert json.loads(socket.recv(PATIENCE))["kind"] == "system.welcome"
            assert json.loads(socket.recv(PATIENCE))["kind"] == "system.presence"
            yield socket

    def post(self, who: str, body: bytes) -> httpx.Response:
        return self.api.post(body, who)

    def read_events(self, who: str) -> int:
        """The status of a short event stream, read to its end."""
        return self.api.get("/spaces/demo/events", who, follow="false").status_code

    @contextmanager
    def speaker(self, who: str) -> Generator["Speaker"]:
        """A member that says what it likes at full speed, and reads as fast as it can."""
        with self.stall(who, buffer=4 << 20) as found:
            speaker = Speaker(found)
            yield speaker
            found.shutdown(socket.SHUT_RDWR)
            speaker.join(PATIENCE)

    @contextmanager
    def stall(self, who: str, *, buffer: int = 4096) -> Generator[socket.socket]:
        """A member that has joined and reads nothing more."""
        asks = "GET {path}/ws?space=demo HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\n"
        asks += "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        asks += "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        with self._asked(self.place.url, who, asks, b" 101 ", buffer) as found:
            yield found

    @contextmanager
    def upload(self, who: str, size: int) -> Generator[None]:
        """A message of which so many bytes come, and not the rest."""
        parts = urlsplit(self.place.http_url)
        with socket.create_connection((parts.hostname or "", parts.port or 0), PATIENCE) as found:
            head = f"POST {parts.path}/participants/{who}/messages HTTP/1.1\r\nHost: x\r\n"
            head += f"Authorization: Bearer {self.place.token(who)}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {size + 1}\r\n\r\n"
            found.sendall(head.encode() + b" " * size)
            yield

    @contextmanager
    def stream(self, who: str, status: int = 200) -> Generator[socket.socket]:
        """An event stream of which nothing more is read."""
        asks = "GET {path}/spaces/demo/events HTTP/1.1\r\nHost: x\r\n"
        with self._asked(self.place.http_url, who, asks, b" %d " % status) as found:
            yield found

    @contextmanager
    def _asked(
        self, url: str, who: str, asks: str, answer: bytes, buffer: int = 4096
    ) -> Generator[socket.socket]:
        parts = urlsplit(url)
        path = parts.path.removesuffix("/ws")
        with socket.socket() as found:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            found.settimeout(PATIENCE)
            found.connect((parts.hostname, parts.port))
            token = f"Authorization: Bearer {self.place.token(who)}\r\n\r\n"
            found.sendall((asks.format(path=path) + token).encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += found.recv(1)
            assert answer in head, head
            yield found

    def metric(self, name: str) -> float:
        """A number from the metrics, over all labels."""
        said = self.api.client.get("/metrics").text
        values = re.findall(rf"^meup_{name}(?:\{{.*\}})? (\S+)$", said, re.MULTILINE)
        return sum(map(float, values))


@pytest.fixture(params=["port", "mounted"])
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@contextmanager
def edge(kind: str, **limits: Any) -> Generator[Edge]:
    config = one_space_config("demo", PARTICIPANTS, GatewayLimits(**limits))
    with mounted(config) if kind == "mounted" else Gateway(config=config).in_thread() as place:
        api = Api(place)
        with api.client:
            yield Edge(place, api)
