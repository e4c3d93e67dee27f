"""Ids and what is decided, over real sockets: by WebSocket and HTTP, and after a restart."""

from __future__ import annotations

import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.sync.client import ClientConnection

from meup_agent.gateway import Gateway, JournalConfig
from tests.gateway.http.conftest import Api
from tests.gateways import one_space_config
from tests.patience import PATIENCE

CALL = {"method": "tools/call", "params": {"name": "write"}}
PARTICIPANTS: dict[str, list[dict[str, Any]]] = {
    "alice": [{"kind": "mcp/proposal"}],
    "bob": [{"kind": "mcp/*"}, {"kind": "chat"}],
    "carol": [{"kind": "mcp/*"}],
    "tools": [],
    "admin": [{"kind": "*"}],
}


@contextmanager
def served(path: Path | None = None) -> Generator[Api]:
    config = one_space_config("demo", PARTICIPANTS)
    if path is not None:
        config = replace(config, journal=JournalConfig(path))
    with Gateway(config=config).in_thread() as gateway:
        api = Api(gateway)
        with api.client:
            yield api


@pytest.fixture
def api() -> Generator[Api]:
    with served() as found:
        yield found


def proposal(id: str) -> dict[str, Any]:
    return {"kind": "mcp.proposal", "id": id, "payload": CALL}


def request(id: str, *names: str) -> dict[str, Any]:
    payload = {"jsonrpc": "2.0", "id": id, **CALL}
    found: dict[str, Any] = {"kind": "mcp.request", "id": id, "to": ["tools"], "payload": payload}
    if names:
        found["correlationId"] = names[0] if len(names) == 1 else list(names)
    return found


def withdraw(proposal: str) -> dict[str, Any]:
    return {"kind": "mcp.withdraw", "correlationId": proposal, "payload": {"reason": "other"}}


def say(socket: ClientConnection, sender: str, said: dict[str, Any]) -> dict[str, Any]:
    """Say something by WebSocket; its echo, or its refusal."""
    socket.send(json.dumps({"protocol": "meup/v0.1", "from": sender, **said}))
    while True:
        heard: dict[str, Any] = json.loads(socket.recv(PATIENCE))
        if heard["kind"] == "system.error" and heard["correlationId"] == said["id"]:
            return heard
        if (heard["id"], heard["from"]) == (said["id"], sender):
            return heard


@pytest.mark.rule("3.ids.claimed")
def test_an_id_is_claimed_by_http_and_by_websocket_alike(api: Api) -> None:
    with api.join("bob") as bob:
        assert api.post(proposal("by-http")).status_code == 200
        assert say(bob, "bob", proposal("by-http"))["payload"]["error"] == "id_in_use"
        assert say(bob, "bob", proposal("by-socket"))["kind"] == "mcp.proposal"
        refused = api.post(proposal("by-socket"))
        assert (refused.status_code, refused.json()["error"]) == (409, "id_in_use")
        # One's own is said again over whatever carries it.
        assert api.post(proposal("by-socket"), "bob").status_code == 200
        assert api.post(proposal("by-http")).status_code == 200
        heard = [json.loads(bob.recv(PATIENCE))["from"]]
    assert "system:gateway" not in heard  # bob's connection is not told what HTTP was refused


@pytest.mark.rule("3.ids.claimed")
def test_of_many_who_copy_an_id_at_once_one_gets_it(api: Api) -> None:
    names = ("alice", "bob", "carol", "admin") * 4
    with ThreadPoolExecutor(len(names)) as pool:
        answers = list(pool.map(lambda name: (name, api.post(proposal("p"), name)), names))
    taken = {name for name, answer in answers if answer.status_code == 200}
    assert len(taken) == 1
    assert {answer.status_code for name, answer in answers if name not in taken} == {409}


