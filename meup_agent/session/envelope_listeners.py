"""Listeners to every envelope that took effect, and callers that wait for the gateway's word."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

from meup_agent.errors import MeupError, Refused
from meup_agent.protocol import kinds
from meup_agent.transport.loops import Condition

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from typing import Self

    from meup_agent.protocol.envelope import Envelope
    from meup_agent.session.settings import EnvelopeListener


WATCHED: Final = 1024
"""Envelopes kept for a watcher that is slower than the space; older ones are dropped."""


class EnvelopeStream:
    """The envelopes of a space, in the gateway's order.

    Args:
        wanted: Says which are kept; ``None``: all.

    Attributes:
        missed: Envelopes dropped because they were not read in time.
    """

    def __init__(self, wanted: Callable[[Envelope], bool] | None = None) -> None:
        self._wanted = wanted
        self._envelopes: deque[Envelope] = deque(maxlen=WATCHED)
        self._came = anyio.Event()
        self.missed = 0

    def put(self, envelope: Envelope) -> None:
        """Keep an envelope until it is taken."""
        if self._wanted is not None and not self._wanted(envelope):
            return
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
    def watch(self, wanted: Callable[[Envelope], bool] | None = None) -> Generator[EnvelopeStream]:
        """Every envelope from here on, echoes of our own included, as an async iterator."""
        watcher = EnvelopeStream(wanted)
        with self.listening(watcher):
            yield watcher

    def ask_about(self, envelope: Envelope) -> bool:
        """True if a listener waits for the gateway's answer that an envelope is."""
        return not self._asked.isdisjoint(envelope.correlation)


RECEIPT_SECONDS: Final = 30.0
"""Wait of a caller for that answer; a gateway reads later what comes too fast, and after a thousand
withdrawals at once that takes its time. The envelope stays sent when its caller waits no longer."""


class Receipts:
    """Envelopes of ours whose callers wait until the gateway has accepted or refused them."""

    def __init__(self) -> None:
        # The ids, each with the reason for which the gateway will not take it.
        self.waiting: dict[str, MeupError | None] = {}
        self._changed = Condition()

    async def wait(self, envelope_ids: Iterable[str]) -> None:
        """Wait until the gateway has accepted what was said just now; raise if it refused any.

        Returns all the same when the connection is lost, after which it is said again, and when the
        gateway says nothing for :data:`RECEIPT_SECONDS`.
        """
        ids = list(envelope_ids)
        self.waiting.update(dict.fromkeys(ids))
        try:
            with anyio.move_on_after(RECEIPT_SECONDS):
                for each in ids:
                    while each in self.waiting:
                        problem = self.waiting[each]
                        if problem is not None:
                            raise problem
                        await self._changed.wait()
        finally:
            for each in ids:
                self.waiting.pop(each, None)

    def heard(self, envelope: Envelope, me: str) -> None:
        """End the wait that an envelope answers, if it answers one."""
        if envelope.sender == me:
            if envelope.id in self.waiting:
                del self.waiting[envelope.id]
                self._changed.notify_all()
        elif envelope.kind == kinds.SYSTEM_ERROR and envelope.sender in kinds.GATEWAY_NAMES:
            for name in envelope.correlation:
                self.failed(name, read_refusal(envelope, name))

    def failed(self, envelope_id: str, problem: MeupError) -> None:
        """Note that an envelope was not taken and will not be, if a caller waits for it."""
        if envelope_id in self.waiting:
            self.waiting[envelope_id] = problem
            self._changed.notify_all()

    def lost(self) -> None:
        """End every wait: after a lost connection no answer comes."""
        if self.waiting:
            self.waiting.clear()
            self._changed.notify_all()


def read_refusal(error: Envelope, what: str) -> Refused:
    """The exception for a gateway's ``system/error`` about something that we sent."""
    return refusal_in(error.payload_object, what)


def refusal_in(payload: dict[str, Any], what: str) -> Refused:
    """The exception for the payload of a gateway's ``system/error``."""
    code, said = payload.get("error"), payload.get("message")
    code = code if isinstance(code, str) and code else "error"
    message = f"the gateway refused {what}: {code}"
    if isinstance(said, str) and said:
        message = f"{message} ({said})"
    return Refused(code, message, payload)
