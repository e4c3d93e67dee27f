"""Nothing is sent to a user of this machine who listens where a gateway is expected."""

import logging
import os
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import httpx
import pytest

from meup_agent.errors import CannotConnect, ConfigurationError
from meup_agent.transport.http import fetch
from tests.gateways import (
    Connector,
    ForeignListener,
    cannot_connect,
    check_listener,
    open_client,
    websocket_connector,
)
from tests.patience import PATIENCE
from tests.strangers import STRANGER, Stranger, stranger, tell_by_tables
from tests.transport.peers import CERTIFICATE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has these tables")

TOKEN = {"Authorization": "Bearer secret"}


def asking(url: str, space: str = "") -> Connector:
    """Ask the HTTP API in place of a connection."""

    @asynccontextmanager
    async def dial(headers: Mapping[str, str]) -> AsyncGenerator[Any]:
        async with open_client(url, headers["Authorization"]) as client:
            try:
                yield await fetch(client, "/me", params={}, max_bytes=1_000)
            except httpx.ConnectError as error:
                raise cannot_connect(url, error, PATIENCE) from error

    return dial


WAYS: dict[str, Callable[[str], Connector]] = {
    "websocket": lambda place: websocket_connector(f"ws://{place}", space="demo"),
    "http": lambda place: asking(f"http://{place}"),
}


def in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@pytest.fixture(params=["kernel", "tables"])
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel tell whose a socket is, or its tables where it cannot be asked."""
    if request.param == "tables":
        tell_by_tables(monkeypatch)


async def refused(connector: Connector) -> str:
    """The words with which a connection is given up before it begins."""
    with anyio.fail_after(PATIENCE), pytest.raises(CannotConnect) as failed:
        async with connector(TOKEN):
            pass
    return str(failed.value)


@pytest.mark.parametrize(
    ("listens", "dialled"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "127.0.0.1"),
        ("::", "::1"),
        ("::ffff:0.0.0.0", "127.0.0.1"),
        ("127.0.0.1", "::ffff:127.0.0.1"),
        ("127.0.0.1", "localhost"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.usefixtures("told")
async def test_another_user_at_a_port_gets_nothing(way: str, listens: str, dialled: str) -> None:
    with stranger(listens) as other:
        said = await refused(WAYS[way](f"{in_url(dialled)}:{other.port}"))
        _, heard = await anyio.to_thread.run_sync(other.hear)
    assert heard == "b''"
    assert f"the user {STRANGER} listens at " in said
    assert said.endswith(
        "and was sent nothing; start your gateway, or set MEUP_TRUSTED_USER=54321 if that user runs"
        " it for you"
    )


@contextmanager
def everybodys_folder() -> Generator[Path]:
    """A folder in which any user may listen."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        yield Path(name)


@pytest.mark.parametrize("way", ["websocket", "http"])
async def test_another_user_at_a_unix_socket_is_sent_nothing(way: str) -> None:
    make = websocket_connector if way == "websocket" else asking
    with everybodys_folder() as folder, stranger(path=folder / "gateway.sock") as other:
        path = folder / "gateway.sock"
        said = await refused(make(f"unix://{path}", space="demo"))
        _, heard = await anyio.to_thread.run_sync(other.hear)
    assert heard == "b''"
    assert f"the user {STRANGER} listens at {path}, and was sent nothing" in said


def connect(other: Stranger, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, other.port), PATIENCE)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.usefixtures("told")
def test_another_user_is_known_whatever_it_does_with_the_connection(host: str) -> None:
    with stranger(host) as other, connect(other, host) as waits:
        for do in (None, other.take, other.leave):
            if do is not None:
                do()
            with pytest.raises(ForeignListener):
                check_listener(waits)
        # Our own gateway may listen there by now, and has not taken this connection.
        with socket.create_server((host, other.port), family=waits.family):
            with pytest.raises(ForeignListener):
                check_listener(waits)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
