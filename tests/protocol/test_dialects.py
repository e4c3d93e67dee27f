"""Frames and envelopes: what is read leniently, written strictly and refused (PROTOCOL 1)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import UsageError
from tests.protocol.frames import NAME, PAYLOADS, V01, envelopes, frame, of_our_own
from tests.wire import DIALECTS, decode, draft, encode, kinds

EXAMPLES = (Path(__file__).parent.parent / "vectors" / "examples.jsonl").read_text("utf-8")


@pytest.mark.parametrize("dialect", sorted(DIALECTS.keys() - {"mcpx/v0.1"}))
@given(envelope=envelopes())
def test_what_is_written_is_read_again(dialect: str, envelope: Envelope) -> None:
    written = encode(envelope, dialect)
    read = decode(written, dialect)
    assert read.protocol == dialect
    assert of_our_own(read) == envelope
    assert decode(written) == read
    assert decode(written.decode()) == read
    assert encode(read, dialect) is read.frame


@pytest.mark.rule("1.unknown_kept")
@given(envelopes(), st.dictionaries(NAME.map(lambda name: f"x-{name}"), PAYLOADS))
def test_unknown_fields_survive_a_change(envelope: Envelope, unknown: dict[str, Any]) -> None:
    sent = {**json.loads(encode(envelope, V01)), **unknown}
    read = decode(json.dumps(sent))
    assert {name: json.loads(raw) for name, raw in read.extra} == unknown
    changed = decode(encode(read.replace(id="changed"), V01))
    assert json.loads(changed.frame) == {**sent, "id": "changed"}


@pytest.mark.parametrize("line", EXAMPLES.splitlines())
def test_the_examples_of_the_design_are_envelopes(line: str) -> None:
    example = json.loads(line)
    read = decode(line)
    assert read.id == example["id"]
    assert read.sender == example["from"]
    assert read.to == tuple(example.get("to", ()))
    assert read.correlation == ((example["correlationId"],) if "correlationId" in example else ())
    assert read.kind == example["kind"].replace("mcp.", "mcp/")
    assert read.payload == example["payload"]
    assert json.loads(encode(of_our_own(read), V01)) == example


@pytest.mark.rule("1.write.strict")
def test_our_own_are_written_exactly() -> None:
    envelope = draft(
        kinds.MCP_REJECT,
        {"reason": "busy"},
        id="e2",
        sender="b",
        to=("a",),
        correlation=("e1",),
        context="c",
        ts="2025-08-30T12:00:00.000Z",
    )
    assert encode(envelope, V01) == (
        b'{"protocol":"meup/v0.1","id":"e2","ts":"2025-08-30T12:00:00.000Z","from":"b","to":["a"],'
        b'"kind":"mcp.reject","correlationId":"e1","context":"c","payload":{"reason":"busy"}}'
    )


@pytest.mark.rule("1.forward.same_dialect")
def test_within_a_dialect_every_byte_stays() -> None:
    odd = (
        b' {"kind" : "mcp.request","from":"a", "x":1e2,"id":"e1","protocol":"meup/v0.1",'
        b'"correlation_id":["p","q"],"payload":{"b":1.0,"a":"\\u00e9"} }\n'
    )
    assert encode(decode(odd), V01) == odd
    assert decode(odd).raw_payload == b'{"b":1.0,"a":"\\u00e9"}'


@pytest.mark.parametrize("dialect", ["meup/v9", "", "MEUP/v0.1"])
def test_a_dialect_that_nobody_knows_is_the_callers_mistake(dialect: str) -> None:
    with pytest.raises(UsageError, match=V01):
        decode(frame(), dialect)
    with pytest.raises(UsageError, match=V01):
        encode(draft("chat", {}, id="e1", sender="a"), dialect)


@pytest.mark.rule("1.read.correlation")
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"correlationId": "p"}, ("p",)),
        ({"correlationId": ["p", "q"]}, ("p", "q")),
        ({"correlation_id": "p"}, ("p",)),
        ({"correlation_id": ["p", "q"]}, ("p", "q")),
        ({"correlationId": "p", "correlation_id": ["q", "p"]}, ("p", "q")),
        ({"correlationId": "", "correlation_id": "p"}, ("p",)),
        ({"correlationId": []}, ()),
        ({"correlationId": None}, ()),
        ({}, ()),
    ],
)
def test_correlation_in_every_form(fields: dict[str, Any], expected: tuple[str, ...]) -> None:
    assert decode(frame(**fields)).correlation == expected


@pytest.mark.parametrize(
    ("to", "expected"), [("b", ("b",)), (["b", "c"], ("b", "c")), ([], ()), (None, ()), (..., ())]
)
def test_addressees_in_every_form(to: Any, expected: tuple[str, ...]) -> None:
    read = decode(frame(to=to))
    assert read.to == expected
    assert read.concerns("b")
    assert read.concerns("z") is not bool(expected)


@pytest.mark.rule("1.read.kinds")
@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("mcp.request", "mcp/request"),
        ("mcp/request", "mcp/request"),
        ("capability.grant-ack", "capability/grant-ack"),
        ("notes.x", "notes.x"),
    ],
)
def test_kinds_with_dots_and_with_slashes(written: str, expected: str) -> None:
    assert decode(frame(kind=written)).kind == expected


@pytest.mark.rule("1.read.payloads")
@pytest.mark.parametrize(
    "payload", [{"proposal": {"method": "x"}}, {"error": {"code": "NOT_FOUND"}}, 5, None, [], "x"]
)
def test_a_payload_may_be_anything(payload: Any) -> None:
    read = decode(frame(payload=payload))
    assert read.payload == payload
    assert read.payload_object == (payload if isinstance(payload, dict) else {})


@pytest.mark.rule("1.read.errors")
@pytest.mark.parametrize("missing", [..., None, ""])
def test_an_error_may_lack_id_time_and_sender(missing: Any) -> None:
    read = decode(frame(**{"kind": "system/error", "id": missing, "from": missing}))
    assert (read.id, read.sender, read.ts) == ("", kinds.GATEWAY, None)


@pytest.mark.rule("1.read.gateway_names")
@pytest.mark.parametrize("name", sorted(kinds.GATEWAY_NAMES))
def test_a_gateways_own_name_is_kept(name: str) -> None:
    assert decode(frame(**{"kind": "system.welcome", "from": name})).sender == name


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("1e400", math.inf),
        ("-1e400", -math.inf),
        ("9" * 400 + ".0", math.inf),
        ("9" * 5000, math.inf),
        ("-" + "9" * 5000, -math.inf),
        ("1e-400", 0.0),
        (str(2**70), 2**70),
    ],
)
def test_no_number_stops_a_reader(written: str, expected: float) -> None:
    read = decode(f'{{"id":"e1","from":"a","kind":"chat","payload":{{"n":[{written},1,1.5]}}}}')
    assert read.payload == {"n": [expected, 1, 1.5]}
    assert read.raw_payload == f'{{"n":[{written},1,1.5]}}'.encode()


def test_a_payload_is_decoded_anew_each_time() -> None:
    read = decode(frame(payload={"a": []}))
    read.payload["a"].append(1)
    assert read.payload == {"a": []}
