"""Refusals in every dialect: no envelope, too large a one, too deep a one."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol.wire.envelope import MAX_DEPTH, check_frame
from tests.protocol.frames import V01, envelopes, frame, refused
from tests.wire import MAX_FRAME_BYTES, decode, encode


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"NaN",
        b"\xef\xbb\xbf{}",
        b"#stream#data",
        frame() + frame(),
        frame(payload=...)[:-1] + b',"payload":[1,]}',
        frame(payload=...)[:-1] + b',"x":Infinity}',
    ],
)
def test_what_is_no_json_is_refused(raw: bytes) -> None:
    assert refused(raw).problem == "invalid_json"


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


def test_a_frame_may_have_the_largest_size_and_no_byte_more() -> None:
    room = MAX_FRAME_BYTES - len(frame(payload=""))
    assert len(decode(frame(payload="x" * room)).payload) == room
    error = refused(frame(payload="x" * (room + 1)))
    assert error.problem == "too_large"
    assert str(MAX_FRAME_BYTES) in str(error)
    check_frame(frame(), max_bytes=len(frame()))
    with pytest.raises(InvalidEnvelope):
        check_frame(frame(), max_bytes=len(frame()) - 1)


def test_text_is_counted_in_bytes_and_its_lone_surrogates_are_refused() -> None:
    text = '{"id":"e1","from":"a","kind":"chat","payload":"%s"}' % ("é" * (MAX_FRAME_BYTES // 2))
    assert refused(text).problem == "too_large"
    assert refused('{"id":"\ud800"}').problem == "invalid_utf8"


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


def nested(levels: int) -> str:
    """A frame with so many levels, its own included."""
    inner = "[" * (levels - 1) + "]" * (levels - 1)
    return f'{{"id":"e1","from":"a","kind":"chat","payload":{inner}}}'


@pytest.mark.parametrize("where", ["payload", "x"])
@pytest.mark.parametrize(
    "levels", [MAX_DEPTH - 1, MAX_DEPTH, MAX_DEPTH + 1, MAX_DEPTH + 2, 100_000, 1_000_000]
)
def test_depth_up_to_the_limit_is_read_in_every_field(levels: int, where: str) -> None:
    sent = nested(levels).replace("payload", where)
    if levels > MAX_DEPTH:
        error = refused(sent)
        assert error.problem == "too_deep"
        assert str(MAX_DEPTH) in str(error)
        return
    read = decode(sent)
    value = read.payload if where == "payload" else json.loads(dict(read.extra)["x"])
    for _ in range(levels - 2):
        (value,) = value
    assert value == []


def test_depth_counts_objects_and_arrays_alike() -> None:
    mixed = '{"a":[' * 49 + "0" + "]}" * 49  # 98 levels in the envelope's one
    around = '{"id":"e1","from":"a","kind":"chat","payload":%s}'
    assert decode(around % mixed).payload["a"]
    assert decode(around % f"[{mixed}]").payload[0]["a"]
    assert refused(around % f"[[{mixed}]]").problem == "too_deep"


@pytest.mark.parametrize(
    "text", ["[" * 1000, "{[" * 1000, '"[' * 1000, '\\"[' * 1000, "\\" + "[" * 1000, "]" * 1000]
)
def test_brackets_in_strings_are_no_depth(text: str) -> None:
    read = decode(frame(payload={text: [text]}))
    assert read.payload == {text: [text]}


@pytest.mark.parametrize("raw", ["[" * 1000, '{"a":' * 1000, "{" + '"[' * 1000])
def test_many_brackets_that_never_close_are_refused(raw: str) -> None:
    refused(raw)
