"""The history as JSON Lines: what passed, what was decided, and no token."""

import json
import re
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from meup_agent import Envelope
from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Gateway, ThreadedGateway
from meup_agent.gateway import history as line_files
from meup_agent.gateway.history import DECISIONS, ENVELOPES, open_history
from tests.conformance.wire import V02, V04, Json, Site, config_of
from tests.no_tls import ALONE
from tests.patience import PATIENCE

MAY: dict[str, list[Json]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/*", "to": ["bob"]}],
    "bob": [{"kind": "chat"}],
    "root": [{"kind": "*"}],
}


@contextmanager
def recorded(folder: Path, dialect: str = V04) -> Generator[ThreadedGateway]:
    with Gateway(config=replace(config_of(MAY, dialect=dialect), history=folder)).in_thread() as it:
        yield it


def lines(folder: Path, name: str) -> list[Json]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


@pytest.mark.rule("3.history")
@pytest.mark.parametrize("dialect", [V02, V04])
def test_every_envelope_and_every_decision_is_written(tmp_path: Path, dialect: str) -> None:
    folder = tmp_path / "logs"
    with recorded(folder, dialect) as gateway:
        with Site(gateway, dialect).join("alice", "bob") as (alice, bob):
            alice.send("chat", {"text": "hi"}, id="said")
            bob.until("chat")
            bob.send("mcp/request", {"method": "x"}, id="refused", to=["alice"])
            bob.until("system/error")
            alice.send("mcp/request", {"method": "tools/list"}, id="asked", to=["bob"])
            bob.until("mcp/request")
    written = (folder / ENVELOPES).read_text()
    # In the order, and in the form, in which tools of existing spaces search.
    for pattern in (
        '"event":"received".*"id":"said".*"participant":"alice".*"transport":"websocket"',
        '"event":"delivered".*"id":"said".*"participant":"alice"',
        '"event":"delivered".*"id":"said".*"participant":"bob"',
        '"event":"rejected".*"id":"refused".*"participant":"bob".*capability_violation',
        '"event":"delivered".*"kind":"system/welcome".*"participant":"alice"',
        '"event":"delivered".*"kind":"system/presence".*"participant":"alice"',
        '"event":"delivered".*"kind":"system/error".*"participant":"bob"',
    ):
        assert re.search(pattern, written), pattern
    said = next(each for each in lines(folder, ENVELOPES) if each["id"] == "said")
    assert said["envelope"]["payload"] == {"text": "hi"}
    assert (said["space_id"], said["direction"]) == ("demo", "inbound")
    assert said["timestamp"].endswith("Z")
    decided = {each["envelope_id"]: each for each in lines(folder, DECISIONS)}
    assert {name: each["result"] for name, each in decided.items()} == {
        "said": "allowed",
        "refused": "denied",
        "asked": "allowed",
    }
    assert decided["asked"]["matched_capability"] == {"kind": "mcp/*", "to": ["bob"]}
    assert decided["refused"]["required_capability"] == "mcp/request"
    assert {"kind": "chat"} in decided["refused"]["granted_capabilities"]
    granted = '"participant":"alice".*"result":"allowed".*"required_capability":"chat"'
    assert re.search(granted, (folder / DECISIONS).read_text())


@pytest.mark.rule("3.history")
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_what_stands_there_is_for_its_user_alone_and_no_token(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    with recorded(folder) as gateway:
        site = Site(gateway, V04)
        with site.dial(path="/") as socket:
            socket.send('{"type": "join", "token": "alice-token", "participantId": "alice"}')
            socket.recv(PATIENCE)
        with site.join("root") as (root,):
            root.send("space/invite", {"participant_id": "dave"})
            token = root.until("space/invite-ack")["payload"]["token"]
            path = f"{gateway.http_url}/participants/root/messages"
            headers = {"Authorization": "Bearer root-token"}
            said: Any = {"kind": "space/invite", "payload": {"participant_id": "eve"}}
            other = httpx.post(path, json=said, headers=headers, **ALONE).json()["token"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in (ENVELOPES, DECISIONS):
        file = folder / name
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        content = file.read_text()
        for secret in (token, other, "alice-token", "root-token"):
            assert secret not in content
    assert '"transport":"http"' in (folder / ENVELOPES).read_text()


@pytest.mark.rule("3.history")
@pytest.mark.parametrize("frame", ["{nope", "[]", '{"id": 5}', '{"id": "x",\n "kind": "nope"}'])
def test_what_is_no_envelope_breaks_no_line(tmp_path: Path, frame: str) -> None:
    with recorded(tmp_path) as gateway, Site(gateway, V04).join("alice") as (alice,):
        alice.write(frame)
        alice.until("system/error")
    assert any(each["event"] == "rejected" for each in lines(tmp_path, ENVELOPES))


def note(number: int, size: int = 0) -> Envelope:
    frame = json.dumps({"id": f"e{number}", "text": "x" * size}).encode()
    return Envelope(id=f"e{number}", sender="alice", kind="chat", frame=frame)


@pytest.mark.rule("3.history")
def test_large_files_are_put_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_files, "MAX_LINE_FILE_BYTES", 1_000)
    with open_history(tmp_path, lambda: 0) as opened:
        for number in range(40):
            opened.delivered("demo", "bob", note(number, 100), note(number, 100).frame)
    names = sorted(each.name for each in tmp_path.iterdir() if each.name.startswith(ENVELOPES))
    assert names == [ENVELOPES, *(f"{ENVELOPES}.{each}" for each in range(1, 6))]
    assert all((tmp_path / name).stat().st_size <= 1_000 for name in names)
    assert lines(tmp_path, ENVELOPES)[-1]["id"] == "e39"


@pytest.mark.rule("3.history")
def test_a_disk_that_is_behind_or_full_holds_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_files, "MAX_WAITING_LINE_BYTES", 10)
    with open_history(tmp_path, lambda: 0) as opened:
        opened.delivered("demo", "bob", note(1), note(1).frame)
    assert (opened.lines.left_out, lines(tmp_path, ENVELOPES)) == (1, [])
    assert "1 lines were left out" in caplog.text


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(ConfigurationError, match=r"--history: .* cannot be used"),
        open_history(tmp_path / "file", lambda: 0),
    ):
        pass
