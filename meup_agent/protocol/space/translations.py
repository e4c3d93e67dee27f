"""What was said last, in each dialect that somebody in the space speaks."""

from __future__ import annotations

import logging

from meup_agent.errors import NotExpressible
from meup_agent.protocol.dialects import encode
from meup_agent.protocol.envelope import Envelope
from meup_agent.protocol.space.counters import Counters

log = logging.getLogger("meup_agent.gateway")


class Translations:
    """Translates an envelope once for each dialect, however many forms there are of it.

    Args:
        counters: Where to count what a dialect has no words for.
    """

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._said: Envelope | None = None
        self._frames: dict[str, bytes | None] = {}

    def frame(self, envelope: Envelope, dialect: str) -> bytes | None:
        """An envelope in a dialect; ``None`` if it has no words for it, which is logged."""
        if envelope.frame and envelope.protocol == dialect:
            return envelope.frame
        if envelope is not self._said:
            self._said, self._frames = envelope, {}
        if dialect not in self._frames:
            self._frames[dialect] = self._translated(envelope, dialect)
        return self._frames[dialect]

    def _translated(self, envelope: Envelope, dialect: str) -> bytes | None:
        try:
            return encode(envelope, dialect)
        except NotExpressible as error:
            self._counters.not_expressible += 1
            log.warning("left out for those who speak %s: %s", dialect, error)
            return None
