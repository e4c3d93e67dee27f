"""A gateway to dial, in memory and on a real socket, and words to speak with it."""

import json
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol

import anyio
import pytest

from meup_agent.errors import HandshakeRefused
from meup_agent.gateway import Gateway, GatewayLimits, ThreadedGateway
from meup_agent.testing import MemorySpace
from tests.gateway.local import LocalPlace, local
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import Connector, Transport, one_space_config, websocket_connector
from tests.patience import PATIENCE
from tests.spaces import SpaceCounters

DIALECT = "meup/v0.1"

PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/proposal"}, {"kind": "stream/request"}],
    "bob": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "carol": [],
}

LIMITS = GatewayLimits(max_queued_frames=64, max_message_bytes=100_000, joins_burst=1_000)


class Place(Protocol):
    """The interface that a gateway in memory and one in a thread share."""

    @property
    def counters(self) -> SpaceCounters: ...
    def token(self, participant: str) -> str: ...
    def kill(self) -> None: ...
    def restart(self) -> None: ...
    def drop(self, participant: str) -> None: ...


class Site:
    """A gateway, and how to dial it."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @property
    def is_mounted(self) -> bool:
        return isinstance(self.place, MountedPlace)

    def connector(self, space: str) -> Connector:
        if isinstance(self.place, MemorySpace):
            return self.place.connector(space=space)
        if isinstance(self.place, LocalPlace):
            return self.place.connector(space)
        assert isinstance(self.place, ThreadedGateway | MountedPlace)
        return websocket_connector(self.place.url, space=space)

    @asynccontextmanager
    async def dial(
        self,
        participant: str = "",
        *,
        space: str = "demo",
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[Transport]:
        sent = dict(headers or {})
        if participant:
            sent["Authorization"] = f"Bearer {self.place.token(participant)}"
        async with self.connector(space)(sent) as transport:
            yield transport

    @asynccontextmanager
    async def join(self, *names: str) -> AsyncGenerator[list[Transport]]:
        """Connections in that order; everything said until all are there has been read."""
        async with AsyncExitStack() as stack:
            joined: list[Transport] = []
            for name in names:
                joined.append(await stack.enter_async_context(self.dial(name)))
                await hear(joined[-1], "system.welcome")
                for transport in joined:
                    await hear(transport, "system.presence")
            yield joined


@pytest.fixture(
    params=["memory", "socket", "mounted", pytest.param("local", marks=pytest.mark.thorough)]
)
def site(request: pytest.FixtureRequest) -> Generator[Site]:
    if request.param == "memory":
        yield Site(MemorySpace(participants=PARTICIPANTS, limits=LIMITS))
    elif request.param == "mounted":
        with mounted(one_space_config("demo", PARTICIPANTS, LIMITS)) as place:
            yield Site(place)
    elif request.param == "local":
        with local(one_space_config("demo", PARTICIPANTS, LIMITS)) as place:
            yield Site(place)
    else:
        with Gateway(participants=PARTICIPANTS, limits=LIMITS).in_thread() as gateway:
            yield Site(gateway)


def envelope(sender: str, kind: str = "chat", payload: object = None, **header: object) -> bytes:
    fields = {"protocol": DIALECT, "id": "e1", "from": sender, "kind": kind, **header}
    return json.dumps({**fields, "payload": payload or {}}).encode()


async def hear(transport: Transport, kind: str) -> dict[str, Any]:
    """The next frame, which must be of that kind."""
    with anyio.fail_after(PATIENCE):
        frame = await anext(transport, None)
    assert frame is not None, f"closed with {transport.closed}"
    said: dict[str, Any] = json.loads(frame)
    assert said["kind"] == kind, said
    return said


async def hear_end(transport: Transport) -> int:
    """The close code; nothing else may come before."""
    with anyio.fail_after(PATIENCE):
        async for frame in transport:
            raise AssertionError(frame)
    assert transport.closed is not None
    return transport.closed.code


class Clock:
    """Microseconds that a test sets."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self) -> int:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def exceed_connections(site: Site, headers: Mapping[str, str], most: int) -> HandshakeRefused:
    """Open as many connections as a participant may have with headers; the refusal of one more."""
    async with AsyncExitStack() as stack:
        stack.enter_context(anyio.fail_after(PATIENCE))
        for _ in range(most):
            one = await stack.enter_async_context(site.dial("bob", headers=headers))
            await hear(one, "system.welcome")
        with pytest.raises(HandshakeRefused) as refused:
            await stack.enter_async_context(site.dial("bob", headers=headers))
        assert (refused.value.status, refused.value.retry_after) == (429, 5)
        async with site.join("bob"), site.dial("alice", headers=headers) as other:
            await hear(other, "system.welcome")
    return refused.value
