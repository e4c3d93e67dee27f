"""Envelopes: their form, and their way through a gateway (specifications, sections 2 and 3)."""

import json
from typing import Any

import pytest

from tests.conformance.conftest import only_v04
from tests.conformance.wire import LEFT_OUT, V01, V02, V04, Json, Site

HEADER = ("protocol", "id", "ts", "from", "kind", "payload")


@pytest.mark.rule("A.G1", "A.G6")
def test_whatever_the_gateway_says_is_one_whole_envelope(site: Site) -> None:
    with site.member("alice") as alice, site.member("bob") as bob:
        alice.hear("system/welcome")
        bob.hear("system/welcome")
        for frame in ("{nope", '"chat"', "[]", b"\xff", '{"id":"x","kind":5}'):
            alice.write(frame)
        alice.send("mcp/request", {"method": "tools/list"})
        alice.send("chat", {"text": "done"}, id="done")
        said: list[Json] = []
        while not said or said[-1]["id"] != "done":
            said.append(alice.hear_any())
        # Two who join, six refusals, and the chat.
        assert len(said) == 9
        for envelope in said:
            assert [name for name in HEADER if name not in envelope] == []
            assert envelope["protocol"] == site.dialect
        assert len({envelope["id"] for envelope in said}) == len(said)
        errors = [each for each in said if each["kind"] == "system/error"]
        assert [each.get("correlation_id") for each in errors] == [*[None] * 4, ["x"], ["alice-1"]]


@pytest.mark.rule("A.G2", "C.W1")
def test_the_protocol_must_be_the_one_that_is_spoken(site: Site) -> None:
    with site.join("alice", "bob") as (alice, bob):
        other = V04 if site.dialect == V02 else V02
        for said in (other, V01, site.dialect.upper(), 4):
            alice.send("chat", {"text": "hi"}, protocol=said)
            assert alice.refused()["error"] == "invalid_envelope", said
        sent = alice.send("chat", {"text": "hi"})
        assert alice.hear("chat")["id"] == bob.hear("chat")["id"] == sent


@only_v04
@pytest.mark.rule("C.W1")
def test_the_older_version_is_read_and_written_as_the_newer(site: Site) -> None:
    with site.join("alice", "bob") as (alice, bob):
        alice.send("chat", {"text": "hi"}, protocol="mew/v0.3")
        assert bob.hear("chat")["protocol"] == V04


@pytest.mark.rule("A.G3")
@pytest.mark.parametrize(
    ("field", "odd"),
    [
        ("id", [5, "x" * 300, "a\nb"]),
        ("from", [["alice"], 5]),
        ("kind", [LEFT_OUT, "", None, 1, "x" * 300]),
        ("payload", ["hi", "", [], 5]),
        ("ts", [5, {}]),
    ],
)
def test_a_field_that_is_wrong_is_refused(site: Site, field: str, odd: list[Any]) -> None:
    with site.join("alice", "bob") as (alice, bob):
        for value in odd:
            alice.send("chat", {"text": "hi"}, **{field: value})
            assert alice.refused()["error"] == "invalid_envelope", value
        bob.send("chat", {"text": "hi"})
        bob.hear("chat")


@pytest.mark.rule("3.filled_in", "A.G2", "A.G3")
@pytest.mark.parametrize("field", ["protocol", "id", "from", "ts", "payload"])
@pytest.mark.parametrize("nothing", [LEFT_OUT, None, ""])
def test_what_is_left_out_is_filled_in(site: Site, field: str, nothing: Any) -> None:
    if field == "payload" and nothing == "":
        nothing = None  # an empty text is a wrong payload
    with site.join("alice", "bob") as (alice, bob):
        alice.send("chat", {"text": "hi"}, **{field: nothing}, odd=[1.0])
        said = bob.hear("chat")
        assert alice.hear("chat") == said
        assert (said["protocol"], said["from"]) == (site.dialect, "alice")
        assert said["payload"] == ({} if field == "payload" else {"text": "hi"})
        assert said["odd"] == [1.0]
        assert isinstance(said["id"], str)
        assert said["id"]
        assert (said["ts"] != "2025-01-01T00:00:00.000Z") is (field == "ts")


@pytest.mark.rule("3.filled_in", "A.G3")
def test_a_kind_alone_is_an_envelope(site: Site) -> None:
    with site.join("alice", "bob") as (alice, bob):
        alice.write('{"kind":"chat"}')
        first = bob.hear("chat")
        alice.write(' {"kind" : "chat", "payload": {"text": "\\u00e9"} } ')
        second = bob.hear("chat")
        assert first["id"] != second["id"]
        assert (first["payload"], second["payload"]) == ({}, {"text": "é"})
        # What is filled in is never more than what was left out.
        alice.write('{"kind":"system/presence"}')
        alice.until("system/error")
        alice.write('{"kind":"mcp/request"}')
        assert alice.refused()["error"] == "capability_violation"