@pytest.mark.rule("3.ids.not_pending", "3.ids.one_proposal")
def test_what_is_decided_is_refused_by_http_and_by_websocket(api: Api) -> None:
    with api.join("bob") as bob:
        for id in ("p", "q"):
            assert api.post(proposal(id)).status_code == 200
        refused = api.post(request("r", "p", "q"), "carol")
        assert (refused.status_code, refused.json()["error"]) == (400, "several_proposals")
        assert api.post(withdraw("p")).status_code == 200
        refused = api.post(request("r", "p"), "carol")
        assert (refused.status_code, refused.json()["error"]) == (409, "not_pending")
        assert refused.json()["state"] == "withdrawn"
        heard = say(bob, "bob", request("s", "p"))
        assert heard["payload"]["error"] == "not_pending"
        refused = api.post(request("r", *(f"p{number}" for number in range(10_000))), "carol")
        assert (refused.status_code, refused.json()["error"]) == (400, "invalid_envelope")
        assert api.post(request("r", "q"), "carol").status_code == 200


@pytest.mark.rule("3.ids.claimed", "3.ids.not_pending")
def test_a_gateway_that_started_anew_knows_it_all(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with served(path) as api:
        for id in ("open", "withdrawn", "fulfilled"):
            assert api.post(proposal(id)).status_code == 200
        assert api.post(withdraw("withdrawn")).status_code == 200
        assert api.post(request("r", "fulfilled"), "carol").status_code == 200
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": "r", "result": {}}
        said = {"kind": "mcp.response", "correlationId": "r", "payload": answer}
        assert api.post(said, "tools").status_code == 200
    with served(path) as api:
        for id in ("open", "withdrawn", "fulfilled", "r"):
            refused = api.post(proposal(id), "bob")
            assert (refused.status_code, refused.json()["error"]) == (409, "id_in_use")
        for id in ("withdrawn", "fulfilled"):
            refused = api.post(request("s", id), "bob")
            assert (refused.status_code, refused.json()["state"]) == (409, id)
        assert api.post(request("s", "open"), "bob").status_code == 200


@pytest.mark.rule("3.ids.claimed", "3.ids.by_name")
def test_who_was_removed_and_who_is_invited_take_no_ids_over(api: Api) -> None:
    with api.join("admin") as admin:
        assert api.post(proposal("p")).status_code == 200
        assert api.post(proposal("new-1")).status_code == 200
        invite = {"kind": "space.invite", "id": "i", "payload": {"participant_id": "new"}}
        assert say(admin, "admin", invite)["kind"] == "space.invite"
        kick = {"kind": "space.kick", "id": "k", "payload": {"participant_id": "alice"}}
        assert say(admin, "admin", kick)["kind"] == "space.kick"
    for id in ("p", "alice-1", "new-1", "new-2"):
        refused = api.post(proposal(id), "bob")
        assert (refused.status_code, refused.json()["error"]) == (409, "id_in_use")
    refused = api.post(request("r", "p"), "bob")
    assert (refused.status_code, refused.json()["error"]) == (409, "not_pending")


@pytest.mark.rule("3.ids.proposer_key")
def test_a_proposal_that_says_whose_it_is_is_refused(api: Api) -> None:
    params = {"name": "write", "_meta": {"dev.meup/proposer": "bob"}}
    said = {"kind": "mcp.proposal", "payload": {"method": "tools/call", "params": params}}
    refused = api.post(said)
    assert (refused.status_code, refused.json()["error"]) == (400, "reserved_key")
    assert refused.json()["key"] == "dev.meup/proposer"


@pytest.mark.rule("3.ids.not_pending", "6.resume.once")
def test_a_fulfilling_request_whose_answer_was_lost_is_known_again(api: Api) -> None:
    assert api.post(proposal("p")).status_code == 200
    first = api.post(request("r", "p"), "carol")
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": "r", "result": {}}
    said = {"kind": "mcp.response", "correlationId": "r", "payload": answer}
    assert api.post(said, "tools").status_code == 200
    again = api.post(request("r", "p"), "carol")
    assert (again.status_code, again.json()["seq"]) == (200, first.json()["seq"])
    assert api.post(request("s", "p"), "carol").status_code == 409
