"""The scripted participants misbehave as the existing ones were seen to."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.existing.gateways import MEUP_V02, MEW_V04, ExistingGateway, Version
from tests.existing.matcher import Json
from tests.existing.reference_peers import (
    Answer,
    Bridge,
    Fulfiller,
    Proposer,
    ReferencePeer,
    ToolOwner,
)

NAMES = ["proposer", "fulfiller", "calculator", "tester"]
BOTH = pytest.mark.parametrize("version", [MEUP_V02, MEW_V04], ids=["meup-v0.2", "mew-v0.4"])
ADD = {"name": "add", "arguments": {"a": 2, "b": 3}}
ANSWERS: dict[str, Answer] = {
    "add": lambda arguments: {"result": arguments["a"] + arguments["b"]},
    "nothing": {},
}


@contextmanager
def serving(version: Version) -> Generator[ExistingGateway]:
    gateway = ExistingGateway(
        version,
        tokens={f"{name}-token": name for name in NAMES},
        capabilities={name: [{"kind": "mcp/*"}, {"kind": "chat"}] for name in NAMES},
    )
    with gateway.in_thread():
        yield gateway


def of(kind: str) -> Any:
    def wanted(envelope: Json) -> bool:
        return envelope.get("kind") == kind

    return wanted


@BOTH
def test_ids_begin_anew_and_a_heartbeat_follows_every_join(version: Version) -> None:
    with serving(version) as gateway:
        with ReferencePeer(gateway.url, "tester", version=version) as peer:
            assert peer.you["id"] == "tester"
            peer.restart()
            gateway.wait_frames(lambda heard: heard.frame.get("kind") == "system/heartbeat", 2)
        sent = [(heard.frame.get("type") or heard.frame["kind"]) for heard in gateway.frames]
        assert sent == ["join", "system/heartbeat"] * 2
        assert [heard.frame["id"] for heard in gateway.frames[1::2]] == ["tester-1"] * 2


def test_a_bridge_registers_and_is_refused() -> None:
    with serving(MEW_V04) as gateway, Bridge(gateway.url, "tester") as peer:
        (refusal,) = peer.wait_heard(of("system/error"))
        assert refusal["payload"]["error"] == "invalid_request"
        assert refusal["correlation_id"] == ["tester-2"]


def test_an_older_tool_owner_answers_notifications_and_correlates_with_a_string() -> None:
    with (
        serving(MEUP_V02) as gateway,
        ToolOwner(gateway.url, "calculator", ANSWERS, version=MEUP_V02) as owner,
        ReferencePeer(gateway.url, "tester", version=MEUP_V02) as tester,
    ):
        method = "notifications/cancelled"
        tester.send("mcp/request", {"jsonrpc": "2.0", "method": method}, to=["calculator"])
        call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": ADD}
        tester.send("mcp/request", call, to=["calculator"])
        refused, answered = tester.wait_heard(of("mcp/response"), 2)
        assert refused["payload"]["error"]["code"] == -32601
        assert "id" not in refused["payload"]
        assert answered["payload"] == {"jsonrpc": "2.0", "id": 7, "result": 5}
        sent = [heard.frame for heard in gateway.frames if heard.who == owner.name]
        assert [frame["correlation_id"] for frame in sent[2:]] == ["tester-2", "tester-3"]


def test_a_newer_tool_owner_answers_what_is_for_others_with_bare_results() -> None:
    with (
        serving(MEW_V04) as gateway,
        ToolOwner(gateway.url, "calculator", ANSWERS) as owner,
        ReferencePeer(gateway.url, "tester") as tester,
    ):
        for params in (ADD, {"name": "nothing"}, {"name": "other"}):
            tester.send("mcp/request", {"method": "tools/call", "params": params}, to=["nobody"])
        answers = tester.wait_heard(of("mcp/response"), 3)
        error = {"code": "NOT_FOUND", "message": "Tool not found: other"}
        assert [answer["payload"] for answer in answers] == [{"result": 5}, {}, {"error": error}]
        assert not [answer for answer in answers if "to" in answer]
        sent = [heard.frame for heard in gateway.frames if heard.who == owner.name]
        assert sent[-1]["correlation_id"] == "tester-4"


@BOTH
def test_a_fulfiller_names_no_proposal_and_reports_as_its_version_does(version: Version) -> None:
    with (
        serving(version) as gateway,
        ToolOwner(gateway.url, "calculator", ANSWERS, version=version),
        Fulfiller(gateway.url, "fulfiller", executor="calculator", version=version),
        Proposer(gateway.url, "proposer", version=version) as proposer,
    ):
        proposal = proposer.propose("tools/call", ADD)
        if version is MEUP_V02:
            (report,) = proposer.wait_heard(of("chat"))
            assert report["payload"]["text"] == "5"
            assert "correlation_id" not in report
            assert proposer.outcomes == {}
        else:
            proposer.wait_heard(lambda envelope: envelope.get("correlation_id") == [proposal])
            assert proposer.outcomes[proposal]["from"] == "fulfiller"
        requests = gateway.wait_frames(lambda heard: heard.frame.get("kind") == "mcp/request")
        assert [heard.who for heard in requests] == ["fulfiller"]
        assert "correlation_id" not in requests[0].frame


def test_a_newer_proposer_withdraws_at_its_timeout_and_believes_the_first_reject() -> None:
    with (
        serving(MEW_V04) as gateway,
        ReferencePeer(gateway.url, "tester") as tester,
        Proposer(gateway.url, "proposer") as proposer,
    ):
        given_up = proposer.propose("tools/call", ADD, to=["calculator"])
        proposer.give_up(given_up)
        (withdraw,) = tester.wait_heard(of("mcp/withdraw"))
        assert withdraw["payload"] == {"reason": "timeout"}
        assert withdraw["correlation_id"] == [given_up]
        rejected = proposer.propose("tools/call", ADD, to=["calculator"])
        tester.wait_heard(of("mcp/proposal"), 2)
        tester.send("mcp/reject", {"reason": "unsafe"}, correlation_id=[rejected])
        proposer.wait_heard(of("mcp/reject"))
        assert proposer.outcomes[rejected]["from"] == "tester"


def test_any_welcome_tells_them_who_they_are_and_a_grant_is_acknowledged() -> None:
    with serving(MEW_V04) as gateway, ReferencePeer(gateway.url, "tester") as tester:
        gateway.grant("tester", [{"kind": "capability/grant-ack"}])
        tester.wait_heard(of("capability/grant"))
        (ack,) = gateway.wait_frames(lambda h: h.frame.get("kind") == "capability/grant-ack")
        assert ack.frame["correlation_id"] == ["grant-1"]
        gateway.forge({"kind": "system/welcome", "to": ["b"], "payload": {"you": {"id": "b"}}})
        tester.wait_heard(of("system/welcome"), 3)
        assert tester.you["id"] == "b"
