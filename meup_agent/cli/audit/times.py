"""Moments as a person gives them: a time, or how long ago it is."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from meup_agent.errors import ConfigurationError

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO: Final = re.compile(r"(\d{1,9})([smhdw])")
_MICROSECONDS: Final = 1_000_000


def moment(given: str, option: str, now: float) -> int:
    """A moment in microseconds since 1970 (UTC).

    Args:
        given: ``2026-01-31``, ``2026-01-31T22:00`` (in the user's zone, unless it says which), or
            how long ago it is: ``90s``, ``15m``, ``2h``, ``7d``, ``4w``.
        option: Where it was given, for the error.
        now: Seconds since 1970 (UTC).

    Raises:
        ConfigurationError: It is none of these.
    """
    ago = _AGO.fullmatch(given.strip())
    if ago is not None:
        return max(round((now - int(ago[1]) * _UNITS[ago[2]]) * _MICROSECONDS), 0)
    try:
        return max(round(datetime.fromisoformat(given.strip()).timestamp() * _MICROSECONDS), 0)
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(
            f"{option} takes a time such as 2026-01-31T22:00, or how long ago, such as 2h;"
            f" {given!r} is neither"
        ) from None
