"""What came and took no effect: counted, told, and logged."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from meup_agent.protocol import kinds

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.errors import InvalidEnvelope
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Drop
    from meup_agent.session.telling import Events

log = logging.getLogger("meup_agent.session")


class Dropped:
    """Counts and logs what is left out.

    Args:
        events: Told of it.
        asked: Tells whether somebody waits for what an envelope says: it is theirs to report, and
            no line in the log.

    Attributes:
        counters: How often, by the exchange table's codes and the problems of envelopes.
    """

    def __init__(self, events: Events, asked: Callable[[Envelope], bool]) -> None:
        self._events = events
        self._asked = asked
        self.counters: Counter[str] = Counter()

    def drop(self, drop: Drop) -> None:
        """The exchange table left an envelope out."""
        self.counters[drop.why] += 1
        envelope = drop.envelope
        if self._events.observers:
            self._events.dropped(drop)
        if drop.expected or self._asked(envelope):
            return
        # What the gateway refused of ours, and nobody waits for, is lost but for this line.
        level = logging.ERROR if drop.why == "refused_by_gateway" else logging.WARNING
        log.log(
            level,
            "dropped %r %r from %r: %s%s",
            envelope.kind[:64],
            envelope.id[:64],
            envelope.sender[:64],
            drop.why,
            _said(envelope) if envelope.kind == kinds.SYSTEM_ERROR else "",
        )

    def invalid(self, error: InvalidEnvelope) -> None:
        """A frame was no envelope."""
        self.counters[error.problem] += 1
        if self._events.observers:
            self._events.invalid(error)
        log.warning("left out a frame from the gateway: %s", error)


def _said(envelope: Envelope) -> str:
    payload = envelope.payload_object
    return f" ({str(payload.get('error'))[:64]!r}: {str(payload.get('message'))[:200]!r})"
