"""The time of a space, in which what is expired stays so (PROTOCOL 4.2)."""

from __future__ import annotations

from collections.abc import Callable


class SpaceClock:
    """A clock that continues, after a restart, from the last time in the journal.

    In microseconds since 1970 (UTC). The gateway's own never goes back while it runs.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._ahead = 0

    def __call__(self) -> int:
        """The time at this moment."""
        return self._now() + self._ahead

    def advance(self, at: int) -> float:
        """Let the time be no earlier than one at which something was decided; seconds gained."""
        gained = max(0, at - self())
        self._ahead += gained
        return gained / 1_000_000
