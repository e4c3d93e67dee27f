"""The participants that MCP clients are: tokens, sessions, hosts."""

from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from mcp_types import TextContent

from meup_agent import Agent, Context
from meup_agent.errors import UsageError
from meup_agent.gateway import Config, Gateway, SpaceConfig
from meup_agent.mcp import mcp_app
from meup_agent.mcp.server.http import MAX_WRONG_TOKENS
from tests.gateways import new_token, participant
from tests.mcp.conftest import ANYTHING, BOTH, ServedSpace, Stage, hello, served, serving, staged
from tests.mcp.server.test_cancellation import session

HELLO = hello()


def whoami() -> Agent:
    """An agent that tells its callers who they are."""
    agent = Agent("mirror")

    @agent.tool
    async def whoami(ctx: Context) -> str:
        return ctx.sender

    return agent


async def called_as(client: Any) -> str:
    """The participant that a client is for others."""
    (content,) = (await client.call_tool("mirror_whoami")).content
    assert isinstance(content, TextContent)
    return content.text


async def test_a_client_is_the_participant_of_its_token() -> None:
    async with staged(whoami(), alice=ANYTHING, bob=ANYTHING) as stage:
        async with served(stage, own="alice") as server:
            async with server.client(stage.token("bob")) as client:
                assert await called_as(client) == "bob"
            async with server.client(stage.token("bob"), mode="legacy") as client:
                assert await called_as(client) == "bob"
            # It may send the token of the process, too.
            async with server.client() as first, server.client(stage.token("alice")) as second:
                for client in (first, second, first):
                    assert await called_as(client) == "alice"


async def test_the_environments_name_is_of_its_own_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `meup env alice` sets it; the tokens of clients are others'."""
    async with staged(whoami(), alice=ANYTHING, bob=ANYTHING) as stage:
        for name, value in (
            ("MEUP_URL", stage.gateway.url),
            ("MEUP_SPACE", "demo"),
            ("MEUP_TOKEN", stage.token("alice")),
            ("MEUP_PARTICIPANT", "alice"),
        ):
            monkeypatch.setenv(name, value)
        app = mcp_app(anonymous=True)
        async with serving(app) as port:
            server = ServedSpace(app, f"http://127.0.0.1:{port}/mcp")
            async with server.client(stage.token("bob")) as bob, server.client() as alice:
                assert [await called_as(bob), await called_as(alice)] == ["bob", "alice"]


async def test_an_unknown_token_is_refused_before_there_is_a_session() -> None:
    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        async with server.http("guessed") as http:
            answers = [
                await http.post(server.url, json=HELLO, headers=BOTH),
                await http.get(server.url, headers=BOTH),
                await http.delete(server.url, headers=BOTH),
            ]
    assert [each.status_code for each in answers] == [401, 401, 401]
    assert all("mcp-session-id" not in each.headers for each in answers)
    assert answers[0].headers["www-authenticate"].startswith("Bearer ")


async def test_another_token_finds_no_session() -> None:
    async with staged(alice=ANYTHING, bob=ANYTHING) as stage, served(stage, own="alice") as server:
        async with session(server) as mine, server.http(stage.token("bob")) as bob:
            theirs = mine.taken_by(bob)
            ping = {"id": 1, "method": "ping"}
            assert (await theirs.post(ping)).status_code == 404
            assert (await bob.get(server.url, headers=theirs.headers)).status_code == 404
            assert (await bob.delete(server.url, headers=theirs.headers)).status_code == 404
            assert await theirs.cancel() == 404
            assert (await mine.post(ping)).status_code == 200


async def test_a_revoked_token_ends_its_sessions() -> None:
    async with staged(alice=ANYTHING, bob=ANYTHING, admin=ANYTHING) as stage:
        admin = await stage.join("admin")
        async with served(stage, own="alice") as server:
            async with session(server, token=stage.token("bob")) as client:
                request = client.http.build_request("GET", server.url, headers=client.headers)
                stream = await client.http.send(request, stream=True)
                assert stream.status_code == 200
                await admin.members.kick("bob", reason="gone")
                assert await stream.aread() is not None
                ping = {"id": 1, "method": "ping"}
                assert (await client.post(ping)).status_code == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example:80"}, 421),
        ({"host": "localhost:1.evil.example"}, 421),
        ({"host": "localhost:1@evil.example"}, 421),
        ({"host": "localhost:"}, 421),
        ({"host": "localhost."}, 421),
        ({"host": "[::1]:1.evil.example"}, 421),
        ({"host": "LocalHost:80"}, 200),
        ({"host": "[::1]:80"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost:1.evil.example"}, 403),
        ({"origin": "chrome-extension://localhost"}, 403),
        ({"origin": "http://localhost:5173"}, 200),
    ],
)
async def test_host_and_origin_are_checked(headers: dict[str, str], status: int) -> None:
    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        async with server.http() as http:
            answer = await http.post(server.url, json=HELLO, headers={**BOTH, **headers})
    assert answer.status_code == status


@pytest.mark.parametrize(
    "header",
    [
        *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "client-ip"),
        *("cf-connecting-ip", "true-client-ip", "x-envoy-external-address", "fly-client-ip"),
        "x_forwarded_for",
    ],
)
async def test_a_proxy_brings_no_client_without_a_token(header: str) -> None:
    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        through = {**BOTH, header: "203.0.113.7"}
        async with server.http() as http:
            refused = await http.post(server.url, json=HELLO, headers=through)
        async with server.http(stage.token("alice")) as http:
            assert (await http.post(server.url, json=HELLO, headers=through)).status_code == 200
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("given", [{"hosts": None}, {"token": ""}])
def test_anonymity_needs_a_person(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MEUP_TOKEN", raising=False)
    with pytest.raises(UsageError, match="clients without a token need a participant to be"):
        mcp_app(**{"token": "any", **given}, anonymous=True)


async def test_a_gateway_that_is_away_is_no_wrong_token() -> None:
    async with staged(alice=ANYTHING) as stage, served(stage, own="alice") as server:
        stage.first_welcome = 0.1
        stage.gateway.kill()
        async with server.http("any") as http:
            answer = await http.post(server.url, json=HELLO, headers=BOTH)
    assert answer.status_code == 503
    assert answer.json()["error"] == "unavailable"


async def test_an_address_may_guess_so_many_times() -> None:
    """Tokens that are too long to guess are not counted as guesses; known ones go on."""
    people = {
        name: participant(name, ANYTHING, [token])
        for name, token in {"alice": new_token(), "bob": "bobs", "carol": "carols"}.items()
    }
    config = Config((SpaceConfig("demo", people),))
    async with (
        Gateway(config=config) as gateway,
        AsyncExitStack() as stack,
        served(Stage(gateway, stack)) as server,
        server.http() as http,
    ):

        async def hello(token: str) -> httpx2.Response:
            bearer = {**BOTH, "authorization": f"Bearer {token}"}
            return await http.post(server.url, json=HELLO, headers=bearer)

        assert (await hello("bobs")).status_code == 200
        guesses = [await hello(f"guess{number}") for number in range(MAX_WRONG_TOKENS + 1)]
        answer = await hello("carols")
        assert (await hello("bobs")).status_code == 200
        for _ in range(2 * MAX_WRONG_TOKENS):
            assert (await hello(new_token())).status_code == 401
        assert (await hello(gateway.token("alice"))).status_code == 200
    statuses = [each.status_code for each in guesses]
    assert statuses == [401] * MAX_WRONG_TOKENS + [429]
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "60")
