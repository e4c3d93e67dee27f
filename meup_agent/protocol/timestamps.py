"""A moment, as it is written down and compared.

By itself, since messages, rules and views all read moments, and it needs none of these.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

CLOCK_DIFFERENCE: Final = timedelta(seconds=60)
"""Difference of two clocks up to which neither is taken to be wrong (PROTOCOL 6)."""

TRANSIT_SECONDS: Final = 5.0
"""Time that the gateway's word may take to us: what it took before a deadline comes after it."""

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND: Final = timedelta(microseconds=1)


def rfc3339(microseconds: int) -> str:
    """A time in microseconds since 1970 as it stands in ``ts``: UTC, in milliseconds."""
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def microseconds(moment: datetime) -> int:
    """A moment with a time zone in microseconds since 1970 (UTC)."""
    return (moment - _EPOCH) // MICROSECOND


def moment_of(microseconds: int) -> datetime:
    """A time in microseconds since 1970 as a moment in UTC, exact to the microsecond."""
    return _EPOCH + microseconds * MICROSECOND


def read_moment(said: object) -> int | None:
    """An RFC 3339 time in microseconds since 1970; ``None`` if it is none, or has no time zone."""
    try:
        moment = datetime.fromisoformat(said) if isinstance(said, str) else None
    except ValueError:
        return None
    return None if moment is None or moment.tzinfo is None else microseconds(moment)
