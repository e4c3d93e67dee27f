"""Speaking and reading over HTTP (mew/v0.4, sections 5.3 and 8.1)."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from meup_agent.gateway import Gateway, HttpConfig, ThreadedGateway
from tests.conformance.wire import V02, V04, Json, Site, config_of
from tests.no_tls import ALONE

PEOPLE: dict[str, list[Json]] = {
    "alice": [{"kind": "chat"}, {"kind": "mcp/proposal"}],
    "bob": [{"kind": "space/invite"}, {"kind": "chat"}],
    "root": [{"kind": "*"}],
}


@pytest.fixture
def place(dialect: str) -> Generator[ThreadedGateway]:
    config = replace(config_of(PEOPLE, dialect=dialect), http=HttpConfig(port=0))
    with Gateway(config=config).in_thread() as running:
        yield running


@pytest.fixture
def site(place: ThreadedGateway, dialect: str) -> Site:
    return Site(place, dialect)


class Caller:
    """A client without a connection."""

    def __init__(self, place: ThreadedGateway, name: str, token: str | None = None) -> None:
        self.name = name
        self.path = f"{place.http_url}/participants/{name}/messages"
        self.headers = {"Authorization": f"Bearer {token or f'{name}-token'}"}

    def post(self, kind: str, payload: Any = None, **header: Any) -> httpx.Response:
        envelope = {"kind": kind, "payload": payload or {}, **header}
        return httpx.post(self.path, json=envelope, headers=self.headers, **ALONE)

    def read(self, **query: Any) -> Any:
        answer = httpx.get(self.path, params=query, headers=self.headers, **ALONE)
        answer.raise_for_status()
        return answer.json()


@pytest.mark.rule("C.W24")
def test_what_is_posted_reaches_all_as_if_it_were_said(site: Site, place: ThreadedGateway) -> None:
    with site.join("bob", "root") as members:
        answer = Caller(place, "alice").post("chat", {"text": "hi"}, to=["bob"], odd=[1])
        assert answer.is_success
        for member in members:
            said = member.hear("chat")
            assert (said["id"], said["from"]) == (answer.json()["id"], "alice")
            assert (said["protocol"], said["odd"], said["to"]) == (site.dialect, [1], ["bob"])
            assert said["ts"]


@pytest.mark.rule("C.W24")
@pytest.mark.parametrize(
    ("kind", "payload", "header", "refused"),
    [
        ("mcp/request", {"method": "tools/list"}, {}, (403, "capability_violation")),
        ("chat", {"text": "hi"}, {"from": "root"}, (403, "identity_mismatch")),
        ("system/presence", {}, {}, (403, "reserved_kind")),
        ("system.welcome", {}, {}, (403, "reserved_kind")),
        ("chat", "hi", {}, (400, "invalid_envelope")),
        ("chat", {"text": "hi"}, {"id": "x" * 300}, (400, "invalid_envelope")),
        ("", {}, {}, (400, "invalid_envelope")),
    ],
)
def test_the_rules_are_those_of_the_socket(
    site: Site, place: ThreadedGateway, kind: str, payload: Any, header: Json, refused: Any
) -> None:
    with site.join("alice", "bob") as (alice, bob):
        answer = Caller(place, "alice").post(kind, payload, **header)
        assert (answer.status_code, answer.json()["error"]) == refused
        # The same by the socket of the same participant, and nobody has heard of either.
        alice.send(kind, payload, **header)
        assert alice.refused()["error"] == refused[1]
        bob.send("chat", {"text": "done"})
        assert bob.hear("chat")["from"] == "bob"


@pytest.mark.rule("C.W24")
def test_a_withdrawal_is_the_proposers_by_http_too(site: Site, place: ThreadedGateway) -> None:
    with site.join("bob") as (bob,):
        alice, root = Caller(place, "alice"), Caller(place, "root")
        call = {"method": "tools/call", "params": {"name": "x"}}
        about = {"correlation_id": [alice.post("mcp/proposal", call).json()["id"]]}
        bob.hear("mcp/proposal")
        answer = root.post("mcp/withdraw", {"reason": "busy"}, **about)
        assert (answer.status_code, answer.json()["error"]) == (403, "not_proposer")
        assert alice.post("mcp/withdraw", {"reason": "busy"}, **about).is_success
        assert about.items() <= bob.hear("mcp/withdraw").items()


@pytest.mark.rule("C.W25")
def test_what_was_said_is_read_but_for_private_words(site: Site, place: ThreadedGateway) -> None:
    with site.join("alice", "bob") as (alice, bob):
        alice.send("system/presence")
        alice.until("system/error")
        bob.send("space/invite", {"participant_id": "dave"})
        token = bob.until("space/invite-ack")["payload"]["token"]
        alice.write(
            f'{{"kind":"chat","protocol":"{site.dialect}", "id":"m","from":"alice",'
            '"ts":"2025","payload":{"text":"\\u00e9"},"odd":[1.0]}'
        )
        bob.until("chat")
        page = Caller(place, "root").read()
        said = page["messages"]
        kinds = " ".join(envelope["kind"] for envelope in said)
        assert kinds == "system/presence system/presence space/invite system/presence chat"
        chat = dict(said[-1])
        assert chat.pop("seq") > said[-2]["seq"]
        header = {"kind": "chat", "protocol": site.dialect, "id": "m", "from": "alice"}
        assert chat == {**header, "ts": "2025", "payload": {"text": "é"}, "odd": [1.0]}
        assert token not in str(page)
        assert Caller(place, "root").read(since=said[-2]["seq"])["messages"] == [said[-1]]
        # Each reads in a dialect of their own.
        other = V04 if site.dialect == V02 else V02
        (again,) = Caller(place, "bob").read(since=said[-2]["seq"], dialect=other)["messages"]
        assert again == {**said[-1], "protocol": other}


@pytest.mark.rule("C.W26")
def test_the_token_says_who_one_is_by_http_too(place: ThreadedGateway) -> None:
    for name, token, status in (
        ("alice", "wrong", 401),
        ("alice", "bob-token", 403),
        ("nobody", "alice-token", 403),
    ):
        caller = Caller(place, name, token)
        assert caller.post("chat", {"text": "hi"}).status_code == status
        with pytest.raises(httpx.HTTPStatusError, match=str(status)):
            caller.read()
    unnamed = httpx.post(Caller(place, "alice").path, json={"kind": "chat"}, **ALONE)
    assert unnamed.status_code == 401
