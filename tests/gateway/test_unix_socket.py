"""A gateway at a Unix socket: WebSocket and HTTP for its own user, beside its port."""

import os
import socket
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from meup_agent import Agent, Space
from meup_agent.cli.up.state import bind_socket
from meup_agent.errors import CannotConnect, ConfigurationError, TokenRefused
from meup_agent.gateway import Config, HttpConfig, TlsConfig
from meup_agent.transport.http import check_http_url
from tests.gateways import (
    first_token,
    one_space_config,
    open_client,
    serve,
    short_path,
    socket_path,
    socket_url,
    websocket_connector,
)
from tests.patience import PATIENCE
from tests.transport.peers import CERTIFICATE

pytestmark = [
    pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="Python has none on this system")
]

PARTICIPANTS = {"alice": [{"kind": "*"}], "bob": [{"kind": "*"}]}
CONFIG = one_space_config("demo", PARTICIPANTS)


class Place(NamedTuple):
    """A gateway that runs in a thread."""

    path: Path
    url: str
    port: str

    def token(self, who: str) -> str:
        return first_token(CONFIG, who)

    def join(
        self, who: str, url: str = "", *, beside: bool = False
    ) -> AbstractAsyncContextManager[Space]:
        at, token = url or self.url, self.token(who)
        return Agent(who).join(at, space="demo", token=token, beside=beside)


async def heard_by(hearer: Space, speaker: Space) -> None:
    """Let one say something, and wait until another has heard it."""
    with anyio.fail_after(PATIENCE), hearer.watch() as heard:
        sent = await speaker.chat("hello")
        async for envelope in heard:
            if envelope.id == sent:
                break


@asynccontextmanager
async def serving(path: Path, config: Config) -> AsyncGenerator[Place]:
    async with serve(config, "127.0.0.1", 0) as running:
        with bind_socket(path) as bound:
            url = socket_url(str(path))
            await running.listen_at_socket(bound, url)
            assert running.own_url == url
            yield Place(path, url, running.url)


@contextmanager
def in_thread(
    path: Path, config: Config = CONFIG, *, uvloop: bool | None = None
) -> Generator[Place]:
    """Runs a gateway in a thread, whatever loop its clients run on."""
    use = find_spec("uvloop") is not None if uvloop is None else uvloop
    with start_blocking_portal("asyncio", {"use_uvloop": use}) as portal:
        with portal.wrap_async_context_manager(serving(path, config)) as place:
            yield place


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def place(request: pytest.FixtureRequest) -> Generator[Place]:
    with TemporaryDirectory() as folder:
        uvloop = request.param == "uvloop"
        with in_thread(Path(folder) / "gateway.sock", uvloop=uvloop) as found:
            yield found


async def test_members_of_both_ways_hear_each_other(place: Place) -> None:
    with anyio.fail_after(PATIENCE):
        async with place.join("alice") as alice, place.join("bob", place.port) as bob:
            await heard_by(bob, alice)
            assert {each.id for each in alice.participants} >= {"alice", "bob"}


async def test_http_is_served_there_too(place: Place) -> None:
    with anyio.fail_after(PATIENCE):
        async with open_client(place.url, f"Bearer {place.token('bob')}") as client:
            for _ in range(2):
                assert (await client.get("/me")).json()["id"] == "bob"
            assert (await client.get("/healthz")).json() == {"status": "ok"}


async def test_a_command_acts_there_beside_an_agent(place: Place) -> None:
    with anyio.fail_after(PATIENCE):
        async with place.join("alice") as alice:
            async with place.join("alice", beside=True) as second:
                await heard_by(alice, second)
            assert alice.connected


async def test_a_token_is_asked_for_there_too(place: Place) -> None:
    with anyio.fail_after(PATIENCE), pytest.raises(TokenRefused):
        async with Agent("a").join(place.url, space="demo", token="wrong"):
            pass
    async with open_client(place.url, "Bearer wrong") as client:
        assert (await client.get("/me")).status_code == 401


async def hear_out(path: Path, said: bytes) -> bytes:
    """All that a gateway answers to these bytes, until it hangs up."""
    with anyio.fail_after(PATIENCE):
        async with await anyio.connect_unix(path) as stream:
            await stream.send(said)
            await stream.send_eof()
            heard = b""
            try:
                while True:
                    heard += await stream.receive()
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return heard


