"""Streams about a call of ours, such as a tool's partial result: read beside the call."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING, TypeVar

from meup_agent.client.streams import StreamReader
from meup_agent.protocol.exchange import StreamEnd
from meup_agent.protocol.exchange.own_streams import DISCONNECTED
from meup_agent.transport.loops import Condition, background_tasks

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup

    from meup_agent.client.streams import OnStream
    from meup_agent.protocol.exchange import StreamBuffer
    from meup_agent.session import Session

T = TypeVar("T")


class CallStreams:
    """Reads the streams about one call of ours, each in a task of the call's own."""

    def __init__(self, session: Session, on_stream: OnStream, tasks: TaskGroup) -> None:
        self._session = session
        self._on_stream = on_stream
        self._tasks = tasks
        # What a reader begins is part of the handler that calls.
        self._context = copy_context()
        self._queues: list[StreamBuffer] = []
        self._ids: list[str] = []
        self._running = 0
        self._ended = Condition()

    def begun(self, envelope_id: str) -> None:
        """Take the streams about a message that is about to be sent."""
        self._ids.append(envelope_id)
        self._session.table.streams.expect(envelope_id, self._take)

    def answered(self) -> None:
        """Take no more, and end those that go on although the call has ended."""
        for name in self._ids:
            self._session.table.streams.expect_no_more(name)
        for queue in self._queues:
            queue.finish(StreamEnd(DISCONNECTED, self._session.me, "the call has ended"))
            queue.close()

    async def drained(self) -> None:
        """Wait until every reader has returned."""
        while self._running:
            await self._ended.wait()

    def _take(self, queue: StreamBuffer) -> None:
        self._queues.append(queue)
        self._running += 1
        name = f"meup stream {queue.stream.id}"
        self._context.run(lambda: self._tasks.start_soon(self._read, queue, name=name))

    async def _read(self, queue: StreamBuffer) -> None:
        try:
            await self._on_stream(StreamReader(self._session, queue))
        finally:
            self._running -= 1
            self._ended.notify_all()


async def reading_of_call(
    session: Session,
    on_stream: OnStream | None,
    call: Callable[[Callable[[str], None] | None], Awaitable[T]],
) -> T:
    """Make a call, and read the streams about it meanwhile; all that came is read before its end.

    ``call`` takes a function to tell the id of what it sends. What a reader raises cancels the
    call, and leaves as itself.
    """
    if on_stream is None:
        return await call(None)
    async with background_tasks() as tasks:
        streams = CallStreams(session, on_stream, tasks)
        try:
            result = await call(streams.begun)
        except Exception:
            streams.answered()
            await streams.drained()
            raise
        finally:
            streams.answered()
        await streams.drained()
        return result
