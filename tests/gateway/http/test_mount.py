"""A gateway mounted in another application: HTTP and WebSocket below one path."""

import json
import socket
from collections.abc import Generator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from meup_agent import Agent
from meup_agent.errors import NoSuchSpace, SessionEnded, TokenRefused, UsageError
from meup_agent.gateway import GatewayLimits, asgi_app
from tests.gateway.http.conftest import LIMITS, PARTICIPANTS
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import one_space_config
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def place() -> Generator[MountedPlace]:
    with mounted(one_space_config("demo", PARTICIPANTS, LIMITS)) as found:
        yield found


def header(place: MountedPlace, participant: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {place.token(participant)}"}


def get(place: MountedPlace, path: str, participant: str = "alice") -> httpx.Response:
    url, headers = f"{place.http_url}{path}", header(place, participant)
    return httpx.get(url, headers=headers, trust_env=False, verify=NO_TLS, timeout=PATIENCE)


def test_the_api_is_below_its_path(place: MountedPlace) -> None:
    assert get(place, "/me").json()["id"] == "alice"
    assert get(place, "/openapi.json").json()["servers"] == [{"url": "/gateway"}]
    assert get(place, "/readyz").json() == {"status": "ok"}
    assert get(place, "/nothing").json()["error"] == "not_found"


def test_members_and_callers_meet(place: MountedPlace) -> None:
    url = f"{place.url}?space=demo"
    with connect(
        url, additional_headers=header(place, "bob"), proxy=None, open_timeout=PATIENCE
    ) as bob:
        assert json.loads(bob.recv(PATIENCE))["kind"] == "system.welcome"
        bob.recv(PATIENCE)
        httpx.post(
            f"{place.http_url}/participants/alice/messages",
            json={"kind": "chat", "payload": {"message": "hi"}},
            headers=header(place, "alice"),
            trust_env=False,
            verify=NO_TLS,
            timeout=PATIENCE,
        ).raise_for_status()
        assert json.loads(bob.recv(PATIENCE))["payload"] == {"message": "hi"}
        [here] = get(place, "/spaces/demo/participants").json()["participants"]
        assert here["id"] == "bob"
        assert 'meup_members{space="demo"} 1.0' in get(place, "/metrics").text


def join_frame(place: MountedPlace, **fields: Any) -> str:
    frame = {"type": "join", "space": "demo", "token": place.token("alice"), **fields}
    return json.dumps(frame)


@pytest.mark.parametrize("path", ["/", "/ws", "/any/other"])
def test_a_join_frame_joins_by_any_path(place: MountedPlace, path: str) -> None:
    base = place.url.removesuffix("/ws")
    with connect(f"{base}{path}", proxy=None, open_timeout=PATIENCE) as alice:
        alice.send(join_frame(place, participantId="alice", protocol="mew/v0.4"))
        assert json.loads(alice.recv(PATIENCE))["kind"] == "system/welcome"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"token": "wrong"}, 4401),
        ({"participantId": "bob"}, 4401),
        ({"space": "nowhere"}, 4404),
        ({"type": "hello"}, 4400),
        ({"protocol": "x"}, 4400),
    ],
)
def test_who_does_not_join_is_closed(
    place: MountedPlace, fields: dict[str, str], code: int
) -> None:
    with connect(place.url, proxy=None, open_timeout=PATIENCE) as stranger:
        stranger.send(join_frame(place, **fields))
        with pytest.raises(ConnectionClosed) as closed:
            stranger.recv(PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == code


def test_who_says_nothing_is_closed() -> None:
    config = one_space_config("demo", PARTICIPANTS, GatewayLimits(join_timeout=0.2))
    with (
        mounted(config) as place,
        connect(place.url, proxy=None, open_timeout=PATIENCE) as stranger,
    ):
        with pytest.raises(ConnectionClosed) as closed:
            stranger.recv(PATIENCE)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 4400


def test_more_connections_than_are_taken() -> None:
    config = one_space_config("demo", PARTICIPANTS, GatewayLimits(max_connections=1))
    with mounted(config) as place, connect(place.url, proxy=None, open_timeout=PATIENCE):
        refused = httpx.get(
            f"{place.http_url}/ws",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
            trust_env=False,
            verify=NO_TLS,
            timeout=PATIENCE,
        )
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0


def test_who_reads_too_slowly_is_closed_and_who_resumes_gets_the_rest() -> None:
    limits = replace(LIMITS, max_queued_frames=20, max_message_bytes=200_000, close_timeout=0.2)
    with mounted(one_space_config("demo", PARTICIPANTS, limits)) as place:
        resume = {**header(place, "carol"), "MEUP-Resume": "1"}
        url = f"{place.url}?space=demo"
        headers = header(place, "alice")
        lazy = socket.socket()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        lazy.connect(("127.0.0.1", int(place.url.split(":")[2].split("/")[0])))
        with (
            connect(
                url,
                sock=lazy,
                additional_headers=resume,
                max_queue=1,
                compression=None,
                open_timeout=PATIENCE,
            ) as carol,
            httpx.Client(
                base_url=place.http_url,
                headers=headers,
                trust_env=False,
                verify=NO_TLS,
                timeout=PATIENCE,
            ) as alice,
        ):
            body = {"kind": "chat", "payload": {"message": "x" * 180_000}}
            said = 0
            while place.counters.closed[1013] == 0:
                answer = alice.post("/participants/alice/messages", json=body)
                if answer.status_code == 429:  # carol's queue fills, and alice is loud
                    continue
                answer.raise_for_status()
                said += 1
                assert said < 300
            seen: list[int] = []
            with suppress(ConnectionClosed):
                while True:
                    seen.append(json.loads(carol.recv(PATIENCE))["seq"])
        assert len(seen) < said
        resume["Last-Event-ID"] = str(seen[-1])
        with connect(url, additional_headers=resume, proxy=None, open_timeout=PATIENCE) as carol:
            welcome = json.loads(carol.recv(PATIENCE))
            assert (welcome["payload"]["resumed"], welcome["payload"]["gap"]) == (True, False)
            while seen[-1] < welcome["payload"]["until"]:
                seen.append(json.loads(carol.recv(PATIENCE))["seq"])
        assert seen == sorted(set(seen))


def test_members_hear_that_it_stops() -> None:
    with mounted(one_space_config("demo", PARTICIPANTS, LIMITS)) as place:
        url = f"{place.url}?space=demo"
        with connect(
            url, additional_headers=header(place, "bob"), proxy=None, open_timeout=PATIENCE
        ) as bob:
            bob.recv(PATIENCE)
            place.stop()
            with pytest.raises(ConnectionClosed):
                list(bob)
            assert bob.close_code == 1012


def test_without_its_lifespan_it_says_what_to_do() -> None:
    gateway = asgi_app(one_space_config("demo", PARTICIPANTS))
    assert Starlette(routes=[Mount("/gateway", gateway)]).routes
    with pytest.raises(UsageError, match=r"lifespan=gateway\.lifespan"):
        _ = gateway.running


@pytest.mark.parametrize("path", ["/ws", "/gateway", "/gatway/ws"])
def test_a_wrong_path_is_not_reported_as_a_refused_token(place: MountedPlace, path: str) -> None:
    url = f"{place.url.removesuffix('/gateway/ws')}{path}"

    async def join() -> None:
        async with Agent("x").join(url, space="demo", token=place.token("alice")):
            pytest.fail("there is no gateway")

    with pytest.raises(SessionEnded, match="no gateway is at this path") as ended:
        anyio.run(join)
    assert type(ended.value) is SessionEnded


@pytest.mark.parametrize(
    ("space", "token", "error"), [("demo", "wrong", TokenRefused), ("nowhere", None, NoSuchSpace)]
)
def test_at_the_right_path_it_is_said_what_is_wrong(
    place: MountedPlace, space: str, token: str | None, error: type[SessionEnded]
) -> None:
    async def join() -> None:
        known = place.token("alice")
        async with Agent("x").join(place.url, space=space, token=token or known):
            pytest.fail("nobody should be let in")

    with pytest.raises(error):
        anyio.run(join)
