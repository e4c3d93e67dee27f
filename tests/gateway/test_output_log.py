"""Participants that are present by an output log, and speak over HTTP."""

import json
import sys
from pathlib import Path

import httpx
import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.gateway.config_file import load_config
from meup_agent.gateway.embedded import Gateway, ThreadedGateway
from tests.conformance.wire import V04, Json, Site
from tests.no_tls import NO_TLS

FILE = """
space: {id: demo}
participants:
  clerk: {tokens: [clerk-token], output_log: ./logs/clerk.log, auto_connect: true}
  crane: {tokens: [crane-token]}
  idle: {tokens: [idle-token], output_log: ./logs/idle.log}
defaults: {capabilities: [{kind: chat}, {kind: mcp/*}]}
"""


def config(folder: Path) -> Gateway:
    (folder / "space.yaml").write_text(FILE)
    return Gateway(config=load_config(folder / "space.yaml"))


def post(gateway: ThreadedGateway, name: str, said: Json) -> httpx.Response:
    return httpx.post(
        f"{gateway.http_url}/participants/{name}/messages",
        json=said,
        headers={"Authorization": f"Bearer {name}-token"},
        verify=NO_TLS,
    )


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
        assert not (tmp_path / "logs" / "idle.log").exists()
    said = (tmp_path / "logs" / "clerk.log").read_text()
    # In one line without blanks, whatever its sender wrote.
    assert '"kind":"mcp/response"' in said
    assert f'"correlation_id":["{asked}"]' in said
    kinds = [json.loads(line)["kind"] for line in said.splitlines()]
    assert kinds[0] == "system/welcome"
    assert "mcp/request" in kinds


@pytest.mark.rule("3.output_log")
def test_a_connection_takes_over(tmp_path: Path) -> None:
    with config(tmp_path).in_thread() as gateway:
        with Site(gateway, V04).join("clerk") as (clerk,):
            post(gateway, "crane", {"kind": "chat", "payload": {"text": "hi"}})
            assert clerk.hear("chat")["from"] == "crane"


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such rights")
def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigurationError, match=r"output_log: .*logs.* cannot be written"):
        with config(tmp_path).in_thread():
            pass
