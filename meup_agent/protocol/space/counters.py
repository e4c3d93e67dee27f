"""Counters of a gateway, and its log line for a cancel."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from meup_agent.protocol import kinds, payloads
from meup_agent.protocol.envelope import Envelope


@dataclass(slots=True)
class SpaceCounters:
    """Plain numbers since the gateway was made; they only grow."""

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


log = logging.getLogger("meup_agent.gateway")

MAX_CANCEL_CHARS: Final = 200
"""Characters of a cancel's reason, and of what it names, in the gateway's log."""


def log_cancel(space: str, envelope: Envelope) -> None:
    """Log an accepted request if it is a cancel, and the log is read so closely."""
    if envelope.kind != kinds.MCP_REQUEST or not log.isEnabledFor(logging.DEBUG):
        return
    call = payloads.read_call(envelope.payload_object)
    if call.method == kinds.CANCELLED:
        params = call.params
        said = "in %s %s cancels request %s of %s: %s"
        whose = payloads.on_behalf_of(envelope.sender, params)
        words = (space, envelope.sender, params.get("requestId"), whose, params.get("reason"))
        log.debug(said, *map(_shown, words))


def _shown(value: object) -> str:
    """A stranger's text, escaped and cut; empty for anything else."""
    text = str(value) if isinstance(value, int | str) else ""
    return ascii(text[:MAX_CANCEL_CHARS])
