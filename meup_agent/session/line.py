"""One connection: frames in, in wire order; frames out, by one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.errors import InvalidEnvelope, NotExpressible, TransportClosed, printable
from meup_agent.protocol.dialects import decode, encode
from meup_agent.protocol.exchange import Priority
from meup_agent.protocol.limits import check_frame
from meup_agent.transport.base import INVALID, TOO_BIG

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session.outbox import Outbox, Waiting
    from meup_agent.transport.base import CloseInfo, Transport

WELCOME_SECONDS: Final = 10.0
"""How long a gateway may take to welcome us: one that accepts a connection and then says nothing
would keep us out of the space for good."""


class Line:
    """What a session does with each of its connections.

    Args:
        outbox: What is to be said.
        dialect: How we say it.
        heard: Told of each envelope; must return at once. ``True``: it has welcomed us.
        left: Told of the id of each request or proposal, just before it leaves.
        lost: Told when a connection that had welcomed us has ended.
        invalid: Told of each frame that is no envelope.
        unsayable: Told of the id of an envelope that has no wire form, or that the other end
            closed the connection for, before ``lost``; and of the reason.
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
        unsayable: Callable[[str, str], None],
    ) -> None:
        self._outbox = outbox
        self._dialect = dialect
        self._heard = heard
        self._left = left
        self._lost = lost
        self._invalid = invalid
        self._unsayable = unsayable
        self._last = self._before_last = ""
        self._largest = (0, "")
        self._welcomed = anyio.Event()
        self._welcomed_at = 0.0

    async def use(self, transport: Transport) -> float | None:
        """Use a connection until it ends.

        Returns:
            For how many seconds it lasted after its welcome; ``None`` if it was not welcomed.
        """
        self._welcomed = anyio.Event()
        self._last = self._before_last = ""
        self._largest = (0, "")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._write, transport, name="meup session: writer")
                tasks.start_soon(self._expect_welcome, transport, name="meup session: welcome")
                await self._read(transport)
                tasks.cancel_scope.cancel()
        finally:
            self._blame(transport.closed)
            if self._welcomed.is_set():
                self._lost()
        return anyio.current_time() - self._welcomed_at if self._welcomed.is_set() else None

    def _blame(self, closed: CloseInfo | None) -> None:
        """Say which envelope the connection was closed for, if it was for one (PROTOCOL 3).

        Too large was certainly the largest: whatever passed before was smaller than the limit.
        Invalid was the last, if it was the only one on its way; of several nobody knows which.
        """
        if closed is None or closed.local or closed.code not in (INVALID, TOO_BIG):
            return
        only_one = "" if self._before_last else self._last
        guilty = only_one if closed.code == INVALID else self._largest[1]
        if guilty:
            words = (
                f"the gateway closed the connection: code {closed.code} {printable(closed.reason)}"
            )
            self._unsayable(guilty, words.strip())

    async def _expect_welcome(self, transport: Transport) -> None:
        with anyio.move_on_after(WELCOME_SECONDS):
            await self._welcomed.wait()
            return
        await transport.aclose(reason=f"no welcome within {WELCOME_SECONDS:g} seconds")

    async def _read(self, transport: Transport) -> None:
        """Take frames in wire order; nothing here waits for a person's code."""
        async for frame in transport:
            try:
                envelope = decode(frame)
            except InvalidEnvelope as error:
                self._invalid(error)
                continue
            self._see_taken(envelope)
            if self._heard(envelope):
                self._welcomed_at = anyio.current_time()
                self._welcomed.set()

    def _see_taken(self, envelope: Envelope) -> None:
        """What comes back, or is answered, was taken, and so was all that left before it."""
        named = (envelope.id, *envelope.correlation)
        if self._last in named:
            self._last = self._before_last = ""
        elif self._before_last in named:
            self._before_last = ""

    async def _write(self, transport: Transport) -> None:
        """The one task that sends; it begins when we have been welcomed."""
        await self._welcomed.wait()
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
        draft = waiting.draft
        try:
            frame = encode(draft, self._dialect)
            check_frame(frame)
        except (NotExpressible, InvalidEnvelope) as error:
            self._outbox.gone()
            self._unsayable(draft.id, str(error))
            return True
        # From here on it may have been sent, and a request is never sent twice.
        is_opening = waiting.priority is Priority.OPEN
        if is_opening:
            self._left(draft.id)
        self._before_last, self._last = self._last, draft.id
        self._largest = max(self._largest, (len(frame), draft.id))
        sent = False
        try:
            await transport.send(frame)
            sent = True
        except TransportClosed:
            pass
        finally:
            if sent or is_opening:
                self._outbox.gone()
            else:
                self._outbox.put_back(waiting)
        return sent
