"""The queue of frames that wait for one connection, and the member whose connection it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.backlog import TOO_SLOW, WRITE_BYTES, Backlog
from meup_agent.gateway.limits import GatewayLimits
from meup_agent.protocol.space.link import FrameFormat, Place

if TYPE_CHECKING:
    from meup_agent.gateway.runtime import GatewayRuntime


def describe_overflow(limits: GatewayLimits, frames: int) -> tuple[str, str]:
    """The limit that a queue is over, by name, and a sentence that says so."""
    if frames > limits.max_queued_frames:
        name, most, what = "max_queued_frames", limits.max_queued_frames, "messages"
    else:
        name, most, what = "max_queued_bytes", limits.max_queued_bytes, "bytes"
    return name, f"more than {most} {what} wait for you ({name})"


class FrameWriter(Protocol):
    """The connection below a queue. When it can take no more it calls :meth:`FrameQueue.pause`."""

    @property
    def joins_frames(self) -> bool:
        """True if frames that leave together may be one piece: packed, they mark their ends."""
        ...

    def write(self, packed: bytes) -> None:
        """Write frames; what is not taken at once waits in the buffer of the connection."""
        ...

    def close(self, code: int, reason: str) -> None:
        """End the connection after what was written, and soon."""
        ...


class FrameQueue(Backlog):
    """Frames for one subscriber of a space.

    Everything that becomes due for it in one turn of the loop leaves in one write. While its
    connection takes no more, frames wait here, bounded; one too many closes the connection. Senders
    wait while it is behind, if it is ``awaited``.
    """

    def __init__(
        self,
        runtime: GatewayRuntime,
        identity: Identity,
        form: FrameFormat,
        writer: FrameWriter,
        *,
        awaited: bool = True,
    ) -> None:
        super().__init__(runtime.backlogs, identity, awaited=awaited)
        self.form = form
        self.closed = False
        self._writer = writer
        self._batcher = runtime.batcher
        self._limits = runtime.limits
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self.paused = False
        """The connection takes no more for now."""
        # While the reader is behind, the queue and what was written last are counted.
        self._behind = False
        self._written: list[bytes] = []
        self._then: Callable[[], None] | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the connection; the console shows them."""
        return self._queued_bytes

    def deliver(self, packed: bytes) -> None:
        """Queue a frame for the end of this turn."""
        if self.closed:
            return
        queue, limits = self._queue, self._limits
        if not queue and not self.paused:
            self._batcher.add(self.flush)
        queue.append(packed)
        self._queued_bytes = size = self._queued_bytes + len(packed)
        if self._behind:
            self.count_in(packed)
        if len(queue) > limits.max_queued_frames or size > limits.max_queued_bytes:
            self._overflow()

    def flush(self) -> None:
        """Write what is queued, as far as the connection takes it."""
        if not self._queue:
            return
        while self._queue and not self.paused:
            self._write(self._next())
        if not self.paused:
            self._behind, self._written = False, []
            self._continue()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when the connection has taken what was delivered."""
        self._then = then
        if not self._queue and not self.paused:
            self._batcher.call(self._continue)

    def pause(self) -> None:
        """Hold frames back: the connection takes no more for now."""
        if self.paused:
            return
        self.paused = True
        # What was queued before it fell behind is not counted yet.
        waits = () if self._behind else tuple(self._queue)
        self._behind = True
        self.count_in(*self._written, *waits)

    def resume(self) -> None:
        """Write again."""
        self._uncount_written()
        if not self._queue:
            self._behind = False
        self.flush()
        if not self._queue:
            self._continue()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued; what its reader is too slow for is lost."""
        if not self.closed:
            self.flush()
        if not self.closed:
            self._end(code, reason)

    def lost(self) -> None:
        """Take no more frames: the connection has gone, with what it had not taken."""
        self.closed = True
        self._clear()
        self._uncount_written()
        self.forget()

    def _end(self, code: int, reason: str) -> None:
        self.closed = True
        self._clear()
        self._writer.close(code, reason)

    def _drop(self, reason: str) -> None:
        if not self.closed:
            self._end(TOO_SLOW, reason)

    def _clear(self) -> None:
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        if self._behind:
            self.count_out(queue)

    def _uncount_written(self) -> None:
        if self.paused:
            self.paused = False
            self.count_out(self._written)
            self._written = []

    def _next(self) -> list[bytes]:
        """The frames of the next write: those of a turn, or the first part of them."""
        queue = self._queue
        if self._queued_bytes <= WRITE_BYTES:
            self._queue, self._queued_bytes = [], 0
            return queue
        size, number = len(queue[0]), 1
        while number < len(queue) and size + len(queue[number]) <= WRITE_BYTES:
            size += len(queue[number])
            number += 1
        first = queue[:number]
        del queue[:number]
        self._queued_bytes -= size
        return first

    def _write(self, queue: list[bytes]) -> None:
        # Kept, since it is not known before the connection says so whether it took all of it.
        # Joined, it is memory of its own, and counted as such.
        joins = len(queue) > 1 and self._writer.joins_frames
        self._written = [b"".join(queue)] if joins else queue
        if self._behind:
            self.count_out(queue)
        for packed in self._written:
            self._writer.write(packed)

    def _continue(self) -> None:
        then, self._then = self._then, None
        if then is not None and not self.closed:
            then()

    def _overflow(self) -> None:
        """Tell a lively turn, which one more write copes with, from a reader that is too slow."""
        if self.closed:
            return
        if self.paused:
            self.drop_slow(*describe_overflow(self._limits, len(self._queue)))
        else:
            queue, self._queue, self._queued_bytes = self._queue, [], 0
            self._write(queue)
            if not self.paused:
                self._written = []
                self._continue()


class GatewayMember(FrameQueue):
    """A participant's connection, seen from its space."""

    def __init__(
        self,
        runtime: GatewayRuntime,
        identity: Identity,
        form: FrameFormat,
        writer: FrameWriter,
        *,
        last_seen: int | None = None,
        place: Place = Place.ANSWERING,
    ) -> None:
        super().__init__(runtime, identity, form, writer, awaited=place is not Place.OBSERVING)
        self.participant = identity.participant
        self.last_seen = last_seen
        self.place = place
