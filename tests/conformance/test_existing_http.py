"""The port over HTTP, as scripts of existing spaces use it, and invitations."""

from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.conformance.wire import V01, Dialled, Json, Site, serving, serving_site
from tests.no_tls import ALONE

PEOPLE: dict[str, list[Json]] = {
    "alice": [{"kind": "chat"}],
    "root": [{"kind": "*"}],
    "observer": [],
}


@pytest.fixture
def site(dialect: str) -> Generator[Site]:
    with serving_site(PEOPLE, dialect) as opened:
        yield opened


class Script:
    """A script's actions without a connection."""

    def __init__(self, gateway: Dialled) -> None:
        self.url = gateway.url.replace("ws", "http", 1)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, **ALONE)

    def post(self, name: str, said: Json, token: str | None = None) -> httpx.Response:
        where = f"{self.url}/participants/{name}/messages?space=demo"
        headers = {} if token == "" else {"Authorization": f"Bearer {token or name + '-token'}"}
        return httpx.post(where, json=said, headers=headers, **ALONE)

    def invite(self, name: Any, *capabilities: Json, by: str = "root") -> httpx.Response:
        payload = {"participant_id": name, "initial_capabilities": list(capabilities)}
        return self.post(by, {"kind": "space/invite", "payload": payload})


@pytest.fixture
def script(site: Site) -> Script:
    return Script(site.gateway)


@pytest.mark.rule("3.existing_paths")
def test_health_says_what_scripts_look_for(site: Site, script: Script) -> None:
    with site.join("alice", "root"):
        answer = script.get("/health")
    assert answer.status_code == 200
    assert answer.text.startswith('{"status":"ok"')
    body = answer.json()
    assert (body["spaces"], body["clients"]) == (1, 2)
    assert body["uptime"] >= 0
    assert "http-io" in body["features"]


@pytest.mark.rule("3.existing_paths")
def test_participants_are_listed_to_callers_on_this_machine(site: Site, script: Script) -> None:
    with site.join("alice"):
        for path in ("/participants", "/participants?space=demo"):
            (alice,) = script.get(path).json()["participants"]
            assert (alice["id"], alice["connected"]) == ("alice", True)
            assert {"kind": "chat"} in alice["capabilities"]
        assert script.get("/participants?space=nowhere").json() == {"participants": []}
        asked = script.get("/participants", authorization="Bearer root-token")
        assert [each["id"] for each in asked.json()["participants"]] == ["alice"]


@pytest.mark.rule("3.existing_paths")
@pytest.mark.parametrize(
    "headers",
    [
        {"host": "space.example.org"},
        {"host": "[::1"},
        {"host": "localhost:1.evil.example"},
        {"x-forwarded-for": "203.0.113.7"},
        {"cf-connecting-ip": "203.0.113.7"},
        {"authorization": "Bearer wrong"},
    ],
)
def test_participants_are_not_listed_to_others(script: Script, headers: dict[str, str]) -> None:
    answer = script.get("/participants", **headers)
    assert answer.status_code in (400, 401)
    assert "alice" not in answer.text


def test_a_token_lists_its_own_space_alone(dialect: str) -> None:
    more = {"other": {"alice": [{"kind": "chat"}]}}
    with serving(PEOPLE, dialect=dialect, more=more) as gateway:
        script = Script(gateway)
        asked = script.get("/participants?space=other", authorization="Bearer alice-token")
        assert asked.status_code == 403
        assert script.get("/participants").json() == {"participants": []}


@pytest.mark.rule("3.existing_paths")
@pytest.mark.parametrize(
    ("name", "token", "said", "status", "error"),
    [
        ("alice", "", {"kind": "chat"}, 401, "token_refused"),
        ("alice", "root-token", {"kind": "chat"}, 403, "forbidden"),
        ("alice", None, [], 400, "invalid_json"),
        ("alice", None, {"payload": {}}, 400, "invalid_envelope"),
        ("alice", None, {"kind": "mcp/request"}, 403, "capability_violation"),
        ("alice", None, {"kind": "system/register"}, 400, "invalid_request"),
    ],
)
def test_what_is_posted_wrongly_gets_the_status_of_existing_gateways(
    script: Script, name: str, token: str | None, said: Any, status: int, error: str
) -> None:
    answer = script.post(name, said, token)
    assert (answer.status_code, answer.json()["error"]) == (status, error)


@pytest.mark.rule("3.existing_paths")
def test_a_kind_and_a_text_are_enough(site: Site, script: Script) -> None:
    with site.join("root") as (root,):
        answer = script.post("alice", {"kind": "chat", "payload": {"text": "hi"}})
        assert '"status":"accepted"' in answer.text
        assert answer.json()["timestamp"]
        assert root.hear("chat")["id"] == answer.json()["id"]


@pytest.mark.rule("3.invited_over_http")
@pytest.mark.parametrize("present", [True, False])
def test_an_invitation_is_answered_by_its_token(site: Site, script: Script, present: bool) -> None:
    """Its inviter need not be connected; one that is gets the acknowledgement as well."""
    with site.join("observer", *(["root"] if present else [])) as members:
        observer = members[0]
        answer = script.invite("new-agent", {"kind": "chat"}, {"kind": "mcp/proposal"})
        assert answer.status_code == 200
        assert '"status":"created"' in answer.text
        token = answer.json()["token"]
        assert answer.json()["participant_id"] == "new-agent"
        heard = [observer.read(), observer.read()]
        assert any('"invited"' in each for each in heard)
        assert not [each for each in heard if token in each or "invite-ack" in each]
        if present:
            assert members[1].until("space/invite-ack")["payload"]["token"] == token
        call: Json = {"kind": "mcp/proposal", "to": ["root"]}
        call["payload"] = {"method": "tools/call", "params": {"name": "x"}}
        for said in ({"kind": "chat", "payload": {"text": "hello"}}, call):
            assert '"status":"accepted"' in script.post("new-agent", said, token).text
        assert script.post("new-agent", {"kind": "mcp/request"}, token).status_code == 403
        with site.dial({"Authorization": f"Bearer {token}"}, "/?space=demo"):
            pass


