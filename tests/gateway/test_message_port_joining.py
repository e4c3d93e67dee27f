"""Joining at the message port: the join frame, the address, and what is not a handshake."""

from dataclasses import replace

import anyio
import pytest

from meup_agent.errors import UsageError
from meup_agent.gateway import Gateway, HttpConfig
from tests.gateway.conftest import envelope
from tests.gateway.dialing import (
    close_code,
    dial,
    join_frame,
    limited,
    pair,
    read,
    refused,
    undisturbed,
)
from tests.gateway.dialing import gateway as gateway
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.raw_client import handshake, raw
from tests.gateways import one_space_config
from tests.patience import PATIENCE


async def test_nothing_comes_before_the_join_frame(gateway: Gateway) -> None:
    async with dial(gateway, path="/") as stranger, pair(gateway):
        await stranger.send(join_frame(gateway, "carol"))
        assert (await read(stranger))[0]["kind"] == "system.welcome"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token": "wrong"}, 4401),
        ({"token": None}, 4401),
        ({"participantId": "bob"}, 4401),
        ({"space": "nowhere"}, 4404),
        ({"space": 5}, 4400),
        ({"token": 5}, 4400),
        ({"protocol": "meup/v9"}, 4400),
        ({"type": "hello"}, 4400),
        ({"type": None}, 4400),
    ],
)
async def test_wrong_join_frame(gateway: Gateway, changes: dict[str, object], code: int) -> None:
    async with pair(gateway) as (_, bob), dial(gateway, path="/ws") as stranger:
        await stranger.send(join_frame(gateway, **changes))
        assert await close_code(stranger) == code
        assert gateway.counters.not_admitted == {code: 1}
        await undisturbed(bob)


@pytest.mark.parametrize(
    "first", ["", "{", "[]", "5", envelope("alice").decode(), "x" * 9_000, b"\xff", "[" * 9_000]
)
async def test_what_is_no_join_frame_is_refused(gateway: Gateway, first: str | bytes) -> None:
    async with dial(gateway, path="/ws") as stranger:
        await stranger.send(first)
        assert await close_code(stranger) == 4400


async def test_stranger_gets_no_room_for_more_than_a_join_frame(gateway: Gateway) -> None:
    async with dial(gateway, path="/ws") as stranger:
        await stranger.send("x" * 40_000)
        assert await close_code(stranger) == 1009


@pytest.mark.limit("join_timeout")
async def test_who_says_nothing_is_closed() -> None:
    async with limited(join_timeout=0.01) as gateway, dial(gateway, path="/ws") as stranger:
        assert await close_code(stranger) == 4400
        assert (stranger.close_reason or "").endswith("seconds (join_timeout)")


async def test_join_that_is_said_twice_is_ignored(gateway: Gateway) -> None:
    async with dial(gateway, "alice") as alice:
        await read(alice, 2)
        await alice.send(join_frame(gateway))
        await alice.send(envelope("alice"))
        assert (await read(alice))[0]["kind"] == "chat"


@pytest.mark.parametrize(
    "path", ["//[x]", "//[::1", "/..%2f../%00", "/\x01?\x7f", "*", "/" * 8_000]
)
async def test_any_path_at_all_is_taken(gateway: Gateway, path: str) -> None:
    request = handshake(f"{path}?space=demo", gateway.token("alice"))
    async with raw(gateway) as (reader, writer):
        writer.write(request.replace(b"Connection: ", b"Connection: keep-alive, "))
        assert (await reader.readline()).split()[1] == b"101"


async def test_address_with_too_many_fields_is_refused(gateway: Gateway) -> None:
    assert (await refused(gateway, "alice", "/?" + "a=1&" * 65)).status_code == 400


@pytest.mark.limit("max_connections")
async def test_too_many_connections() -> None:
    async with limited(max_connections=1) as gateway:
        async with dial(gateway, "alice"):
            answer = await refused(gateway, "bob")
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
            assert b"(max_connections)" in answer.body
        assert gateway.counters.not_admitted == {503: 1}


NO_HANDSHAKES = [
    pytest.param("GET / HTTP/1.1\r\nHost: x", b"404", id="GET"),
    pytest.param("POST / HTTP/1.1\r\nHost: x", b"404", id="POST"),
    pytest.param("x", b"400", id="x"),
]


@pytest.mark.parametrize(("head", "status"), NO_HANDSHAKES)
async def test_no_handshake_is_http(gateway: Gateway, head: str, status: bytes) -> None:
    async with raw(gateway) as (reader, writer):
        writer.write(head.encode() + b"\r\nConnection: close\r\n\r\n")
        with anyio.fail_after(PATIENCE):
            assert (await reader.readline()).split()[1] == status
            await reader.read()


@pytest.mark.parametrize(("head", "status"), NO_HANDSHAKES)
async def test_no_handshake_gets_400_where_no_http_is_served(head: str, status: bytes) -> None:
    config = replace(one_space_config("demo", {}), http=HttpConfig(enabled=False))
    async with Gateway(config=config) as gateway, raw(gateway) as (reader, writer):
        writer.write(head.encode() + b"\r\n\r\n")
        with anyio.fail_after(PATIENCE):
            assert (await reader.readline()).split()[1] == b"400"
            await reader.read()
        with pytest.raises(UsageError, match="serves no HTTP"):
            gateway.http_url  # noqa: B018 - reading it is what raises
