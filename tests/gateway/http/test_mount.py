"""A gateway mounted in another application: HTTP and WebSocket below one path."""

import json
from collections.abc import Generator
from contextlib import suppress
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from meup_agent import Agent
from meup_agent.errors import NoSuchSpace, SessionEnded, TokenRefused, UsageError
from meup_agent.gateway import GatewayLimits, asgi_app
from tests.gateway.http.conftest import LIMITS, PARTICIPANTS
from tests.gateway.mounted import MountedPlace, mounted
from tests.gateways import one_space_config
from tests.no_tls import ALONE
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
    return httpx.get(url, headers=headers, **ALONE)


def post(place: MountedPlace, text: str) -> None:
    httpx.post(
        f"{place.http_url}/participants/alice/messages",
        json={"kind": "chat", "payload": {"message": text}},
        headers=header(place, "alice"),
        **ALONE,
    ).raise_for_status()


def dial(url: str, headers: dict[str, str] | None = None) -> ClientConnection:
    return connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE)


def hear(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(PATIENCE))


def end_of(socket: ClientConnection) -> int | None:
    with suppress(ConnectionClosed):
        while True:
            socket.recv(PATIENCE)
    return socket.close_code


def test_the_api_is_below_its_path(place: MountedPlace) -> None:
    assert get(place, "/me").json()["id"] == "alice"
    assert get(place, "/openapi.json").json()["servers"] == [{"url": "/gateway"}]
    assert get(place, "/readyz").json() == {"status": "ok"}
    assert get(place, "/nothing").json()["error"] == "not_found"


def test_members_and_callers_meet(place: MountedPlace) -> None:
    with dial(f"{place.url}?space=demo", header(place, "bob")) as bob:
        assert hear(bob)["kind"] == "system.welcome"
        hear(bob)
        post(place, "hi")
        assert hear(bob)["payload"] == {"message": "hi"}
        [here] = get(place, "/spaces/demo/participants").json()["participants"]
        assert here["id"] == "bob"
        assert 'meup_members{space="demo"} 1.0' in get(place, "/metrics").text


def test_more_connections_than_are_taken() -> None:
    config = one_space_config("demo", PARTICIPANTS, GatewayLimits(max_connections=1))
    with mounted(config) as place, dial(place.url):
        refused = httpx.get(
            f"{place.http_url}/ws",
            headers={
                "Connection": "Upgrade",
                "Upgrade": "websocket",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
            },
            **ALONE,
        )
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) > 0


def test_who_resumes_gets_the_rest(place: MountedPlace) -> None:
    url, resume = f"{place.url}?space=demo", {**header(place, "carol"), "MEUP-Resume": "1"}
    with dial(url, resume) as carol:
        post(place, "one")
        seen = [hear(carol) for _ in range(3)]
    post(place, "two")
    with dial(url, {**resume, "Last-Event-ID": str(seen[-1]["seq"])}) as carol:
        welcome = hear(carol)["payload"]
        assert (welcome["resumed"], welcome["gap"]) == (True, False)
        rest = [hear(carol)]
        while rest[-1]["seq"] < welcome["until"]:
            rest.append(hear(carol))
    assert [each["payload"]["message"] for each in rest if each["kind"] == "chat"] == ["two"]


def test_members_hear_that_it_stops(place: MountedPlace) -> None:
    with dial(f"{place.url}?space=demo", header(place, "bob")) as bob:
        place.stop()
        assert end_of(bob) == 1012


def test_without_its_lifespan_it_says_what_to_do() -> None:
    gateway = asgi_app(one_space_config("demo", PARTICIPANTS))
    assert Starlette(routes=[Mount("/gateway", gateway)]).routes
    with pytest.raises(UsageError, match=r"lifespan=gateway\.lifespan"):
        _ = gateway.running


@pytest.mark.parametrize(
    ("path", "space", "token", "error"),
    [
        ("/gateway/ws", "demo", "wrong", TokenRefused),
        ("/gateway/ws", "nowhere", "", NoSuchSpace),
        *((path, "demo", "", SessionEnded) for path in ("/ws", "/gateway", "/gatway/ws")),
    ],
)
def test_an_agent_is_told_whether_path_space_or_token_is_wrong(
    place: MountedPlace, path: str, space: str, token: str, error: type[SessionEnded]
) -> None:
    url = f"{place.url.removesuffix('/gateway/ws')}{path}"

    async def join() -> None:
        async with Agent("x").join(url, space=space, token=token or place.token("alice")):
            pytest.fail("nobody should be let in")

    with pytest.raises(SessionEnded) as ended:
        anyio.run(join)
    assert type(ended.value) is error
    assert error is not SessionEnded or "no gateway is at this path" in str(ended.value)
