"""Floods of frames that are not messages, over real sockets, while the others go on."""

import asyncio
import contextlib
import json
import ssl
import struct
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from websockets.asyncio.client import ClientConnection

from meup_agent.gateway import Gateway
from meup_agent.gateway.edge.connection import FRAMES_PER_TURN
from meup_agent.gateway.edge.listener import MEMBER_READ_BYTES
from tests.gateway.conftest import envelope
from tests.gateway.dialing import dial
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.own_loop import running
from tests.gateway.raw_client import Streams, frames, handshake, masked, raw, said_close, shaken
from tests.gateway.test_one_port import secured
from tests.gateway.websocket_client import hear_until
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

ROUNDS = 50
FLOOD = 10_000

BEGIN = masked(0x01)
FLOODS = {
    "empty-continuations": BEGIN + masked(0x00) * FLOOD,
    "pings": masked(0x89) * FLOOD,
    "long-pings": masked(0x89, b"p" * 125) * FLOOD,
    "pongs": masked(0x8A) * FLOOD,
    "a-byte-a-frame": masked(0x01, b"{") + masked(0x00, b" ") * FLOOD,
}


@asynccontextmanager
async def stranger(gateway: Gateway) -> AsyncGenerator[Streams]:
    """A connection after its handshake, without a token."""
    async with raw(gateway) as (reader, writer):
        writer.write(handshake("/"))
        with anyio.fail_after(PATIENCE):
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
        yield reader, writer


async def round_trip(bob: ClientConnection, name: str) -> None:
    await bob.send(envelope("bob", id=name))
    await hear_until(bob, id=name)


async def flood(writer: asyncio.StreamWriter, chunk: bytes, sent: list[int]) -> None:
    """Write without end, or until the connection ends."""
    with contextlib.suppress(ConnectionError):
        while True:
            writer.write(chunk)
            await writer.drain()
            sent.append(len(chunk))


@pytest.mark.rule("3.join.budget")
@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.limit("join_frames")
async def test_stranger_that_floods_is_closed_after_some_frames(kind: str) -> None:
    async with (
        running(join_timeout=3_600, stop_timeout=0.2) as gateway,
        dial(gateway, "bob") as bob,
    ):
        async with stranger(gateway) as (reader, writer), anyio.create_task_group() as tasks:
            closed: list[int] = []

            async def hear_end() -> None:
                closed.append(await said_close(reader))

            tasks.start_soon(hear_end)
            tasks.start_soon(flood, writer, FLOODS[kind], [])
            rounds = 0
            while not closed or rounds < ROUNDS:
                rounds += 1
                await round_trip(bob, f"during-{rounds}")
            assert closed == [4400]
            tasks.cancel_scope.cancel()
            writer.transport.abort()
        await round_trip(bob, "after")
        assert gateway.counters.not_admitted == {4400: 1}


@pytest.mark.rule("3.join.budget")
async def test_join_frame_in_the_last_frame_of_the_budget() -> None:
    token_of = {"type": "join", "participantId": "mallory", "space": "demo"}
    async with running(join_frames=5) as gateway, stranger(gateway) as (reader, writer):
        join = json.dumps({**token_of, "token": gateway.token("mallory")}).encode()
        writer.write(masked(0x8A) + masked(0x01, join[:9]) + masked(0x00, join[9:20]))
        writer.write(masked(0x89) + masked(0x80, join[20:]))
        with anyio.fail_after(PATIENCE):
            heard = [await anext(frames(reader)) for _ in range(2)]
        assert [opcode for opcode, _ in heard] == [0xA, 0x1]
        assert json.loads(heard[1][1])["kind"] == "system.welcome"


@pytest.mark.rule("3.join.budget")
async def test_bytes_before_the_join_count_together() -> None:
    limits: dict[str, Any] = {"join_frames": 1_000, "close_timeout": 0.2}
    async with running(**limits) as gateway, stranger(gateway) as (reader, writer):
        writer.write(masked(0x8A, b"p" * 125) * 200)
        assert await said_close(reader) == 1009


@pytest.mark.rule("3.frames")
@pytest.mark.parametrize("kind", FLOODS)
@pytest.mark.limit("frames_per_second", "frames_burst")
async def test_frames_that_are_no_message_are_read_later(kind: str) -> None:
    slow = {"frames_per_second": 0.001, "frames_burst": 100, "close_timeout": 0.2}
    async with running(**slow, stop_timeout=0.2) as gateway, dial(gateway, "bob") as bob:
        async with shaken(gateway, "mallory") as (_, writer), anyio.create_task_group() as tasks:
            sent: list[int] = []
            tasks.start_soon(flood, writer, FLOODS[kind], sent)
            for number in range(ROUNDS):
                await round_trip(bob, f"during-{number}")
            # What the sockets hold, and no more; the rest of it stays with who sent it.
            before = len(sent)
            for number in range(ROUNDS):
                await round_trip(bob, f"later-{number}")
            assert len(sent) == before
            tasks.cancel_scope.cancel()
            writer.transport.abort()


