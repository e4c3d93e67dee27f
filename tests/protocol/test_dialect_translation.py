"""The other dialects: real traffic of the reference, and translation from each to each."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import InvalidEnvelope, NotExpressible
from tests.wire import DIALECTS, as_broadcast, decode, draft, encode, kinds

CAPTURES = Path(__file__).parent.parent / "vectors" / "captures"
V01, V02, V04, MCPX = "meup/v0.1", "meup/v0.2", "mew/v0.4", "mcpx/v0.1"
FILES = {
    "probe-meup02.jsonl": V02,
    "probe-mew04.jsonl": V04,
    "ts-participants-meup02.jsonl": V02,
    "ts-participants-mew04.jsonl": V04,
}


def captured(name: str) -> Iterator[Any]:
    for line in (CAPTURES / name).read_text().splitlines():
        record = json.loads(line)
        if "env" in record:
            yield record["env"]


def is_envelope(value: Any) -> bool:
    """True for a captured message with all fields of an envelope; errors may lack id and sender."""
    if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
        return False
    if value["kind"] == "system/error":
        return True
    return bool(value.get("id")) and bool(value.get("from"))


def content(envelope: Envelope) -> tuple[Any, ...]:
    return (
        envelope.id,
        envelope.sender,
        envelope.kind,
        envelope.to,
        envelope.correlation,
        envelope.payload,
        envelope.ts,
        envelope.context,
        {name: json.loads(raw) for name, raw in envelope.extra},
    )


@pytest.mark.rule("1.captures")
@pytest.mark.parametrize("name", FILES)
def test_captured_envelopes_survive_in_their_own_dialect(name: str) -> None:
    dialect = FILES[name]
    seen = 0
    for value in captured(name):
        protocol = value.get("protocol", dialect) if isinstance(value, dict) else dialect
        if not is_envelope(value) or protocol not in (dialect, "mew/v0.3"):
            continue
        frame = json.dumps(value).encode()
        envelope = decode(frame, dialect)
        if isinstance(value.get("correlation_id"), str):
            frame = json.dumps({**value, "correlation_id": [value["correlation_id"]]}).encode()
            assert json.loads(encode(envelope, dialect)) == json.loads(frame)
        else:
            assert encode(envelope, envelope.protocol or dialect) == frame
        again = decode(encode(envelope.replace(), dialect), dialect)
        assert content(again) == content(envelope)
        more = {"x-unknown": {"a": [seen]}, "seq": seen}
        stranger = decode(json.dumps({**value, **more}), dialect)
        kept = decode(encode(stranger.replace(), dialect), dialect)
        assert content(kept)[:-1] == content(envelope)[:-1]
        assert content(kept)[-1] == {**content(envelope)[-1], **more}
        seen += 1
    assert seen > 100


@pytest.mark.rule("1.captures")
@pytest.mark.parametrize("name", FILES)
def test_captured_messages_that_are_no_envelopes_are_refused(name: str) -> None:
    refused = 0
    for value in captured(name):
        if is_envelope(value):
            continue
        with pytest.raises(InvalidEnvelope, match=r"envelope|frame"):
            decode(json.dumps(value).encode(), FILES[name])
        refused += 1
    assert refused > 0


@pytest.mark.rule("1.captures")
@pytest.mark.parametrize("name", FILES)
def test_captured_envelopes_pass_through_every_dialect_that_can_say_them(name: str) -> None:
    dialect = FILES[name]
    for value in captured(name):
        if not is_envelope(value) or value.get("protocol") != dialect:
            continue
        envelope = decode(json.dumps(value).encode())
        for other in DIALECTS:
            try:
                there = decode(encode(envelope, other), other)
            except NotExpressible:
                continue
            back = decode(encode(there, dialect), dialect)
            if back.kind == "system/presence":
                # Said in another dialect, it is our gateway's: all are announced to answer.
                participant = back.payload["participant"]
                assert participant["id"] == envelope.payload["participant"]["id"]
                continue
            assert comparable(back) == comparable(envelope)


TALK = [
    (V01, {"message": "hi"}),
    (MCPX, {"message": "hi"}),
    (V02, {"text": "hi", "format": "plain"}),
    (V04, {"text": "hi", "format": "plain"}),
]


@pytest.mark.rule("1.forward.between")
@pytest.mark.parametrize(("dialect", "payload"), TALK)
@pytest.mark.parametrize(("from_dialect", "said"), TALK)
def test_chat(dialect: str, payload: Any, from_dialect: str, said: Any) -> None:
    envelope = draft("chat", said, id="1", sender="a").replace(protocol=from_dialect)
    assert json.loads(encode(envelope, dialect))["payload"] == payload


def test_chat_keeps_what_is_not_plain() -> None:
    envelope = draft("chat", {"text": "*hi*", "format": "markdown", "x": 1}, id="1", sender="a")
    said = json.loads(encode(envelope, V01))["payload"]
    assert said == {"message": "*hi*", "format": "markdown", "x": 1}


@pytest.mark.rule("1.read.wrapper")
@pytest.mark.parametrize("depth", [1, 2])
def test_a_wrapped_proposal_is_unwrapped_and_a_wrapper_in_a_wrapper_stays(depth: int) -> None:
    call = {"method": "tools/call", "params": {"name": "add"}}
    said = {"proposal": call} if depth == 1 else {"proposal": {"proposal": call}}
    envelope = draft("mcp/proposal", said, id="1", sender="a")
    for dialect in DIALECTS:
        assert json.loads(encode(envelope, dialect))["payload"] == (call if depth == 1 else said)


@pytest.mark.parametrize(
    ("kind", "wire"), [("mcp/withdraw", "proposal/withdraw"), ("mcp/reject", "proposal/reject")]
)
def test_a_decision_names_its_proposal_in_the_payload(kind: str, wire: str) -> None:
    envelope = draft(kind, {"reason": "busy"}, id="1", sender="a", correlation=("p",))
    said = json.loads(encode(envelope, MCPX))
    assert said["kind"] == wire
    assert said["payload"] == {"proposalId": "p", "reason": "busy"}
    assert "correlationId" not in said
    read = decode(encode(envelope, MCPX))
    assert (read.kind, read.correlation) == (kind, ("p",))
    assert json.loads(encode(read, V02))["payload"] == {"reason": "busy"}
    assert json.loads(encode(read, V02))["correlation_id"] == ["p"]


def test_one_kind_for_all_of_mcp() -> None:
    request = {"jsonrpc": "2.0", "id": "r", "method": "tools/list"}
    response = {"jsonrpc": "2.0", "id": "r", "result": {}}
    cancel = {"method": "notifications/cancelled", "params": {"requestId": "r"}}
    said = [
        draft("mcp/request", request, id="r", sender="a", correlation=("p",)),
        draft("mcp/response", response, id="2", sender="b", correlation=("r",)),
        draft("mcp/request", cancel, id="3", sender="a", correlation=("r",)),
    ]
    wire = [json.loads(encode(envelope, MCPX)) for envelope in said]
    assert [each["kind"] for each in wire] == ["mcp"] * 3
    assert [each.get("correlationId") for each in wire] == ["p", None, "r"]
    for envelope in said:
        assert content(decode(encode(envelope, MCPX))) == content(envelope)


@pytest.mark.rule("1.read.payloads")
@pytest.mark.parametrize(
    "odd",
    [
        '"id": 1.5',
        '"id": true',
        '"id": [1]',
        '"id": {"a": 1}',
        '"id": ' + "9" * 400,
        '"id": 1e999',
        '"proposalId": 5',
        '"proposalId": {}',
        '"id": null',
        '"x": 1',
    ],
)
def test_a_method_makes_a_request_whatever_else_stands_there(odd: str) -> None:
    message = f'{{"jsonrpc": "2.0", {odd}, "method": "tools/list"}}'
    frame = f'{{"protocol":"{MCPX}","id":"1","from":"a","kind":"mcp","payload":{message}}}'
    read = decode(frame)
    assert (read.kind, read.correlation) == ("mcp/request", ())
    assert decode(encode(read, V01)).kind == "mcp/request"
    assert decode(frame.replace('"method"', '"result"')).kind == "mcp/response"


@pytest.mark.rule("1.forward.several")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [("mcp/response", {"result": 1}), ("mcp/response", {"id": "p"}), ("mcp/reject", {}), ("x", {})],
)
def test_several_correlations_stand_beside_the_first(kind: str, payload: Any) -> None:
    envelope = draft(kind, payload, id="1", sender="a", correlation=("p", "r"))
    wire = {dialect: json.loads(encode(envelope, dialect)) for dialect in DIALECTS}
    assert [said["correlation_id"] for said in wire.values()] == [["p", "r"]] * len(DIALECTS)
    assert wire[V01]["correlationId"] == "p"
    named = wire[MCPX]["payload"].get("proposalId") or wire[MCPX].get("correlationId")
    assert (named or wire[MCPX]["payload"]["id"]) == "p"
    for dialect, said in wire.items():
        assert decode(json.dumps(said), dialect).correlation == ("p", "r")
        assert json.loads(encode(decode(json.dumps(said), dialect).replace(), V01)) == wire[V01]


@pytest.mark.rule("1.not_expressible")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("proposal", {}),
        ("mcp", {}),
        ("mcp/request", {"result": 1}),
        ("mcp/withdraw", ["no object"]),
        ("mcp/response", {"method": "ping"}),
    ],
)
def test_what_it_has_no_words_for_is_refused(kind: str, payload: Any) -> None:
    with pytest.raises(NotExpressible, match=MCPX):
        encode(draft(kind, payload, id="1", sender="a", correlation=("p",)), MCPX)


KIND_ON_THE_WIRE = {
    kinds.MCP_REQUEST: ("mcp", "mcp.request"),
    kinds.MCP_RESPONSE: ("mcp", "mcp.response"),
    kinds.MCP_PROPOSAL: ("proposal", "mcp.proposal"),
    kinds.MCP_WITHDRAW: ("proposal/withdraw", "mcp.withdraw"),
    kinds.MCP_REJECT: ("proposal/reject", "mcp.reject"),
    "chat": ("chat", "chat"),
    "reasoning/thought": ("reasoning/thought", "reasoning.thought"),
    "capability/grant-ack": ("capability/grant-ack", "capability.grant-ack"),
    "system/welcome": ("system/welcome", "system.welcome"),
    "acme/event": ("acme/event", "acme/event"),
    "acme.event": ("acme.event", "acme.event"),
    "MCP.request": ("MCP.request", "MCP.request"),
}


@pytest.mark.rule("1.kinds")
@pytest.mark.parametrize("kind", KIND_ON_THE_WIRE)
def test_each_dialect_has_its_own_words(kind: str) -> None:
    payload: dict[str, Any] = {"method": "ping"} if kind == kinds.MCP_REQUEST else {"a": 1}
    envelope = draft(kind, payload, id="1", sender="a", correlation=("p",))
    for dialect, wire in zip((MCPX, V01, V02), (*KIND_ON_THE_WIRE[kind], kind), strict=True):
        assert json.loads(encode(envelope, dialect))["kind"] == wire
        assert decode(encode(envelope, dialect)).kind == kind
    correlation = json.loads(encode(envelope, V01))["correlationId"]
    assert (correlation, json.loads(encode(envelope, V04))["correlation_id"]) == ("p", ["p"])


TRANSLATED = {"chat", kinds.MCP_PROPOSAL, kinds.MCP_WITHDRAW, kinds.MCP_REJECT}
"""Kinds with payloads that differ between dialects."""


@pytest.mark.rule("1.forward.between")
@pytest.mark.parametrize("dialect", sorted(DIALECTS))
@pytest.mark.parametrize("other", sorted(DIALECTS))
def test_between_dialects_no_byte_of_any_other_payload_changes(dialect: str, other: str) -> None:
    changed = {}
    for kind in sorted(kinds.KINDS.keys() - TRANSLATED):
        said = "" if kind == kinds.MCP_RESPONSE else '"method" : "ping", '
        raw = (
            f'{{ {said}"b": 1.0,"a":1e2, "proposal":{{}}, "message":"\\u00e9", "proposalId":"x" }}'
        )
        envelope = draft(kind, raw.encode(), id="1", sender="a", correlation=("p",))
        there = decode(encode(envelope, dialect), dialect)
        read = decode(encode(there, other), other).raw_payload
        if read != raw.encode():
            changed[kind] = read
    assert changed == {}


names = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(names, json_values, max_size=4)
envelopes = st.builds(
    draft,
    st.sampled_from(sorted(kinds.KINDS)) | names,
    objects
    | st.builds(lambda text: {"message": text}, names)
    | st.builds(lambda call: {"proposal": call}, objects)
    | st.builds(lambda rpc, rest: {"id": rpc, **rest}, names | st.integers(), objects)
    | st.builds(lambda name, rest: {"method": name, **rest}, names, objects),
    id=names,
    sender=names,
    to=st.lists(names, max_size=2).map(tuple),
    correlation=st.lists(names, max_size=2, unique=True).map(tuple),
    context=st.none() | names,
)


def comparable(envelope: Envelope) -> tuple[Any, ...]:
    """The part that a translation must keep: the forms of one thing count as one."""
    envelope = decode(encode(envelope.replace(), V02))
    if envelope.kind == "mcp/proposal":
        # Its executor stands in ``to``, or in ``_meta``.
        envelope = as_broadcast(envelope) or envelope
    payload = envelope.payload
    correlation = envelope.correlation
    if isinstance(payload, dict) and envelope.kind == "chat":
        payload = {"format": "plain", **payload}
    if envelope.kind == "mcp/proposal" and isinstance(payload, dict) and [*payload] == ["proposal"]:
        payload = payload["proposal"] if isinstance(payload["proposal"], dict) else payload
    rpc_id = payload.get("id") if isinstance(payload, dict) else None
    if envelope.kind == kinds.MCP_RESPONSE and not correlation and isinstance(rpc_id, str | int):
        # A response refers to its request by the JSON-RPC id, said beside it or not.
        correlation = (str(rpc_id),)
    return (envelope.id, envelope.sender, envelope.kind, envelope.to, correlation, payload)


@pytest.mark.rule("1.forward.between")
@pytest.mark.rule("1.not_expressible")
@given(envelope=envelopes, path=st.lists(st.sampled_from(sorted(DIALECTS)), min_size=1, max_size=4))
def test_an_envelope_passes_through_any_dialects_or_is_refused(
    envelope: Envelope, path: list[str]
) -> None:
    travelling = envelope
    for dialect in path:
        refused: str | None = None
        try:
            travelling = decode(encode(travelling, dialect), dialect)
        except NotExpressible as error:
            refused = str(error)
        if refused is not None:  # what for is tested above, case by case
            assert dialect in refused
            return
    assert comparable(travelling) == comparable(envelope)
