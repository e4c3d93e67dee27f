"""How far we have read what a gateway numbers, and what we missed (PROTOCOL 6)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from meup_agent.protocol.resume import Missed


class Gap(msgspec.Struct, frozen=True):
    """We were away, and the gateway does not know any more all that was said meanwhile.

    Attributes:
        since: When we had read the last envelope before, in UTC; ``None``: there is no clock.
        seconds: How long ago that was when we were welcomed back.
        seq: The number of that envelope.
    """

    since: datetime | None
    seconds: float
    seq: int


class ResumeCursor:
    """Where we are in the order of a gateway that numbers its envelopes.

    Attributes:
        seq: The number of the last envelope that we have read; ``None``: none has had any.
        at: When that was.
        away: How many seconds later we were welcomed on this connection.
        until: What we missed has numbers up to this one; ``None``: we have read it.
        complete: This connection continues what we had read, and nothing is lost.
        gap: The gap on this connection, if there is one.
        missed: Envelopes that came on this connection for what we missed.
    """

    def __init__(self) -> None:
        self.seq: int | None = None
        self.at = self.away = 0.0
        self.until: int | None = None
        self.complete = False
        self.gap: Gap | None = None
        self.missed = 0

    def welcomed(
        self, missed: Missed | None, seq: int | None, now: float, wall: datetime | None
    ) -> None:
        """A connection begins.

        Args:
            missed: What its welcome says of what we missed; ``None``: this gateway does not resume.
            seq: The welcome's number.
            now: The time.
            wall: The time of day, in UTC.
        """
        before, self.until, self.gap, self.missed = self.seq, None, None, 0
        self.away, self.complete = now - self.at, False
        if missed is None or seq is None:
            self.seq = None
        elif not missed.resumed or before is None:
            # It is for us alone, and has the number of what was said last before it.
            self.seq, self.at = seq, now
        else:
            if missed.gap:
                since = None if wall is None else wall - timedelta(seconds=self.away)
                self.gap = Gap(since, self.away, before)
            # What the welcome has is the number after which we read.
            self.seq, self.complete = seq, self.gap is None
            if missed.until > seq:
                self.until = missed.until

    def takes(self, seq: int, now: float) -> bool:
        """Note the number of what comes; ``False`` if we have read that before."""
        last = self.seq
        if last is None:
            return True
        if seq <= last:
            return False
        self.seq, self.at = seq, now
        if self.until is not None and seq <= self.until:
            self.missed += 1
        return True
