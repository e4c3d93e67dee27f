"""Joining, presence and capabilities (specifications, sections 3.6 to 5.2)."""

import pytest
from websockets.exceptions import InvalidStatus

from tests.conformance.conftest import PARTICIPANTS
from tests.conformance.wire import Json, Site, Wire, serving

WITHDRAW = {"kind": "mcp/withdraw"}
ANSWERS = {"id": "mcp-response", "kind": "mcp/response"}


def held(name: str) -> list[Json]:
    own = PARTICIPANTS[name]
    covered = own == [{"kind": "*"}] or {"kind": "mcp/*"} in own
    return own if covered else [*own, WITHDRAW]


def described(name: str, dialect: str) -> Json:
    return {"id": name, "capabilities": [*held(name), ANSWERS], "dialect": dialect}


@pytest.mark.rule("A.G7", "C.W5", "3.announced")
def test_who_connects_is_welcomed_first(site: Site) -> None:
    with site.join("bob"), site.member("alice") as alice:
        welcome = alice.hear("system/welcome")
        assert (welcome["from"], welcome["to"]) == ("system:gateway", ["alice"])
        assert welcome["payload"]["you"] == described("alice", site.dialect)
        assert welcome["payload"]["participants"] == [described("bob", site.dialect)]


@pytest.mark.rule("A.G8")
def test_everybody_is_told_who_comes(site: Site) -> None:
    with site.join("alice", "carol") as (alice, carol), site.member("bob") as bob:
        bob.hear("system/welcome")
        for member in (alice, carol, bob):
            said = member.hear("system/presence")
            newcomer = described("bob", site.dialect)
            assert said["payload"] == {"event": "join", "participant": newcomer}
            assert "to" not in said


@pytest.mark.rule("A.G9")
def test_everybody_is_told_who_leaves(site: Site) -> None:
    with site.join("alice", "carol") as (alice, carol):
        with site.join("bob"):
            alice.hear("system/presence")
            carol.hear("system/presence")
        for member in (alice, carol):
            left = member.hear("system/presence")["payload"]
            assert left == {"event": "leave", "participant": {"id": "bob"}}


@pytest.mark.rule("A.G10", "C.W3")
@pytest.mark.parametrize("claimed", ["alice", "system:gateway", "gateway", "Bob", "bob "])
def test_nobody_speaks_as_somebody_else(site: Site, claimed: str) -> None:
    with site.join("bob", "alice", "root") as (bob, alice, root):
        for speaker in (bob, root):
            speaker.send("chat", {"text": "hi"}, **{"from": claimed}, id="forged")
            payload = speaker.refused()
            assert payload["error"] == "identity_mismatch"
        bob.send("chat", {"text": "hi"})
        assert alice.hear("chat")["from"] == "bob"


@pytest.mark.rule("A.G11", "C.W4")
@pytest.mark.parametrize(
    "kind", ["system/welcome", "system/presence", "system/error", "system/x", "system.error"]
)
def test_nobody_speaks_as_the_gateway(site: Site, kind: str) -> None:
    with site.join("root", "alice") as (root, alice):
        root.send(kind, {})
        assert root.refused()["error"] == "reserved_kind"
        root.send("chat", {"text": "hi"})
        assert alice.hear("chat")["from"] == "root"


@pytest.mark.rule("C.W4")
@pytest.mark.parametrize("kind", ["system/heartbeat", "system/register"])
def test_what_existing_clients_tell_a_gateway_is_dropped_in_silence(site: Site, kind: str) -> None:
    with site.join("alice", "carol") as members:
        members[0].send(kind, {"capabilities": [{"kind": "*"}]})
        members[0].send("chat", {"text": "hi"})
        for member in members:
            assert member.hear("chat")["from"] == "alice"


@pytest.mark.rule("A.G12", "A.G13")
def test_what_no_capability_allows_goes_no_further(site: Site) -> None:
    with site.join("alice", "bob") as (alice, bob):
        refused = alice.send("mcp/request", {"method": "tools/list"}, to=["bob"])
        error = alice.hear("system/error")
        assert (error["from"], error["to"]) == ("system:gateway", ["alice"])
        assert error["correlation_id"] == [refused]
        assert error["payload"].pop("message")
        said = {"error": "capability_violation", "attempted_kind": "mcp/request"}
        assert error["payload"] == {**said, "your_capabilities": held("alice")}
        alice.send("chat", {"text": "hi"})
        assert bob.hear("chat")["from"] == "alice"


def params(**values: object) -> Json:
    return {"kind": "mcp/request", "payload": {"params": values}}


