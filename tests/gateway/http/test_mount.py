"""A gateway mounted in another application: HTTP and WebSocket below one path."""

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import anyio
import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from meup_agent import Agent
from meup_agent.errors import (
    ConfigurationError,
    NoSuchSpace,
    SessionEnded,
    TokenRefused,
    UsageError,
)
from meup_agent.gateway import GatewayLimits, JournalConfig, asgi_app
from meup_agent.gateway.config import NatsConfig
from tests.gateway.http.conftest import Api, config
from tests.gateway.mounted import MountedPlace, mounted
from tests.no_tls import ALONE
from tests.patience import PATIENCE

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def place() -> Generator[MountedPlace]:
    with mounted(config()) as found:
        yield found


@pytest.fixture
def api(place: MountedPlace) -> Generator[Api]:
    found = Api(place)
    with found.client:
        yield found


def hear(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(PATIENCE))


def test_the_api_is_below_its_path(api: Api) -> None:
    assert api.get("/me").json()["id"] == "alice"
    assert api.get("/openapi.json").json()["servers"] == [{"url": "/gateway"}]
    assert api.get("/readyz").json() == {"status": "ok"}
    assert api.get("/nothing").json()["error"] == "not_found"


def test_members_and_callers_meet(api: Api) -> None:
    with api.join("bob") as bob:
        api.say("hi")
        assert hear(bob)["payload"] == {"message": "hi"}
        [here] = api.get("/spaces/demo/participants").json()["participants"]
        assert here["id"] == "bob"
        assert 'meup_members{space="demo"} 1.0' in api.get("/metrics").text


def test_more_connections_than_are_taken() -> None:
    with mounted(config(GatewayLimits(max_connections=1))) as place, connect(place.url):
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


def test_who_resumes_gets_the_rest(api: Api) -> None:
    resume = {"MEUP-Resume": "1"}
    with api.dial("carol", **resume) as carol:
        api.say("one")
        seen = [hear(carol) for _ in range(3)]
    api.say("two")
    with api.dial("carol", **resume, **{"Last-Event-ID": str(seen[-1]["seq"])}) as carol:
        welcome = hear(carol)["payload"]
        assert (welcome["resumed"], welcome["gap"]) == (True, False)
        rest = [hear(carol)]
        while rest[-1]["seq"] < welcome["until"]:
            rest.append(hear(carol))
    assert [each["payload"]["message"] for each in rest if each["kind"] == "chat"] == ["two"]


def test_members_hear_that_it_stops(place: MountedPlace, api: Api) -> None:
    with api.join("bob") as bob:
        place.stop()
        with pytest.raises(ConnectionClosed) as ended:
            hear(bob)
        assert ended.value.rcvd is not None
        assert ended.value.rcvd.code == 1012


def test_it_gives_other_gateways_no_address_at_which_nobody_listens() -> None:
    nats = NatsConfig(
        servers=("nats://127.0.0.1:1",), advertise="127.0.0.1:2", cluster_token="c" * 43
    )
    gateway = asgi_app(replace(config(), journal=JournalConfig(nats=nats)))

    async def begin() -> None:
        async with gateway.lifespan():
            pass

    with pytest.raises(ConfigurationError, match="advertise"):
        anyio.run(begin)


def test_without_its_lifespan_it_says_what_to_do() -> None:
    gateway = asgi_app(config())
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