@pytest.mark.rule("3.frames")
async def test_pings_are_answered_as_fast_as_they_are_read() -> None:
    slow = {"frames_per_second": 0.001, "frames_burst": 100}
    async with running(**slow, stop_timeout=0.2) as gateway, dial(gateway, "bob") as bob:
        async with shaken(gateway, "mallory") as (reader, writer), anyio.create_task_group() as all:
            pongs: list[bytes] = []

            async def count() -> None:
                async for opcode, payload in frames(reader):
                    if opcode == 0xA:
                        pongs.append(payload)

            all.start_soon(count)
            writer.write(b"".join(masked(0x89, str(number).encode()) for number in range(FLOOD)))
            for number in range(ROUNDS):
                await round_trip(bob, f"during-{number}")
            # The first beyond the burst is what closes the gate.
            assert pongs == [str(number).encode() for number in range(101)]
            all.cancel_scope.cancel()
            writer.transport.abort()


@pytest.mark.rule("3.frames")
async def test_message_in_very_many_fragments_arrives() -> None:
    said = envelope("mallory", id="in-pieces", payload={"text": "x" * 2_900})
    pieces = [said[at : at + 1] for at in range(len(said))]
    async with running(frames_per_second=100_000, frames_burst=10) as gateway:
        async with dial(gateway, "bob") as bob, shaken(gateway, "mallory") as (_, writer):
            writer.write(masked(0x01, pieces[0]))
            writer.write(b"".join(masked(0x00, piece) for piece in pieces[1:-1]))
            writer.write(masked(0x80, pieces[-1]))
            await hear_until(bob, id="in-pieces")


@pytest.mark.rule("3.frames")
async def test_nothing_that_waited_is_lost_or_out_of_order() -> None:
    async with running(frames_per_second=2_000, frames_burst=5) as gateway:
        async with dial(gateway, "bob") as bob, shaken(gateway, "mallory") as (_, writer):
            for number in range(300):
                said = envelope("mallory", id=f"m{number}")
                writer.write(masked(0x89, b"between") + masked(0x81, said))
            heard = [(await hear_until(bob, kind="chat"))["id"] for _ in range(300)]
            assert heard == [f"m{number}" for number in range(300)]


@pytest.mark.rule("3.frames")
async def test_close_frame_behind_a_flood_is_heard_when_its_turn_comes() -> None:
    async with running(frames_per_second=5_000, frames_burst=5) as gateway:
        async with shaken(gateway, "mallory") as (reader, writer):
            writer.write(masked(0x8A) * 500 + masked(0x88, struct.pack("!H", 1000)))
            assert await said_close(reader) == 1000


@pytest.mark.rule("3.frames")
async def test_others_are_read_between_the_messages_of_who_sent_many_at_once() -> None:
    generous = {"messages_per_second": 1e6, "messages_burst": 1_000_000}
    many = 3_000
    async with running(**generous) as gateway, shaken(gateway, "mallory") as (_, mallory):
        async with dial(gateway, "carol") as carol, shaken(gateway, "bob") as (_, bob):
            said = [envelope("mallory", id=f"m{number}") for number in range(many)]
            mallory.write(b"".join(masked(0x81, each) for each in said))
            bob.write(masked(0x81, envelope("bob", id="b")))
            heard: list[str] = []
            with anyio.fail_after(PATIENCE):
                while "b" not in heard:
                    heard.append(json.loads(await carol.recv())["id"])
            # What one turn takes, and the few turns until a socket is seen to be readable.
            assert len([each for each in heard if each.startswith("m")]) <= 8 * FRAMES_PER_TURN


async def test_encrypted_messages_that_were_read_with_others_are_not_forgotten() -> None:
    trusted = ssl.create_default_context(cafile=CERTIFICATE)
    async with secured(messages_per_second=2_000, messages_burst=5) as gateway:
        async with dial(gateway, "bob", ssl=trusted, server_hostname="localhost") as bob:
            text = "x" * (MEMBER_READ_BYTES // 20)
            async with anyio.create_task_group() as tasks:

                async def speak() -> None:
                    for number in range(300):
                        await bob.send(envelope("bob", id=f"e{number}", payload={"text": text}))

                tasks.start_soon(speak)
                await hear_until(bob, id="e299")
        assert gateway.counters.left == 1
