"""Participants that are present by an output log, and speak over HTTP."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway import Gateway, ThreadedGateway, load_config
from tests.conformance.wire import V04, Json, Site
from tests.no_tls import ALONE

FILE = """
space: {id: demo}
participants:
  clerk: {tokens: [clerk-token], output_log: ./logs/clerk.log, auto_connect: true}
  crane: {tokens: [crane-token]}
  idle: {tokens: [idle-token], output_log: ./logs/idle.log}
defaults: {capabilities: [{kind: chat}, {kind: mcp/*}, {kind: stream/*}]}
"""


def config(folder: Path) -> Gateway:
    (folder / "space.yaml").write_text(FILE)
    return Gateway(config=load_config(folder / "space.yaml"))


def post(gateway: ThreadedGateway, name: str, said: Json) -> httpx.Response:
    return httpx.post(
        f"{gateway.http_url}/participants/{name}/messages",
        json=said,
        headers={"Authorization": f"Bearer {name}-token"},
        **ALONE,
    )


def logged(folder: Path, name: str) -> list[Json]:
    text = (folder / "logs" / f"{name}.log").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.rule("3.output_log")
def test_what_it_gets_stands_in_its_file(tmp_path: Path) -> None:
    with config(tmp_path).in_thread() as gateway:
        site = Site(gateway, V04)
        with site.member("crane") as crane:
            (clerk,) = crane.hear("system/welcome")["payload"]["participants"]
            assert (clerk["id"], clerk["dialect"]) == ("clerk", V04)
            call = {"kind": "mcp/request", "to": ["crane"], "payload": {"method": "tools/list"}}
            asked = post(gateway, "clerk", call).json()["id"]
            assert crane.until("mcp/request")["id"] == asked
            crane.send("mcp/response", {"result": {"tools": []}}, correlation_id=[asked])
            crane.until("mcp/response")
        assert (tmp_path / "logs" / "idle.log").read_text() == ""
    said = (tmp_path / "logs" / "clerk.log").read_text()
    # In one line without blanks, whatever its sender wrote.
    assert '"kind":"mcp/response"' in said
    assert f'"correlation_id":["{asked}"]' in said
    kinds = [each["kind"] for each in logged(tmp_path, "clerk")]
    assert kinds[0] == "system/welcome"
    assert "mcp/request" in kinds


@pytest.mark.rule("3.output_log")
def test_a_connection_takes_over(tmp_path: Path) -> None:
    with config(tmp_path).in_thread() as gateway, Site(gateway, V04).join("clerk") as (clerk,):
        post(gateway, "crane", {"kind": "chat", "payload": {"text": "hi"}})
        assert clerk.hear("chat")["from"] == "crane"


@pytest.mark.rule("3.output_log")
def test_its_first_message_brings_one_that_is_not_there_from_the_beginning(tmp_path: Path) -> None:
    asks: Json = {"kind": "stream/request", "payload": {"direction": "upload"}}
    with config(tmp_path).in_thread() as gateway:
        stream = post(gateway, "clerk", asks).json()["stream_id"]
        with Site(gateway, V04).join("crane") as (crane,):
            assert post(gateway, "idle", {"kind": "chat", "payload": {"text": "1"}}).is_success
            arrived = crane.hear("system/presence")["payload"]
            assert (arrived["event"], arrived["participant"]["id"]) == ("join", "idle")
            assert crane.hear("chat")["from"] == "idle"
            # To one that is present a stream can be opened for writing.
            grants = {"stream_id": stream, "participant_id": "idle"}
            assert post(
                gateway, "clerk", {"kind": "stream/grant-write", "payload": grants}
            ).is_success
            with Site(gateway, V04).join("idle"):
                crane.until("system/presence")
            crane.until("system/presence")
            post(gateway, "idle", {"kind": "chat", "payload": {"text": "2"}})
            assert crane.until("system/presence")["payload"]["event"] == "join"
    welcome = next(each for each in logged(tmp_path, "idle") if each["kind"] == "system/welcome")
    (open_now,) = welcome["payload"]["active_streams"]
    assert (open_now["stream_id"], open_now["authorized_writers"]) == (stream, ["clerk"])


@pytest.mark.rule("3.output_log")
def test_what_is_refused_over_http_stands_in_its_file_as_well(tmp_path: Path) -> None:
    with config(tmp_path).in_thread() as gateway:
        refused = post(gateway, "clerk", {"id": "r1", "kind": "system/register"})
        assert refused.status_code == 400
        assert post(gateway, "clerk", {"id": "r2", "kind": "space/kick"}).status_code == 403
        # One with a connection has sent nothing there.
        with Site(gateway, V04).join("crane") as (crane,):
            assert post(gateway, "crane", {"kind": "space/kick"}).status_code == 403
            post(gateway, "crane", {"kind": "chat", "payload": {"text": "hi"}})
            assert crane.hear("chat")["from"] == "crane"
    told = [each for each in logged(tmp_path, "clerk") if each["kind"] == "system/error"]
    assert [each["correlation_id"] for each in told] == [["r1"], ["r2"]]
    assert told[0]["payload"]["message"] == refused.json()["message"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigurationError, match=r"output_log: .*logs.* cannot be written"):
        with config(tmp_path).in_thread():
            pass
