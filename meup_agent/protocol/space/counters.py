"""The counters of a gateway, over all of its spaces."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class SpaceCounters:
    """Plain numbers since the gateway was made; they only grow.

    Each field is a metric: an ``int``, or a ``Counter`` by a label. Its name and text for people
    are in ``_ABOUT`` of :mod:`meup_agent.gateway.edge.http.views`.
    """

    frames_in: int = 0  # messages that members sent
    accepted: int = 0  # envelopes of members that were delivered
    delivered: int = 0  # frames handed to members, the gateway's own included
    dropped: int = 0  # envelopes that have no reader (``system/heartbeat``, ``system/register``)
    repeated: int = 0  # envelopes that had been accepted before, and were not delivered again
    slowed: int = 0  # times that a participant was told that it sends more than is read at once
    # Event streams that a participant was refused, who had as many as it may.
    streams_refused: int = 0
    stream_frames: int = 0  # frames of streams that were accepted
    stream_frames_delivered: int = 0  # those handed to readers
    stream_frames_lost: int = 0  # those that readers were too slow for
    # Times that an envelope was left out for those of a dialect that has no words for it.
    not_expressible: int = 0
    joined: int = 0  # connections that joined a space
    taken_over: int = 0  # those among them that replaced an older one
    left: int = 0
    # Connections that began to observe; they count neither as ``joined`` nor ``left``.
    observed: int = 0
    # Queues that were dropped since their reader was too slow, by the limit's name.
    too_slow: Counter[str] = field(default_factory=Counter[str])
    # Envelopes that were answered with ``system/error``, by its code.
    refused: Counter[str] = field(default_factory=Counter[str])
    # Members that the gateway closed, by close code.
    closed: Counter[int] = field(default_factory=Counter[int])
    # Connections that did not get into a space, by status or close code.
    not_admitted: Counter[int] = field(default_factory=Counter[int])
