"""A gateway with a journal in a file: what its members are promised, and that it stops in order."""

import contextlib
import socket
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, GatewayLimits, JournalConfig, RunningGateway, serve
from meup_agent.gateway.journal import waiting
from tests.gateway.conftest import envelope
from tests.gateway.journal.conftest import fill_disk
from tests.gateway.websocket_client import hear, open_websocket
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER, one_space_config
from tests.journal_files import kept_ids
from tests.patience import PATIENCE

LIMITS = GatewayLimits(messages_per_second=1e9, messages_burst=10**9)


def config_with(path: Path, **journal: Any) -> Config:
    participants: dict[str, list[dict[str, Any]]] = {
        name: [{"kind": "chat"}] for name in ("alice", "bob")
    }
    config = one_space_config("demo", participants, LIMITS)
    return replace(config, port=0, journal=JournalConfig(path, **journal))


@asynccontextmanager
async def dial(
    gateway: Gateway | RunningGateway, token: str, seen: int | None = None
) -> AsyncGenerator[ClientConnection]:
    headers = {RESUME_HEADER: "1"}
    if seen is not None:
        headers[LAST_SEEN_HEADER] = str(seen)
    async with open_websocket(f"{gateway.url}/ws?space=demo", token, headers=headers) as client:
        yield client


async def hear_chats(client: ClientConnection, count: int) -> list[dict[str, Any]]:
    """The next chats, whatever comes between."""
    chats: list[dict[str, Any]] = []
    while len(chats) < count:
        said = await hear(client)
        if said["kind"] == "chat":
            chats.append(said)
    return chats


async def rest(client: ClientConnection) -> list[dict[str, Any]]:
    """The frames that come until it is closed."""
    heard: list[dict[str, Any]] = []
    with contextlib.suppress(ConnectionClosed):
        while True:
            heard.append(await hear(client))
    return heard


@pytest.mark.rule("6.resume.order")
@pytest.mark.usefixtures("engine")
async def test_resume_after_a_restart_gives_what_was_missed_before_anything_new(path: Path) -> None:
    async with Gateway(config=config_with(path)) as gateway:
        alice_token, bob_token = gateway.token("alice"), gateway.token("bob")
        async with dial(gateway, alice_token) as alice:
            async with dial(gateway, bob_token) as bob:
                await alice.send(envelope("alice", id="first"))
                (first,) = await hear_chats(bob, 1)
            for number in range(1_800):
                await alice.send(envelope("alice", id=str(number)))
            await hear_chats(alice, 1 + 1_800)
            async with dial(gateway, bob_token, first["seq"]) as bob:
                await alice.send(envelope("alice", id="new"))
                welcome = await hear(bob)
                missed = await hear_chats(bob, 1_801)

    assert welcome["kind"] == "system.welcome"
    assert welcome["payload"]["resumed"] is True
    assert welcome["payload"]["gap"] is False
    assert [chat["id"] for chat in missed] == [*map(str, range(1_800)), "new"]
    numbers = [chat["seq"] for chat in missed]
    assert numbers == sorted(set(numbers))
    assert numbers[-2] <= welcome["payload"]["until"] < numbers[-1]


@pytest.mark.rule("6.journal.gap")
async def test_gap_is_announced_where_the_file_was_lost(path: Path) -> None:
    config = config_with(path)
    async with Gateway(config=config) as gateway:
        token = gateway.token("alice")
        async with dial(gateway, token) as alice:
            seen = (await hear(alice))["seq"]
    for file in path.parent.iterdir():
        file.unlink()
    async with Gateway(config=config) as gateway, dial(gateway, token, seen) as alice:
        payload = (await hear(alice))["payload"]
        assert (payload["resumed"], payload["gap"]) == (True, True)


