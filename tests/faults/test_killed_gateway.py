"""A gateway that is killed under load, and started again on the same journal.

Its members speak by hand: what an envelope's sender was told decides what must be there.
"""

import contextlib
import json
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.cli.processes import Running
from tests.faults.gateways import JOURNALS, free_port, gateway, space_yaml
from tests.gateway.websocket_client import open_websocket
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER
from tests.patience import PATIENCE

SENDERS = 4
IN_FLIGHT = 40
"""Envelopes of each sender whose echoes it has not seen."""

ACCEPTED = (200, 600, 1_200)
"""So many have been told to be accepted when the gateway is killed, each time."""


class Member:
    """A participant that resumes, and all that it has heard, over its connections."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.heard: list[dict[str, Any]] = []
        self.welcome: dict[str, Any] = {}
        self.seen: int | None = None
        self.heard_more = anyio.Event()
        self._url = f"ws://127.0.0.1:{port}/ws?space=demo"

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[ClientConnection]:
        headers = {RESUME_HEADER: "1"}
        if self.seen is not None:
            headers[LAST_SEEN_HEADER] = str(self.seen)
        async with open_websocket(self._url, self.name, headers=headers) as client:
            welcome = json.loads(await client.recv())
            assert welcome["kind"] == "system.welcome"
            self.welcome = welcome["payload"]
            yield client

    async def listen(self, client: ClientConnection) -> None:
        """Hear everything until the connection ends."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                self.take(json.loads(await client.recv()))

    def take(self, said: dict[str, Any]) -> None:
        self.heard.append(said)
        self.seen = max(self.seen or 0, said["seq"])
        self.heard_more.set()
        self.heard_more = anyio.Event()

    async def until(self, enough: Callable[[], bool]) -> None:
        with anyio.fail_after(PATIENCE):
            while not enough():
                await self.heard_more.wait()

    async def until_seen(self, number: int) -> None:
        await self.until(lambda: (self.seen or 0) >= number)


class Sender(Member):
    """Says one thing after the other; what it does not hear again, it says again."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name, port)
        self.accepted: dict[str, int] = {}
        self.open: dict[str, None] = {}
        self.said_again = 0

    def take(self, said: dict[str, Any]) -> None:
        if said["from"] == self.name:
            self.open.pop(said["id"], None)
            first = self.accepted.setdefault(said["id"], said["seq"])
            assert said["seq"] == first, "an envelope has two numbers"
        super().take(said)

    async def speak(self, client: ClientConnection) -> None:
        """Say as much as may be on its way, until the connection ends."""
        with contextlib.suppress(ConnectionClosed):
            while True:
                while len(self.open) < IN_FLIGHT:
                    await self.say(client, f"{self.name}-{len(self.accepted) + len(self.open)}")
                await self.heard_more.wait()

    async def say_again(self, client: ClientConnection) -> None:
        self.said_again += len(self.open)
        for each in tuple(self.open):
            await self.say(client, each)
        await self.until(lambda: not self.open)

    async def say(self, client: ClientConnection, id: str) -> None:
        self.open[id] = None
        fields = {"protocol": "meup/v0.1", "id": id, "from": self.name, "kind": "chat"}
        await client.send(json.dumps({**fields, "payload": {"message": id}}))


async def loaded_and_killed(
    process: Running, watcher: Member, senders: list[Sender], number: int
) -> None:
    """Everybody comes, those who were here before say again what is open, and then some more."""

    async def play(member: Member) -> None:
        async with member.connected() as client, anyio.create_task_group() as playing:
            if isinstance(member, Sender):
                playing.start_soon(repeat_and_speak, member, client)
            await member.listen(client)
            playing.cancel_scope.cancel()

    async def repeat_and_speak(sender: Sender, client: ClientConnection) -> None:
        with contextlib.suppress(ConnectionClosed):
            await sender.say_again(client)
            await sender.speak(client)

    async with anyio.create_task_group() as tasks:
        for member in (watcher, *senders):
            tasks.start_soon(play, member)
        await senders[0].until(lambda: sum(len(each.accepted) for each in senders) >= number)
        process.process.kill()


@pytest.mark.rule("6.journal.kept", "6.journal.again", "6.resume.order")
@pytest.mark.parametrize("journal", JOURNALS)
async def test_what_was_accepted_is_there_and_comes_once(tmp_path: Path, journal: str) -> None:
    names = ("watcher", *(f"s{number}" for number in range(SENDERS)))
    file, port = space_yaml(tmp_path, names, journal), free_port()
    watcher = Member("watcher", port)
    senders = [Sender(f"s{number}", port) for number in range(SENDERS)]
    for number in ACCEPTED:
        with gateway(file, port) as process:
            await loaded_and_killed(process, watcher, senders, number)

    with gateway(file, port) as process:
        async with watcher.connected() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(watcher.listen, client)
            for sender in senders:
                async with sender.connected() as own, anyio.create_task_group() as listening:
                    listening.start_soon(sender.listen, own)
                    await sender.say_again(own)
                    await watcher.until_seen(max(sender.accepted.values()))
                    listening.cancel_scope.cancel()
            tasks.cancel_scope.cancel()
        assert watcher.welcome["resumed"] is True
        assert watcher.welcome["gap"] is False
        assert process.end(signal.SIGTERM) == 0

    numbers = [said["seq"] for said in watcher.heard]
    assert numbers == sorted(set(numbers)), "something came twice, or in another order"
    heard = {said["id"]: said["seq"] for said in watcher.heard if said["kind"] == "chat"}
    accepted = {id: seq for sender in senders for id, seq in sender.accepted.items()}
    assert heard == accepted
    assert len(accepted) >= ACCEPTED[-1]
    assert all(sender.said_again for sender in senders)
    for sender in senders:
        # Each in the order in which it was said.
        ids = sorted(sender.accepted, key=lambda id: accepted[id])
        assert ids == [f"{sender.name}-{number}" for number in range(len(ids))]
