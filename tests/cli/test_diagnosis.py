"""Findings of `meup doctor`: the step that fails, why, and what to do; all of a good space."""

import socket
import sys
import threading
from collections.abc import Generator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest
from websockets.sync.server import ServerConnection

from meup_agent import Agent
from meup_agent.cli.address import SpaceOptions
from meup_agent.cli.doctor import NOT_TRIED, Check, Report, diagnose
from meup_agent.gateway import Gateway, ThreadedGateway
from meup_agent.transport.websocket import WebSocketTransport
from meup_agent.types import Guarantees
from tests.cli.commands import NAMES
from tests.cli.servers import (
    CERTIFICATE,
    answering,
    listening,
    silence,
    websockets_to,
    welcome,
    welcoming,
)
from tests.conformance.gateways import MEUP_V02, MEW_V04, ExistingGateway, Version
from tests.patience import PATIENCE
from tests.wire import OURS

SOON = 1.0
"""Seconds for a step that is to take too long."""

LATER = 3.0
"""Seconds for such a step after others that are to end in time."""

CAPABILITIES: dict[str, list[dict[str, Any]]] = {
    "ann": [
        {"kind": "mcp/proposal"},
        {"kind": "chat"},
        {"kind": "mcp/request", "payload": {"method": "tools/call", "params": {"name": "read_*"}}},
    ],
    "bob": [{"kind": "*"}],
}


class Recorder:
    """Hears of each check when it is done."""

    def __init__(self) -> None:
        self.told: list[Check] = []

    def begin_attempt(self, what: str, seconds: float | None = None) -> None:
        assert what.isprintable()

    async def report_check(self, check: Check) -> None:
        self.told.append(check)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MEUP_URL", "MEUP_SPACE", "MEUP_TOKEN", "MEUP_PARTICIPANT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def ours() -> Generator[ThreadedGateway]:
    with Gateway("demo", CAPABILITIES).in_thread() as gateway:
        yield gateway


async def look_at(
    url: str, *, space: Any = "demo", token: Any = "t", timeout: float = PATIENCE, **more: Any
) -> Report:
    recorder, options = Recorder(), SpaceOptions(url=url, space=space, token=token, **more)
    with anyio.fail_after(2 * PATIENCE):
        report = await diagnose(options, recorder, timeout=timeout)
    assert [check.name for check in report.checks] == list(NAMES)
    assert sorted(recorder.told, key=lambda check: NAMES.index(check.name)) == report.checks
    assert all((check.said + check.advice).isprintable() for check in report.checks)
    # Whatever fails says what to do.
    assert all(check.advice for check in report.checks if check.ok is False)
    return report


async def no_pong(_: object) -> None:
    await anyio.sleep_forever()


def of(report: Report, name: str) -> Check:
    return next(check for check in report.checks if check.name == name)


def failures(report: Report) -> list[Check]:
    return [check for check in report.checks if check.ok is False]


def failed_at(report: Report) -> Check:
    """The only check that failed; those behind it were not tried."""
    [failed] = failures(report)
    behind = NAMES.index(failed.name) + 1
    assert all(check.said == NOT_TRIED for check in report.checks[behind:])
    assert not report.ok
    return failed


async def test_a_good_space_is_told_in_full(ours: ThreadedGateway) -> None:
    report = await look_at(ours.url, token=ours.token("ann"))
    assert report.ok
    assert report.connected
    assert (report.me, report.participants) == ("ann", ())
    assert (report.asked, report.adopted) == ("meup/v0.1", "meup/v0.1")
    assert report.guarantees == OURS
    assert report.said_guarantees
    assert report.capabilities
    assert report.round_trip is not None
    assert report.clock_difference is not None
    assert of(report, "token").said == "good: the gateway knows it as ann"
    assert of(report, "may").said == (
        "call tools (only read_*), propose, chat; not: reject, grant capabilities"
    )
    assert of(report, "here").said == "no others"
    assert [check.name for check in report.checks if check.ok is None] == ["tls"]
    assert not any(check.advice for check in report.checks)


@pytest.mark.rule("3.observe.takes_no_part")
async def test_the_agent_that_runs_with_the_token_is_not_disturbed(ours: ThreadedGateway) -> None:
    token = ours.token("ann")
    async with Agent("ann").join(ours.url, space="demo", token=token) as space:
        report = await look_at(ours.url, token=token)
        assert report.ok
        assert report.participants == ("ann",)
        await space.chat("still here")
    assert ours.counters.taken_over == 0


