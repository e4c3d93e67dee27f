"""Joins by their number, and what those who are not let in can make a gateway write."""

import json
import logging
from contextlib import AsyncExitStack
from typing import Any

import anyio
import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response

from meup_agent.gateway import Gateway, GatewayLimits, auth, logs
from meup_agent.gateway.logs import LINES_BURST, RefusalLog
from tests.asyncio_alone import anyio_backend as anyio_backend
from tests.gateway.conftest import PARTICIPANTS, Clock, envelope
from tests.gateway.dialing import close_code, dial, join_frame, limited, read, refused
from tests.gateway.raw_client import frames, handshake, raw
from tests.gateways import (
    Identity,
    JoinThrottle,
    NotAdmitted,
    WebSocketConnection,
    one_space_config,
)
from tests.no_tls import ALONE
from tests.patience import PATIENCE

SECOND = 1_000_000
ANN = Identity("demo", "ann")


@pytest.fixture
def pace(clock: Clock) -> JoinThrottle:
    strangers = {"strangers_per_second": 0.25, "strangers_burst": 2}
    limits: dict[str, Any] = {"joins_per_second": 0.5, "joins_burst": 3, **strangers}
    return JoinThrottle(GatewayLimits(**limits), clock)


def connect_until_refused(
    pace: JoinThrottle, *addresses: str, of_page: bool = False
) -> dict[str, str]:
    """Connect from these addresses, the last of which is refused; the headers that say so."""
    *taken, one_too_many = addresses
    for address in taken:
        pace.connect(address, of_page=of_page)
    with pytest.raises(NotAdmitted, match="strangers_per_second") as refused:
        pace.connect(one_too_many, of_page=of_page)
    return refused.value.headers


ADDRESS = "10.0.0.1"


@pytest.mark.rule("3.join.pages")
def test_pages_of_an_address_are_counted_by_themselves(pace: JoinThrottle) -> None:
    connect_until_refused(pace, *[ADDRESS] * 3, of_page=True)
    pace.connect(ADDRESS)
    pace.joined(ADDRESS, of_page=True)
    pace.connect(ADDRESS, of_page=True)
    connect_until_refused(pace, *[ADDRESS] * 2)


@pytest.mark.limit("joins_per_second", "joins_burst")
def test_who_joins_too_often_is_told_when_to_come_back(pace: JoinThrottle, clock: Clock) -> None:
    for _ in range(3):
        pace.join(ANN)
    for _ in range(5):
        with pytest.raises(NotAdmitted, match="joins_per_second") as refused:
            pace.join(ANN)
    assert (refused.value.status, refused.value.close_code) == (429, 1013)
    assert refused.value.headers == {"Retry-After": "2"}
    pace.join(Identity("demo", "bob"))
    pace.join(Identity("other", "ann"))
    clock.at = 2 * SECOND
    pace.join(ANN)


@pytest.mark.limit("strangers_per_second", "strangers_burst")
def test_stranger_that_joins_does_not_count(pace: JoinThrottle) -> None:
    for _ in range(100):
        pace.connect(ADDRESS)
        pace.joined(ADDRESS)
    assert connect_until_refused(pace, *[ADDRESS] * 3) == {"Retry-After": "4"}
    pace.connect("10.0.0.2")


def test_joins_of_who_never_connected_give_nothing(pace: JoinThrottle) -> None:
    for _ in range(100):
        pace.joined(ADDRESS)
    connect_until_refused(pace, *[ADDRESS] * 3)


def test_network_of_an_address_counts(pace: JoinThrottle) -> None:
    connect_until_refused(pace, "2001:db8::1", "2001:db8::2", "2001:db8::3")


def test_memory_of_who_came_is_bounded(pace: JoinThrottle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auth, "MAX_REMEMBERED", 3)
    for number in range(100):
        pace.connect(f"10.0.0.{number}")
        pace.join(Identity("demo", str(number)))
    connect_until_refused(pace, *["10.0.0.99"] * 2)


@pytest.mark.rule("3.join.pace")
async def test_one_token_that_joins_without_end_is_refused_and_others_hear_little() -> None:
    async with limited(joins_per_second=0.001, joins_burst=5) as gateway:
        async with dial(gateway, "bob") as bob:
            await read(bob, 2)
            refusals: list[Response] = []
            for _ in range(20):
                try:
                    async with dial(gateway, "alice"):
                        pass
                except InvalidStatus as error:
                    refusals.append(error.response)
            assert [each.status_code for each in refusals] == [429] * 15
            assert all(int(each.headers["Retry-After"]) > 100 for each in refusals)
            await bob.send(envelope("bob", id="x"))
            heard: list[dict[str, Any]] = []
            while not heard or heard[-1]["id"] != "x":
                heard += await read(bob)
            # Each join and each leave is one event; what was refused is none.
            assert [each["kind"] for each in heard] == ["system.presence"] * 10 + ["chat"]


