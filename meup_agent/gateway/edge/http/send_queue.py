"""What waits for somebody who hears a space through an ASGI server: bounded, taken in one piece."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from meup_agent.gateway.auth import Identity
from meup_agent.gateway.backlog import TOO_SLOW, WRITE_BYTES, Backlogs
from meup_agent.gateway.config import Limits
from meup_agent.gateway.member import describe_overflow
from meup_agent.protocol.space.fanout import FrameFormat


class SendQueue:
    """A listener with a bounded queue.

    Args:
        identity: Who hears.
        form: How it takes what is said.
        limits: How much may wait for it.
        backlogs: Where what waits is counted.
        awaited: Senders wait for it while it is behind.

    Attributes:
        form: See above.
        ended: Set when it hears nothing more.
        code: Why it ended, as a close code.
        reason: The same in words.
    """

    def __init__(
        self,
        identity: Identity,
        form: FrameFormat,
        limits: Limits,
        backlogs: Backlogs,
        *,
        awaited: bool = True,
    ) -> None:
        self.form = form
        self.ended = anyio.Event()
        self.code = 0
        self.reason = ""
        self._limits = limits
        self._queue: list[bytes] = []
        self._bytes = 0
        self._then: Callable[[], None] | None = None
        self._something = anyio.Event()
        self._sent: list[bytes] = []
        self._backlog = backlogs.open(
            identity.space, identity.participant, self._drop, awaited=awaited
        )

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait."""
        return self._bytes

    def deliver(self, packed: bytes) -> None:
        """Queue something; a reader for whom too much waits is ended, and resumes."""
        if self.ended.is_set():
            return
        self._queue.append(packed)
        self._bytes += len(packed)
        self._something.set()
        limits = self._limits
        # While nothing is being sent, the reader is not behind: it is a lively turn of the loop.
        behind = bool(self._sent)
        self._backlog.add(packed, behind=behind)
        if behind and (
            len(self._queue) > limits.max_queued_frames or self._bytes > limits.max_queued_bytes
        ):
            self._backlog.drop(*describe_overflow(limits, len(self._queue)))

    def _drop(self, why: str) -> None:
        if not self.ended.is_set():
            self._clear()
            self.close(TOO_SLOW, why)

    def _clear(self) -> None:
        queue, self._queue, self._bytes = self._queue, [], 0
        self._backlog.remove(queue)

    def release(self) -> None:
        """Forget what waits: nothing more is sent, or can be."""
        self.close(TOO_SLOW, "")
        self._clear()
        sent, self._sent = self._sent, []
        self._backlog.remove(sent)
        self._backlog.close()

    def close(self, code: int, reason: str) -> None:
        """End after what is queued."""
        if self.ended.is_set():
            return
        self._then = None
        self.code, self.reason = code, reason
        self.ended.set()
        self._something.set()

    def ready(self, then: Callable[[], None]) -> None:
        """Call when everything that was delivered has been taken."""
        if not self.ended.is_set():
            self._then = then
            self._something.set()

    async def until_taken(self) -> None:
        """Return when everything that was delivered has been taken, or it has ended."""
        taken = anyio.Event()
        self.ready(taken.set)
        if not self.ended.is_set():
            await taken.wait()

    async def take(self, seconds: float | None = None) -> list[bytes] | None:
        """The first of what waits, as soon as something does; ``None``: it has ended.

        What was taken counts as being sent until this is called again.

        Args:
            seconds: After so much silence, take nothing.
        """
        sent, self._sent = self._sent, []
        self._backlog.remove(sent)
        with anyio.move_on_after(seconds):
            while True:
                if self._queue:
                    return self._next()
                if self.ended.is_set():
                    return None
                then, self._then = self._then, None
                if then is not None:
                    then()
                else:
                    self._something = anyio.Event()
                    await self._something.wait()
        return []

    def _next(self) -> list[bytes]:
        """The first of what waits, as much as is sent at a time."""
        size = number = 0
        for packed in self._queue:
            size += len(packed)
            if number and size > WRITE_BYTES:
                size -= len(packed)
                break
            number += 1
        self._sent = self._queue[:number]
        del self._queue[:number]
        self._bytes -= size
        return self._sent
