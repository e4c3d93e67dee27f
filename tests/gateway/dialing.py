"""Clients of the message port that the tests of the edge dial with."""

import contextlib
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.http11 import Response

from meup_agent.gateway import Gateway, GatewayLimits
from tests.gateway.conftest import PARTICIPANTS, envelope
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.websocket_client import hear_until, open_websocket, refusal
from tests.patience import PATIENCE


def limited(**limits: Any) -> Gateway:
    return Gateway(participants=PARTICIPANTS, limits=GatewayLimits(**limits))


@pytest.fixture
async def gateway() -> AsyncGenerator[Gateway]:
    async with limited(max_message_bytes=50_000) as it:
        yield it


@asynccontextmanager
async def dial(
    gateway: Gateway, who: str = "", path: str = "/ws?space=demo", **options: Any
) -> Any:
    token = gateway.token(who) if who else ""
    async with open_websocket(gateway.url + path, token, **options) as client:
        yield client


async def refused(gateway: Gateway, who: str = "", path: str = "/ws?space=demo") -> Response:
    """The answer to a handshake that is refused."""
    return await refusal(gateway.url + path, gateway.token(who) if who else "")


@asynccontextmanager
async def pair(gateway: Gateway) -> AsyncGenerator[tuple[ClientConnection, ClientConnection]]:
    """Alice and Bob, who have read each other's arrival."""
    async with dial(gateway, "alice") as alice, dial(gateway, "bob") as bob:
        await read(alice, 3)
        await read(bob, 2)
        yield alice, bob


async def read(client: ClientConnection, number: int = 1) -> list[dict[str, Any]]:
    with anyio.fail_after(PATIENCE):
        return [json.loads(await client.recv()) for _ in range(number)]


async def close_code(client: ClientConnection) -> int | None:
    with anyio.fail_after(PATIENCE):
        with contextlib.suppress(ConnectionClosed):
            while True:
                await client.recv()
        await client.wait_closed()
    return client.close_code


def send_at_once(client: ClientConnection, messages: Iterable[str | bytes]) -> None:
    """Send messages in one write: they come at once, however busy the machine is."""
    frames = [
        Frame(Opcode.TEXT, each.encode() if isinstance(each, str) else each) for each in messages
    ]
    client.transport.write(b"".join(each.serialize(mask=True) for each in frames))


async def undisturbed(member: ClientConnection, name: str = "bob") -> None:
    """Another member still speaks and hears."""
    await member.send(envelope(name, id="still-here"))
    await hear_until(member, id="still-here")


def join_frame(gateway: Gateway, who: str = "alice", /, **changes: object) -> str:
    fields = {"type": "join", "participantId": who, "space": "demo", "token": gateway.token(who)}
    return json.dumps({k: v for k, v in {**fields, **changes}.items() if v is not None})
