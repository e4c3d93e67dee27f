"""Sign-in at a server behind an address; the scenarios of a whole one are the official suite's."""

import base64
import stat
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthFlowError
from mcp.shared.auth import OAuthClientInformationFull, OAuthMetadata, OAuthToken

from meup_agent.errors import ConfigurationError
from meup_agent.mcp import HttpServer
from meup_agent.mcp.bridge import sign_in
from meup_agent.mcp.bridge.config import OAuthClient, parse_servers
from meup_agent.mcp.bridge.sign_in import sign_in_at
from tests.no_tls import NO_TLS
from tests.patience import PATIENCE

FAR = HttpServer("https://far.example/mcp")
ISSUER = "https://login.example"
PLACE = {
    "issuer": ISSUER,
    "authorization_endpoint": "https://login.example/authorize",
    "token_endpoint": "https://login.example/token",
    "response_types_supported": ["code"],
}
LINK = "https://login.example/authorize?state=s1&redirect_uri=x"


async def ask_browser(folder: Path, link: str, *queries: str) -> AuthorizationCodeResult:
    """The answer that a sign-in takes of what comes to its port."""
    shown: list[str] = []
    provider = await sign_in_at("far", FAR, folder, shown.append)
    context = provider.context
    assert context.redirect_handler is not None
    assert context.callback_handler is not None
    (redirect,) = context.client_metadata.redirect_uris or []
    await context.redirect_handler(link)

    async def browse() -> None:
        while not shown:
            await anyio.lowlevel.checkpoint()
        async with httpx2.AsyncClient(verify=NO_TLS, timeout=PATIENCE) as client:
            for query in queries:
                await client.get(f"http://127.0.0.1:{redirect.port}/{query}")

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(browse)
            answer = await context.callback_handler()
    assert shown == [link]
    return answer


async def test_answer_is_that_of_the_link_alone(tmp_path: Path) -> None:
    """Whoever else finds the port is not taken for the browser."""
    strangers = ("", "callback", "callback?code=evil&state=guess", "other?code=evil&state=s1")
    answer = await ask_browser(tmp_path, LINK, *strangers, "callback?code=good&state=s1&iss=i")
    assert (answer.code, answer.state, answer.iss) == ("good", "s1", "i")


async def test_refused_and_missing_sign_in_are_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ExceptionGroup) as raised:
        await ask_browser(tmp_path, LINK, "callback?error=access_denied%1b&state=s1")
    assert "answers 'access_denied" in str(raised.value.exceptions[0])
    monkeypatch.setattr(sign_in, "SIGN_IN_SECONDS", 0.0)
    with pytest.raises(ExceptionGroup) as raised:
        await ask_browser(tmp_path, LINK)
    assert "nobody has signed in" in str(raised.value.exceptions[0])


@pytest.mark.parametrize("link", ["javascript:alert(1)", "file:///etc/passwd", "http://x.example/"])
async def test_link_that_is_no_page_is_not_shown(tmp_path: Path, link: str) -> None:
    with pytest.raises(OAuthFlowError, match="no https address"):
        await ask_browser(tmp_path, link)


@pytest.mark.parametrize("link", ["https://good.example@evil.example/", f"{LINK}{'x' * 5_000}"])
async def test_link_that_misleads_is_not_shown(tmp_path: Path, link: str) -> None:
    with pytest.raises(OAuthFlowError, match="people cannot read"):
        await ask_browser(tmp_path, link)


