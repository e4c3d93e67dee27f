"""Recovery: what a space knew before its gateway was restarted, read from the journal.

By itself, since the state does not read a journal, and a server does this once in its life.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import chain
from typing import Final

from meup_agent.protocol.space.journal import Journal
from meup_agent.protocol.space.state import SpaceState

log = logging.getLogger("meup_agent.gateway")

RECOVERED_SECONDS: Final = 24 * 3_600.0
"""Time before its start of which a gateway reads all that was said; what may still be decided it
reads however old it is (PROTOCOL 9.9)."""

RECOVERED_ENTRIES: Final = 100_000
"""Entries that are read when a gateway starts, to know again what is open, and sent twice."""

TOLD_SECONDS: Final = 1.0
"""By which a clock is put back before the log says so."""


class SpaceClock:
    """The time of a space, in which what is expired stays so (PROTOCOL 4.2).

    In microseconds since 1970 (UTC). It continues, after a restart, from the last time in the
    journal. The gateway's own never goes back while it runs.
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


def recover_state(state: SpaceState, journal: Journal, space: str, clock: SpaceClock) -> None:
    """Restore from the journal the time, what holds, what is open and what is recognized."""
    at = clock()
    since = at - round(RECOVERED_SECONDS * 1_000_000)
    recovered = journal.recover(space, since=since, limit=RECOVERED_ENTRIES, at=at)
    last = 0
    for entry in chain(recovered.older, recovered.entries):
        state.apply(entry)
        state.open.pop_changes()  # the journal has them
        last = max(last, entry.at)
    # What was expired is so for good, also where the clock has been put back meanwhile.
    gained = clock.advance(last)
    if gained >= TOLD_SECONDS:
        said = "%s: the clock is %.0f s behind the journal's last entry: time goes on from there"
        log.warning(said, space, gained)
    for grant in state.restore(recovered.facts):
        said = "%s: grant %s holds no more: who gave or got it is not what they were"
        log.warning(said, space, grant)
    state.restart(clock())
