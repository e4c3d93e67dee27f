"""Frames of a stream between the connection and one reader: bounded, the oldest lost first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from meup_agent.protocol.wire.streams import COMPLETE, StreamInfo

MAX_UNREAD_FRAMES: Final = 1024
"""Frames that wait for one reader; of a thousand a second, a second's worth."""

MAX_UNREAD_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the same: one frame of the largest size always fits."""

MAX_ALL_UNREAD_BYTES: Final = 64 * 1024 * 1024
"""Bytes that wait for all readers together: streams are opened by strangers, and read by handlers
that are as many."""


class StreamEnd(msgspec.Struct, frozen=True):
    """The end of a stream.

    Attributes:
        reason: The reason code: ``complete``, ``cancelled``, ``error``, ``owner_left``, … A code
            from the wire stays as it came.
        by: The participant that ended it, or the gateway.
        text: More words on it, where there are some; a stranger's: escape them for a reader.
    """

    reason: str
    by: str = ""
    text: str = ""

    @property
    def is_complete(self) -> bool:
        """True if its writer had said all."""
        return self.reason == COMPLETE

    def __str__(self) -> str:
        return f"{self.reason}: {self.text}" if self.text else self.reason


class StreamBuffer:
    """Frames of one stream that one reader has not taken.

    Attributes:
        stream: The stream, as it was announced last.
        lost: Frames that this reader, or its connection, was too slow for.
        gaps: Losses of our connection while the stream went on; each may have lost frames unseen.
        end: The end of the stream; frames that came before can still be taken.
        wake: Called on each change; set by the reader.
        size: The bytes that wait.
        readers: The queues of all readers of one handler; itself alone where there is one.
    """

    __slots__ = (
        "_frames",
        "_queues",
        "_unclaimed",
        "end",
        "gaps",
        "lost",
        "readers",
        "size",
        "stream",
        "wake",
    )

    def __init__(self, stream: StreamInfo, queues: StreamBuffers) -> None:
        self.stream = stream
        self.lost = self.gaps = 0
        self.end: StreamEnd | None = None
        self.wake: Callable[[], None] = _nothing
        self.readers: list[StreamBuffer] = [self]
        self._unclaimed: list[StreamBuffer] | None = None
        self._queues = queues
        self._frames: deque[bytes] = deque()
        self.size = 0

    def __len__(self) -> int:
        """The number of frames that wait."""
        return len(self._frames)

    def put(self, data: bytes) -> None:
        """Keep a frame until it is taken, in the place of the oldest ones if there is no room."""
        frames = self._frames
        frames.append(data)
        self.size += len(data)
        self._queues.hold(self, len(data))
        while len(frames) > MAX_UNREAD_FRAMES or self.size > MAX_UNREAD_BYTES:
            self._lose_oldest()
        self._queues.make_room()
        self.wake()

    def take(self) -> bytes | None:
        """The oldest frame; ``None``: none waits."""
        if not self._frames:
            return None
        data = self._frames.popleft()
        self.size -= len(data)
        self._queues.free(self, len(data))
        return data

    def lose_half(self) -> None:
        """Lose the oldest frames, at least half of the bytes."""
        least = self.size // 2
        while self.size > least:
            self._lose_oldest()

    def _lose_oldest(self) -> None:
        if self.take() is not None:
            self.lost += 1

    def finish(self, end: StreamEnd) -> None:
        """Note the end of the stream; the first one counts."""
        if self.end is None:
            self.end = end
            self.wake()

    def close(self) -> None:
        """Take no more frames: its readers have gone."""
        for queue in self.readers:
            self._queues.remove(queue)

    def claim(self, readers: int) -> StreamBuffer:
        """The queue of the next of so many readers, each of which gets every frame."""
        if self._unclaimed is None:
            self.readers += [self._copy() for _ in range(readers - 1)]
            self._unclaimed = list(self.readers)
        return self._unclaimed.pop()

    def _copy(self) -> StreamBuffer:
        copy = StreamBuffer(self.stream, self._queues)
        copy._frames.extend(self._frames)
        copy.size, copy.lost, copy.gaps = self.size, self.lost, self.gaps
        copy.end = self.end
        self._queues.add(copy)
        if copy:
            self._queues.hold(copy, copy.size)
        return copy


class StreamBuffers:
    """The queues of all readers, by stream."""

    def __init__(self) -> None:
        self._by_stream: dict[str, list[StreamBuffer]] = {}
        # Those in which frames wait, of ended streams as well, and their bytes together.
        self._held: dict[StreamBuffer, None] = {}
        self._bytes = 0

    def __len__(self) -> int:
        """The number of queues."""
        return sum(map(len, self._by_stream.values()))

    def open(self, stream: StreamInfo) -> StreamBuffer:
        """Make a queue for one more reader."""
        queue = StreamBuffer(stream, self)
        self.add(queue)
        return queue

    def add(self, queue: StreamBuffer) -> None:
        """Put frames into a queue, too, unless its stream has ended."""
        if queue.end is None:
            self._by_stream.setdefault(queue.stream.id, []).append(queue)

    def remove(self, queue: StreamBuffer) -> None:
        """Put no more frames into a queue, whose reader has gone."""
        if queue in self._held:
            del self._held[queue]
            self._bytes -= queue.size
        queues = self._by_stream.get(queue.stream.id, [])
        if queue in queues:
            queues.remove(queue)
            if not queues:
                del self._by_stream[queue.stream.id]

    def of(self, stream: str) -> list[StreamBuffer]:
        return self._by_stream.get(stream, [])

    def hold(self, queue: StreamBuffer, size: int) -> None:
        """Count the bytes of what a queue has got."""
        self._held[queue] = None
        self._bytes += size

    def free(self, queue: StreamBuffer, size: int) -> None:
        """Count the bytes of what was taken from a queue."""
        if queue in self._held:
            self._bytes -= size
            if not queue:
                del self._held[queue]

    def make_room(self) -> None:
        """Let the fullest queues lose frames until all together are within their limit."""
        while self._bytes > MAX_ALL_UNREAD_BYTES:
            # Half of it, so that a flood does not look for the fullest at each frame.
            max(self._held, key=lambda queue: queue.size).lose_half()

    def finish(self, stream: str, end: StreamEnd) -> None:
        for queue in self._by_stream.pop(stream, ()):
            queue.finish(end)


def _nothing() -> None:
    """Wake no reader: there is none yet."""
