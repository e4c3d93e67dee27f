"""A member: a participant's connection, and the frames that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.backlog import TOO_SLOW, WRITE_BYTES, Backlogs
from meup_agent.gateway.config import Limits
from meup_agent.protocol.space.fanout import FrameFormat


def describe_overflow(limits: Limits, frames: int) -> tuple[str, str]:
    """The limit that a queue is over, by name, and a sentence that says so.

    Args:
        limits: The gateway's.
        frames: How many frames wait in it.
    """
    if frames > limits.max_queued_frames:
        name, most, what = "max_queued_frames", limits.max_queued_frames, "messages"
    else:
        name, most, what = "max_queued_bytes", limits.max_queued_bytes, "bytes"
    return name, f"more than {most} {what} wait for you ({name})"


class Wire(Protocol):
    """What a member writes to."""

    def write(self, packed: bytes) -> None:
        """Write frames; what the socket does not take at once waits in its buffer."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and see to it that the connection ends soon."""
        ...


class WriteBatcher:
    """The members that have frames to write when the current turn of the loop is over.

    Args:
        loop: The gateway's loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: list[GatewayMember] = []

    def add(self, member: GatewayMember) -> None:
        """Have a member write its frames at the end of this turn."""
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(member)

    def call(self, then: Callable[[], None]) -> None:
        """Call in the next turn."""
        self._loop.call_soon(then)

    def _flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for member in waiting:
            member.flush()


class GatewayMember:
    """A participant's connection, seen from its space.

    Everything that becomes due for it in one turn of the loop leaves in one write. While its
    socket takes no more, frames wait here, bounded; one too many closes the connection.

    Attributes:
        participant: Whose connection it is.
        form: How it takes what is said.
        last_seen: The number of the last envelope that it got before; ``None``: it does not resume.
        closed: Whether it takes no more frames.
        observes: Whether it only looks on (PROTOCOL 3).
    """

    def __init__(
        self,
        identity: Identity,
        form: FrameFormat,
        last_seen: int | None,
        wire: Wire,
        batcher: WriteBatcher,
        limits: Limits,
        backlogs: Backlogs,
        on_closed: Callable[[GatewayMember, int], None],
        *,
        observes: bool = False,
    ) -> None:
        self.observes = observes
        self.participant = identity.participant
        self.form = form
        self.last_seen = last_seen
        self.closed = False
        self._wire = wire
        self._batcher = batcher
        self._limits = limits
        self._on_closed = on_closed
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._paused = False
        # While the socket is behind, the queue and what the socket has not taken are counted.
        self._behind = False
        self._written = b""
        self._backlog = backlogs.open(
            identity.space, identity.participant, self._drop, awaited=not observes
        )
        self._then: Callable[[], None] | None = None

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait for the socket."""
        return self._queued_bytes

    def deliver(self, packed: bytes) -> None:
        """Queue a frame for the end of this turn."""
        if self.closed:
            return
        if not self._queue and not self._paused:
            self._batcher.add(self)
        self._queue.append(packed)
        self._queued_bytes += len(packed)
        if self._behind:
            self._backlog.add(packed)
        if (
            len(self._queue) > self._limits.max_queued_frames
            or self._queued_bytes > self._limits.max_queued_bytes
        ):
            self._overflow()

    def flush(self) -> None:
        """Write what is queued, as far as the socket takes it."""
        if not self._queue:
            return
        while self._queue and not self._paused:
            self._write(self._next())
        if not self._paused:
            self._behind, self._written = False, b""
            self._go_on()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when the socket has taken what was delivered."""
        self._then = then
        if not self._queue and not self._paused:
            self._batcher.call(self._go_on)

    def pause(self) -> None:
        """Hold frames back: the socket takes no more for now."""
        if self._paused:
            return
        self._paused = True
        # What was queued before it fell behind is not counted yet.
        waits = () if self._behind else tuple(self._queue)
        self._behind = True
        self._backlog.add(self._written, *waits)

    def resume(self) -> None:
        """Write again."""
        self._taken()
        if not self._queue:
            self._behind = False
        self.flush()
        if not self._queue:
            self._go_on()

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what is queued; what its reader is too slow for is lost."""
        if not self.closed:
            self.flush()
        if not self.closed:
            self._end(code, reason)

    def lost(self) -> None:
        """Take no more frames: the socket has gone, and what it had not taken with it."""
        self.closed = True
        self._clear()
        self._taken()
        self._backlog.close()

    def _end(self, code: int, reason: str) -> None:
        self.closed = True
        self._clear()
        self._wire.close(code, reason)
        self._on_closed(self, code)

    def _drop(self, reason: str) -> None:
        if not self.closed:
            self._end(TOO_SLOW, reason)

    def _clear(self) -> None:
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        if self._behind:
            self._backlog.remove(queue)

    def _taken(self) -> None:
        """The socket has room again, or has gone."""
        if self._paused:
            self._paused = False
            self._backlog.remove((self._written,))
            self._written = b""

    def _next(self) -> list[bytes]:
        """What is handed to the socket next: what a turn has gathered, or the first part of it."""
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
        # Kept, since it is not known before the socket says so whether it has taken all of it.
        self._written = queue[0] if len(queue) == 1 else b"".join(queue)
        if self._behind:
            self._backlog.remove(queue)
        self._wire.write(self._written)

    def _go_on(self) -> None:
        then, self._then = self._then, None
        if then is not None and not self.closed:
            then()

    def _overflow(self) -> None:
        """Tell a lively turn, which one more write copes with, from a reader that is too slow."""
        if self.closed:
            return
        if self._paused:
            self._backlog.drop(*describe_overflow(self._limits, len(self._queue)))
        else:
            queue, self._queue, self._queued_bytes = self._queue, [], 0
            self._write(queue)
            if not self._paused:
                self._written = b""
                self._go_on()
