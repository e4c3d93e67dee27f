"""Participants that are paused, resumed and shut down (specification, section 3.9)."""

from typing import Any

import pytest

from tests.conformance.conftest import only_v04
from tests.conformance.wire import Json, Site, Wire

pytestmark = only_v04

CALL: Json = {"method": "tools/call", "params": {"name": "x", "arguments": {}}}
MAY = ("mcp/*", "chat", "chat/*", "reasoning/*", "stream/*")
PEOPLE: dict[str, list[Json]] = {
    "tester": [{"kind": kind} for kind in ("participant/*", *MAY)],
    "slow": [{"kind": kind} for kind in MAY],
}
BEGINS: dict[str, Json] = {
    "mcp/request": CALL,
    "mcp/proposal": CALL,
    "chat": {"text": "hello"},
    "reasoning/start": {"message": "hm"},
    "stream/request": {"direction": "upload"},
}


def answer_to(wire: Wire, sent: str) -> str:
    """The code of the error that an envelope got; empty: it came back."""
    while True:
        said = wire.hear_any()
        if said["id"] == sent:
            return ""
        if said["kind"] == "system/error" and said["correlation_id"] == [sent]:
            return str(said["payload"]["error"])


def begin_nothing(slow: Wire, tester: Wire, code: str) -> None:
    """Try everything that begins something, and everything that ends or answers something."""
    for kind, payload in BEGINS.items():
        assert answer_to(slow, slow.send(kind, payload)) == code
        assert answer_to(tester, tester.send(kind, payload)) == ""
    asked = tester.send("mcp/request", CALL, to=["slow"])
    status = tester.send("participant/request-status", {}, to=["slow"])
    ends: list[tuple[str, Any, list[str]]] = [
        ("mcp/withdraw", {"reason": "no_longer_needed"}, ["slow-p"]),
        ("mcp/reject", {"reason": "busy"}, ["tester-p"]),
        ("mcp/request", {"method": "notifications/cancelled", "params": {"requestId": "r"}}, ["r"]),
        ("mcp/response", {"result": {}}, [asked]),
        ("chat/acknowledge", {"status": "received"}, ["tester-c"]),
        ("chat/cancel", {"reason": "late"}, ["slow-c"]),
        ("reasoning/cancel", {"reason": "late"}, ["slow-r"]),
        ("participant/status", {"messages_in_context": 0, "status": "paused"}, [status]),
    ]
    for kind, payload, correlation in ends:
        assert answer_to(slow, slow.send(kind, payload, correlation_id=correlation)) == ""


@pytest.mark.rule("C.W17", "3.control.held")
def test_paused_participant_begins_nothing(site: Site) -> None:
    with site.join("tester", "slow") as (tester, slow):
        # It may not be done by all.
        refused = slow.send("participant/pause", {}, to=["tester"])
        assert answer_to(slow, refused) == "capability_violation"
        payload = {"reason": "x", "timeout_seconds": 3600}
        pause = tester.send("participant/pause", payload, to=["slow"])
        assert slow.until("participant/pause")["id"] == pause
        begin_nothing(slow, tester, "paused")
        # A new connection lifts no pause.
        with site.member("slow") as again:
            you = again.hear("system/welcome")["payload"]["you"]
            assert you["dev.meup/paused"]["by"] == "tester"
            assert answer_to(again, again.send("chat", {"text": "x"})) == "paused"
            tester.send("participant/resume", {}, to=["slow"], correlation_id=[pause])
            again.until("participant/resume")
            assert answer_to(again, again.send("chat", {"text": "x"})) == ""


@pytest.mark.rule("C.W16", "3.control.rejoin")
def test_participant_that_was_shut_down_begins_nothing_until_it_joins(site: Site) -> None:
    with site.join("tester", "slow") as (tester, slow):
        tester.send("participant/shutdown", {}, to=["slow"])
        slow.until("participant/shutdown")
        begin_nothing(slow, tester, "shut_down")
        with site.member("slow") as again:
            again.hear("system/welcome")
            assert answer_to(again, again.send("chat", {"text": "x"})) == ""


@pytest.mark.rule("C.W27", "3.control.answers")
def test_status_is_asked_for_and_answered_as_captured(site: Site) -> None:
    with site.join("tester", "slow") as (tester, slow):
        asked = tester.send("participant/request-status", {"fields": ["tokens"]}, to=["slow"])
        heard = slow.until("participant/request-status")
        assert (heard["id"], heard["to"]) == (asked, ["slow"])
        status = {"tokens": 12, "max_tokens": 20000, "messages_in_context": 4, "status": "active"}
        slow.send("participant/status", status, to=["tester"], correlation_id=[asked])
        assert tester.until("participant/status")["payload"] == status
        # In words that only an older draft had, it is nothing that the gateway knows.
        slow.send("participant/requestStatus", {}, to=["tester"])
        assert slow.refusal() == "capability_violation"