@pytest.mark.rule("A.G4", "A.G17", "C.W2")
@pytest.mark.parametrize("to", [["bob"], [], LEFT_OUT, ["nobody"], ["alice"], "bob", None])
def test_whoever_is_named_everybody_hears_it(site: Site, to: Any) -> None:
    with site.join("alice", "bob", "carol") as members:
        sent = members[0].send("chat", {"text": "hi"}, to=to)
        for member in members:
            said = member.hear("chat")
            assert (said["id"], said.get("to", LEFT_OUT)) == (sent, to)


@pytest.mark.rule("A.G4")
@pytest.mark.parametrize("to", [5, {}, [5], [["bob"]]])
def test_what_names_nobody_in_that_place_is_refused(site: Site, to: Any) -> None:
    with site.join("alice") as (alice,):
        alice.send("chat", {"text": "hi"}, to=to)
        assert alice.refused()["error"] == "invalid_envelope"


@pytest.mark.rule("A.G5")
def test_a_correlation_is_a_list_wherever_the_gateway_writes_it(site: Site) -> None:
    with (
        site.join("bob", "alice") as (bob, alice),
        site.join("root", dialect="meup/v0.1") as (root,),
    ):
        bob.until("system/presence")
        request = bob.send("mcp/request", {"method": "tools/list"}, to=["root"])
        assert root.until("mcp.request")["id"] == request
        root.send("mcp.response", {"result": {}}, correlationId=request)
        assert bob.until("mcp/response")["correlation_id"] == [request]
        # What a member writes otherwise is understood, and leaves as a list.
        alice.send("mcp/withdraw", {}, odd=1.0, correlation_id="p1")
        heard = bob.hear("mcp/withdraw")
        assert (heard["correlation_id"], heard["odd"]) == (["p1"], 1.0)
        assert root.until("mcp.withdraw")["correlationId"] == "p1"


@pytest.mark.rule("A.G15")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("chat", {}),
        ("chat", {"text": 5}),
        ("mcp/request", {}),
        ("mcp/request", {"method": ["no", "text"], "params": 1e-7}),
        ("mcp/proposal", {"proposal": {"method": "a/b", "proposal": 1}}),
        ("mcp/response", {"error": "NOT_FOUND"}),
        ("acme/anything", {"a": [None, {"b": {}}]}),
    ],
)
def test_a_payload_is_nobodys_business_but_its_readers(site: Site, kind: str, payload: Any) -> None:
    with site.join("root", "alice") as (root, alice):
        root.send(kind, payload)
        assert alice.hear(kind)["payload"] == payload


def chat(site: Site, raw: str) -> str:
    """A frame whose text is written as it is."""
    frame = {"protocol": site.dialect, "id": "a", "from": "alice", "kind": "chat"}
    return json.dumps({**frame, "payload": {"text": "RAW"}}).replace('"RAW"', raw)


@pytest.mark.rule("A.G15", "1.numbers")
@pytest.mark.parametrize(
    "raw",
    [
        "1e999",
        "-1e999",
        f"1{'0' * 309}",
        "-" + "9" * 309,
        "[" * 200 + "]" * 200,
        '"\\ud800"',
        "nul",
    ],
)
def test_what_some_reader_could_not_decode_is_refused(site: Site, raw: str) -> None:
    with site.join("alice", "bob") as (alice, bob):
        alice.write(chat(site, raw))
        assert alice.refused()["error"] in ("invalid_json", "too_deep", "invalid_utf8")
        bob.send("chat", {"text": "hi"})
        assert bob.hear("chat")["from"] == "bob"


@pytest.mark.rule("1.numbers")
@pytest.mark.parametrize(
    "raw", ["9007199254740993", str(2**70), "1" + "0" * 308, "0." + "1" * 400, f'"{"9" * 400}"']
)
def test_numbers_that_a_double_can_be_near_arrive_as_written(site: Site, raw: str) -> None:
    with site.join("alice", "bob") as (alice, bob):
        alice.write(chat(site, raw))
        assert f'"text": {raw}' in bob.read()


@pytest.mark.rule("A.G16", "3.delivery")
def test_an_envelope_arrives_as_it_was_written(site: Site) -> None:
    with site.join("alice", "bob") as members:
        written = (
            f'{{ "x-odd":[1, {{"y":null}}],"kind" : "chat","payload":{{"text":"\\u00e9","n":1.0,'
            f'"n2":1e2}}, "from":"alice","id":"a", "to":[ ],\n"protocol":"{site.dialect}",'
            f'"correlation_id":["b","b"],"context":"c","ts":"soon" }}'
        )
        members[0].write(written)
        for member in members:
            assert member.read() == written
