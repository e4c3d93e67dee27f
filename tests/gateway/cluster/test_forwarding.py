"""A gateway forwards to owners of spaces, and only by the cluster's token."""

import asyncio
import socket
import ssl
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest
from websockets.exceptions import InvalidStatus

from meup_agent.gateway import Config, Gateway, JournalConfig, TlsConfig
from meup_agent.gateway.cluster import forwarding
from meup_agent.gateway.cluster import relay as relays
from meup_agent.gateway.config import HttpConfig
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.edge.listener import (
    ConnectionEnds,
    FrameEnds,
    forwarded_for,
    pack_binary,
    pack_close,
)
from meup_agent.gateway.runtime import STOPS
from tests.gateway.cluster.test_takeover import Standby
from tests.gateway.conftest import envelope, hear
from tests.gateway.journal.conftest import nats_config
from tests.gateway.journal.test_gateway import config_with, hear_chats, rest
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.test_reload import new_certificate
from tests.gateway.websocket_client import hear_until, open_websocket, refusal
from tests.gateways import LAST_SEEN_HEADER, RESUME_HEADER
from tests.nats_servers import held_port
from tests.patience import PATIENCE, patient

pytestmark = pytest.mark.anyio

TOKEN = "of-this-cluster"


@pytest.fixture(autouse=True)
def patience() -> Generator[None]:
    """However busy the machine is: nobody here hangs, and nobody is slow to greet."""
    with patient(
        "meup_agent.gateway.cluster.membership.SILENT_SECONDS",
        "meup_agent.gateway.cluster.forwarding.GREETING_SECONDS",
        # The space stays where it is until its gateway ends.
        "meup_agent.gateway.cluster.membership.STEADY_SECONDS",
    ):
        yield


@pytest.fixture
def ports() -> Generator[list[int]]:
    """Ports that are given to nobody else during a test."""
    with ExitStack() as stack:
        pairs = [held_port() for _ in range(6)]
        for held, _ in pairs:
            stack.enter_context(held)
        yield [port for _, port in pairs]


def node(folder: Path, name: str, ports: list[int]) -> Config:
    config = config_with(folder)
    nats = replace(
        nats_config(folder), node=name, advertise=f"127.0.0.1:{ports.pop()}", cluster_token=TOKEN
    )
    return replace(config, port=ports.pop(), journal=JournalConfig(nats=nats))


