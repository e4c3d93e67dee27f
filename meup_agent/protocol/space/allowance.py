"""The limits of each participant of a space, and of its rates, and what a space counts.

A gateway's own limits are further rows after these (:mod:`meup_agent.gateway.limits`), so a space
reads what is configured by the name under which it is.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeVar

from meup_agent.protocol.wire.envelope import MAX_DEPTH, MAX_FRAME_BYTES


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


# --- allowance ---

N = TypeVar("N", int, float)

_ROW: Final = "json_schema_extra"
"""The key of a row in a field's metadata: one that pydantic knows, for what means nothing to it."""

_UNITS: Final = ((1 << 20, "MiB"), (1 << 10, "KiB"))


class LimitRow(NamedTuple):
    """One row of the table.

    Attributes:
        name: The key in the configuration.
        default: The value, if nothing else is configured.
        unit: ``bytes``, ``s``, or nothing.
        about: The thing that is limited, for the reference.
        at_most: The highest value; ``None``: any above zero.
    """

    name: str
    default: float
    unit: str
    about: str
    at_most: float | None

    @property
    def shown(self) -> str:
        """The default as people read it: ``4 MiB``, ``10 s``, ``1,000``."""
        for size, unit in _UNITS:
            if self.unit == "bytes" and self.default % size == 0:
                return f"{round(self.default / size):,} {unit}"
        return f"{self.default:,g} s" if self.unit == "s" else f"{self.default:,.0f}"


def limit(default: N, about: str, *, unit: str = "", at_most: N | None = None) -> N:
    row = {"default": default, "unit": unit, "about": about, "at_most": at_most}
    value: N = field(default=default, metadata={_ROW: row})
    return value


def rows_of(limits: type[Allowance]) -> tuple[LimitRow, ...]:
    return tuple(LimitRow(each.name, **each.metadata[_ROW]) for each in fields(limits))


@dataclass(frozen=True, slots=True)
class Allowance:
    """The limits of each participant of a space."""

    max_depth: int = limit(
        MAX_DEPTH,
        "levels of arrays and objects in a message; not more than this default",
        at_most=MAX_DEPTH,
    )
    messages_per_second: float = limit(
        1_000.0, "messages of a participant in the long run; what comes faster is read later"
    )
    messages_burst: int = limit(2_000, "messages that may come at once after a pause")
    bytes_per_second: float = limit(
        # Four of the largest, or 16 KiB in each of a thousand.
        4 * MAX_FRAME_BYTES,
        "bytes of a participant's messages in the long run; what comes faster is read later",
        unit="bytes",
    )
    bytes_burst: int = limit(
        16 * MAX_FRAME_BYTES,
        "bytes of messages that may come at once after a pause",
        unit="bytes",
    )
    withdrawals_per_second: float = limit(
        100.0,
        "withdrawals of a participant in the long run; what comes faster is read later, and "
        "none is refused",
    )
    withdrawals_burst: int = limit(1_000, "withdrawals at once")
    max_open_proposals: int = limit(
        1_000, "proposals of a participant that are neither fulfilled nor withdrawn"
    )
    max_beside: int = limit(
        128,
        "connections of one participant beside the one that answers; a further one is refused "
        "with 429",
    )
    max_observers: int = limit(
        16, "connections of one participant that look on; a further one is refused with 429"
    )
    max_open_streams: int = limit(
        32, "open streams that a participant requested; a further request is refused"
    )
    max_space_streams: int = limit(
        256, "open streams of a space, of which each newcomer is told; a further one is refused"
    )
    max_stream_queued_frames: int = limit(
        256,
        "frames of one stream that wait for a member who reads slowly, and four times as many of "
        "all streams; it loses the further ones, and is told how many",
    )
    max_stream_queued_bytes: int = limit(256 * 1024, "the same, in bytes", unit="bytes")


# --- limits of rates ---
# Token buckets by participant, which get the time as an argument.
#
# `limits` (5.8.0, measured) reads the clock itself, and takes 64 ms and 216 modules to load.

NOTICE_SECONDS: Final = 10.0
"""Interval of notices to a participant that stays over a limit: not one for each frame."""

MAX_NOTICES: Final = 10_000
"""Notices that are remembered; a participant that is forgotten may get one more."""

MESSAGE_BYTES: Final = 4_096
"""Bytes that a message counts besides its own in a sender's load: a queue is bounded
in frames, too."""

HALF_LIFE_SECONDS: Final = 1.0
"""Time after which what was sent counts half in a sender's load."""

IPV6_PREFIX: Final = 64
"""Bits of an IPv6 address that stand for its owner: one network gives out all the others."""

_MICROSECONDS: Final = 1_000_000

_MOST_HALVES: Final = 500  # after which all are forgotten, before the weights outgrow a float
_ROUNDING: Final = 1e-6  # tolerance for the sum of many small parts


