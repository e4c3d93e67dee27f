"""A member: a participant's connection, and the frames that wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from meup_agent.gateway.config import Limits
from meup_agent.protocol.space.listeners import Form

TOO_SLOW: Final = 1013
"""Close code for a member that does not read as fast as its space speaks (PROTOCOL 3)."""


def too_slow(limits: Limits, frames: int) -> str:
    """Why a member is closed for which too much waits, in a sentence that names the limit.

    Args:
        limits: The gateway's.
        frames: How many frames wait for it.
    """
    if frames > limits.max_queued_frames:
        waits = f"{limits.max_queued_frames} messages wait for you (max_queued_frames)"
    else:
        waits = f"{limits.max_queued_bytes} bytes wait for you (max_queued_bytes)"
    return f"you read too slowly: more than {waits}; connect again"


class Wire(Protocol):
    """What a member writes to."""

    def write(self, packed: bytes) -> None:
        """Write frames; what the socket does not take at once waits in its buffer."""
        ...

    def close(self, code: int, reason: str) -> None:
        """Send a close frame, and see to it that the connection ends soon."""
        ...


class Turn:
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
        participant: str,
        form: Form,
        last_seen: int | None,
        wire: Wire,
        turn: Turn,
        limits: Limits,
        on_closed: Callable[[GatewayMember, int], None],
        *,
        observes: bool = False,
    ) -> None:
        self.observes = observes
        self.participant = participant
        self.form = form
        self.last_seen = last_seen
        self.closed = False
        self._wire = wire
        self._turn = turn
        self._limits = limits
        self._on_closed = on_closed
        self._queue: list[bytes] = []
        self._queued_bytes = 0
        self._paused = False
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
            self._turn.add(self)
        self._queue.append(packed)
        self._queued_bytes += len(packed)
        if (
            len(self._queue) > self._limits.max_queued_frames
            or self._queued_bytes > self._limits.max_queued_bytes
        ):
            self._overflow()

    def flush(self) -> None:
        """Write what is queued, if the socket takes it."""
        if self._paused or not self._queue:
            return
        queue, self._queue, self._queued_bytes = self._queue, [], 0
        self._wire.write(queue[0] if len(queue) == 1 else b"".join(queue))
        if not self._paused:
            self._go_on()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when the socket has taken what was delivered."""
        self._then = then
        if not self._queue and not self._paused:
            self._turn.call(self._go_on)

    def pause(self) -> None:
        """Hold frames back: the socket takes no more for now."""
        self._paused = True

    def resume(self) -> None:
        """Write again."""
        self._paused = False
        self.flush()
        self._go_on()

    def close(self, code: int, reason: str) -> None:
        """Close the connection after what is queued; what its reader is too slow for is lost."""
        if self.closed:
            return
        self.flush()
        self.closed = True
        self._queue.clear()
        self._queued_bytes = 0
        self._wire.close(code, reason)
        self._on_closed(self, code)

    def _go_on(self) -> None:
        then, self._then = self._then, None
        if then is not None and not self.closed:
            then()

    def _overflow(self) -> None:
        """Tell a lively turn, which one more write copes with, from a reader that is too slow."""
        if self._paused:
            self.close(TOO_SLOW, too_slow(self._limits, len(self._queue)))
        else:
            self.flush()