async def test_a_clients_secret_stays_with_whom_it_was_first_shown(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    server = HttpServer("https://far.example/mcp", oauth=OAuthClient("c1", "s3cret"))
    context = (await sign_in_at("far", server, folder)).context
    client = await context.storage.get_client_info()
    assert client is not None
    assert (client.client_id, client.issuer) == ("c1", None)
    context.oauth_metadata = OAuthMetadata.model_validate(PLACE)
    await context.storage.set_tokens(OAuthToken(access_token="a"))
    again = (await sign_in_at("far", server, folder)).context
    client = await again.storage.get_client_info()
    assert client is not None
    # Where the server names another issuer, the SDK drops the client, and would register one.
    assert client.issuer == PLACE["issuer"]
    with pytest.raises(OAuthFlowError, match="another place to sign in"):
        await again.storage.set_client_info(OAuthClientInformationFull(client_id="c2"))
    (file,) = folder.iterdir()
    assert "s3cret" not in file.read_text()


async def test_sign_in_is_kept_for_its_user_alone(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    context = (await sign_in_at("far", FAR, folder)).context
    context.oauth_metadata = OAuthMetadata.model_validate(PLACE)
    await context.storage.set_client_info(OAuthClientInformationFull(client_id="c1"))
    await context.storage.set_tokens(OAuthToken(access_token="a", refresh_token="r", expires_in=-1))
    (file,) = folder.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    again = (await sign_in_at("far", FAR, folder)).context
    assert again.client_metadata.redirect_uris == context.client_metadata.redirect_uris
    again.client_info = await again.storage.get_client_info()
    again.current_tokens = await again.storage.get_tokens()
    # It is renewed where it was given, and nobody is asked anew.
    assert not again.is_token_valid()
    assert again.can_refresh_token()
    assert again.oauth_metadata == context.oauth_metadata
    other = (await sign_in_at("other", HttpServer("https://other.example/mcp"), folder)).context
    assert await other.storage.get_tokens() is None
    file.write_text("no JSON")
    assert await (await sign_in_at("far", FAR, folder)).context.storage.get_tokens() is None


def entry(oauth: Any) -> dict[str, Any]:
    return {"mcpServers": {"far": {"url": "https://far.example/mcp", "oauth": oauth}}}


def test_client_that_was_registered_before_is_named_in_the_file() -> None:
    given = {"clientId": "c1", "clientSecret": "${SECRET}", "callbackPort": 8765}
    server = parse_servers(entry(given), {"SECRET": "s3cret"})["far"]
    assert isinstance(server, HttpServer)
    assert server.oauth == OAuthClient("c1", "s3cret", None, 8765)
    assert "s3cret" not in repr(server)


@pytest.mark.parametrize(
    ("oauth", "said"),
    [
        ({"clientSecret": "x"}, "lacks the clientId"),
        ({"client_id": "x"}, "did you mean 'clientId'"),
        ({"callbackPort": 0}, "callbackPort must be a port"),
        ({"clientMetadataUrl": "http://x/y"}, "must be an https address"),
        (True, "oauth must be an object"),
        ({"grantType": "password"}, "grantType must be one of"),
        ({"grantType": "client_credentials", "clientId": "c"}, "lacks the clientSecret"),
        (
            {"grantType": "client_credentials", "clientId": "c", "clientSecret": "s"},
            "lacks the issuer",
        ),
        ({"clientId": "c", "issuer": "https://x"}, "for a client that signs in by itself"),
        (
            {
                "grantType": "client_credentials",
                "clientId": "c",
                "clientSecret": "s",
                "issuer": "http://x",
            },
            "issuer must be an https address",
        ),
    ],
)
def test_wrong_client_is_named(oauth: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_servers(entry(oauth), {})


def test_server_with_a_token_of_its_own_is_not_signed_in_at() -> None:
    assert not HttpServer("https://x.example", {"authorization": "Bearer x"}).may_sign_in


class Places:
    """A server that asks for a token, and the places of a sign-in, by their host names."""

    def __init__(self, advertised: str, claimed: str) -> None:
        self.advertised, self.claimed = advertised, claimed
        self.asked: list[tuple[str, str, str]] = []
        self.valid = "t1"

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        host, path = request.url.host, request.url.path
        if host == "far.example" and path.startswith("/.well-known/oauth-protected-resource"):
            servers = {"authorization_servers": [self.advertised]}
            return httpx2.Response(200, json={"resource": FAR.url, **servers})
        if host == "far.example":
            is_in = request.headers.get("authorization") == f"Bearer {self.valid}"
            return httpx2.Response(200 if is_in else 401)
        if path.startswith("/.well-known/oauth-authorization-server"):
            at = f"https://{host}"
            ends = {"token_endpoint": f"{at}/token", "authorization_endpoint": f"{at}/authorize"}
            said = {**PLACE, **ends, "issuer": self.claimed}
            return httpx2.Response(200, json=said)
        if path == "/token":
            secret = request.headers.get("authorization", "")
            self.asked.append((host, request.content.decode(), secret))
            return httpx2.Response(200, json={"access_token": self.valid, "token_type": "Bearer"})
        return httpx2.Response(404)

    async def get(self, folder: Path) -> int:
        """The status that the server answers a program with, which signs in by itself."""
        oauth = OAuthClient("c1", "s3cret", issuer=ISSUER)
        auth = await sign_in_at("far", HttpServer(FAR.url, oauth=oauth), folder)
        async with httpx2.AsyncClient(
            transport=httpx2.MockTransport(self), auth=auth, timeout=PATIENCE
        ) as client:
            return (await client.get(FAR.url)).status_code


async def test_client_signs_in_by_itself_and_its_token_is_kept(tmp_path: Path) -> None:
    folder = anyio.Path(tmp_path)
    places = Places(ISSUER, ISSUER)
    assert await places.get(tmp_path) == 200
    [(host, form, secret)] = places.asked
    assert host == "login.example"
    assert "grant_type=client_credentials" in form.split("&")
    assert secret == f"Basic {base64.b64encode(b'c1:s3cret').decode()}"
    assert await places.get(tmp_path) == 200
    assert len(places.asked) == 1
    [file] = [each async for each in folder.iterdir()]
    assert "s3cret" not in await file.read_text()
    # One that is not taken any more is asked for anew, without a person.
    places.valid = "t2"
    assert await places.get(tmp_path) == 200
    assert len(places.asked) == 2


@pytest.mark.parametrize("claimed", ["https://evil.example", "https://login.example"])
async def test_its_secret_is_shown_to_no_other_place_that_a_server_names(
    tmp_path: Path, claimed: str
) -> None:
    places = Places("https://evil.example", claimed)
    with pytest.raises(OAuthFlowError):
        await places.get(tmp_path)
    assert places.asked == []
