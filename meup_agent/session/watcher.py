"""Envelopes for somebody who only looks on."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from typing import Self

    from meup_agent.protocol.envelope import Envelope

WATCHED: Final = 1024
"""Envelopes kept for a watcher that is slower than the space; older ones are dropped."""


class Watcher:
    """The envelopes of a space, in the gateway's order.

    Attributes:
        missed: Envelopes dropped because they were not taken in time.
    """

    def __init__(self) -> None:
        self._envelopes: deque[Envelope] = deque(maxlen=WATCHED)
        self._came = anyio.Event()
        self.missed = 0

    def put(self, envelope: Envelope) -> None:
        """Keep an envelope until it is taken."""
        if len(self._envelopes) == WATCHED:
            self.missed += 1
        self._envelopes.append(envelope)
        self._came.set()

    def __aiter__(self) -> Self:
        """The watcher itself."""
        return self

    async def __anext__(self) -> Envelope:
        """Wait for the next envelope."""
        while not self._envelopes:
            if self._came.is_set():
                # Only then: others may wait for the one that is there.
                self._came = anyio.Event()
            await self._came.wait()
        return self._envelopes.popleft()
