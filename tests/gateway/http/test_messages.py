"""Saying and reading envelopes over HTTP: the rules are those of a connection."""

import json
import socket
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from meup_agent.gateway import GatewayLimits, JournalConfig
from tests.gateway.http.conftest import LIMITS, Api, served
from tests.patience import PATIENCE

PROPOSAL = {"kind": "mcp.proposal", "payload": {"method": "tools/call", "params": {"name": "x"}}}


def chat(**header: object) -> dict[str, object]:
    return {"kind": "chat", "payload": {"message": "hi"}, **header}


def test_what_the_header_lacks_is_filled_in(api: Api) -> None:
    with api.join("bob") as bob:
        answer = api.post(b'{ "kind":"chat", "payload": {"message":  "hi"} }')
        frame = bob.recv(PATIENCE, decode=False)
    said, heard = answer.json(), json.loads(frame)
    assert frame.endswith(b', "kind":"chat", "payload": {"message":  "hi"} }')
    assert answer.status_code == 200
    assert said["status"] == "accepted"
    assert heard["id"] == said["id"]
    assert (heard["from"], heard["protocol"], heard["kind"]) == ("alice", "meup/v0.1", "chat")
    assert heard["ts"] == said["timestamp"]
    assert answer.headers["cache-control"] == "no-store"


def test_a_whole_envelope_is_forwarded_byte_for_byte(api: Api) -> None:
    frame = (
        b'  {"protocol": "meup/v0.1", "id": "e1", "ts": "2026-01-01T00:00:00Z", "from": "alice",\n'
        b' "kind": "chat", "odd": [1, null], "payload": {"message": "\\u00e9"}}'
    )
    with api.join("bob") as bob:
        assert api.post(frame).status_code == 200
        assert bob.recv(20, decode=False) == frame


@pytest.mark.rule("3.list.alone")
def test_a_question_is_answered_to_the_caller_and_kept_nowhere(api: Api) -> None:
    with api.join("bob") as bob:
        answer = api.post({"kind": "space/list-proposals", "payload": {"to_me": True}}).json()
        assert (answer["status"], answer["seq"]) == ("answered", None)
        assert answer["answer"].keys() == {"seq"}
        assert api.post({"kind": "space/list-proposals", "payload": {"of": 1}}).status_code == 400
        said = api.post(chat()).json()
        assert json.loads(bob.recv(PATIENCE))["id"] == said["id"]
    assert said["seq"] > answer["answer"]["seq"]


@pytest.mark.parametrize(
    ("envelope", "status", "error"),
    [
        (chat(**{"from": "bob"}), 403, "identity_mismatch"),
        ({"kind": "system.welcome", "payload": {}}, 403, "reserved_kind"),
        ({"kind": "mcp.request", "payload": {"method": "x"}}, 403, "capability_violation"),
        ({"payload": {}}, 400, "invalid_envelope"),
        ({"kind": "chat", "payload": [1]}, 400, "invalid_envelope"),
        (chat(id="\n"), 400, "invalid_envelope"),
        (chat(protocol="meup/v9"), 400, "bad_request"),
        (b"{nope", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b"", 400, "invalid_json"),
        (b'{"\xff": 1}', 400, "invalid_utf8"),
        (b'{"kind":"chat","payload":' + b'{"a":' * 200 + b"1" + b"}" * 201, 400, "too_deep"),
        (b'{"kind":"chat","payload":{"message":NaN}}', 400, "invalid_json"),
        (b'{"kind":"chat","payload":{"n":1e400}}', 400, "invalid_json"),
        (b'{"kind":"chat","payload":{"n":-%b}}' % (b"9" * 309), 400, "invalid_json"),
    ],
)
def test_what_is_refused_to_a_connection(
    api: Api, envelope: object, status: int, error: str
) -> None:
    with api.join("alice") as running:
        answer = api.post(envelope)
        assert (answer.status_code, answer.json()["error"]) == (status, error)
        assert answer.json()["message"]
        if error == "too_deep":
            assert (answer.json()["limit"], answer.json()["max"]) == ("max_depth", 100)
        # Nobody heard of it, not even the participant's own connection.
        api.say("next")
        assert json.loads(running.recv(PATIENCE))["payload"] == {"message": "next"}


def test_the_same_said_again_is_delivered_once(api: Api) -> None:
    with api.join("bob") as bob:
        first, again = api.post(chat(id="e1")).json(), api.post(chat(id="e1")).json()
        api.say("next")
        heard = [json.loads(bob.recv(PATIENCE)) for _ in range(2)]
    assert first["seq"] == again["seq"]
    assert [each["payload"]["message"] for each in heard] == ["hi", "next"]


def test_a_heartbeat_is_dropped(api: Api) -> None:
    answer = api.post({"kind": "system/heartbeat", "payload": {}})
    assert (answer.status_code, answer.json()["status"]) == (200, "dropped")
    assert answer.json()["seq"] is None


