"""Listeners, which are handed every envelope after it took effect."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session.settings import EnvelopeListener

WATCHED: Final = 1024
"""Envelopes kept for a watcher that is slower than the space; older ones are dropped."""


class EnvelopeStream:
    """The envelopes of a space, in the gateway's order.

    Attributes:
        missed: Envelopes dropped because they were not read in time.
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


class EnvelopeListeners:
    """The listeners of a session, called with each envelope, in no order."""

    def __init__(self) -> None:
        self.listeners: set[EnvelopeListener] = set()
        self._asked: set[str] = set()

    def listen(self, listener: EnvelopeListener) -> None:
        """Hand every envelope from here on to a listener."""
        self.listeners.add(listener)

    @contextmanager
    def listening(self, listener: EnvelopeListener) -> Generator[None]:
        """Hand every envelope to a listener for the length of a block."""
        self.listeners.add(listener)
        try:
            yield
        finally:
            self.listeners.discard(listener)

    @contextmanager
    def told_of(self, envelope_id: str, listener: EnvelopeListener) -> Generator[None]:
        """Hand every envelope to a listener that waits for the gateway's answer to one of ours.

        A refusal is the listener's to report, and no line in the log.
        """
        self._asked.add(envelope_id)
        try:
            with self.listening(listener):
                yield
        finally:
            self._asked.discard(envelope_id)

    @contextmanager
    def watch(self) -> Generator[EnvelopeStream]:
        """Every envelope from here on, echoes of our own included, as an async iterator."""
        watcher = EnvelopeStream()
        with self.listening(watcher):
            yield watcher

    def ask_about(self, envelope: Envelope) -> bool:
        """True if a listener waits for the gateway's answer that an envelope is."""
        return not self._asked.isdisjoint(envelope.correlation)