async def test_a_token_file_and_a_name_do_as_well(ours: ThreadedGateway, tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(ours.token("bob"))
    url = ours.url.replace("127.0.0.1", "localhost")
    report = await look_at(url, token=None, token_file=path, participant="bob")
    assert report.ok
    assert of(report, "may").said == "call tools, propose, reject, chat, grant capabilities"


@pytest.mark.parametrize(
    ("version", "guarantees"),
    [
        pytest.param(MEUP_V02, Guarantees(hidden_targets=True), id="meup-v0.2"),
        pytest.param(MEW_V04, Guarantees(echo=True), id="mew-v0.4"),
    ],
)
async def test_an_existing_gateway_is_recognized(version: Version, guarantees: Guarantees) -> None:
    gateway = ExistingGateway(version, tokens={"secret": "ann"}, capabilities=CAPABILITIES)
    with gateway.in_thread() as running:
        report = await look_at(running.url, token="any other", participant="ann")
    assert report.ok
    assert (report.me, report.guarantees) == ("ann", guarantees)
    assert not report.said_guarantees
    assert report.adopted == version.protocol
    assert of(report, "dialect").said == f"{version.protocol}, asked for meup/v0.1"
    assert "does not check who is who" in of(report, "token").said
    assert of(report, "token").advice
    assert "an existing one" in of(report, "gateway").said
    assert not of(report, "me").advice

    with gateway.in_thread() as running:
        nameless = await look_at(running.url)
    assert (nameless.ok, nameless.me) == (True, "meup doctor")
    assert "--participant" in of(nameless, "me").advice


async def test_an_address_that_cannot_be_one() -> None:
    failed = failed_at(await look_at("http://x"))
    assert failed.name == "address"
    assert "does not begin with ws:// or wss://" in failed.said
    assert failed.advice == "write ws://x"


@pytest.mark.parametrize("lacking", ["space", "token"])
async def test_the_way_is_tried_without_space_or_token(ours: ThreadedGateway, lacking: str) -> None:
    given: dict[str, Any] = {lacking: None}
    report = await look_at(ours.url, **given)
    assert [check.name for check in failures(report)] == ["settings"]
    assert of(report, "settings").said == f"the {lacking} is missing"
    assert of(report, "port").ok
    assert of(report, "handshake").said == NOT_TRIED
    assert report.connected


async def test_a_name_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    failed = failed_at(await look_at("ws://nobody.example"))
    assert failed.name == "name"
    assert failed.said == "nobody.example has no address: name or service not known"


async def test_a_name_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def unknown_at_last(*_: object, **__: object) -> None:
        over.wait(PATIENCE)
        raise socket.gaierror(socket.EAI_AGAIN, "Try again")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_at_last)
    try:
        failed = failed_at(await look_at("ws://slow.example", timeout=SOON))
    finally:
        over.set()
    assert failed.name == "name"
    assert failed.said.startswith("the name servers gave no address of")
    assert failed.said.endswith("within 1 s")


async def test_a_closed_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        port = taken.getsockname()[1]
        failed = failed_at(await look_at(f"ws://127.0.0.1:{port}"))
    assert (failed.name, failed.said) == ("port", f"nothing listens at 127.0.0.1:{port}")


async def test_a_certificate_that_nobody_vouches_for() -> None:
    with websockets_to(silence, tls=True) as url:
        failed = failed_at(await look_at(url))
    assert failed.name == "tls"
    assert failed.said == "the certificate is not to be trusted: self-signed certificate"
    assert "SSL_CERT_FILE" in failed.advice


async def test_a_certificate_that_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with websockets_to(welcome(), tls=True) as url:
        report = await look_at(url)
    assert of(report, "tls").ok
    assert "TLSv1.3, certificate good until" in of(report, "tls").said
    assert of(report, "welcome").ok


@pytest.mark.skipif(sys.platform != "linux", reason="only there all of 127.0.0.0/8 is at home")
async def test_a_certificate_for_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
    with websockets_to(silence, tls=True, host="127.0.0.2") as url:
        failed = failed_at(await look_at(url.replace("localhost", "127.0.0.2")))
    assert failed.name == "tls"
    assert "mismatch" in failed.said
    assert "stands in the certificate" in failed.advice


async def test_tls_to_a_port_that_has_none() -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        failed = failed_at(await look_at(url.replace("ws:", "wss:")))
    assert (failed.name, "speaks no TLS" in failed.said) == ("tls", True)
    assert failed.advice.startswith("write ws://")


async def test_no_tls_to_a_port_that_has_it() -> None:
    with websockets_to(silence, tls=True) as url:
        failed = failed_at(await look_at(url.replace("wss:", "ws:"), timeout=2.0))
    assert failed.name == "handshake"


async def test_a_port_that_says_nothing() -> None:
    with listening() as server:
        url = f"ws://127.0.0.1:{server.getsockname()[1]}"
        failed = failed_at(await look_at(url, timeout=SOON))
    assert (failed.name, "says nothing" in failed.said) == ("handshake", True)


def page(status: str, body: str = "", version: str = "1.1", more: str = "") -> bytes:
    return (
        f"HTTP/{version} {status}\r\nContent-Length: {len(body)}\r\n{more}"
        f"Connection: close\r\n\r\n{body}"
    ).encode()


