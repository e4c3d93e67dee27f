"""One connection: frames in, in wire order; frames out, by one writer."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import anyio

from meup_agent.errors import InvalidEnvelope, NotExpressible, TransportClosed
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.exchange import Priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session.outbox import Outbox, Waiting
    from meup_agent.transport.base import Transport

log = logging.getLogger("meup_agent.session")


class Line:
    """What a session does with each of its connections.

    Args:
        outbox: What is to be said.
        dialect: How we say it.
        heard: Told of each envelope; must return at once. ``True``: it has welcomed us.
        left: Told of the id of each request or proposal, just before it leaves.
        lost: Told when a connection that had welcomed us has ended.
        invalid: Told of each frame that is no envelope.
    """

    def __init__(
        self,
        outbox: Outbox,
        *,
        dialect: str,
        heard: Callable[[Envelope], bool],
        left: Callable[[str], None],
        lost: Callable[[], None],
        invalid: Callable[[InvalidEnvelope], None],
    ) -> None:
        self._outbox = outbox
        self._dialect = dialect
        self._heard = heard
        self._left = left
        self._lost = lost
        self._invalid = invalid
        self.welcomed_at: float | None = None
        """When the present or last connection was welcomed; ``None`` if it was not."""

    async def use(self, transport: Transport) -> None:
        """Use a connection until it ends."""
        self.welcomed_at = None
        welcomed = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, transport, welcomed, name="meup session: writer")
                await self._read(transport, welcomed)
                tasks.cancel_scope.cancel()
        finally:
            if welcomed.is_set():
                self._lost()

    async def _read(self, transport: Transport, welcomed: anyio.Event) -> None:
        """Take frames in wire order; nothing here waits for a person's code."""
        async for frame in transport:
            try:
                envelope = decode(frame)
            except InvalidEnvelope as error:
                self._invalid(error)
                continue
            if self._heard(envelope):
                self.welcomed_at = anyio.current_time()
                welcomed.set()

    async def _write(self, transport: Transport, welcomed: anyio.Event) -> None:
        """The one task that sends; it begins when we have been welcomed."""
        await welcomed.wait()
        while True:
            await self._outbox.wait_filled()
            waiting = self._outbox.take(anyio.current_time())
            if waiting is not None and not await self._transmit(transport, waiting):
                return

    async def _transmit(self, transport: Transport, waiting: Waiting) -> bool:
        """Send one envelope; ``False`` if the connection has ended."""
        if transport.closed is not None:
            self._outbox.put_back(waiting)
            return False
        draft = waiting.draft.replace(ts=waiting.draft.ts or _timestamp())
        try:
            frame = encode(draft, self._dialect)
        except NotExpressible as error:
            log.error("an envelope of ours cannot be said: %s", error)
            return True
        # From here on it may have been sent, and a request is never sent twice.
        is_opening = waiting.priority is Priority.OPEN
        if is_opening:
            self._left(draft.id)
        sent = False
        try:
            await transport.send(frame)
            sent = True
        except TransportClosed:
            pass
        finally:
            if not sent and not is_opening:
                self._outbox.put_back(waiting)
        return sent


def _timestamp() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