PATTERNS: list[tuple[Json, Json, bool]] = [
    ({"kind": "mcp/request"}, {}, True),
    ({"kind": "mcp/*"}, {}, True),
    ({"kind": "*"}, {}, True),
    ({"kind": "*/request"}, {}, True),
    ({"kind": "mcp"}, {}, False),
    ({"kind": "/^mcp.req/"}, {}, True),
    ({"kind": "!mcp/request"}, {}, False),
    ({"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"method": "tools/list"}, True),
    ({"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"method": "x"}, False),
    ({"kind": "mcp/request", "payload": {"method": "tools/*"}}, {"method": 5}, False),
    ({"kind": "mcp/request", "payload": {"method": "*/list"}}, {"method": "a/list"}, True),
    (params(name=["a", "b"]), {"params": {"name": "b", "more": 1}}, True),
    (params(n=1), {"params": {"n": 1}}, True),
    (params(n=1), {"params": {"n": 2}}, False),
    (params(b=True), {"params": {"b": False}}, False),
    ({"kind": "mcp/request", "payload": {"$.params.p": "/a/*"}}, {"params": {"p": "/a/b"}}, True),
    ({"kind": "mcp/request", "payload": {"$.params.p": "/a/*"}}, {"params": {"p": "/b/b"}}, False),
]


@pytest.mark.rule("A.G14")
def test_patterns_are_for_kind_and_payload(dialect: str) -> None:
    people = {f"p{number}": [pattern] for number, (pattern, _, _) in enumerate(PATTERNS)}
    with serving(people, dialect=dialect) as gateway:
        for name, (pattern, payload, allowed) in zip(people, PATTERNS, strict=True):
            with Site(gateway, dialect).join(name) as (wire,):
                wire.send("mcp/request", payload)
                said = wire.hear_any()
                assert said["kind"] == ("mcp/request" if allowed else "system/error"), pattern


@pytest.mark.rule("C.W28")
def test_everybody_may_answer_what_they_were_asked_and_nothing_else(site: Site) -> None:
    with site.join("bob", "carol") as (bob, carol):
        request = bob.send("mcp/request", {"method": "tools/list"}, to=["carol"])
        to_other = bob.send("mcp/request", {"method": "tools/list"}, to=["alice"])
        for _ in range(2):
            carol.hear("mcp/request")
        for about in (["unknown"], [to_other], [to_other, request], [request, to_other], []):
            carol.send("mcp/response", {"result": {}}, correlation_id=about)
            assert carol.refused()["error"] == "capability_violation"
        for about in ([request], ["unknown", request]):
            carol.send("mcp/response", {"result": {}}, correlation_id=about)
            assert bob.until("mcp/response")["correlation_id"] == about


@pytest.mark.rule("A.G30", "3.withdraw.proposer")
def test_only_the_proposer_withdraws(site: Site) -> None:
    with site.join("alice", "bob", "root") as (alice, bob, root):
        proposal = alice.send("mcp/proposal", {"method": "tools/call", "params": {"name": "x"}})
        for other in (bob, root):
            other.until("mcp/proposal")
            other.send("mcp/withdraw", {"reason": "busy"}, correlation_id=[proposal])
            assert other.refused()["error"] == "not_proposer"
        alice.send("mcp/withdraw", {"reason": "busy"}, correlation_id=[proposal])
        for member in (alice, bob, root):
            said = member.until("mcp/withdraw")
            assert (said["from"], said["correlation_id"]) == ("alice", [proposal])


@pytest.mark.rule("3.join.token", "A.G18", "C.W26")
def test_the_token_of_the_header_says_who_joins(site: Site) -> None:
    headers = {"Authorization": "Bearer alice-token"}
    with site.dial(headers) as socket:
        assert Wire(socket, "", site.dialect).hear("system/welcome")["to"] == ["alice"]
    for token in ("", "wrong", "alice-token "[:-2], "x" * 1000):
        with pytest.raises(InvalidStatus) as refused:
            site.dial({"Authorization": f"Bearer {token}"})
        assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus) as refused:
        site.dial(headers, "/ws?space=nowhere")
    assert refused.value.response.status_code == 404


@pytest.mark.rule("3.join.frame", "A.G18", "C.W26")
@pytest.mark.parametrize(
    "claims",
    [
        {"token": "wrong"},
        {},
        {"token": "alice-token", "participantId": "bob"},
        {"token": "alice-token", "space": "other"},
    ],
)
def test_a_join_frame_is_no_way_around_the_token(site: Site, claims: Json) -> None:
    with site.by_frame("alice", "/spaces/demo") as wire:
        wire.write({"type": "join", "space": "demo", "protocol": site.dialect, **claims})
        assert wire.end() == 4401


@pytest.mark.rule("3.join.frame", "A.G18")
@pytest.mark.parametrize("path", ["/", "/ws", "/spaces/demo", "/participants/alice/ws"])
def test_any_path_does_for_a_join_frame(site: Site, path: str) -> None:
    with site.by_frame("alice", path) as wire:
        claims = {"participantId": "alice", "space": "demo", "token": "alice-token"}
        wire.write({"type": "join", "protocol": site.dialect, **claims})
        assert wire.hear("system/welcome")["payload"]["you"]["id"] == "alice"


@pytest.mark.rule("A.G31")
def test_spaces_do_not_hear_of_each_other(site: Site) -> None:
    """Not even the same participant's connections, capabilities and ids."""
    with (
        site.join("alice", "bob") as (alice, bob),
        site.join("alice", space="other") as (elsewhere,),
    ):
        elsewhere.send("mcp/request", {"method": "x"}, id="same")
        assert elsewhere.hear("mcp/request")["id"] == "same"
        alice.send("mcp/request", {"method": "x"}, id="same")
        assert alice.refused()["error"] == "capability_violation"
        alice.send("chat", {"text": "hi"}, id="same")
        assert alice.hear("chat") == bob.hear("chat")
        elsewhere.send("chat", {"text": "there"})
        assert elsewhere.hear("chat")["payload"] == {"text": "there"}
        bob.send("mcp/response", {}, correlation_id=["same"])
        assert alice.hear("mcp/response")["from"] == "bob"
    with pytest.raises(InvalidStatus) as refused:
        site.dial({"Authorization": "Bearer alice-token-other"})
    assert refused.value.response.status_code == 401
