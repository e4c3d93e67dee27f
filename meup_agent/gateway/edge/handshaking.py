"""Connections that are not through their handshake: anybody can open them, so they are bounded."""

from __future__ import annotations

from typing import Any, Final

from meup_agent.gateway.config import Limits

CONNECTIONS_TO_A_HANDSHAKE: Final = 4
"""For so many connections that a gateway takes, one more may be in its handshake, which takes
milliseconds where nobody means ill."""


def most_handshakes(limits: Limits) -> int:
    """How many connections may be in their handshake at once."""
    return max(limits.max_connections // CONNECTIONS_TO_A_HANDSHAKE, 1)


class Handshakes:
    """The connections whose handshake has begun; one too many, and the oldest is dropped.

    The oldest, and not the newest: those who only hold a place wait longer than those who want in.

    Args:
        limit: How many at once.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # By identity, in the order in which they began; the values keep the keys from being reused.
        self._begun: dict[int, Any] = {}

    def begin(self, protocol: Any) -> None:
        """Count a connection in, and drop the oldest if these are too many."""
        self._begun[id(protocol)] = protocol
        if len(self._begun) > self._limit:
            oldest = self._begun.pop(next(iter(self._begun)))
            # One that has ended by itself, or is not made yet, has no socket to drop.
            if oldest.transport is not None:
                oldest.transport.disconnect(False)

    def end(self, protocol: Any) -> None:
        """Count a connection out: its handshake has been read."""
        self._begun.pop(id(protocol), None)
