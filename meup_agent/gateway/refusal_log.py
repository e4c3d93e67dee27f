"""The gateway's log of those who do not get in: anybody can make it grow, so it has a pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meup_agent.gateway.logs import log
from meup_agent.protocol.space.rate_limits import TokenBucket

LINES_BURST: Final = 50
"""Lines about refusals at once: as many as a person reads."""

LINES_PER_SECOND: Final = 1.0
"""Lines about refusals in the long run: a gateway under attack writes some 8 MB a day."""


class RefusalLog:
    """Logs refusals at a bounded rate, and how many lines were left out.

    Args:
        now: Tells the time in microseconds.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._bucket = TokenBucket(LINES_PER_SECOND, LINES_BURST)
        self._left_out = 0

    def info(self, said: str, *values: object) -> None:
        """Log a line, unless there were too many lately."""
        if not self._bucket.try_consume(self._now()):
            self._left_out += 1
            return
        self.tell_left_out()
        log.info(said, *values)

    def tell_left_out(self) -> None:
        """Log how many lines were left out since the last one."""
        if self._left_out:
            log.warning("%d lines about refused connections were left out here", self._left_out)
            self._left_out = 0
