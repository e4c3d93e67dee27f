"""Frames and envelopes: what is read leniently, written strictly and refused (PROTOCOL 1)."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent.errors import InvalidEnvelope, UsageError
from meup_agent.protocol import kinds
from meup_agent.protocol.dialects import DEFAULT_DIALECT, DIALECTS, decode, encode
from meup_agent.protocol.envelope import Envelope, draft, encode_json
from meup_agent.protocol.limits import MAX_DEPTH, MAX_FRAME_BYTES, check_frame

V01 = "meup/v0.1"
EXAMPLES = (Path(__file__).parent.parent / "vectors" / "examples.jsonl").read_text("utf-8")

TEXT = st.text()
NAME = st.text(min_size=1)
DOTTED = {kinds.dotted(kind) for kind in kinds.KINDS} - kinds.KINDS.keys()
KIND = st.sampled_from(sorted(kinds.KINDS)) | NAME.filter(lambda kind: kind not in DOTTED)
PAYLOADS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=10,
)


def frame(**fields: Any) -> bytes:
    """A frame that lacks nothing, with some fields changed; those that are `...` are left out."""
    whole = {"protocol": V01, "id": "e1", "from": "a", "kind": "chat", "payload": {}, **fields}
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


def refused(raw: bytes | str, dialect: str | None = None) -> InvalidEnvelope:
    with pytest.raises(InvalidEnvelope) as caught:
        decode(raw, dialect)
    return caught.value


def of_our_own(envelope: Envelope) -> Envelope:
    """The envelope without what only one that was received has."""
    return envelope.replace(protocol="")


# --- round trips ----------------------------------------------------------------------------


@st.composite
def envelopes(draw: st.DrawFn) -> Envelope:
    return draft(
        draw(KIND),
        draw(PAYLOADS),
        id=draw(NAME),
        sender=draw(NAME),
        to=tuple(draw(st.lists(NAME))),
        correlation=tuple(draw(st.lists(NAME, max_size=1))),
        context=draw(st.none() | TEXT),
        ts=draw(st.none() | TEXT),
    )


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


@pytest.mark.rule("1.write.strict")
def test_what_there_is_not_is_left_out() -> None:
    assert encode(draft("chat", b'{"message":"hi"}', id="e1", sender="a"), V01) == (
        b'{"protocol":"meup/v0.1","id":"e1","from":"a","kind":"chat","payload":{"message":"hi"}}'
    )


@pytest.mark.rule("1.forward.same_dialect")
def test_within_a_dialect_every_byte_stays() -> None:
    odd = (
        b' {"kind" : "mcp.request","from":"a", "x":1e2,"id":"e1","protocol":"meup/v0.1",'
        b'"correlation_id":["p","q"],"payload":{"b":1.0,"a":"\\u00e9"} }\n'
    )
    assert encode(decode(odd), V01) == odd
    assert decode(odd).raw_payload == b'{"b":1.0,"a":"\\u00e9"}'


@pytest.mark.rule("1.kinds")
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_known_kinds_have_dots_on_the_wire_and_slashes_in_memory(kind: str) -> None:
    written = encode(draft(kind, {}, id="e1", sender="a", correlation=("p",)), V01)
    assert json.loads(written)["kind"] == kind.replace("/", ".")
    assert decode(written).kind == kind


@pytest.mark.rule("1.unknown_kept")
@pytest.mark.parametrize("kind", ["custom/x/y", "custom.x.y", "meup.lifecycle", "MCP.request"])
def test_unknown_kinds_stay_as_they_are(kind: str) -> None:
    read = decode(frame(kind=kind))
    assert read.kind == kind
    assert json.loads(encode(of_our_own(read), V01))["kind"] == kind


@pytest.mark.parametrize("dialect", ["meup/v9", "", "MEUP/v0.1"])
def test_a_dialect_that_nobody_knows_is_the_callers_mistake(dialect: str) -> None:
    with pytest.raises(UsageError, match=V01):
        decode(frame(), dialect)
    with pytest.raises(UsageError, match=V01):
        encode(draft("chat", {}, id="e1", sender="a"), dialect)


# --- read leniently -------------------------------------------------------------------------


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
    "payload",
    [
        {"method": "tools/call"},
        {"proposal": {"method": "tools/call"}},
        {"result": 5},
        {"error": {"code": "NOT_FOUND"}},
        {"reason": "lunch"},
        {"event": "invited"},
        5,
        None,
        [],
        "text",
    ],
)
def test_a_payload_may_be_anything(payload: Any) -> None:
    read = decode(frame(payload=payload))
    assert read.payload == payload
    assert read.payload_object == (payload if isinstance(payload, dict) else {})


def test_a_payload_may_be_missing() -> None:
    assert decode(frame(payload=...)).payload == {}


@pytest.mark.rule("1.read.errors")
@pytest.mark.parametrize("missing", [..., None, ""])
def test_an_error_may_lack_id_time_and_sender(missing: Any) -> None:
    read = decode(frame(**{"kind": "system/error", "id": missing, "from": missing}))
    assert (read.id, read.sender, read.ts) == ("", kinds.GATEWAY, None)


@pytest.mark.rule("1.read.gateway_names")
@pytest.mark.parametrize("name", sorted(kinds.GATEWAY_NAMES))
def test_a_gateways_own_name_is_kept(name: str) -> None:
    assert decode(frame(**{"kind": "system.welcome", "from": name})).sender == name


@pytest.mark.parametrize("protocol", [..., None, ""])
def test_a_frame_without_a_protocol_is_read_as_the_expected_one(protocol: Any) -> None:
    assert DEFAULT_DIALECT == V01
    for dialect in (None, V01):
        read = decode(frame(protocol=protocol), dialect)
        assert read.protocol == ""
        assert json.loads(encode(read, V01))["protocol"] == V01


def test_the_last_of_two_equal_keys_counts() -> None:
    read = decode(
        b'{"id":"e1","from":"a","kind":"chat","x":1,"kind":"mcp.reject","id":"e2","x":2,'
        b'"payload":{"reason":"no"},"payload":{"reason":"busy","reason":"unsafe"}}'
    )
    assert (read.id, read.kind, read.payload) == ("e2", "mcp/reject", {"reason": "unsafe"})
    assert read.extra == (("x", b"2"),)


def test_equal_keys_are_found_equal_however_they_are_spelled() -> None:
    # Or what the gateway checks would differ from what a participant reads.
    read = decode(
        rb'{"id":"e1","from":"a","fr\u006fm":"b","kind":"chat","k\u0069nd":"mcp.reject",'
        rb'"payload":{},"p\u0061yload":{"reason":"busy","re\u0061son":"unsafe"}}'
    )
    assert (read.sender, read.kind) == ("b", "mcp/reject")
    assert read.payload == {"reason": "unsafe"}


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


# --- refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"hello",
        b"{",
        frame() + b"x",
        frame() + frame(),
        b"nul",
        b"NaN",
        b"\xef\xbb\xbf{}",
        b"{'id':1}",
        b'{"id":"e1",}',
        b"#stream#data",
        frame(payload=...)[:-1] + b',"payload":01}',
        frame(payload=...)[:-1] + b',"payload":{"a" 1}}',
        frame(payload=...)[:-1] + b',"payload":"\\x"}',
        frame(payload=...)[:-1] + b',"payload":"a\tb"}',
        frame(payload=...)[:-1] + b',"payload":[1,]}',
        frame(payload=...)[:-1] + b',"x":Infinity}',
    ],
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    assert refused(raw).problem == "invalid_json"


@pytest.mark.parametrize("raw", [b"null", b"1", b'"text"', b"[]", b"[{}]", b"true"])
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    assert refused(raw).problem == "invalid_envelope"


@pytest.mark.parametrize(
    ("fields", "envelope_id"),
    [
        ({"kind": ...}, "e1"),
        ({"kind": None}, "e1"),
        ({"kind": ""}, "e1"),
        ({"kind": 5}, "e1"),
        ({"kind": ["chat"]}, "e1"),
        ({"from": ...}, "e1"),
        ({"from": ""}, "e1"),
        ({"from": {"id": "a"}}, "e1"),
        ({"id": ...}, None),
        ({"id": None}, None),
        ({"id": ""}, None),
        ({"id": 5}, None),
        ({"id": 5, "kind": 5}, None),
        ({"to": 5}, "e1"),
        ({"to": ["b", 5]}, "e1"),
        ({"correlationId": 5}, "e1"),
        ({"correlationId": ["p", 5]}, "e1"),
        ({"correlation_id": {"p": 1}}, "e1"),
        ({"ts": 1725000000}, "e1"),
        ({"context": {"id": "c"}}, "e1"),
        ({"protocol": 1}, "e1"),
        ({"protocol": "meup/v9"}, "e1"),
    ],
)
def test_what_is_no_envelope_is_refused(fields: dict[str, Any], envelope_id: str | None) -> None:
    error = refused(frame(**fields))
    assert error.problem == "invalid_envelope"
    assert error.envelope_id == envelope_id


def test_the_refusal_says_which_field() -> None:
    assert "kind" in str(refused(frame(kind=...)))
    assert "'from'" in str(refused(frame(**{"from": ...})))
    assert "'id'" in str(refused(frame(id=...)))
    assert "$.to[1]" in str(refused(frame(to=["b", 5])))


@pytest.mark.rule("1.write.strict")
def test_another_dialect_than_the_members_is_refused() -> None:
    error = refused(frame(protocol="mew/v0.4"), V01)
    assert (error.problem, error.envelope_id) == ("invalid_envelope", "e1")
    assert "'mew/v0.4'" in str(error)
    assert V01 in str(error)


@given(st.binary())
def test_bytes_are_an_envelope_or_refused(raw: bytes) -> None:
    with pytest.raises(InvalidEnvelope):
        decode(raw)


@given(envelopes(), st.data())
def test_a_frame_that_is_cut_is_refused(envelope: Envelope, data: st.DataObject) -> None:
    whole = encode(envelope, V01)
    refused(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(envelopes(), st.data())
def test_a_frame_that_was_damaged_is_an_envelope_or_refused(
    envelope: Envelope, data: st.DataObject
) -> None:
    damaged = bytearray(encode(envelope, V01))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        read = decode(bytes(damaged))
    except InvalidEnvelope:
        return
    # What was let through can be read to the end and sent on.
    assert read.payload_object is not None
    assert read.extra is not None
    decode(encode(read.replace(correlation=()), V01))


# --- size, encoding and depth ---------------------------------------------------------------


def test_a_frame_may_have_the_largest_size_and_no_byte_more() -> None:
    room = MAX_FRAME_BYTES - len(frame(payload=""))
    assert len(decode(frame(payload="x" * room)).payload) == room
    error = refused(frame(payload="x" * (room + 1)))
    assert error.problem == "too_large"
    assert str(MAX_FRAME_BYTES) in str(error)
    check_frame(frame(), max_bytes=len(frame()))
    with pytest.raises(InvalidEnvelope):
        check_frame(frame(), max_bytes=len(frame()) - 1)


def test_size_is_counted_in_bytes_for_text_too() -> None:
    text = '{"id":"e1","from":"a","kind":"chat","payload":"%s"}' % ("é" * (MAX_FRAME_BYTES // 2))
    assert refused(text).problem == "too_large"


INVALID_UTF8 = [b"\xff", b"\x80", b"\xc3", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"]


@given(envelopes(), st.data())
def test_invalid_utf8_is_refused_wherever_it_stands(
    envelope: Envelope, data: st.DataObject
) -> None:
    # Printable ASCII, so that no byte before or after completes the sequence.
    whole = frame(kind=envelope.kind, x=envelope.payload, payload=envelope.payload)
    at = data.draw(st.integers(0, len(whole)))
    for invalid in INVALID_UTF8:
        assert refused(whole[:at] + invalid + whole[at:]).problem == "invalid_utf8"


def test_a_lone_surrogate_in_text_is_refused() -> None:
    assert refused('{"id":"\ud800"}').problem == "invalid_utf8"


@pytest.mark.parametrize("lone", ["\\ud800", "\\udc00", "\\ud800x", "\\ud800\\n", "\\uDBFF\\u0041"])
@pytest.mark.parametrize(
    "around",
    [
        '{"id":"e1","from":"a","kind":"%s"}',
        '{"id":"%s","from":"a","kind":"chat"}',
        '{"id":"e1","from":"a","kind":"chat","x":["%s"]}',
        '{"id":"e1","from":"a","kind":"chat","%s":1}',
        '{"id":"e1","from":"a","kind":"chat","payload":{"a":["%s"]}}',
        '{"id":"e1","from":"a","kind":"chat","payload":{"%s":1}}',
    ],
)
def test_an_escaped_lone_surrogate_is_refused(around: str, lone: str) -> None:
    assert refused(around % lone).problem == "invalid_json"


def test_an_escaped_pair_of_surrogates_is_a_character() -> None:
    assert decode('{"id":"\\ud83d\\ude00","from":"a","kind":"chat"}').id == "😀"


def nested(levels: int, opening: str = "[", closing: str = "]") -> str:
    """A frame with so many levels, its own included."""
    inner = opening * (levels - 1) + closing * (levels - 1)
    return f'{{"id":"e1","from":"a","kind":"chat","payload":{inner}}}'


@pytest.mark.parametrize("levels", [MAX_DEPTH - 1, MAX_DEPTH])
def test_depth_up_to_the_limit_is_read(levels: int) -> None:
    payload = decode(nested(levels)).payload
    for _ in range(levels - 2):
        (payload,) = payload
    assert payload == []


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, MAX_DEPTH + 2, 100_000, 1_000_000])
def test_depth_beyond_the_limit_is_refused(levels: int) -> None:
    error = refused(nested(levels))
    assert error.problem == "too_deep"
    assert str(MAX_DEPTH) in str(error)


def test_depth_counts_objects_and_arrays_alike() -> None:
    mixed = '{"a":[' * 49 + "0" + "]}" * 49  # 98 levels in the envelope's one
    around = '{"id":"e1","from":"a","kind":"chat","payload":%s}'
    assert decode(around % mixed).payload["a"]
    assert decode(around % f"[{mixed}]").payload[0]["a"]
    assert refused(around % f"[[{mixed}]]").problem == "too_deep"


@pytest.mark.parametrize("where", ["payload", "x"])
def test_depth_counts_in_every_field(where: str) -> None:
    refused(nested(MAX_DEPTH + 1).replace("payload", where))
    decode(nested(MAX_DEPTH).replace("payload", where))


@pytest.mark.parametrize(
    "text", ["[" * 1000, "{[" * 1000, '"[' * 1000, '\\"[' * 1000, "\\" + "[" * 1000, "]" * 1000]
)
def test_brackets_in_strings_are_no_depth(text: str) -> None:
    read = decode(frame(payload={text: [text]}))
    assert read.payload == {text: [text]}


def test_brackets_side_by_side_are_no_depth() -> None:
    assert decode(frame(payload=[[], {}] * 10_000)).payload == [[], {}] * 10_000


@pytest.mark.parametrize("raw", ["[" * 1000, '{"a":' * 1000, "{" + '"[' * 1000])
def test_many_brackets_that_never_close_are_refused(raw: str) -> None:
    refused(raw)


# --- envelopes ------------------------------------------------------------------------------


def test_a_payload_is_decoded_anew_each_time() -> None:
    read = decode(frame(payload={"a": []}))
    read.payload["a"].append(1)
    assert read.payload == {"a": []}


def test_a_draft_takes_json_as_it_is() -> None:
    assert draft("chat", b'{"a": 1.0}', id="e1", sender="a").raw_payload == b'{"a": 1.0}'
    assert draft("chat", {"a": 1.0}, id="e1", sender="a").raw_payload == encode_json({"a": 1.0})


def test_a_changed_envelope_is_written_anew() -> None:
    read = decode(frame(x={"y": 1}, to=["b"]))
    changed = read.replace(sender="c")
    assert (changed.frame, changed.sender, changed.to) == (b"", "c", ("b",))
    assert json.loads(encode(changed, V01)) == {**json.loads(read.frame), "from": "c"}
    assert changed.replace(id="e2").extra == changed.extra == (("x", b'{"y": 1}'),)
