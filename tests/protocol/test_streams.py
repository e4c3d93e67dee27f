"""Frames of streams, and what envelopes say about streams."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meup_agent import Envelope
from meup_agent.errors import InvalidEnvelope
from meup_agent.protocol import streams
from meup_agent.protocol.dialects import STREAMING
from meup_agent.protocol.streams import ABOUT, READERS, read_active_streams, read_stream
from tests.wire import (
    StreamFrame,
    StreamInfo,
    decode,
    draft,
    encode,
    kinds,
    read_frame,
    write_frame,
)

ids = st.text(st.characters(codec="utf-8", exclude_characters="#"), min_size=1, max_size=32).filter(
    str.isprintable
)


@given(ids, st.binary(max_size=64))
def test_a_frame_is_read_as_it_was_written(stream: str, data: bytes) -> None:
    assert read_frame(write_frame(stream, data)) == StreamFrame(stream, data)


@pytest.mark.parametrize(
    ("frame", "data"),
    [("#s#", b""), ("#s##", b"#"), ("#s#é", "é".encode()), (b"#s#\x00\xff{}", b"\x00\xff{}")],
)
def test_data_may_be_anything(frame: bytes | str, data: bytes) -> None:
    assert read_frame(frame) == StreamFrame("s", data)


@pytest.mark.parametrize("frame", ["", "{}", " #s#x", b"[1]"])
def test_other_frames_are_none(frame: bytes | str) -> None:
    assert read_frame(frame) is None


@pytest.mark.parametrize(
    "frame",
    [
        "#",
        "##",
        "##data",
        "#s",
        "#a\nb#data",
        b"#\xff#data",
        "#" + "x" * 129 + "#data",
        "#" + "x" * (1 << 20) + "#data",
        "#" + "{" * 4096,
    ],
)
def test_a_frame_without_an_id_is_refused_in_one_short_sentence(frame: bytes | str) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        read_frame(frame)
    assert refused.value.problem == streams.INVALID_FRAME
    assert len(str(refused.value)) < 200


def read(kind: str, payload: dict[str, Any], *correlation: str, sender: str = "a") -> Any:
    envelope = draft(kind, payload, id="e", sender=sender, to=("a",), correlation=correlation)
    return READERS[kind](envelope, payload)


STREAM = StreamInfo(
    "s-1",
    "a",
    ("a", "b"),
    ("c",),
    "2025-01-01T00:00:00.000Z",
    {"direction": "upload", "metadata": {"fps": 60}, "target": ["c"]},
    ("request-1",),
)


def test_an_open_stream_reads_the_same_from_its_opening_and_from_a_welcome() -> None:
    opened = read(kinds.STREAM_OPEN, streams.build_open(STREAM), "r", sender=kinds.GATEWAY)
    assert opened == streams.StreamOpen(STREAM, "r")
    assert read_active_streams({"active_streams": [STREAM.to_wire(), 1, {}]}) == (STREAM,)
    assert read_active_streams({}) is None


def test_the_fields_of_a_request_cannot_pose_as_the_gateways() -> None:
    forged = {"owner": "x", "authorized_writers": ["x"], "stream_id": "x", ABOUT: ["x"], "more": 1}
    request = read(kinds.STREAM_REQUEST, forged)
    assert request.fields == {"more": 1}
    said = StreamInfo("s-1", "a", ("a",), fields=forged).to_wire()
    assert (said["owner"], said["authorized_writers"], said["stream_id"]) == ("a", ["a"], "s-1")
    assert ABOUT not in said


def test_what_existing_gateways_say_of_a_stream_is_enough() -> None:
    assert read_stream({"stream_id": "stream-1", "owner": "a"}) == StreamInfo(
        "stream-1", "a", ("a",)
    )
    opened = read(kinds.STREAM_OPEN, {"stream_id": "stream-1", "encoding": "text"}, "r")
    assert opened.stream == StreamInfo("stream-1", "a", ("a",))


@pytest.mark.parametrize(
    ("kind", "payload", "correlation"),
    [
        (kinds.STREAM_REQUEST, {"target": [1]}, ()),
        (kinds.STREAM_REQUEST, {"target": {"a": 1}}, ()),
        (kinds.STREAM_REQUEST, {"target": [f"p{number}" for number in range(65)]}, ()),
        (kinds.STREAM_OPEN, {"owner": "a"}, ("r",)),
        (kinds.STREAM_OPEN, {"stream_id": "s", "owner": "a"}, ()),
        (kinds.STREAM_CLOSE, {}, ()),
        (kinds.STREAM_CLOSE, {"stream_id": "a#b"}, ("r",)),
        (kinds.STREAM_CLOSE, {"stream_id": "s", "reason": "x" * 1001}, ()),
        (kinds.STREAM_GRANT_WRITE, {"stream_id": "s"}, ()),
        (kinds.STREAM_REVOKE_WRITE, {"stream_id": "x" * 129, "participant_id": "b"}, ()),
        (kinds.STREAM_TRANSFER_OWNERSHIP, {"stream_id": "s", "new_owner": 5}, ()),
        (kinds.STREAM_LOST, {"stream_id": "s", "frames": True, "bytes": 1}, ()),
    ],
)
def test_a_payload_that_lacks_something_is_named(
    kind: str, payload: dict[str, Any], correlation: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidEnvelope) as refused:
        read(kind, payload, *correlation)
    assert (refused.value.problem, refused.value.envelope_id) == ("invalid_envelope", "e")


def test_each_message_is_read_as_it_was_written() -> None:
    assert read(kinds.STREAM_REQUEST, streams.build_request(targets=("c",), format="x")) == (
        streams.StreamRequest(
            "e", "a", ("c",), {"direction": "upload", "format": "x", "target": ["c"]}
        )
    )
    assert read(kinds.STREAM_REQUEST, {"target": "c"}, "m").targets == ("c",)
    close = read(kinds.STREAM_CLOSE, streams.build_close("s", "cancelled"))
    assert close == streams.StreamClose("a", "s", "cancelled")
    assert read(kinds.STREAM_CLOSE, {}, "r") == streams.StreamClose("a", "", about=("r",))
    said = streams.build_write("s", "b", "why")
    assert read(kinds.STREAM_GRANT_WRITE, said) == streams.GrantWrite("a", "s", "b", "why")
    assert read(kinds.STREAM_REVOKE_WRITE, said) == streams.RevokeWrite("a", "s", "b", "why")
    moved = read(kinds.STREAM_TRANSFER_OWNERSHIP, streams.build_transfer("s", "b"))
    assert moved == streams.TransferOwnership("a", "s", "b")
    ack = streams.build_write_ack(STREAM, "b")
    assert read(kinds.STREAM_WRITE_GRANTED, ack) == streams.WriteGranted("s-1", "b", ("a", "b"))
    assert read(kinds.STREAM_WRITE_REVOKED, ack) == streams.WriteRevoked("s-1", "b", ("a", "b"))
    told = streams.build_transferred(STREAM, "b", "why")
    assert read(kinds.STREAM_OWNERSHIP_TRANSFERRED, told) == streams.OwnershipTransferred(
        "s-1", "b", "a", ("a", "b"), "why"
    )
    lost = read(kinds.STREAM_LOST, streams.build_lost("s-1", 3, 70))
    assert lost == streams.StreamLost("s-1", 3, 70)


@pytest.mark.parametrize("dialect", sorted(STREAMING))
def test_kinds_are_spelled_as_their_dialect_spells_kinds(dialect: str) -> None:
    envelope: Envelope = draft(
        kinds.STREAM_GRANT_WRITE, streams.build_write("s", "b"), id="1", sender="a"
    )
    frame = encode(envelope, dialect)
    spelled = "stream/grant-write" if dialect == "mew/v0.4" else "stream.grant-write"
    assert json.loads(frame)["kind"] == spelled
    assert decode(frame).kind == kinds.STREAM_GRANT_WRITE