@pytest.mark.parametrize(
    ("reply", "name", "said"),
    [
        (page("200 OK", "<html>"), "handshake", "what answers is not a gateway (status 200)"),
        (page("200 OK", "a\nb"), "handshake", "what answers is not a gateway (status 200)"),
        (page("404 Not Found"), "space", "no gateway at this path (status 404)"),
        (page("401 No", "who?"), "token", "the gateway refuses the token (status 401: who?)"),
        (page("403 No", "out"), "token", "the gateway refuses the token (status 403: out)"),
        (page("403 No"), "handshake", "no gateway is at this path, or something in front of it"),
        (page("503 No", more="Retry-After: 600\r\n"), "handshake", "not up yet (status 503)"),
        (page("404 No", version="1.0"), "handshake", "answers no WebSocket handshake: "),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "handshake", "answers no WebSocket handshake: "),
        (b"", "handshake", "answers no WebSocket handshake: "),
    ],
    ids=lambda value: value if value in NAMES else None,
)
async def test_what_is_no_gateway(reply: bytes, name: str, said: str) -> None:
    with answering(reply) as url:
        failed = failed_at(await look_at(url))
    assert failed.name == name
    assert said in failed.said


async def test_a_wrong_token_and_a_wrong_space(ours: ThreadedGateway) -> None:
    report = await look_at(ours.url, token="wrong")
    assert failed_at(report).name == "token"
    assert of(report, "handshake").said == "answered with status 401"
    assert not report.connected

    report = await look_at(ours.url, token=ours.token("ann"), space="nowhere")
    assert failed_at(report).name == "space"
    assert "there is no such space" in failed_at(report).said


async def test_the_token_of_somebody_else(ours: ThreadedGateway) -> None:
    report = await look_at(ours.url, token=ours.token("ann"), participant="bob")
    failed = failed_at(report)
    assert failed.name == "token"
    assert "takes us for 'ann', not for 'bob'" in failed.said
    assert failed.advice.startswith("use the token of 'bob'")
    assert not report.connected


async def test_a_gateway_that_never_welcomes() -> None:
    with websockets_to(silence) as url:
        report = await look_at(url, timeout=LATER)
    assert [(each.name, each.said) for each in failures(report)] == [
        ("welcome", "none came within 3 s")
    ]
    assert of(report, "handshake").ok


async def test_something_else_than_a_welcome() -> None:
    def chatter(connection: ServerConnection) -> None:
        connection.send("hello\x1b[31m")
        silence(connection)

    with websockets_to(chatter) as url:
        report = await look_at(url, timeout=LATER)
    assert of(report, "welcome").said.startswith("what came is not a welcome: the frame is not")


@pytest.mark.parametrize(
    ("code", "name"),
    [(4401, "token"), (4403, "welcome"), (4404, "space"), (4409, "welcome"), (1013, "welcome"),
     (1000, "welcome"), (4400, "welcome")],
)  # fmt: skip
async def test_a_gateway_that_closes_the_door_again(code: int, name: str) -> None:
    with websockets_to(lambda connection: connection.close(code, "go\x07 away")) as url:
        report = await look_at(url)
    [failed] = failures(report)
    assert failed.name == name
    assert f"(code {code}: go\\x07 away)" in failed.said
    assert not report.connected


async def test_a_connection_that_does_not_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketTransport, "round_trip", no_pong)

    def hang_up(connection: ServerConnection) -> None:
        connection.send(welcoming())
        connection.close(1011, "tired")

    with websockets_to(hang_up) as url:
        report = await look_at(url)
    [failed] = failures(report)
    assert failed.name == "round trip"
    assert failed.said == "the connection ended: closed with code 1011: tired"
    assert report.me == "me"
    assert not report.connected


async def test_clocks_that_differ_too_much() -> None:
    late = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    soon = (datetime.now(UTC) + timedelta(seconds=30)).isoformat()
    with ExitStack() as stack:
        report = await look_at(stack.enter_context(websockets_to(welcome(ts=late))))
        near = await look_at(stack.enter_context(websockets_to(welcome(ts=soon))))
        timeless = await look_at(stack.enter_context(websockets_to(welcome(ts="yesterday"))))
    assert failed_at(report).name == "clock"
    assert failed_at(report).said.endswith("s behind ours")
    assert report.connected
    assert near.ok
    assert of(near, "clock").said.endswith("s ahead of ours")
    assert of(timeless, "clock").ok is None


async def test_pings_that_are_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WebSocketTransport, "round_trip", no_pong)
    with websockets_to(welcome()) as url:
        report = await look_at(url, timeout=LATER)
    assert [check.name for check in failures(report)] == ["round trip"]


async def test_names_of_strangers_are_escaped() -> None:
    hostile = "\x1b[2J\u202eeve"
    payload = {
        "you": {"id": hostile, "capabilities": [{"kind": "mcp/request", "payload": {"x": "\x07"}}]},
        "participants": [{"id": hostile + "2"}],
    }
    with websockets_to(welcome(payload=payload, protocol="meup/v0.1")) as url:
        report = await look_at(url)
    assert report.me == hostile
    assert of(report, "me").said == "\\e[2J\\u202eeve"
    assert of(report, "here").said == "\\e[2J\\u202eeve2"