@pytest.mark.usefixtures("told")
def test_our_own_user_may_listen(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as listening:
        with socket.create_connection(listening.getsockname()[:2], PATIENCE) as made:
            check_listener(made)
            with listening.accept()[0]:
                check_listener(made)


@pytest.mark.parametrize("named", [str(STRANGER), f" {STRANGER} "])
def test_a_user_can_be_trusted(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with stranger() as other, connect(other) as made:
        monkeypatch.setenv("MEUP_TRUSTED_USER", named)
        check_listener(made)
        monkeypatch.setenv("MEUP_TRUSTED_USER", str(STRANGER + 1))
        with pytest.raises(ForeignListener):
            check_listener(made)


def test_a_trusted_user_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    import pwd

    name = pwd.getpwuid(os.geteuid()).pw_name
    with stranger() as other, connect(other) as made:
        monkeypatch.setenv("MEUP_TRUSTED_USER", name)
        with pytest.raises(ForeignListener):
            check_listener(made)
        monkeypatch.setenv("MEUP_TRUSTED_USER", "no-such-user")
        with pytest.raises(ConfigurationError, match="'no-such-user', which is not a user here"):
            check_listener(made)


@pytest.mark.parametrize("checked", [True, False])
async def test_a_certificate_shows_who_it_is_where_it_is_checked(checked: bool) -> None:
    """As where a proxy with TLS stands before the gateway."""
    trusts = ssl.create_default_context(cafile=str(CERTIFICATE))
    if not checked:
        trusts.check_hostname = False
        trusts.verify_mode = ssl.CERT_NONE
    with stranger(certificate=CERTIFICATE) as other:
        connector = websocket_connector(f"wss://localhost:{other.port}", ssl=trusts)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, other.take)
            said = await refused(connector)
        _, heard = await anyio.to_thread.run_sync(other.hear)
    assert ("Bearer secret" in heard) is checked
    assert checked or heard == "b''"
    assert (f"the user {STRANGER} listens at " in said) is not checked


OWN, PEER = ("127.0.0.1", 50_000), ("127.0.0.1", 8420)
CONNECTION = "0100007F:20E4 0100007F:C350"
ROW = " {at:3}: {addresses} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 {inode} 1"


class Made:
    """A connection that is made."""

    family = socket.AF_INET

    def __init__(self, own: tuple[str, int] = OWN, peer: tuple[str, int] = PEER) -> None:
        self._own, self._peer = own, peer

    def getsockname(self) -> tuple[str, int]:
        return self._own

    def getpeername(self) -> tuple[str, int]:
        return self._peer

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        raise AssertionError("it is not a Unix socket")


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tell_by_tables(monkeypatch, tmp_path)
    return tmp_path


def write(path: Path, *rows: tuple[str, str, int, int]) -> None:
    lines = [
        ROW.format(at=at, addresses=addresses, state=state, user=user, inode=inode)
        for at, (addresses, state, user, inode) in enumerate(rows)
    ]
    path.write_text("\n".join(["  sl  local_address rem_address   st …", *lines, ""]))


LISTENER = "0100007F:20E4 00000000:0000"


def test_a_connection_that_waits_is_its_listeners_whatever_user_is_written(tables: Path) -> None:
    write(tables / "tcp", (LISTENER, "0A", STRANGER, 7), (CONNECTION, "01", 0, 0))
    with pytest.raises(ForeignListener):
        check_listener(Made())
    write(tables / "tcp", (LISTENER, "0A", 0, 7), (CONNECTION, "01", 0, 0))
    check_listener(Made())


def test_a_connection_that_nothing_holds_is_given_up(tables: Path) -> None:
    """The first has ended; of the second nothing tells whether a program of root's has taken it."""
    for state, inode in (("05", 0), ("01", 7)):
        write(tables / "tcp", (CONNECTION, state, 0, inode))
        with pytest.raises(ConnectionResetError):
            check_listener(Made())


def test_a_user_without_a_number_here_is_not_ours(
    tables: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a namespace without a number for our own user either, all of them have the same."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    write(tables / "tcp", (LISTENER, "0A", 65534, 7), (CONNECTION, "01", 65534, 8))
    check_listener(Made())
    monkeypatch.setattr("meup_agent.transport.listener_owner.USER_MAP", tmp_path / "uid_map")
    (tmp_path / "uid_map").write_text("         0       1000          1\n")
    with pytest.raises(ForeignListener):
        check_listener(Made())


def test_a_table_of_ipv6_has_connections_of_ipv4(tables: Path) -> None:
    mapped = "0000000000000000FFFF00000100007F:20E4"
    own = "0000000000000000FFFF00000100007F:C350"
    write(tables / "tcp6", (f"{mapped} {own}", "01", STRANGER, 7))
    with pytest.raises(ForeignListener):
        check_listener(Made())


def test_an_unknown_user_is_warned_of_once(tables: Path, caplog: pytest.LogCaptureFixture) -> None:
    made = Made(peer=("127.0.0.1", 8433))
    with caplog.at_level(logging.WARNING, "meup_agent.transport"):
        check_listener(made)
        check_listener(made)
    (said,) = caplog.messages
    assert said.startswith("the user who listens at 127.0.0.1:8433 is not known")


def test_elsewhere_nothing_is_known_and_said(
    tables: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tables / "tcp", (LISTENER, "0A", STRANGER, 7))
    check_listener(Made(("192.0.2.1", 50_000), ("192.0.2.2", 8420)))
    # This machine by another address of its own, as a container may have it, too.
    check_listener(Made(("192.0.2.1", 50_000), ("192.0.2.1", 8420)))
    assert caplog.messages == []


def test_a_table_that_cannot_be_read_for_want_of_files_lets_nothing_pass(tables: Path) -> None:
    (tables / "tcp").mkdir()
    with pytest.raises(IsADirectoryError):
        check_listener(Made())
