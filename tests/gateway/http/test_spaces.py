"""A space over HTTP: its participants, its proposals, and the gateway's state."""

from dataclasses import replace
from typing import Any

from meup_agent.gateway import JournalConfig
from tests.gateway.http.conftest import PARTICIPANTS, Api, config, served
from tests.gateways import OPERATIONS

WITHDRAW = {"kind": "mcp/withdraw"}


def test_whom_a_token_belongs_to(api: Api) -> None:
    assert api.get("/me").json() == {
        "id": "alice",
        "space": "demo",
        "dialect": "meup/v0.1",
        "capabilities": [*PARTICIPANTS["alice"], WITHDRAW],
    }


def test_who_is_there(api: Api) -> None:
    with api.join("bob"):
        found = api.get("/spaces/demo/participants", "carol").json()
    bob = {"id": "bob", "capabilities": PARTICIPANTS["bob"], "dialect": "meup/v0.1"}
    assert found == {"participants": [bob]}


def test_a_token_is_for_its_own_space() -> None:
    """Also where its participant has a namesake in the other."""
    both = [replace(config().spaces[0], id=space) for space in ("demo", "other")]
    tokens = {space.id: f"alice-of-{space.id}" for space in both}
    people = {
        space.id: {"alice": replace(space.participants["alice"], tokens=(tokens[space.id],))}
        for space in both
    }
    spaces = tuple(replace(space, participants=people[space.id]) for space in both)
    with served(spaces=spaces) as api:
        mine, query = api.header("alice"), {"follow": "false"}
        for each in (each for each in OPERATIONS if "{space}" in each.path):
            for space, status in (("other", 403), ("elsewhere", 404), ("demo", 200)):
                path = each.path.format(space=space)
                answer = api.client.request(each.method, path, headers=mine, params=query)
                assert answer.status_code == status, (space, each)
                assert status in (200, *each.problems), each
                if status == 404:
                    assert answer.json()["error"] == "no_such_space"
        api.say("for this space alone")
        other = {"Authorization": f"Bearer {tokens['other']}"}
        heard = api.client.get("/participants/alice/messages", headers=other).json()
        assert heard["messages"] == []


def test_what_was_forgotten_before_it_was_followed_is_said() -> None:
    with served(journal=JournalConfig(memory_entries=3)) as api:
        api.say("a")
        assert api.get("/spaces/demo/proposals").json() == {
            "proposals": [],
            "before": None,
            "gap": False,
        }
        for _ in range(5):
            api.say("b")
        assert api.get("/spaces/demo/proposals").json()["gap"] is True


def test_what_was_proposed_and_what_became_of_it(api: Api) -> None:
    for name in ("p1", "p2"):
        call = {"method": "tools/call", "params": {"name": "write", "arguments": {"n": name}}}
        assert api.post({"kind": "mcp.proposal", "id": name, "payload": call}).status_code == 200
    [first, second] = api.get("/spaces/demo/proposals", "bob").json()["proposals"]
    assert (first["id"], first["proposer"], first["state"]) == ("p1", "alice", "pending")
    assert second["params"]["arguments"] == {"n": "p2"}
    withdraw = {"kind": "mcp.withdraw", "correlationId": "p1", "payload": {"reason": "policy"}}
    api.post(withdraw)
    path = "/spaces/demo/proposals"
    [withdrawn] = api.get(path, state="withdrawn").json()["proposals"]
    assert withdrawn["decision"]["reason"] == "policy"
    [pending] = api.get(path, state="pending", timeline="true").json()["proposals"]
    assert [step["what"] for step in pending["timeline"]] == ["proposed"]
    assert [each["id"] for each in api.get(path, id="p2").json()["proposals"]] == ["p2"]
    assert [each["id"] for each in api.get(path, limit=1).json()["proposals"]] == ["p2"]
    assert api.get(path, state="lost").status_code == 400
    assert api.get(path, before="lost").status_code == 400
    assert api.get(path, timeline="x").status_code == 400


def test_older_proposals_are_read_page_by_page(api: Api) -> None:
    for number in range(5):
        call = {"method": "tools/call", "params": {"name": "write", "arguments": {}}}
        api.post({"kind": "mcp.proposal", "id": f"p{number}", "payload": call})
    pages, query = list[list[str]](), dict[str, Any]()
    while True:
        page = api.get("/spaces/demo/proposals", limit=2, **query).json()
        pages.append([each["id"] for each in page["proposals"]])
        if page["before"] is None:
            break
        query = {"before": page["before"]}
    assert pages == [["p3", "p4"], ["p1", "p2"], ["p0"]]


def test_who_was_removed_is_kept_out(api: Api) -> None:
    kick = {"kind": "space/kick", "payload": {"participant_id": "alice", "reason": "enough"}}
    answer = api.post(kick, "bob")
    assert answer.status_code == 200, answer.text
    for path in ("/participants/alice/messages", "/spaces/demo/participants"):
        answer = api.get(path)
        assert (answer.status_code, answer.json()["error"]) == (403, "kicked")
    refused = api.post({"kind": "chat", "payload": {}})
    assert (refused.status_code, refused.json()["error"]) == (403, "kicked")


def test_paths_and_methods_that_are_none(api: Api) -> None:
    missing = api.client.get("/nothing")
    assert (missing.status_code, missing.json()["error"]) == (404, "not_found")
    wrong = api.client.put("/me")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "method_not_allowed")
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_nothing_secret_is_said(api: Api) -> None:
    said = [
        api.get("/me"),
        api.get("/spaces/demo/participants"),
        api.client.get("/metrics"),
        api.client.get("/openapi.json"),
        api.get("/nothing"),
    ]
    for participant in PARTICIPANTS:
        token = api.gateway.token(participant)
        assert not any(token in answer.text or token in str(answer.headers) for answer in said)
