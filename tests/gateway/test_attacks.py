"""Attacks of strangers and of members with bad intentions leave the others alone."""

import asyncio
import contextlib
import json
import struct

import anyio
import pytest

from meup_agent.gateway import Gateway
from tests.gateway.conftest import envelope
from tests.gateway.dialing import dial as dial
from tests.gateway.dialing import refused
from tests.gateway.dialing import undisturbed as undisturbed
from tests.gateway.own_loop import PATH_AS_NAME, running
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.raw_client import handshake, masked, raw, said_close, shaken
from tests.gateway.websocket_client import hear, hear_until
from tests.patience import PATIENCE


def head(gateway: Gateway, who: str = "mallory", *more: str) -> bytes:
    return handshake("/ws?space=demo", gateway.token(who), *more)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """The frames that came until the connection ended."""
    with anyio.fail_after(PATIENCE), contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_asking_for_compression_gives_none() -> None:
    async with running() as gateway, raw(gateway) as (reader, writer):
        asks = "Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"
        writer.write(head(gateway, "mallory", asks))
        with anyio.fail_after(PATIENCE):
            answer = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in answer
        assert b"extensions" not in answer.lower()
        writer.write(masked(0xC1, b"\x00\x00\x00\xff\xff"))
        assert await said_close(reader) == 1002


@pytest.mark.parametrize("space", ["../demo", "demo/../demo", "..%2fdemo", "%00demo", "demo%0a"])
async def test_no_space_is_reached_by_another_way(space: str) -> None:
    async with running() as gateway:
        assert (await refused(gateway, "bob", f"/ws?space={space}")).status_code == 404


@pytest.mark.parametrize("space", ["../demo", "demo\u0000", "\u202edemo", "a" * 10_000])
async def test_no_space_is_joined_by_another_name(space: str) -> None:
    async with running() as gateway, dial(gateway, "", "/") as stranger:
        said = {"type": "join", "space": space, "token": gateway.token("bob")}
        await stranger.send(json.dumps(said))
        with anyio.fail_after(PATIENCE):
            await stranger.wait_closed()
        assert stranger.close_code == 4404
        assert (stranger.close_reason or "").isprintable()


async def test_pings_of_who_reads_nothing_do_not_fill_the_gateway() -> None:
    number, payload = 100_000, b"p" * 125
    fast = {"frames_per_second": 1e9, "frames_burst": 1_000_000}
    async with running(**fast) as gateway, dial(gateway, "bob") as bob:
        async with shaken(gateway, "mallory", small=True) as (reader, writer):
            pings = masked(0x89, payload) * 1_000
            for _ in range(number // 1_000):
                writer.write(pings)
                with anyio.fail_after(PATIENCE):
                    await writer.drain()
            await undisturbed(bob)
            writer.write(masked(0x88, struct.pack("!H", 1000)))
            pongs = (await ended(reader)).count(payload)
        # What the two sockets hold, and not what was asked.
        assert 0 < pongs < number / 2


async def test_flood_of_refused_frames_beside_a_quiet_member() -> None:
    async with running() as gateway, dial(gateway, "bob") as bob:
        async with shaken(gateway, "mallory", small=True) as (_, writer):
            forged = masked(0x81, envelope("bob", payload={"message": "x" * 30})[:125])
            for _ in range(50):
                writer.write(forged * 200)
                await asyncio.sleep(0)
            await undisturbed(bob)
        await hear_until(bob, kind="system.presence")
        await undisturbed(bob)
        counted = gateway.counters
        assert counted.accepted == 2
        assert counted.frames_in == 2 + sum(counted.refused.values())


async def test_fragments_without_an_end_are_bounded() -> None:
    async with (
        running(max_message_bytes=10_000, frames_burst=20_000) as gateway,
        dial(gateway, "bob") as bob,
    ):
        async with shaken(gateway, "mallory") as (reader, writer):
            writer.write(masked(0x01, b"{") + masked(0x00, b"") * 10_000)
            await undisturbed(bob)
            writer.write(masked(0x00, b" " * 100) * 200)
            assert await said_close(reader) == 1009
        await undisturbed(bob)


async def test_half_closed_socket_leaves() -> None:
    async with running() as gateway, dial(gateway, "bob") as bob:
        async with shaken(gateway, "mallory") as (reader, writer):
            await hear_until(bob, kind="system.presence")
            writer.write_eof()
            await ended(reader)
            while (await hear_until(bob, kind="system.presence"))["payload"]["event"] != "leave":
                pass
        await undisturbed(bob)


async def test_path_in_a_name_is_a_name_like_any_other() -> None:
    async with running() as gateway, dial(gateway, "bob") as bob, dial(gateway, "mallory") as m:
        sent = envelope("mallory", id="../../etc/passwd", to=[PATH_AS_NAME], context="/../")
        await m.send(sent, text=True)
        assert (await hear_until(bob, id="../../etc/passwd"))["to"] == [PATH_AS_NAME]


EVIL = [
    "/(a+)+$/",
    "/(a|a)*b/",
    "/(.*a){60}/",
    "**/a" * 8,
    "{a,b}" * 60 + "*",
    "/((a{30}){30}){30}/",
    "/" + "(" * 5_000 + ")" * 5_000 + "/",
    "*?" * 5_000,
]


@pytest.mark.rule("7.bounded")
@pytest.mark.parametrize("pattern", EVIL, ids=lambda pattern: pattern[:20])
async def test_granted_pattern_does_not_hang_the_gateway(pattern: str) -> None:
    async with running() as gateway, dial(gateway, "bob") as bob, dial(gateway, "mallory") as m:
        capability = {"kind": "mcp/request", "payload": {"params": {"name": pattern}}}
        grant = {"recipient": "bob", "capabilities": [capability]}
        await m.send(envelope("mallory", "capability.grant", grant, id="grant"))
        # Granted, or refused for what it would cost; either way what it names is decided at once.
        while True:
            said = await hear(m)
            if said["id"] == "grant" or said["kind"] == "system.error":
                break
        call = {"method": "tools/call", "params": {"name": "a" * 500_000 + "!"}}
        await bob.send(envelope("bob", "mcp.request", call, id="call"))
        while True:
            said = await hear(bob)
            if said["id"] == "call" or said["kind"] == "system.error":
                break
        await undisturbed(bob)
