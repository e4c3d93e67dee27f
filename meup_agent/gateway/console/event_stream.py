"""Event streams to browsers: topics, bounded queues, and the feed of a space's envelopes.

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
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.gateway.admission import TOO_MANY
from meup_agent.gateway.console.guard import RequestDenied
from meup_agent.gateway.edge.flow import CHUNK_WRITER, frame_chunk

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from starlette.types import Receive, Scope, Send

    from meup_agent.gateway.console.context import PageContext
    from meup_agent.gateway.console.timeline import SpaceFeed
    from meup_agent.gateway.edge.flow import ChunkWriter
    from meup_agent.gateway.runtime import GatewayRuntime

GATHER_SECONDS: Final = 0.05
"""Seconds between two pushes, for which changes are gathered: a person sees no difference, and a
lively space costs twenty renderings a second at the most."""

KEEP_ALIVE_SECONDS: Final = 15.0
"""Seconds of silence after which a comment is sent, and the session looked at again."""

MAX_STREAMS: Final = 256
"""Event streams of a participant's browsers at once: one of each browser, or of each tab where the
browser lets no page keep anything."""

MAX_QUEUED_BYTES: Final = 1024 * 1024
"""Bytes that wait for one browser; one that is slower loads its page anew."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are handed to the server at a time; a larger event goes alone."""

TOPICS: Final = frozenset({"inbox", "space"})
"""Topics of a stream: the participant's inbox, and the space's envelopes."""


def pack(event: str, data: dict[str, Any]) -> bytes:
    """An event, in one line of JSON."""
    return f"event: {event}\ndata: {json.dumps(data, ensure_ascii=True)}\n\n".encode()


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
        """True if there is a stream with a topic."""
        return self._wanted[topic] > 0

    def publish(self, topic: str, event: bytes) -> None:
        """Hand an event to each stream that wants its topic."""
        chunk = frame_chunk(event)
        for each in self._queues:
            if topic in each.topics:
                each.put(event, chunk)

    def add(self, queue: EventQueue) -> None:
        """Publish to a queue."""
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


class StreamResponse:
    """The event stream of one browser; an ASGI response."""

    def __init__(self, context: PageContext, topics: Iterable[str]) -> None:
        self._context = context
        self._host = context.host
        self._here = context.here
        self._session = context.session
        self._sessions = context.site.console.sessions
        self._tokens = context.site.runtime.tokens
        self._queue = EventQueue(topics)
        self._ends = False
        if context.here.streams >= MAX_STREAMS:
            raise RequestDenied(TOO_MANY, f"You have {MAX_STREAMS} browsers open; close one first.")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the browser goes, its session ends, or the gateway stops."""
        context, queue = self._context, self._queue
        headers = [(b"content-type", b"text/event-stream"), (b"x-accel-buffering", b"no")]
        space = context.site.feeds.of(context.host.name)
        # Held before anything waits, so that each of many that come at once is counted.
        with context.here.streaming(queue), space.queues.holding(queue):
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._until_gone, receive, tasks.cancel_scope)
                tasks.start_soon(self._until_closed, tasks.cancel_scope)
                queue.on_beat = partial(self._look_at_session, tasks.cancel_scope)
                queue.put(b"retry: 1000\n\n" + context.here.feed.hello())
                writer = scope.get("state", {}).get(CHUNK_WRITER)
                has_chunks = scope["method"] == "GET" and scope["http_version"] == "1.1"
                if writer is not None and has_chunks:
                    queue.push = partial(self._push, writer)
                while True:
                    chunk = await queue.take()
                    # What came after the session had ended is not for it any more.
                    if not self._may_go_on():
                        break
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                if not self._is_signed_in():
                    gone = pack("gone", {})
                    await send({"type": "http.response.body", "body": gone, "more_body": True})
                tasks.cancel_scope.cancel()
        # At the end of the gateway the browser comes back by itself.
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + 1.0):
            await send({"type": "http.response.body", "body": b""})

    def _look_at_session(self, scope: anyio.CancelScope) -> None:
        """End a stream whose session has ended, whether its browser reads or not."""
        if self._may_go_on():
            return
        if self._ends:
            scope.cancel()
        self._ends = True
        self._queue.put(NOTHING_NEW)

    def _push(self, writer: ChunkWriter, chunk: bytes) -> bool:
        # What is queued instead wakes the response, which looks at the session itself.
        return self._may_go_on() and writer.write(chunk)

    def _may_go_on(self) -> bool:
        return not self._here.ended and self._is_signed_in()

    def _is_signed_in(self) -> bool:
        session = self._session
        return (
            session is not None
            and self._sessions.is_open(session, self._tokens)
            and not self._host.is_kicked(session.identity.participant)
        )

    async def _until_gone(self, receive: Receive, scope: anyio.CancelScope) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()

    async def _until_closed(self, scope: anyio.CancelScope) -> None:
        await self._context.site.closing.wait()
        scope.cancel()


class SpaceFeeds:
    """The feeds of a gateway's spaces; one follows its space while a stream wants it."""

    def __init__(self, runtime: GatewayRuntime, tasks: TaskGroup) -> None:
        self._runtime = runtime
        self._tasks = tasks
        self._feeds: dict[str, SpaceFeed] = {}
        tasks.start_soon(self._beat)

    def of(self, space: str) -> SpaceFeed:
        """The feed of a space, which begins to follow it."""
        from meup_agent.gateway.console.timeline import SpaceFeed

        feed = self._feeds.get(space)
        if feed is None:
            feed = self._feeds[space] = SpaceFeed(self._runtime.spaces[space])
            self._tasks.start_soon(feed.follow)
        return feed

    async def _beat(self) -> None:
        """Keep all streams alive: one timer for all, since a thousand of them cost more."""
        while True:
            await anyio.sleep(KEEP_ALIVE_SECONDS)
            for feed in self._feeds.values():
                for queue in feed.queues:
                    queue.beat()
