"""Limits how fast each participant speaks: token buckets, in the time that they are told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from meup_agent.protocol.limits import MAX_DEPTH, MAX_FRAME_BYTES

NOTICE_SECONDS: Final = 10.0
"""A participant that stays over a limit is told so once in this time, not once for each frame."""

MAX_NOTICES: Final = 10_000
"""Who was told what, at most; whoever is forgotten may be told once more."""

BYTES_PER_SECOND: Final = 4 * MAX_FRAME_BYTES
"""Bytes of a participant's messages in the long run: four of the largest, or 16 KiB in each of a
thousand."""

BYTES_BURST: Final = 16 * MAX_FRAME_BYTES
"""Bytes of a participant's messages at once: sixteen of the largest."""

MESSAGE_BYTES: Final = 4_096
"""What a message counts beside its bytes where the loudest sender is looked for: a queue is bounded
in frames, too."""

HALF_LIFE_SECONDS: Final = 1.0
"""After which what somebody said counts half there."""

_MICROSECONDS: Final = 1_000_000

_MOST_HALVES: Final = 500
"""After which all are forgotten, before the weights outgrow a float."""

_ROUNDING: Final = 1e-6
"""What the sum of many small parts may lack."""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each participant of a space may do.

    Attributes:
        max_depth: Levels of arrays and objects in a message.
        messages_per_second: Messages in the long run; what comes faster is read later.
        messages_burst: Messages that may come at once after a pause.
        bytes_per_second: Bytes of its messages in the long run; likewise.
        bytes_burst: Bytes of messages that may come at once after a pause.
        withdrawals_per_second: Withdrawals in the long run; likewise, and none is refused.
        withdrawals_burst: Withdrawals at once.
        max_open_proposals: Proposals that are neither fulfilled nor withdrawn.
        max_observers: Connections that look on.
    """

    max_depth: int = MAX_DEPTH
    messages_per_second: float = 1_000.0
    messages_burst: float = 2_000
    bytes_per_second: float = BYTES_PER_SECOND
    bytes_burst: float = BYTES_BURST
    withdrawals_per_second: float = 100.0
    withdrawals_burst: float = 1_000
    max_open_proposals: int = 1_000
    max_observers: int = 16


class TokenBucket:
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

    def consume(self, at: int, amount: float = 1.0) -> float:
        """Take some, whether they are there or not.

        Args:
            at: The time in microseconds.
            amount: How many.

        Returns:
            Seconds to wait until what was taken too much has come back; 0 if nothing was.
        """
        left = self._left = self._now(at) - amount
        return 0.0 if left >= -_ROUNDING else -left / self._per_microsecond / _MICROSECONDS

    def has(self, at: int) -> bool:
        """Whether there is one."""
        return self._now(at) >= 1.0 - _ROUNDING

    def try_consume(self, at: int) -> bool:
        """Take one if there is one; whether there was."""
        left = self._left = self._now(at)
        if left < 1.0 - _ROUNDING:
            return False
        self._left = left - 1.0
        return True

    def wait(self, at: int, amount: float = 1.0) -> float:
        """Seconds until some are there, or until all are where there are never so many; 0 if so."""
        missing = min(amount, self._burst) - self._now(at)
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


class SenderLoad:
    """Knows who said most lately, in bytes; half of it is forgotten each second.

    What is new weighs more, in place of all that is old weighing less: so the order of two senders
    changes only when one of them says something, and the most ever is the most at this moment.
    """

    __slots__ = ("_most", "_said", "_since")

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._most = 0.0
        self._since: int | None = None

    def add(self, participant: str, at: int, size: int) -> None:
        """Count what a participant said."""
        if self._since is None:
            self._since = at
        halves = (at - self._since) / _MICROSECONDS / HALF_LIFE_SECONDS
        if halves > _MOST_HALVES:
            self._said.clear()
            self._most, self._since, halves = 0.0, at, 0.0
        said = self._said.get(participant, 0.0) + (size + MESSAGE_BYTES) * 2.0**halves
        self._said[participant] = said
        self._most = max(self._most, said)

    def is_heavy(self, participant: str) -> bool:
        """Whether a participant said at least half as much as the loudest."""
        return self._said.get(participant, 0.0) * 2 >= self._most > 0


class RateExceeded(NamedTuple):
    """A limit that a participant is over, and for how long.

    Attributes:
        limit: The limit's name.
        most: How much it allows in a second.
        seconds: Seconds until the participant is within it again.
    """

    limit: str
    most: float
    seconds: float


class RateLimiter:
    """Limits how fast each participant speaks, over whatever connections it has.

    Args:
        allowance: How fast they may.

    Attributes:
        loudness: Who said most lately.
    """

    def __init__(self, allowance: Allowance) -> None:
        self.load = SenderLoad()
        self._allowance = allowance
        self._messages: dict[str, TokenBucket] = {}
        self._bytes: dict[str, TokenBucket] = {}
        self._withdrawals: dict[str, TokenBucket] = {}

    def consume(self, participant: str, at: int, size: int) -> RateExceeded | None:
        """Count a message that was taken; for how long to read no more of its sender, if at all.

        Args:
            participant: Its sender.
            at: The time in microseconds.
            size: Its bytes.
        """
        self.load.add(participant, at, size)
        messages, volume = self._buckets(participant)
        waits = messages.consume(at), volume.consume(at, size)
        # Few participants withdraw; for the others this is one look into a dictionary.
        withdrawing = self._withdrawals.get(participant)
        withdrawals = 0.0 if withdrawing is None else withdrawing.consume(at, 0)
        return self._over(*waits, withdrawals) if any(waits) or withdrawals else None

    def try_consume(self, participant: str, at: int, size: int) -> RateExceeded | None:
        """Count a message if it is within the pace; else for how long to refuse it.

        Args:
            participant: Its sender.
            at: The time in microseconds.
            size: Its bytes.
        """
        messages, volume = self._buckets(participant)
        waits = messages.wait(at), volume.wait(at, size)
        if any(waits):
            return self._over(*waits, 0.0)
        self.load.add(participant, at, size)
        messages.consume(at)
        volume.consume(at, size)
        return None

    def count_withdrawal(self, participant: str, at: int) -> None:
        """Count a withdrawal that was accepted."""
        self._withdrawing(participant).consume(at)

    def check_withdrawal(self, participant: str, at: int) -> RateExceeded | None:
        """For how long to refuse a withdrawal of a participant, if at all; counts nothing."""
        wait = self._withdrawing(participant).wait(at)
        return self._over(0.0, 0.0, wait) if wait else None

    def _over(self, messages: float, volume: float, withdrawals: float) -> RateExceeded:
        """The limit for which there is the longest to wait."""
        allowed = self._allowance
        return max(
            RateExceeded("messages_per_second", allowed.messages_per_second, messages),
            RateExceeded("bytes_per_second", allowed.bytes_per_second, volume),
            RateExceeded("withdrawals_per_second", allowed.withdrawals_per_second, withdrawals),
            key=lambda over: over.seconds,
        )

    def _buckets(self, participant: str) -> tuple[TokenBucket, TokenBucket]:
        messages = self._messages.get(participant)
        if messages is not None:
            return messages, self._bytes[participant]
        allowed = self._allowance
        messages = TokenBucket(allowed.messages_per_second, allowed.messages_burst)
        volume = TokenBucket(allowed.bytes_per_second, allowed.bytes_burst)
        self._messages[participant], self._bytes[participant] = messages, volume
        return messages, volume

    def _withdrawing(self, participant: str) -> TokenBucket:
        bucket = self._withdrawals.get(participant)
        if bucket is None:
            allowed = self._allowance
            bucket = TokenBucket(allowed.withdrawals_per_second, allowed.withdrawals_burst)
            self._withdrawals[participant] = bucket
        return bucket


class NoticeThrottle:
    """When somebody was told last that they are over a limit.

    Args:
        seconds: How long it is not told again.
    """

    def __init__(self, seconds: float = NOTICE_SECONDS) -> None:
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
        if len(self._at) > MAX_NOTICES:
            del self._at[next(iter(self._at))]
        return True
