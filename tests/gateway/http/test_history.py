"""The history of a space over HTTP: what was decided and what expired, and what was seen of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from meup_agent.gateway import JournalConfig
from tests.gateway.http.conftest import Api, served

HISTORY = "/spaces/demo/history"
RULE = {"dev.meup/rule": {"rule": "small files"}}


def propose(api: Api, id: str, tool: str = "write", days: float = 1) -> None:
    until = (datetime.now(UTC) + timedelta(days=days)).isoformat()
    params = {"name": tool, "arguments": {}, "_meta": {"dev.meup/expires_at": until}}
    payload = {"method": "tools/call", "params": params}
    api.post({"kind": "mcp.proposal", "id": id, "payload": payload})


def fulfill(api: Api, proposal: str, **answer: Any) -> None:
    call = {"method": "tools/call", "params": {"name": "write", "arguments": {}, "_meta": RULE}}
    request = {"id": f"r-{proposal}", "correlation_id": [proposal], "to": ["bob"]}
    api.post({"kind": "mcp/request", "payload": {"id": 1, **call}, **request}, "bob")
    about = {"id": f"a-{proposal}", "correlation_id": [f"r-{proposal}"]}
    api.post({"kind": "mcp/response", "payload": {"id": 1, **answer}, **about}, "bob")


@pytest.fixture(params=["memory", "file"])
def lived(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    path = tmp_path / "journal.db" if request.param == "file" else None
    with served(journal=JournalConfig(path)) as api:
        for id in ("p1", "p2", "p3", "p4"):
            propose(api, id, "read" if id == "p3" else "write")
        propose(api, "p5", days=-1)
        fulfill(api, "p1", result={"content": []})
        fulfill(api, "p2", error={"code": 1, "message": "no room"})
        about = {"correlation_id": ["p3"], "payload": {"reason": "policy"}}
        api.post({"kind": "mcp/withdraw", **about})
        yield api


def found(api: Api, *fields: str, **query: Any) -> list[Any]:
    rows = [
        tuple(each[field] for field in fields)
        for each in api.get(HISTORY, "bob", **query).json()["decisions"]
    ]
    return rows if len(fields) > 1 else [row[0] for row in rows]


def test_what_was_decided_and_what_expired(lived: Api) -> None:
    assert found(lived, "id", "state", "failed", "by", "rule", "reason") == [
        ("p3", "withdrawn", False, "alice", "", "policy"),
        ("p2", "fulfilled", True, "bob", "small files", ""),
        ("p1", "fulfilled", False, "bob", "small files", ""),
        ("p5", "expired", False, "", "", ""),
    ]
    assert found(lived, "id", search="SMALL") == ["p2", "p1"]
    assert found(lived, "id", state=["withdrawn", "expired"]) == ["p3", "p5"]
    assert found(lived, "id", tool="read") == ["p3"]
    assert found(lived, "id", by="bob", sort="when") == ["p1", "p2"]
    assert found(lived, "id", proposer="carol") == []


def test_it_is_read_page_by_page(lived: Api) -> None:
    query, read = {"limit": "3"}, list[str]()
    while query:
        page = lived.get(HISTORY, "bob", **{"limit": "3"} | query).json()
        read += [each["id"] for each in page["decisions"]]
        query = page["next"]
    assert read == ["p3", "p2", "p1", "p5"]


def test_what_expired_is_marked_until_it_was_seen_by_each(lived: Api) -> None:
    page = lived.get(HISTORY, "bob").json()
    assert page["unseen"] == 1
    assert [each["id"] for each in page["decisions"] if not each["seen"]] == ["p5"]
    seen = f"{HISTORY}/seen"
    told = lived.client.post(seen, params={"until": page["now"]}, headers=lived.header("bob"))
    assert told.json() == {"unseen": 0}
    # Nobody sees what is still to come.
    late = {"until": "2999-01-01T00:00:00Z"}
    lived.client.post(seen, params=late, headers=lived.header("bob"))
    propose(lived, "p6", days=-0.5)
    assert [each["seen"] for each in lived.get(HISTORY, "bob").json()["decisions"]] == [True] * 5
    assert lived.get(HISTORY, "carol").json()["unseen"] == 2


@pytest.mark.parametrize(
    "query",
    [
        {"state": "pending"},
        {"sort": "id"},
        {"skip": "-1"},
        {"skip": "9" * 30},
        {"until": "yesterday"},
        {"until": "2026-01-01"},
        {"until": "0001-01-01T00:00:00+14:00"},
        {"until": "9999-12-31T23:59:59-14:00"},
        {"search": "x" * 201},
        {"skip": "000000000" + "9" * 7},
        {"limit": "0"},
        {"limit": "000000001" + "9" * 7},
    ],
)
def test_a_query_that_means_nothing_is_refused(lived: Api, query: dict[str, str]) -> None:
    answer = lived.get(HISTORY, "bob", **query)
    assert (answer.status_code, answer.json()["error"]) == (400, "bad_query")