@pytest.mark.parametrize("media", ["text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken(api: Api, media: str) -> None:
    answer = api.post(chat(), **{"Content-Type": media})
    assert (answer.status_code, answer.json()["error"]) == (415, "unsupported_media_type")


@pytest.mark.limit("max_message_bytes")
def test_too_large_a_body_is_not_read_to_its_end(api: Api) -> None:
    parts = urlsplit(api.gateway.http_url)
    head = (
        "POST /participants/alice/messages HTTP/1.1\r\nHost: x\r\n"
        "Content-Type: application/json\r\nContent-Length: 999999999\r\n"
        f"Authorization: {api.header('alice')['Authorization']}\r\n\r\n"
    )
    assert parts.hostname is not None
    with socket.create_connection((parts.hostname, parts.port or 0), timeout=PATIENCE) as caller:
        caller.sendall(head.encode() + b" " * (LIMITS.max_message_bytes + 1))
        answer = caller.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 413 ")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    said = (told["error"], told["limit"], told["max"])
    assert said == ("too_large", "max_message_bytes", LIMITS.max_message_bytes)


@pytest.mark.parametrize("token", ["", "Bearer wrong", "Basic YTpi"])
def test_a_stranger_is_refused(api: Api, token: str) -> None:
    header = {"Authorization": token} if token else {}
    for path in ("/me", "/participants/alice/messages", "/spaces/demo/events"):
        answer = api.client.get(path, headers=header)
        assert (answer.status_code, answer.json()["error"]) == (401, "token_refused")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "wrong" not in answer.text


def test_a_token_in_the_address_is_none(api: Api) -> None:
    token = api.gateway.token("alice")
    for name in ("token", "access_token", "authorization"):
        answer = api.client.get("/me", params={name: token})
        assert answer.status_code == 401
        assert token not in answer.text


@pytest.mark.limit("messages_per_second", "messages_burst")
def test_who_says_too_much_is_told_when_to_come_back() -> None:
    limits = GatewayLimits(messages_per_second=0.001, messages_burst=2)
    with served(limits) as api:
        assert [api.post(chat()).status_code for _ in range(3)] == [200, 200, 429]
        answer = api.post(chat())
        told = answer.json()
        said = (told["error"], told["limit"], told["max"])
        assert said == ("limit_exceeded", "messages_per_second", 0.001)
        assert int(answer.headers["retry-after"]) > 1


def test_a_page_that_is_short_since_messages_are_large_is_not_the_last(tmp_path: Path) -> None:
    journal = JournalConfig(tmp_path / "journal.db")
    with served(GatewayLimits(), journal=journal) as api:
        told = [api.say("x" * 900_000) for _ in range(8)]
        found, since = list[int](), "0"
        while since:
            path = "/participants/alice/messages"
            page = api.get(path, since=since, limit=7).json()
            found += [message["seq"] for message in page["messages"]]
            since = page["next"]
    assert found == told


def test_pages_hold_everything_once_and_in_order(api: Api) -> None:
    numbers = [api.say(f"m{number}") for number in range(7)]
    found: list[tuple[int, str]] = []
    since: dict[str, int] = {}
    pages = 0
    while True:
        page = api.get("/participants/carol/messages", "carol", limit=3, **since).json()
        found += [(each["seq"], each["payload"]["message"]) for each in page["messages"]]
        pages += 1
        assert page["gap"] is False
        if page["next"] is None:
            break
        since = {"since": page["next"]}
    assert found == [(seq, f"m{number}") for number, seq in enumerate(numbers)]
    assert pages == 3


def test_messages_since_a_time(api: Api) -> None:
    api.say("before")
    moment = datetime.now(UTC).isoformat()
    later = [api.say("after"), api.say("after")]
    page = api.get("/participants/alice/messages", since=moment).json()
    assert [each["seq"] for each in page["messages"]] == later
    page = api.get("/participants/alice/messages", since="2999-01-01T00:00:00Z").json()
    assert page.pop("now") >= moment[:19]
    nothing: dict[str, object] = {"messages": [], "times": [], "grants": {}, "damaged": []}
    assert page == {**nothing, "next": None, "gap": False}


def test_what_is_not_known_any_more_is_said(api: Api) -> None:
    api.say("hi")
    page = api.get("/participants/alice/messages", since=1).json()
    assert page["gap"] is True
    assert len(page["messages"]) == 1


def test_messages_come_in_the_dialect_that_is_asked_for(api: Api) -> None:
    api.post(PROPOSAL)
    [mew] = api.get("/participants/bob/messages", "bob", dialect="mew/v0.4").json()["messages"]
    [own] = api.get("/participants/bob/messages", "bob").json()["messages"]
    assert (mew["protocol"], mew["kind"]) == ("mew/v0.4", "mcp/proposal")
    assert (own["protocol"], own["kind"]) == ("meup/v0.1", "mcp.proposal")


@pytest.mark.parametrize(
    "query",
    [
        *({"since": since} for since in ("yesterday", "2026-01-01T00:00:00", "-1")),
        *({"limit": limit} for limit in ("0", "501", "x")),
        {"dialect": "klingon"},
    ],
)
def test_a_wrong_query_is_refused(api: Api, query: dict[str, str]) -> None:
    answer = api.get("/participants/alice/messages", **query)
    assert answer.status_code == 400
    assert set(answer.json()) == {"error", "message"}