@asynccontextmanager
async def two(
    folder: Path,
    ports: list[int],
    certificates: Sequence[Path | None] = (None, None),
    *,
    http: bool = False,
) -> AsyncGenerator[tuple[Gateway, Config, Standby, anyio.Event]]:
    """The gateway that has the space, the configuration of another one, that, and an end."""
    first, second = (
        replace(node(folder, name, ports), tls=None if each is None else TlsConfig(each, each))
        for name, each in zip(("first", "second"), certificates, strict=True)
    )
    # The same people know both.
    second = replace(second, spaces=first.spaces)
    if http:
        first, second = (
            replace(each, http=HttpConfig(port=ports.pop())) for each in (first, second)
        )
    stop_first, stopped = anyio.Event(), anyio.Event()
    standby = Standby(second)
    gateway = Gateway(config=first, port=first.port)

    async def run_first(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with gateway:
            task_status.started()
            await stop_first.wait()
        stopped.set()

    async with anyio.create_task_group() as tasks:
        await tasks.start(run_first)
        standby.gateway = Gateway(config=second, port=second.port)
        tasks.start_soon(standby.run)
        # It forwards from there on, a moment after it listens to members.
        await is_open(advertised(second)[1])
        yield gateway, second, standby, stop_first
        stop_first.set()
        standby.over.set()


def advertised(config: Config) -> tuple[str, int]:
    """Where a gateway takes the connections that others forward to it."""
    assert config.journal.nats is not None
    assert config.journal.nats.advertise is not None
    return forwarding.split_address(config.journal.nats.advertise)


async def is_open(port: int) -> None:
    """Wait until something listens at a port."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                stream = await anyio.connect_tcp("127.0.0.1", port)
            except OSError:
                await anyio.sleep(0.01)
            else:
                await stream.aclose()
                return


async def test_members_come_in_at_any_and_stay_with_the_port(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports) as (first, second, standby, stop_first):
        url, token = f"ws://127.0.0.1:{second.port}/ws?space=demo", first.token("alice")
        headers = {RESUME_HEADER: "1"}
        async with open_websocket(
            url, token, headers=headers, local_addr=("127.0.0.2", 0)
        ) as alice:
            await alice.send(envelope("alice", id="1"))
            (one,) = await hear_chats(alice, 1)
            assert one["id"] == "1"
            assert "127.0.0.2" in forwarded_for.values()
            async with httpx.AsyncClient(timeout=PATIENCE) as client:
                answer = await client.get(f"http://127.0.0.1:{second.port}/readyz")
                assert answer.json() == {"status": "ok"}
            stop_first.set()
            await rest(alice)
            assert alice.close_code == 1012
        with anyio.fail_after(PATIENCE):
            await standby.active.wait()
        headers |= {LAST_SEEN_HEADER: str(one["seq"])}
        async with open_websocket(url, token, headers=headers) as again:
            await again.send(envelope("alice", id="2"))
            assert [said["id"] for said in await hear_chats(again, 1)] == ["2"]
        assert forwarded_for == {}


async def test_a_participant_beside_a_gateway_is_in_the_space_that_another_has(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports) as (owner, second, _, _):
        third = replace(node(tmp_path, "third", ports), spaces=second.spaces)
        headers = {"Authorization": f"Bearer {owner.token('alice')}"}
        async with Gateway(config=third, port=third.port) as gateway:
            async with gateway._gateway.connector("demo")(headers) as alice:
                await hear(alice, "system.welcome")


async def test_a_forwarder_that_stops_closes_its_members_as_an_owner_does(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports) as (owner, second, _, _), AsyncExitStack() as stack:
        third = replace(node(tmp_path, "third", ports), spaces=second.spaces)
        await stack.enter_async_context(Gateway(config=third, port=third.port))
        await is_open(advertised(third)[1])
        url = f"ws://127.0.0.1:{third.port}/ws?space=demo"
        async with (
            open_websocket(url, owner.token("alice")) as alice,
            open_websocket(f"{owner.url}/ws?space=demo", owner.token("bob")) as bob,
        ):
            await alice.send(envelope("alice", id="1"))
            await hear_chats(alice, 1)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(stack.aclose)
                await rest(alice)
                assert (alice.close_code, alice.close_reason) == (1012, STOPS)
                # Its answer was passed on, so its owner does not wait for it to come back.
                while (await hear_until(bob, kind="system.presence"))["payload"][
                    "event"
                ] != "leave":
                    pass


@pytest.mark.parametrize("size", [0, 125, 126, 65_535, 65_536])
def test_the_end_of_a_frame_is_known_however_it_comes(size: int) -> None:
    packed = pack_binary(bytes(size))
    data = packed + packed + pack_close(1000, "")
    edges = [len(packed), 2 * len(packed), len(data)]
    for step in (1, 3, 20_000):
        ends = FrameEnds()
        for at in range(0, len(data), step):
            ends.add(data[at : at + step])
            upto = min(at + step, len(data))
            assert not ends.closed or upto > edges[1]
            behind = min(each for each in edges if each >= upto) - upto
            assert (ends.missing == 0) is (behind == 0)
            assert ends.missing <= behind
        assert ends.closed


async def test_nobody_without_the_token_tells_where_members_are(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports) as (first, _, _, _):
        host, port = advertised(first._config)
        ours = b"\0" * forwarding.CHALLENGE_BYTES
        for token in ("", "another"):
            reader, writer = await asyncio.open_connection(host, port)
            theirs = await reader.readexactly(forwarding.CHALLENGE_BYTES)
            wrong = forwarding.proof_of(token, b"forwarder", theirs, ours, b"\x0010.0.0.1")
            writer.write(wrong + ours + b"\x09\x0010.0.0.1GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
            with anyio.fail_after(PATIENCE):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        assert "10.0.0.1" not in forwarded_for.values()


async def test_an_owner_that_ends_does_not_take_what_it_cannot_let_in(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports) as (first, _, _, _):
        first._gateway._close_listening()
        reader, writer = await asyncio.open_connection(*advertised(first._config))
        theirs, ours = (
            await reader.readexactly(forwarding.CHALLENGE_BYTES),
            bytes(forwarding.CHALLENGE_BYTES),
        )
        writer.write(forwarding.proof_of(TOKEN, b"forwarder", theirs, ours, b"\0") + ours + b"\1\0")
        with anyio.fail_after(PATIENCE), suppress(ConnectionResetError):
            assert await reader.read() == b""  # so its forwarder looks for another
        writer.close()


async def test_a_caller_of_another_machine_is_not_local_where_it_is_forwarded_to(
    tmp_path: Path, ports: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two(tmp_path, ports) as (_, second, _, _):
        async with httpx.AsyncClient(timeout=PATIENCE) as client:
            place = f"http://127.0.0.1:{second.port}/participants?space=demo"
            assert (await client.get(place)).json() == {"participants": []}
            monkeypatch.setattr(forwarding, "address_of", lambda _: "192.0.2.1")
            assert (await client.get(place)).status_code == 401


async def test_who_dials_from_the_port_of_a_forwarded_connection_is_forwarded_itself(
    tmp_path: Path, ports: list[int]
) -> None:
    """Linux gives one local port to connections to different places."""
    async with two(tmp_path, ports) as (first, second, _, _):
        with socket.socket() as dialling:
            dialling.bind(("127.0.0.1", 0))
            from_here = ConnectionEnds(dialling.getsockname(), ("127.0.0.1", first.port))
            forwarded_for[from_here] = "192.0.2.1"
            dialling.connect(("127.0.0.1", second.port))
            url = f"ws://127.0.0.1:{second.port}/ws?space=demo"
            async with open_websocket(url, first.token("alice"), sock=dialling) as alice:
                await alice.send(envelope("alice", id="1"))
                await hear_chats(alice, 1)
        assert forwarded_for.pop(from_here) == "192.0.2.1"


@pytest.mark.parametrize("shown", ["its own", "another"])
async def test_over_tls_a_forwarder_knows_the_owner_by_its_certificate(
    tmp_path: Path, ports: list[int], shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificates = [tmp_path / "first.pem", tmp_path / "second.pem"]
    for each in certificates:
        each.write_bytes(new_certificate())
    if shown == "another":
        monkeypatch.setattr(forwarding, "_fingerprint", lambda _: bytes(forwarding.PROOF_BYTES))
    context = ssl.create_default_context(cafile=str(certificates[1]))
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with two(tmp_path, ports, certificates) as (first, second, _, _):
        url, token = f"wss://127.0.0.1:{second.port}/ws?space=demo", first.token("alice")
        if shown == "another":
            with pytest.raises(InvalidStatus, match="503"):
                async with open_websocket(url, token, ssl=context):
                    pass
            return
        async with open_websocket(url, token, ssl=context) as alice:
            await alice.send(envelope("alice", id="1"))
            assert [said["id"] for said in await hear_chats(alice, 1)] == ["1"]
        async with httpx.AsyncClient(timeout=PATIENCE, verify=context) as client:
            place = f"https://127.0.0.1:{second.port}/spaces/demo/participants"
            for _ in range(2):
                answer = await client.get(place, headers={"Authorization": f"Bearer {token}"})
                assert answer.status_code == 200
                assert answer.headers["connection"] == "close"
            place = f"https://127.0.0.1:{second.port}/participants/alice/messages"
            said = {"kind": "chat", "payload": {"message": "x" * 1_000_000}}
            answer = await client.post(
                place, json=said, headers={"Authorization": f"Bearer {token}"}
            )
            assert answer.status_code == 200


async def test_the_port_for_http_forwards_and_event_streams_resume(
    tmp_path: Path, ports: list[int]
) -> None:
    async with two(tmp_path, ports, http=True) as (first, second, _, _):
        assert second.http is not None
        token, place = first.token("alice"), f"127.0.0.1:{second.http.port}"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            httpx.AsyncClient(headers=headers, timeout=PATIENCE) as client,
            open_websocket(
                f"ws://127.0.0.1:{second.port}/ws?space=demo", token, headers={RESUME_HEADER: "1"}
            ) as alice,
        ):
            for number in "12":
                await alice.send(envelope("alice", id=number))
            before, missed = await hear_chats(alice, 2)
            where, since = (
                f"http://{place}/spaces/demo/events",
                {"Last-Event-ID": str(before["seq"])},
            )
            async with client.stream("GET", where, headers=since) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("id:"):
                        assert line == f"id: {missed['seq']}"
                        break
            answer = await client.get(f"http://{place}/spaces/demo/participants")
            assert answer.status_code == 200
        assert (await refusal(f"ws://{place}/ws?space=demo", token)).status_code == 400


async def test_a_member_that_reads_nothing_ends_with_its_owners_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(relays, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(relays, "CLOSE_SECONDS", 0.05)
    ended = anyio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        writer.close()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*owner.sockets[0].getsockname())
        await relays.relay((reader, writer), there)
        ended.set()

    async with (
        await asyncio.start_server(flood, "127.0.0.1", 0) as owner,
        await asyncio.start_server(forward, "127.0.0.1", 0) as server,
    ):
        _, member = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=1)
        with anyio.fail_after(PATIENCE):
            await ended.wait()
        member.close()


async def test_a_token_is_refused_for_good_in_a_space_that_is_not_its_own(tmp_path: Path) -> None:
    file = tmp_path / "space.yaml"
    file.write_text(
        "spaces:\n"
        "  here: {participants: {alice: {tokens: [token-of-alice-who-is-here]}}}\n"
        "  there: {participants: {alice: {tokens: [token-of-alice-who-is-there]}}}\n"
    )
    async with Gateway(config=load_config(file), port=0) as gateway:
        gateway._gateway.runtime.close_space("there", "the space moves")
        token, place = "token-of-alice-who-is-there", gateway.url.removeprefix("ws")
        assert (await refusal(f"ws{place}/ws?space=here", token)).status_code == 401
        assert (await refusal(f"ws{place}/ws?space=there", token)).status_code == 503
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(headers=headers, timeout=PATIENCE) as client:
            for space, status in ("here", 403), ("there", 503), ("nowhere", 404):
                answer = await client.get(f"http{place}/spaces/{space}/participants")
                assert answer.status_code == status
