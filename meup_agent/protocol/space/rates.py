"""How much a participant may say: token buckets, in the time that they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from meup_agent.protocol.limits import MAX_DEPTH

TOLD_AGAIN_SECONDS: Final = 10.0
"""A participant that stays over a limit is told so once in this time, not once for each frame."""

MAX_TOLD: Final = 10_000
"""Who was told what, at most; whoever is forgotten may be told once more."""

_MICROSECONDS: Final = 1_000_000

_ROUNDING: Final = 1e-6
"""What the sum of many small parts may lack."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each participant of a space may do.

    Attributes:
        max_depth: Levels of arrays and objects in a message.
        messages_per_second: Messages in the long run; what comes faster is read later.
        messages_burst: Messages that may come at once after a pause.
        withdrawals_per_second: Withdrawals in the long run; those beyond are refused.
        withdrawals_burst: Withdrawals at once.
        max_open_proposals: Proposals that are neither fulfilled nor withdrawn.
    """

    max_depth: int = MAX_DEPTH
    messages_per_second: float = 1_000.0
    messages_burst: float = 2_000
    withdrawals_per_second: float = 100.0
    withdrawals_burst: float = 1_000
    max_open_proposals: int = 1_000


class Bucket:
    """So many at once, and so many a second in the long run.

    A clock that goes back gives nothing and takes nothing.

    Args:
        per_second: How many come back in a second.
        burst: How many there are at most, and at the beginning.
    """

    __slots__ = ("_at", "_burst", "_left", "_per_microsecond")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_microsecond = per_second / _MICROSECONDS
        self._burst = self._left = float(burst)
        self._at: int | None = None

    def take(self, at: int) -> float:
        """Take one, whether there is one or not.

        Args:
            at: The time in microseconds.

        Returns:
            Seconds to wait until what was taken too much has come back; 0 if nothing was.
        """
        left = self._left = self._now(at) - 1.0
        return 0.0 if left >= -_ROUNDING else -left / self._per_microsecond / _MICROSECONDS

    def has(self, at: int) -> bool:
        """Whether there is one."""
        return self._now(at) >= 1.0 - _ROUNDING

    def take_if_there(self, at: int) -> bool:
        """Take one if there is one; whether there was."""
        left = self._left = self._now(at)
        if left < 1.0 - _ROUNDING:
            return False
        self._left = left - 1.0
        return True

    def wait(self, at: int) -> float:
        """Seconds until there is one; 0 if there is."""
        missing = 1.0 - self._now(at)
        return 0.0 if missing <= _ROUNDING else missing / self._per_microsecond / _MICROSECONDS

    def full(self, at: int) -> bool:
        """Whether nothing is missing: whoever it belongs to may be forgotten."""
        return self._now(at) >= self._burst - _ROUNDING

    def _now(self, at: int) -> float:
        before, self._at = self._at, at
        if before is None or at <= before:
            return self._left
        self._left = min(self._burst, self._left + (at - before) * self._per_microsecond)
        return self._left


class Pace:
    """How fast each participant speaks, over whatever connections it has.

    Args:
        allowance: How fast they may.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._per_second = allowance.messages_per_second
        self._burst = allowance.messages_burst
        self._buckets: dict[str, Bucket] = {}

    def take(self, participant: str, at: int) -> float:
        """Count a message; seconds for which to read no more of its sender."""
        bucket = self._buckets.get(participant) or self._begin(participant)
        return bucket.take(at)

    def too_fast(self, participant: str, at: int) -> float:
        """Seconds for which to refuse the next message; 0: it is counted."""
        bucket = self._buckets.get(participant) or self._begin(participant)
        return 0.0 if bucket.take_if_there(at) else bucket.wait(at)

    def _begin(self, participant: str) -> Bucket:
        bucket = self._buckets[participant] = Bucket(self._per_second, self._burst)
        return bucket


class Told:
    """When somebody was told last that they are over a limit.

    Args:
        seconds: How long it is not told again.
    """

    def __init__(self, seconds: float = TOLD_AGAIN_SECONDS) -> None:
        self._again = round(seconds * _MICROSECONDS)
        self._at: dict[tuple[str, str], int] = {}

    def due(self, participant: str, limit: str, at: int) -> bool:
        """Whether to tell a participant of a limit now; if so, it counts as told."""
        key = participant, limit
        last = self._at.get(key)
        if last is not None and 0 <= at - last < self._again:
            return False
        self._at.pop(key, None)  # so that the one told the longest ago comes first
        self._at[key] = at
        if len(self._at) > MAX_TOLD:
            del self._at[next(iter(self._at))]
        return True
