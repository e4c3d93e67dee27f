"""The reader of server-sent events: any cut of the stream, and its bounds."""

import pytest

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
    "stream",
    [b"data: " + b"x" * 101 + b"\n", b"data: 0123456789\n" * 11, b"x" * 400, b"data:\n" * 102],
)
def test_an_event_is_bounded_in_one_line_and_in_many(stream: bytes) -> None:
    with pytest.raises(EventTooLarge):
        read(stream)


def test_an_event_of_the_largest_size_is_taken() -> None:
    [event] = read(b"data: " + b"x" * 100 + b"\n\n")
    assert event.data == b"x" * 100
