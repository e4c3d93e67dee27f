"""The event stream of an HTTP connection, read byte by byte, and what a frame ends."""

import json

import pytest

from meup_agent.errors import ConfigurationError
from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.envelope import draft
from meup_agent.reasons import Cause
from meup_agent.transport.http import check_http_url, ends_something
from meup_agent.transport.server_events import EventParser, EventTooLarge, ServerEvent

STREAM = (
    b"retry: 1000\n\n: nothing new\n\n"
    b'id: 7\ndata: {"a":1}\n\n'
    b"event: close\ndata: {\ndata: }\n\n"
    b"event: gap\n\n"
)
EVENTS = [ServerEvent("", b'{"a":1}', "7"), ServerEvent("close", b"{\n}", "")]


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_events_are_the_same_however_the_stream_is_cut(line_end: bytes, size: int) -> None:
    stream, parser = STREAM.replace(b"\n", line_end), EventParser(100)
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS


def read(stream: bytes) -> list[ServerEvent]:
    """The events of a stream that comes in pieces, of which none may have more than 100 bytes."""
    parser = EventParser(100)
    chunks = [stream[at : at + 8] for at in range(0, len(stream), 8)]
    return [event for chunk in chunks for event in parser.feed(chunk)]


@pytest.mark.parametrize(
    "stream", [b"data: " + b"x" * 101 + b"\n", b"data: 0123456789\n" * 11, b"x" * 400]
)
def test_an_event_is_bounded_in_one_line_and_in_many(stream: bytes) -> None:
    with pytest.raises(EventTooLarge):
        read(stream)


def test_an_event_of_the_largest_size_is_taken() -> None:
    [event] = read(b"data: " + b"x" * 100 + b"\n\n")
    assert event.data == b"x" * 100


def frame(kind: str, payload: object) -> bytes:
    said = draft(kind, payload, id="1", sender="me", to=("tools",), correlation=("p",))
    return encode(said, "meup/v0.1")


@pytest.mark.rule("3.pace.ends")
def test_withdraws_rejects_and_cancels_end_something() -> None:
    cancel = payloads.cancelled("p", Cause("other", by="me", id="p"))
    for kind, payload in (
        (kinds.MCP_WITHDRAW, {"reason": "other"}),
        (kinds.MCP_REJECT, {"reason": "other"}),
        (kinds.MCP_REQUEST, cancel),
    ):
        assert ends_something(frame(kind, payload))
    assert not ends_something(frame(kinds.MCP_REQUEST, payloads.request("tools/list", {}, "1")))
    assert not ends_something(frame(kinds.CHAT, {"message": "hello"}))
    assert not ends_something(json.dumps({"no": "envelope"}).encode())


@pytest.mark.parametrize("url", ["localhost:8421", "ws://localhost:8421", "http://", ""])
def test_an_address_that_is_none_is_refused_in_a_sentence(url: str) -> None:
    with pytest.raises(ConfigurationError, match="give one such as http://localhost:8421"):
        check_http_url(url)
