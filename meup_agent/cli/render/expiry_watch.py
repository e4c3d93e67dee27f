"""Expiries on a timeline: no envelope tells of them, the gateway's clock does (PROTOCOL 4.2)."""

from __future__ import annotations

import heapq
import math
from itertools import count
from typing import TYPE_CHECKING, Final

from meup_agent.client.proposal_feed import ProposalFeed
from meup_agent.protocol import kinds
from meup_agent.protocol.exchange import ProposalKey
from meup_agent.protocol.proposals.lifecycle import ProposalState, last_moment
from meup_agent.protocol.timestamps import TRANSIT_SECONDS, microseconds

if TYPE_CHECKING:
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import ProposalEntry

MAX_WATCHED: Final = 10_000
"""Proposals whose expiry is waited for; of more, those with the latest deadlines are left out."""

LOOK_SECONDS: Final = 1.0
"""Until the next look at one that should have expired: what was missed may still be read."""


class ExpiryWatch:
    """The proposals that a timeline has shown, and the time at which the next may have expired.

    The space's own record says whether one has: it knows what is still to be read.
    """

    def __init__(self, space: Space) -> None:
        self._feed = ProposalFeed(space)
        self._waiting: list[tuple[float, int, ProposalEntry]] = []
        self._order = count()

    def add(self, envelope: Envelope) -> None:
        """Take note of a proposal."""
        if envelope.kind == kinds.MCP_PROPOSAL:
            record = self._feed.get(ProposalKey(envelope.sender, envelope.id))
            if record is not None:
                self._look_later(record, 0.0)

    def _look_later(self, record: ProposalEntry, least: float) -> None:
        # The space may have seen it expire before its envelope was shown.
        is_open = record.state.is_pending or record.state is ProposalState.EXPIRED
        if record.expires_at is None or not is_open:
            return
        left = last_moment(record.expires_at) - microseconds(self._feed.time_of_day)
        seconds = max(left / 1_000_000 + TRANSIT_SECONDS, least)
        if len(self._waiting) >= MAX_WATCHED:
            self._waiting.remove(max(self._waiting))
            heapq.heapify(self._waiting)
        heapq.heappush(self._waiting, (self._feed.now + seconds, next(self._order), record))

    @property
    def next_look(self) -> float:
        """The time of the loop's clock at which :meth:`pop` has something to do."""
        return self._waiting[0][0] if self._waiting else math.inf

    def pop(self) -> list[ProposalEntry]:
        """The proposals that have expired since the last call."""
        expired: list[ProposalEntry] = []
        while self._waiting and self._waiting[0][0] <= self._feed.now:
            _, _, record = heapq.heappop(self._waiting)
            if record.state is ProposalState.EXPIRED:
                expired.append(record)
            else:
                # Renewed, in progress, or what was missed is still being read.
                self._look_later(record, LOOK_SECONDS)
        return expired
