"""A moment, as it is written down."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(microseconds: int) -> str:
    """A time in microseconds since 1970 as it stands in ``ts``: UTC, in milliseconds."""
    moment = datetime.fromtimestamp(microseconds / 1_000_000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
