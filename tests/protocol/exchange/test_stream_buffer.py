"""Frames that wait for readers: bounded for each, and for all together."""

from meup_agent.protocol.exchange.stream_buffer import (
    MAX_ALL_UNREAD_BYTES,
    StreamBuffer,
    StreamBuffers,
    StreamEnd,
)
from tests.tables import MAX_UNREAD_BYTES
from tests.wire import StreamInfo

LARGE = b"x" * (MAX_UNREAD_BYTES // 2)
FULL = MAX_ALL_UNREAD_BYTES // MAX_UNREAD_BYTES


def opened(buffers: StreamBuffers, number: int) -> StreamBuffer:
    return buffers.open(StreamInfo(f"s-{number}", "alice"))


def fill(buffers: StreamBuffers, count: int) -> list[StreamBuffer]:
    """So many queues, each as full as it may be."""
    queues = [opened(buffers, number) for number in range(count)]
    for queue in queues:
        queue.put(LARGE)
        queue.put(LARGE)
    return queues


def waiting(queues: list[StreamBuffer]) -> int:
    return sum(queue.size for queue in queues)


def test_many_full_streams_stay_within_the_limit_of_all() -> None:
    queues = fill(StreamBuffers(), 3 * FULL)
    assert waiting(queues) <= MAX_ALL_UNREAD_BYTES
    assert sum(queue.lost for queue in queues) * len(LARGE) == (
        3 * MAX_ALL_UNREAD_BYTES - waiting(queues)
    )


def test_a_small_one_beside_full_ones_loses_nothing() -> None:
    buffers = StreamBuffers()
    small = opened(buffers, -1)
    small.put(b"kept")
    fill(buffers, 2 * FULL)
    small.put(b"too")
    assert (small.take(), small.take(), small.lost) == (b"kept", b"too", 0)


def test_what_is_taken_makes_room() -> None:
    buffers = StreamBuffers()
    queues = fill(buffers, FULL)
    assert all(queue.take() for queue in queues)
    late = fill(buffers, FULL // 2)
    assert not any(queue.lost for queue in [*queues, *late])


def test_a_reader_that_goes_makes_room_also_when_its_stream_has_ended() -> None:
    buffers = StreamBuffers()
    for queue in fill(buffers, FULL):
        buffers.finish(queue.stream.id, StreamEnd("complete"))
        queue.close()
        queue.take()  # counts no more
    assert not any(queue.lost for queue in fill(buffers, FULL))


def test_each_reader_of_a_handler_counts() -> None:
    buffers = StreamBuffers()
    queues = fill(buffers, FULL)
    copies = [queue.claim(2) for queue in queues]
    opened(buffers, -1).put(b"one more")
    assert waiting([*queues, *(copy for copy in copies if copy not in queues)]) <= (
        MAX_ALL_UNREAD_BYTES
    )