class TokenBucket:
    """A token bucket: so many at once, and so many a second; a clock that goes back gives none."""

    __slots__ = ("_at", "_burst", "_left", "_per_microsecond")

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_microsecond = per_second / _MICROSECONDS
        self._burst = self._left = float(burst)
        self._at: int | None = None

    def consume(self, at: int, amount: float = 1.0) -> float:
        """Take tokens, there or not; seconds until those that were not are back."""
        left = self._left = self._now(at) - amount
        return 0.0 if left >= -_ROUNDING else -left / self._per_microsecond / _MICROSECONDS

    def try_consume(self, at: int) -> bool:
        """Take one if there is one; false if there was none."""
        left = self._left = self._now(at)
        if left < 1.0 - _ROUNDING:
            return False
        self._left = left - 1.0
        return True

    def wait(self, at: int, amount: float = 1.0) -> float:
        """Seconds until some are there, or until all are where there are never so many; 0 if so."""
        missing = min(amount, self._burst) - self._now(at)
        return 0.0 if missing <= _ROUNDING else missing / self._per_microsecond / _MICROSECONDS

    def _now(self, at: int) -> float:
        before, self._at = self._at, at
        if before is None or at <= before:
            return self._left
        left = self._left + (at - before) * self._per_microsecond
        # Not `min`: called twice for each frame, it takes longer than all the rest here.
        self._left = left = left if left < self._burst else self._burst  # noqa: FURB136
        return left


class SenderLoad:
    """Load of each sender lately, in bytes; half of it is forgotten each second.

    What is new weighs more, in place of all that is old weighing less: so the order of two senders
    changes only when one of them sends, and the most ever is the most at this moment.
    """

    __slots__ = ("_most", "_said", "_since")

    def __init__(self) -> None:
        self._said: dict[str, float] = {}
        self._most = 0.0
        self._since: int | None = None

    def add(self, participant: str, at: int, size: int) -> None:
        """Count a message of a participant."""
        if self._since is None:
            self._since = at
        halves = (at - self._since) / _MICROSECONDS / HALF_LIFE_SECONDS
        if halves > _MOST_HALVES:
            self._said.clear()
            self._most, self._since, halves = 0.0, at, 0.0
        said = self._said.get(participant, 0.0) + (size + MESSAGE_BYTES) * 2.0**halves
        self._said[participant] = said
        if said > self._most:
            self._most = said

    def is_heavy(self, participant: str) -> bool:
        """True for a participant whose load is at least half of the heaviest."""
        return self._said.get(participant, 0.0) * 2 >= self._most > 0


class RateExceeded(NamedTuple):
    """A rate that a participant exceeds."""

    limit: str
    most: float  # the amount that it allows in a second
    seconds: float  # seconds until the participant is within it again


@dataclass(slots=True, eq=False)
class _ParticipantRates:
    """The rates of one participant."""

    messages: TokenBucket
    volume: TokenBucket
    withdrawals: TokenBucket
    withdraws: bool = False  # few do: for the others no bucket is asked


class RateLimiter:
    """Limits the rates of each participant, over all of its connections."""

    def __init__(self, allowance: Allowance) -> None:
        self.load = SenderLoad()
        self._allowance = allowance
        self._rates: dict[str, _ParticipantRates] = {}

    def consume(self, participant: str, at: int, size: int) -> RateExceeded | None:
        """Count a message that was read; the rate for which to read no more of its sender now."""
        self.load.add(participant, at, size)
        rates = self._rates_of(participant)
        counted, sized = rates.messages.consume(at), rates.volume.consume(at, size)
        withdrawals = rates.withdrawals.consume(at, 0) if rates.withdraws else 0.0
        if counted or sized or withdrawals:
            return self._over(counted, sized, withdrawals)
        return None

    def try_consume(self, participant: str, at: int, size: int) -> RateExceeded | None:
        """Count a message that is within the rates; else the rate for which to refuse it."""
        rates = self._rates_of(participant)
        waits = rates.messages.wait(at), rates.volume.wait(at, size)
        if any(waits):
            return self._over(*waits, 0.0)
        self.load.add(participant, at, size)
        rates.messages.consume(at)
        rates.volume.consume(at, size)
        return None

    def count_withdrawal(self, participant: str, at: int) -> None:
        rates = self._rates_of(participant)
        rates.withdraws = True
        rates.withdrawals.consume(at)

    def check_withdrawal(self, participant: str, at: int) -> RateExceeded | None:
        """The rate for which to refuse a withdrawal of a participant; counts nothing."""
        wait = self._rates_of(participant).withdrawals.wait(at)
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

    def _rates_of(self, participant: str) -> _ParticipantRates:
        rates = self._rates.get(participant)
        if rates is None:
            allowed = self._allowance
            rates = self._rates[participant] = _ParticipantRates(
                TokenBucket(allowed.messages_per_second, allowed.messages_burst),
                TokenBucket(allowed.bytes_per_second, allowed.bytes_burst),
                TokenBucket(allowed.withdrawals_per_second, allowed.withdrawals_burst),
            )
        return rates


class NoticeThrottle:
    """Limits notices to a participant about a limit to one in a time."""

    def __init__(self) -> None:
        self._at: dict[tuple[str, str], int] = {}

    def due(self, participant: str, limit: str, at: int) -> bool:
        """True if a participant is to get a notice now, which then counts as sent."""
        key = participant, limit
        last = self._at.get(key)
        if last is not None and 0 <= at - last < NOTICE_SECONDS * _MICROSECONDS:
            return False
        self._at.pop(key, None)  # so that the oldest notice comes first
        self._at[key] = at
        if len(self._at) > MAX_NOTICES:
            del self._at[next(iter(self._at))]
        return True


def network_of(address: str) -> str:
    """The network that one caller may have all of: the /64 of an IPv6 address, else the address."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))