@pytest.mark.rule("6.journal.gap")
async def test_gap_is_announced_where_too_much_was_forgotten(path: Path) -> None:
    config = config_with(path, max_bytes=1_000_000)
    async with Gateway(config=config) as gateway:
        alice_token, bob_token = gateway.token("alice"), gateway.token("bob")
        async with dial(gateway, bob_token) as bob:
            seen = (await hear(bob))["seq"]
        async with dial(gateway, alice_token) as alice:
            for number in range(3_000):
                text = {"message": "x" * 1_000}
                await alice.send(envelope("alice", id=str(number), payload=text))
            await hear_chats(alice, 3_000)
            left: list[dict[str, Any]] = []
            while not left:
                # He is asked to connect again if what he reads is forgotten before he has it.
                with contextlib.suppress(ConnectionClosed):
                    async with dial(gateway, bob_token, seen) as bob:
                        payload = (await hear(bob))["payload"]
                        assert (payload["resumed"], payload["gap"]) == (True, True)
                        (oldest,) = await hear_chats(bob, 1)
                        left = [oldest, *await hear_chats(bob, 2_999 - int(oldest["id"]))]
    assert int(oldest["id"]) > 0
    assert [chat["id"] for chat in left] == [str(n) for n in range(int(oldest["id"]), 3_000)]


async def test_full_journal_makes_members_wait(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MAX_PENDING", 100)
    number, text = 3_000, {"message": "x" * 1_000}
    config = config_with(path)
    token = config.spaces[0].participants["alice"].tokens[0]
    async with serve(config) as gateway, dial(gateway, token) as alice:
        await hear(alice)
        full = anyio.Event()
        file = gateway.runtime.journals[0]
        held = file.on_full

        def tell(is_full: bool) -> None:
            held(is_full)
            full.set()

        monkeypatch.setattr(file, "on_full", tell)

        async def say() -> None:
            for n in range(number):
                await alice.send(envelope("alice", id=str(n), payload=text))

        async with anyio.create_task_group() as tasks:
            with closing(sqlite3.connect(path, isolation_level=None)) as other:
                other.execute("BEGIN IMMEDIATE")  # a disk that hangs looks the same
                tasks.start_soon(say)
                with anyio.fail_after(PATIENCE):
                    await full.wait()
                # What was in one read of the socket, and no more; the sender waits.
                assert 100 <= gateway.counters.frames_in < 2_000
                for _ in range(4_000):  # in each turn of the loop it would read some
                    await anyio.lowlevel.checkpoint()
                assert gateway.counters.frames_in < 2_000
                other.execute("ROLLBACK")
            echoes = await hear_chats(alice, number)
    assert [echo["id"] for echo in echoes] == list(map(str, range(number)))


async def test_full_disk_stops_the_gateway(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = config_with(path)
    token = config.spaces[0].participants["alice"].tokens[0]
    async with serve(config) as gateway:
        async with dial(gateway, token) as alice:
            await hear(alice)
            fill_disk(gateway.runtime.journals[0])
            for number in range(100):
                text = {"message": "x" * 1_000}
                await alice.send(envelope("alice", id=str(number), payload=text))
            heard = await rest(alice)
            assert alice.close_code == 1012
        with anyio.fail_after(PATIENCE):
            await gateway.failed.wait()
        with pytest.raises(OSError, match="onnect"):
            await dial(gateway, token).__aenter__()
    assert gateway.failure.startswith(f"the journal {path} cannot be written: ")
    assert caplog.text.count(gateway.failure) == 1
    accepted = [said["id"] for said in heard if said["kind"] == "chat"]
    assert len(accepted) < 100
    assert accepted == kept_ids(path, "chat")


async def test_what_was_sent_before_the_end_is_echoed_before_the_close(path: Path) -> None:
    config = config_with(path)
    token = config.spaces[0].participants["alice"].tokens[0]
    async with serve(config) as gateway, dial(gateway, token) as alice:
        await hear(alice)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # a disk that takes its time looks the same
            for number in range(50):
                await alice.send(envelope("alice", id=str(number)))
            with anyio.fail_after(PATIENCE):
                while gateway.counters.accepted < 50:
                    await anyio.lowlevel.checkpoint()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(gateway.stop)
                await anyio.wait_all_tasks_blocked()
                other.execute("ROLLBACK")
        heard = await rest(alice)
        assert alice.close_code == 1012
    echoes = [said["id"] for said in heard if said["kind"] == "chat"]
    assert echoes == [str(number) for number in range(50)]
    assert kept_ids(path, "chat") == echoes


async def test_port_that_is_taken_leaves_the_journal_to_others(path: Path) -> None:
    config = config_with(path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ConfigurationError, match="cannot listen"):
            async with serve(config, port=taken.getsockname()[1]):
                raise AssertionError("it listens")
    async with serve(config):
        with pytest.raises(ConfigurationError, match="another gateway's"):
            async with serve(config):
                raise AssertionError("it listens")