@pytest.mark.rule("E.E11", "A.G21")
def test_who_may_invite_gives_only_what_they_have(dialect: str) -> None:
    people: dict[str, list[Json]] = {"root": [{"kind": "chat"}, {"kind": "space/invite"}]}
    with serving(people, dialect=dialect) as gateway:
        script = Script(gateway)
        refused = script.invite("new-agent", {"kind": "chat"}, {"kind": "mcp/proposal"})
        assert (refused.status_code, refused.json()["error"]) == (403, "capability_lacking")
        assert script.invite("new-agent", {"kind": "chat"}).status_code == 200


@pytest.mark.rule("3.already_exists")
@pytest.mark.parametrize("name", ["alice", "observer"])
def test_a_participant_that_is_there_is_not_invited(site: Site, script: Script, name: str) -> None:
    answer = script.invite(name)
    assert (answer.status_code, answer.json()["error"]) == (409, "already_exists")
    assert answer.json()["participant_id"] == name
    with site.join("root") as (root,):
        invite = root.send("space/invite", {"participant_id": name})
        ack = root.hear("space/invite-ack")
        assert (ack["to"], ack["correlation_id"]) == (["root"], [invite])
        assert ack["payload"]["status"] == "already_exists"
        assert "token" not in ack["payload"]
    with site.join("root", dialect=V01) as (root,):
        root.send("space.invite", {"participant_id": name})
        assert root.refused()["error"] == "participant_exists"


@pytest.mark.rule("3.invited_names")
@pytest.mark.parametrize(
    "name", ["../../../etc/passwd", "foo/bar", "a\\b", "a..b", "a\nb", "a\x00", "\x7f", "\u202e"]
)
def test_names_that_lead_elsewhere_are_refused(script: Script, name: str) -> None:
    answer = script.invite(name)
    assert (answer.status_code, answer.json()["error"]) == (400, "invalid_envelope")
    assert "invalid characters" in answer.text


@pytest.mark.parametrize("name", [None, "", 5, [], "x" * 300])
def test_an_invitation_without_a_name_is_refused(script: Script, name: Any) -> None:
    assert script.invite(name).status_code == 400
    assert script.post("root", {"kind": "space/invite"}).status_code == 400
    assert script.invite("dave", by="alice").status_code == 403


@pytest.mark.rule("7.to")
@pytest.mark.parametrize("granted", [False, True])
def test_a_capability_limits_addressees(dialect: str, granted: bool) -> None:
    limited: Json = {"id": "x", "kind": "mcp/request", "to": ["root", "tool-*"]}
    own = [{"kind": "chat"}, *([] if granted else [limited])]
    people = {"alice": own, "root": [{"kind": "*"}], "tool-1": [], "observer": []}
    with serving_site(people, dialect) as site, site.join("alice", "root") as (alice, root):
        if granted:
            root.send("capability/grant", {"recipient": "alice", "capabilities": [limited]})
            told = alice.until("system/welcome")["payload"]["you"]["capabilities"]
            assert {"kind": "mcp/request", "to": ["root", "tool-*"]} in told
        for fits in (["root"], ["tool-1"], ["tool-1", "root"], "root"):
            sent = alice.send("mcp/request", {"method": "x"}, to=fits)
            assert root.until("mcp/request")["id"] == sent
        alice.until("mcp/request")
        for fits_not in ([], None, ["observer"], ["root", "observer"], ["Root"]):
            alice.send("mcp/request", {"method": "x"}, to=fits_not)
            assert alice.refusal() == "capability_violation"


@pytest.mark.rule("7.to")
@pytest.mark.parametrize(
    "capability",
    [
        {"kind": "chat", "too": ["root"]},
        {"kind": "chat", "from": "alice"},
        {"kind": "chat", "to": []},
        {"kind": "chat", "to": 5},
        {"kind": "chat", "to": [""]},
        {"kind": "chat", "to": ["!"]},
    ],
)
def test_what_is_not_understood_is_refused(site: Site, script: Script, capability: Json) -> None:
    with site.join("root") as (root,):
        root.send("capability/grant", {"recipient": "alice", "capabilities": [capability]})
        assert root.refused()["error"] == "invalid_capability"
    assert script.invite("dave", capability).json()["error"] == "invalid_capability"


@pytest.mark.rule("7.to", "A.G21")
def test_who_is_limited_gives_no_more(dialect: str) -> None:
    limited: Json = {"kind": "chat", "to": ["root", "tool-*"]}
    manages = [{"kind": "capability/*"}, limited]
    people = {"manager": manages, "alice": [], "root": [{"kind": "*"}]}
    with serving_site(people, dialect) as site, site.join("manager") as (manager,):
        for to in (None, ["root", "bob"], "tool-1"):
            given = {"kind": "chat"} | ({"to": to} if to else {})
            manager.send("capability/grant", {"recipient": "alice", "capabilities": [given]})
            if to != "tool-1":
                assert manager.refused()["error"] == "capability_lacking"
        manager.until("capability/grant")