@pytest.mark.parametrize(
    ("said", "status"),
    [
        (b"\x00" * 20_000, b" 431 "),
        (b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n\r\n", b" 400 "),
        (b"nonsense\r\n\r\n", b" 400 "),
    ],
)
async def test_nonsense_ends_its_connection(place: Place, said: bytes, status: bytes) -> None:
    assert status in await hear_out(place.path, said)
    await test_http_is_served_there_too(place)


NO_HTTP = replace(CONFIG, http=HttpConfig(enabled=False))


async def test_without_http_a_request_is_refused_and_members_stay() -> None:
    with TemporaryDirectory() as folder, in_thread(Path(folder) / "x.sock", NO_HTTP) as place:
        async with place.join("alice") as alice:
            request = b"GET /me HTTP/1.1\r\nHost: x\r\n\r\n"
            assert (await hear_out(place.path, request)).startswith(b"HTTP/1.1 4")
            await heard_by(alice, alice)


async def both_ways(place: Place) -> None:
    """HTTP is served there, and members join."""
    await test_http_is_served_there_too(place)
    with anyio.fail_after(PATIENCE):
        async with place.join("bob") as bob:
            assert bob.me == "bob"


@pytest.mark.parametrize(
    ("change", "scheme"),
    [
        ({"http": HttpConfig(host="127.0.0.1", port=0)}, "ws"),
        ({"tls": TlsConfig(CERTIFICATE, CERTIFICATE)}, "wss"),
    ],
    ids=["HTTP at a port of its own", "TLS, for which a socket needs no certificate"],
)
async def test_whatever_the_port_is_like(change: dict[str, Any], scheme: str) -> None:
    config = replace(CONFIG, **change)
    with TemporaryDirectory() as folder, in_thread(Path(folder) / "x.sock", config) as place:
        assert place.port.startswith(f"{scheme}://")
        await both_ways(place)


async def test_a_long_path_can_be_listened_at_and_dialled() -> None:
    with TemporaryDirectory() as folder:
        deep = Path(folder) / ("é" * 100) / "a b%?#"
        os.makedirs(deep)
        path = deep / "gateway.sock"
        with in_thread(path) as place:
            assert place.url.isascii()
            assert stat.S_ISSOCK(path.stat().st_mode)
            await both_ways(place)
        assert not path.exists()


async def test_where_nothing_listens_the_path_is_named() -> None:
    with TemporaryDirectory() as folder:
        for path in (f"{folder}/none.sock", f"{folder}/{'d' * 200}/none.sock"):
            with pytest.raises(CannotConnect, match=r"none\.sock: no such file"):
                async with websocket_connector(socket_url(path))({}):
                    pass


def test_a_socket_is_its_users_alone_and_gone_at_the_end(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        with bind_socket(tmp_path / "x.sock"):
            assert stat.S_IMODE((tmp_path / "x.sock").stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_gateway_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.sock"
    with socket.socket(socket.AF_UNIX) as left, short_path(str(path)) as short:
        left.bind(short)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    for spoil in (path.touch, partial(path.symlink_to, precious)):
        with bind_socket(path) as bound, socket.socket(socket.AF_UNIX) as client:
            with short_path(str(path)) as short:
                client.connect(short)
            bound.accept()[0].close()
        spoil()
    with bind_socket(path):
        assert precious.read_text() == "mine"


def test_a_socket_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x.sock").mkdir()
    with pytest.raises(ConfigurationError, match=r"x\.sock cannot be made \(.*\); set MEUP_STATE"):
        with bind_socket(tmp_path / "x.sock"):
            pass
    with pytest.raises(ConfigurationError, match=r"none/x\.sock cannot be made \(no such file"):
        with bind_socket(tmp_path / "none" / "x.sock"):
            pass


@pytest.mark.parametrize("path", ["/run/meup.sock", "/a b/é%?#.sock", "/" + os.fsdecode(b"\xff")])
def test_any_path_has_an_address(path: str) -> None:
    assert socket_path(socket_url(path)) == path


@pytest.mark.parametrize(
    "url",
    [
        *("unix:", "unix:relative", "unix:/x", "unix://host/x", "unix:///x?space=demo"),
        *("unix:///x#y", "unix:///x/", "unix:////", "unix:///%00", "unix://[x/"),
    ],
)
def test_what_is_no_path_is_no_address(url: str) -> None:
    for check in (websocket_connector, check_http_url):
        with pytest.raises(ConfigurationError, match="write it like unix:///run/meup"):
            check(url)
