"""Limits of each participant, each address and each port, over real sockets."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Config, Gateway, GatewayLimits, TlsConfig
from tests.gateway.conftest import PARTICIPANTS, envelope
from tests.gateway.dialing import (
    close_code,
    dial,
    join_frame,
    limited,
    pair,
    read,
    refused,
    send_at_once,
    undisturbed,
)
from tests.gateway.own_loop import anyio_backend as anyio_backend
from tests.gateway.raw_client import raw
from tests.gateway.websocket_client import refusal
from tests.gateways import one_space_config
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

ENCRYPTED_KEY = """
-----BEGIN ENCRYPTED PRIVATE KEY-----
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAht/R4bR84SQwICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEENJlJENNW1zKIXWjx+4kwgsEgZB6
UvtmF6GlIyO8e61YHwrK1mh65yNFxvmsdw7AJIkMKXbDyYmUpEqyGO7fkzCQrZWw
EtBQJvJGlG7Lcek8HWRYRRkWzf26aSsCxdH3oKLLzwCGWyzPvqDVjoQhzfkGOO+B
PbqyGIUxBt5QK8qoc7Xg5q8kreMVbvTNlxisJOwJSPkFrdU0cU86zxWen/t1oSU=
-----END ENCRYPTED PRIVATE KEY-----
"""

CALL = {"method": "tools/call", "params": {"name": "write"}}


def errors(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["payload"] for each in said if each["kind"] == "system.error"]


@pytest.mark.parametrize(
    ("what", "limits", "number", "kind", "payload"),
    [
        pytest.param(
            *("messages_per_second", (400, 20), 100, "chat", {}), marks=pytest.mark.rule("3.limits")
        ),
        pytest.param(
            *("withdrawals_per_second", (200, 2), 40, "mcp.withdraw", {}),
            marks=pytest.mark.rule("3.withdraw.rate"),
        ),
        pytest.param(
            *("bytes_per_second", (400_000, 20_000), 20, "chat", {"x": "x" * 5_000}),
            marks=pytest.mark.rule("3.pace.bytes"),
        ),
    ],
    ids=["messages", "withdrawals", "bytes"],
)
async def test_what_comes_too_fast_is_read_later_and_its_sender_is_told_once(
    what: str, limits: tuple[int, int], number: int, kind: str, payload: object
) -> None:
    ids = [f"e{each}" for each in range(number)]
    pace, burst = limits
    async with limited(**{what: pace, what.replace("per_second", "burst"): burst}) as gateway:
        async with pair(gateway) as (alice, bob):
            send_at_once(
                alice,
                (envelope("alice", kind, payload, id=id, correlationId=f"p{id}") for id in ids),
            )
            assert [each["id"] for each in await read(bob, number)] == ids
            (told,) = errors(await read(alice, number + 1))
            said = (told["error"], told["limit"], told["max"])
            assert said == ("limit_exceeded", what, pace)
            await undisturbed(bob)
            await undisturbed(alice, "alice")
            assert (gateway.counters.slowed, gateway.counters.refused) == (1, {})


async def test_who_speaks_too_fast_is_not_read_meanwhile() -> None:
    slow = {"messages_per_second": 0.001, "messages_burst": 2, "ping_deadline": 2}
    # What the system still holds of hers cannot be read when the gateway stops.
    async with limited(**slow, close_timeout=0.1, stop_timeout=0.1) as gateway:
        async with dial(gateway, "alice", close_timeout=0.1) as alice, dial(gateway, "bob") as bob:
            await read(bob, 2)

            async def speak() -> None:
                for _ in range(200):
                    await alice.send(envelope("alice", payload={"text": "x" * 40_000}))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(speak)
                while (await read(bob))[0]["from"] != "alice":
                    pass
                for _ in range(100):  # turns of the gateway's loop, in which it could have read
                    pong = await bob.ping()
                    await pong
                assert gateway.counters.frames_in < 20
                tasks.cancel_scope.cancel()
            # Her close frame would wait behind all that is not read.
            alice.transport.abort()


async def test_a_new_connection_of_who_spoke_too_fast_is_no_way_around_it() -> None:
    async with limited(messages_per_second=1, messages_burst=2) as gateway:
        async with dial(gateway, "alice") as alice:
            send_at_once(alice, [envelope("alice")] * 3)
            assert len(errors(await read(alice, 6))) == 1
        async with dial(gateway, "alice") as alice:
            await read(alice, 2)
            # It is told no second time; what it says is read, and then nothing for a while.
            await alice.send(envelope("alice", id="again"))
            assert (await read(alice))[0]["id"] == "again"
            assert gateway.counters.slowed == 1


async def test_who_is_slowed_is_closed_like_everybody_when_the_gateway_stops() -> None:
    gateway = limited(messages_per_second=1, messages_burst=1, stop_timeout=60)
    async with gateway, dial(gateway, "alice") as alice:
        send_at_once(alice, [envelope("alice")] * 3)
        await read(alice, 4)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(gateway.restart)
            assert await close_code(alice) in (1006, 1012)


@pytest.mark.rule("3.limits")
@pytest.mark.limit("max_open_proposals")
async def test_proposals_beyond_those_open_are_refused_until_one_ends() -> None:
    async with limited(max_open_proposals=2) as gateway, pair(gateway) as (alice, _):
        for name in ("p1", "p2", "p3"):
            await alice.send(envelope("alice", "mcp.proposal", CALL, id=name))
        *_, error = await read(alice, 3)
        assert (error["kind"], error["correlationId"]) == ("system.error", "p3")
        told = error["payload"]
        said = (told["error"], told["limit"], told["max"])
        assert said == ("limit_exceeded", "max_open_proposals", 2)
        await alice.send(envelope("alice", "mcp.withdraw", id="w", correlationId="p1"))
        await alice.send(envelope("alice", "mcp.proposal", CALL, id="p4"))
        assert [each["id"] for each in await read(alice, 2)] == ["w", "p4"]


@pytest.mark.rule("3.limits")
@pytest.mark.limit("max_depth")
async def test_message_that_nests_deeper_than_is_set() -> None:
    async with limited(max_depth=4) as gateway, pair(gateway) as (alice, bob):
        await alice.send(envelope("alice", payload={"a": [[[]]]}, id="deep"))
        (error,) = await read(alice)
        told = error["payload"]
        assert error["correlationId"] == "deep"
        assert (told["error"], told["limit"], told["max"]) == ("too_deep", "max_depth", 4)
        await alice.send(envelope("alice", payload={"a": [[]]}))
        assert (await read(bob))[0]["kind"] == "chat"


@pytest.mark.rule("3.limits")
@pytest.mark.limit("max_members")
async def test_full_space_takes_nobody_else() -> None:
    async with limited(max_members=1) as gateway, dial(gateway, "alice") as alice:
        await read(alice, 2)
        answer = await refused(gateway, "bob")
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
        assert b"(max_members)" in answer.body
        async with dial(gateway, path="/") as bob:
            await bob.send(join_frame(gateway, "bob"))
            assert await close_code(bob) == 1013
        async with dial(gateway, "alice") as newer:
            assert (await read(newer))[0]["kind"] == "system.welcome"
        assert await close_code(alice) == 4409


@pytest.mark.rule("3.guesses.long")
async def test_right_tokens_of_128_bits_are_let_in_while_others_guess() -> None:
    async with limited(failed_tokens=2, failed_token_seconds=100) as gateway:
        guesses = [(await refusal(gateway.url, "guess")).status_code for _ in range(3)]
        assert guesses == [401, 401, 429]
        async with dial(gateway, "alice") as alice:
            assert (await read(alice))[0]["kind"] == "system.welcome"
        async with dial(gateway, path="/") as bob:
            await bob.send(join_frame(gateway, "bob"))
            assert (await read(bob))[0]["kind"] == "system.welcome"
        assert (await refusal(gateway.url, "guess")).status_code == 429


def with_tls(**limits: Any) -> Config:
    config = one_space_config("demo", PARTICIPANTS, GatewayLimits(**limits))
    return replace(config, tls=TlsConfig(CERTIFICATE, CERTIFICATE))


async def test_tls_handshake_that_ends_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with Gateway(config=with_tls()) as gateway:
        async with raw(gateway):
            pass
        with anyio.fail_after(PATIENCE):
            while not any("TLS" in record.getMessage() for record in caplog.records):
                await anyio.lowlevel.checkpoint()
    (line,) = [record for record in caplog.records if "handshake" in record.getMessage()]
    assert (line.levelno, line.exc_info) == (logging.INFO, None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", ""])
async def test_no_port_without_tls_where_others_could_listen(host: str) -> None:
    config = one_space_config("demo", PARTICIPANTS)
    with pytest.raises(ConfigurationError, match="without TLS would show tokens"):
        async with Gateway(config=config, host=host):
            pass


async def test_port_without_tls_where_it_is_allowed() -> None:
    config = replace(one_space_config("demo", PARTICIPANTS), insecure=True)
    async with Gateway(config=config, host="0.0.0.0") as gateway, dial(gateway, "alice") as alice:
        assert (await read(alice))[0]["kind"] == "system.welcome"


@pytest.mark.parametrize(
    ("broken", "content", "said"),
    [
        ("certificate", None, r"tls\.certificate: .* cannot be read"),
        ("key", None, r"tls\.key: .* cannot be read"),
        ("certificate", "nothing", "are not a certificate and its key"),
        ("key", ENCRYPTED_KEY, r"tls\.key: is encrypted"),
    ],
    ids=["no certificate", "no key", "no PEM", "with a password"],
)
async def test_tls_files(broken: str, content: str | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "other.pem"
    if content is not None:
        file.write_text(content)
    tls = replace(TlsConfig(CERTIFICATE, CERTIFICATE), **{broken: file})
    with pytest.raises(ConfigurationError, match=said):
        async with Gateway(config=replace(with_tls(), tls=tls)):
            pass
