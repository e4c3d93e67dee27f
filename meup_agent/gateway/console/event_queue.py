"""Queues of the event streams to browsers: their topics, and their bounds.

A fragment is rendered once and handed, as the same bytes, to each stream that wants its topic. A
browser that is too slow is told to load its page anew instead of being sent everything that it
missed.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from meup_agent.gateway.edge.connection import frame_chunk
from meup_agent.protocol.wire.shown_text import printed

GATHER_SECONDS: Final = 0.05
"""Seconds between two pushes, for which changes are gathered: a person sees no difference, and a
lively space costs twenty renderings a second at the most."""

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""Bytes that wait for one browser; one that is slower loads its page anew."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are handed to the server at a time; a larger event goes alone."""

TOPICS: Final = frozenset({"inbox", "space"})
"""Topics of a stream: the participant's inbox, and the space's envelopes."""


def pack(event: str, data: dict[str, Any]) -> bytes:
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=True)}\n\n".encode()


class OutcomeNotice(NamedTuple):
    """A sentence for a person about what they did, and the proposal that it is about."""

    said: str
    failed: bool = False
    proposal: str = ""  # its key, for a link to its page
    parts: tuple[OutcomeNotice, ...] = ()  # of several decided together, what each came to

    def packed(self) -> bytes:
        """The event that tells it; nothing in it deceives the eye, since a script shows text."""
        data = {"said": printed(self.said), "failed": self.failed, "proposal": self.proposal}
        return pack("told", data)


NOTHING_NEW: Final = b": nothing new\n\n"

FRESH: Final = pack("fresh", {})
"""Tells a browser that it missed something: it loads its page anew."""


class EventQueue:
    """The events that wait for one browser."""

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = frozenset(topics) & TOPICS
        self.on_beat: Callable[[], None] | None = None
        self.push: Callable[[bytes], bool] | None = None
        """Writes a chunk to the browser at once, if it takes one now."""
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._is_idle = False
        # One reader, woken once for all that came in a turn of the loop.
        self._reader: asyncio.Future[None] | None = None

    def put(self, event: bytes, chunk: bytes = b"") -> None:
        """Write an event, or queue it; in place of one too many, the word that much was missed.

        Args:
            event: The event.
            chunk: The same as a chunk, made once for all.
        """
        self._is_idle = False
        # With its reader between two events, nothing is on the way that this could overtake.
        if (
            self.push is not None
            and self._reader is not None
            and not self._reader.done()
            and self.push(chunk or frame_chunk(event))
        ):
            return
        self._waiting.append(event)
        self._bytes += len(event)
        # A page that loads anew has all of it, so nothing that waits is worth its memory.
        if self._bytes > MAX_QUEUED_BYTES:
            self._waiting.clear()
            self._waiting.append(FRESH)
            self._bytes = len(FRESH)
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def beat(self) -> None:
        """Say that nothing is new, if nothing was since the last time, and look at the session."""
        if self._is_idle and not self._waiting:
            self.put(NOTHING_NEW)
        self._is_idle = True
        if self.on_beat is not None:
            self.on_beat()

    async def take(self) -> bytes:
        """The events that wait, or the first of them, as soon as there is one."""
        waiting = self._waiting
        if not waiting:
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        taken = [waiting.popleft()]
        size = len(taken[0])
        # In parts, so that one that reads slowly has no second copy of all that waits for it.
        while waiting and size + len(waiting[0]) <= PIECE_BYTES:
            size += len(waiting[0])
            taken.append(waiting.popleft())
        self._bytes -= size
        return taken[0] if len(taken) == 1 else b"".join(taken)


class EventQueues:
    """The streams of one participant, or of one space.

    Args:
        changed: Called when a stream has come or gone.
    """

    def __init__(self, changed: Callable[[], None] | None = None) -> None:
        self._changed = changed
        self._queues: dict[EventQueue, None] = {}
        self._wanted: Counter[str] = Counter()

    def __len__(self) -> int:
        """Number of streams."""
        return len(self._queues)

    def __iter__(self) -> Iterator[EventQueue]:
        """All of them, as they are at this moment."""
        return iter(tuple(self._queues))

    def wants(self, topic: str) -> bool:
        return self._wanted[topic] > 0

    def publish(self, topic: str, event: bytes) -> None:
        """Hand an event to each stream that wants its topic."""
        chunk = frame_chunk(event)
        for each in self._queues:
            if topic in each.topics:
                each.put(event, chunk)

    def add(self, queue: EventQueue) -> None:
        self._queues[queue] = None
        self._wanted.update(queue.topics)
        self._tell_changed()

    def remove(self, queue: EventQueue) -> None:
        """Publish to a queue no longer."""
        del self._queues[queue]
        self._wanted.subtract(queue.topics)
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self._changed is not None:
            self._changed()

    @contextmanager
    def holding(self, queue: EventQueue) -> Generator[None]:
        """Publish to a queue for the length of a block."""
        self.add(queue)
        try:
            yield
        finally:
            self.remove(queue)
