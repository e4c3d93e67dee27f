"""What a gateway counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Plain numbers since the gateway was made; they only grow.

    Attributes:
        frames_in: Messages that members sent.
        accepted: Envelopes of members that were delivered.
        delivered: Frames handed to members, the gateway's own included.
        dropped: Envelopes that nobody reads (``system/heartbeat``, ``system/register``).
        refused: Envelopes that were answered with ``system/error``, by its code.
        repeated: Envelopes that had been accepted before, and were not delivered again.
        too_slow: Queues that were dropped since their reader was too slow, by the limit's name.
        streams_refused: Event streams that a participant was refused, who had as many as it may.
        slowed: Times that a participant was told that it says more than is read at once.
        not_expressible: Times that an envelope was left out for those of a dialect that has no
            words for it.
        joined: Connections that joined a space; ``taken_over`` counts those among them that
            replaced an older one.
        taken_over: See ``joined``.
        left: Participants that left a space.
        observed: Connections that began to look on; they count neither as ``joined`` nor ``left``.
        closed: Members that the gateway closed, by close code.
        not_admitted: Connections that did not get into a space, by status or close code.
    """

    frames_in: int = 0
    accepted: int = 0
    delivered: int = 0
    dropped: int = 0
    repeated: int = 0
    slowed: int = 0
    streams_refused: int = 0
    not_expressible: int = 0
    joined: int = 0
    taken_over: int = 0
    left: int = 0
    observed: int = 0
    too_slow: Counter[str] = field(default_factory=Counter[str])
    refused: Counter[str] = field(default_factory=Counter[str])
    closed: Counter[int] = field(default_factory=Counter[int])
    not_admitted: Counter[int] = field(default_factory=Counter[int])
