"""Limits joins per participant, and connections that do not join per address (PROTOCOL 3)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from math import ceil
from typing import Final, Generic, TypeVar

from meup_agent.gateway.admission import TOO_MANY, NotAdmitted
from meup_agent.gateway.auth import Identity
from meup_agent.gateway.config import Limits
from meup_agent.gateway.guesses import network_of
from meup_agent.protocol.space.rate_limits import TokenBucket

MAX_REMEMBERED: Final = 10_000
"""Participants, and addresses, whose pace is remembered; the one that came the longest ago is
forgotten, whose bucket has filled meanwhile."""

K = TypeVar("K", bound=Hashable)


class JoinPace:
    """Counts who joins, and who connects without a token.

    A join is told to everybody in its space, so one token that joins and leaves without end costs
    all of them. A connection without a token costs its place and its lines in the log.

    Args:
        limits: How many are taken.
        now: Tells the time in microseconds.
    """

    def __init__(self, limits: Limits, now: Callable[[], int]) -> None:
        self._limits = limits
        self._now = now
        self._joins = _Buckets[tuple[Identity, bool]](limits.joins_per_second, limits.joins_burst)
        self._strangers = _Buckets[str](limits.strangers_per_second, limits.strangers_burst)

    def join(self, identity: Identity, *, observes: bool = False) -> None:
        """Count a join.

        Args:
            identity: Who joins.
            observes: It only looks on; that is counted by itself, so that no observer keeps its
                participant's agent from coming back.

        Raises:
            NotAdmitted: The participant has joined too often lately; this one does not count.
        """
        wait = self._joins.take((identity, observes), self._now())
        if wait:
            most = self._limits.joins_per_second
            raise _refusal(f"you join more than {most:g} times a second (joins_per_second)", wait)

    def connect(self, address: str) -> None:
        """Count a connection that does not say in its handshake who joins where.

        Raises:
            NotAdmitted: Too many came from the address lately; this one does not count.
        """
        wait = self._strangers.take(network_of(address), self._now())
        if wait:
            most = self._limits.strangers_per_second
            raise _refusal(
                f"more than {most:g} connections a second that do not join came from your address"
                " (strangers_per_second)",
                wait,
            )

    def joined(self, address: str) -> None:
        """Count a connection no more that has joined by a frame."""
        self._strangers.put_back(network_of(address), self._now())


class _Buckets(Generic[K]):
    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[K, TokenBucket] = OrderedDict()

    def take(self, key: K, at: int) -> int:
        """Take one; if there is none, whole seconds until there is."""
        bucket = self._buckets.setdefault(key, TokenBucket(self._per_second, self._burst))
        self._buckets.move_to_end(key)
        if len(self._buckets) > MAX_REMEMBERED:
            self._buckets.popitem(last=False)
        return 0 if bucket.try_consume(at) else ceil(bucket.wait(at))

    def put_back(self, key: K, at: int) -> None:
        """Give one back that was taken."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.take(at, -1.0)


def _refusal(why: str, wait: int) -> NotAdmitted:
    return NotAdmitted(TOO_MANY, f"{why}; try again in {wait} s", wait)
