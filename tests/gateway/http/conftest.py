"""A gateway, and a client of its HTTP API."""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from meup_agent.gateway import Config, Gateway, GatewayLimits, ThreadedGateway
from tests.gateway.mounted import MountedPlace
from tests.gateways import one_space_config
from tests.no_tls import ALONE
from tests.patience import PATIENCE

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
    "bob": [{"kind": "*"}],
    "carol": [],
}

LIMITS = GatewayLimits(max_message_bytes=20_000, max_queued_frames=50)


def config(limits: GatewayLimits = LIMITS) -> Config:
    """A space, with HTTP at the port for WebSocket."""
    return one_space_config("demo", PARTICIPANTS, limits)


class Api:
    """Calls the HTTP API of a gateway, and joins by WebSocket."""

    def __init__(self, gateway: ThreadedGateway | MountedPlace) -> None:
        self.gateway = gateway
        self.client = httpx.Client(base_url=gateway.http_url, **ALONE)

    def header(self, participant: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.gateway.token(participant)}"}

    def get(self, path: str, participant: str = "alice", **query: Any) -> httpx.Response:
        return self.client.get(path, params=query, headers=self.header(participant))

    def post(self, envelope: Any, participant: str = "alice", **more: Any) -> httpx.Response:
        path = f"/participants/{participant}/messages"
        content = envelope if isinstance(envelope, bytes) else json.dumps(envelope).encode()
        headers = {"Content-Type": "application/json", **self.header(participant)}
        return self.client.post(path, content=content, headers={**headers, **more})

    def say(self, text: str, participant: str = "alice") -> int:
        """Send a chat, again if a reader does not keep up; its number."""
        envelope = {"kind": "chat", "payload": {"message": text}}
        end = time.monotonic() + PATIENCE
        while True:
            answer = self.post(envelope, participant)
            if time.monotonic() > end or answer.json().get("limit") != "slow_reader_seconds":
                break
        assert answer.status_code == 200, answer.text
        seq: int = answer.json()["seq"]
        return seq

    def dial(self, participant: str, **more: str) -> ClientConnection:
        url, headers = f"{self.gateway.url}/ws?space=demo", {**self.header(participant), **more}
        return connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE)

    @contextmanager
    def join(self, participant: str) -> Generator[ClientConnection]:
        """A connection that has read its welcome and that it joined."""
        with self.dial(participant) as socket:
            assert json.loads(socket.recv(PATIENCE))["kind"] == "system.welcome"
            assert json.loads(socket.recv(PATIENCE))["kind"] == "system.presence"
            yield socket


@contextmanager
def served(limits: GatewayLimits = LIMITS, **more: Any) -> Generator[Api]:
    """A gateway with these limits, and more of a configuration, and its API."""
    with Gateway(config=replace(config(limits), **more)).in_thread() as gateway:
        found = Api(gateway)
        with found.client:
            yield found


@pytest.fixture
def api() -> Generator[Api]:
    with served() as found:
        yield found