@pytest.mark.rule("3.join.pace")
async def test_joins_by_frame_have_the_same_pace() -> None:
    async with limited(joins_per_second=0.001, joins_burst=2) as gateway:
        for _ in range(2):
            async with dial(gateway, path="/") as alice:
                await alice.send(join_frame(gateway))
                await read(alice)
        async with dial(gateway, path="/") as alice:
            await alice.send(join_frame(gateway))
            assert await close_code(alice) == 1013
            assert "joins_per_second" in (alice.close_reason or "")


@pytest.mark.rule("3.join.pace")
async def test_address_whose_connections_do_not_join_is_refused_for_a_while() -> None:
    async with limited(strangers_per_second=0.001, strangers_burst=3) as gateway:
        for _ in range(10):  # they join, and count no more
            async with dial(gateway, path="/") as alice:
                await alice.send(join_frame(gateway))
                await read(alice)
        for _ in range(3):
            async with dial(gateway, path="/"):
                pass
        answer = await refused(gateway, path="")
        assert answer.status_code == 429
        assert "Retry-After" in answer.headers
        # Who says a token in the handshake still comes in.
        async with dial(gateway, "alice") as alice:
            await read(alice)


@pytest.mark.rule("3.join.storm")
async def test_crowd_that_joins_at_once_is_few_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = [f"m{number}" for number in range(100)]
    writes: list[int] = []
    write = WebSocketConnection.write

    def counted(self: WebSocketConnection, packed: bytes) -> None:
        writes.append(len(packed))
        write(self, packed)

    monkeypatch.setattr(WebSocketConnection, "write", counted)
    nothing: dict[str, list[dict[str, Any]]] = {who: [] for who in crowd}
    async with Gateway(participants=nothing) as gateway, AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(raw(gateway)) for _ in crowd]
        for (_, writer), who in zip(sockets, crowd, strict=True):
            writer.write(handshake("/ws?space=demo", gateway.token(who)))
        heard: list[list[str]] = []
        for reader, _ in sockets:
            heard.append([])
            with anyio.fail_after(PATIENCE):
                await reader.readuntil(b"\r\n\r\n")
                welcomed = 0
                async for _, payload in frames(reader):
                    said = json.loads(payload)
                    if said["kind"] == "system.welcome":
                        welcomed = len(said["payload"]["participants"])
                    else:
                        heard[-1].append(said["payload"]["participant"]["id"])
                    # Each is told of each other, by its welcome or by an event of its own.
                    if welcomed + len(heard[-1]) == len(crowd):
                        break
        joins = max(heard, key=len)
        assert sorted(joins) == sorted(crowd)
        for each in heard:
            assert each == joins[-len(each) :]
        frames_out = gateway.counters.delivered
        assert frames_out == sum(len(each) for each in heard) + len(crowd)
        assert len(writes) < frames_out / 5


def test_refusals_are_logged_at_a_pace(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meup_agent.gateway")
    refusals = RefusalLog(clock)
    for number in range(LINES_BURST + 900):
        refusals.info("refused %d", number)
    assert len(caplog.messages) == LINES_BURST
    clock.at = 2 * SECOND
    refusals.info("refused later")
    left_out, later = caplog.messages[LINES_BURST:]
    assert left_out == "900 lines about refused connections were left out here"
    assert later == "refused later"
    refusals.tell_left_out()
    assert len(caplog.messages) == LINES_BURST + 2


@pytest.mark.rule("3.refusals.logged")
async def test_wrong_tokens_over_http_fill_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "meup_agent.gateway")
    monkeypatch.setattr(logs, "LINES_PER_SECOND", 1e-6)
    config = one_space_config("demo", PARTICIPANTS, None)
    async with Gateway(config=config) as gateway:
        async with httpx.AsyncClient(base_url=gateway.http_url, **ALONE) as client:
            for number in range(LINES_BURST * 3):
                answer = await client.get("/me", headers={"Authorization": f"Bearer w{number}"})
                assert answer.status_code in (401, 429)
    assert sum("was refused" in line for line in caplog.messages) == LINES_BURST
    left_out = f"{LINES_BURST * 2} lines about refused connections were left out here"
    assert left_out in caplog.messages


@pytest.mark.rule("3.refusals.logged")
async def test_strangers_on_the_message_port_fill_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "meup_agent.gateway")
    monkeypatch.setattr(logs, "LINES_PER_SECOND", 1e-6)
    async with limited() as gateway:
        for _ in range(LINES_BURST):
            async with connect(gateway.url, compression=None, open_timeout=PATIENCE) as stranger:
                await stranger.send("no join frame")
                assert await close_code(stranger) == 4400
        async with dial(gateway, "alice") as alice:
            await read(alice)
        with anyio.fail_after(PATIENCE):
            while gateway.counters.left != 1:
                await anyio.lowlevel.checkpoint()
    said = [line for line in caplog.messages if "connection from" in line]
    assert len(said) == LINES_BURST
    # Members' lines are bounded by their joins, and stay.
    assert [line for line in caplog.messages if line.startswith("'alice'")]
