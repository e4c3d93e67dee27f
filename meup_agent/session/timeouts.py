"""What a person's code may give as a number of seconds."""

from __future__ import annotations

import math

from meup_agent.errors import UsageError


def checked_timeout(seconds: float | None) -> float | None:
    """Seconds that a verb may wait, fit to be added to a clock.

    Args:
        seconds: As the caller gave it; infinite is as good as ``None``.

    Raises:
        UsageError: It is negative, or not a number: a comparison with it would never end a wait.
    """
    if seconds is None or seconds == math.inf:
        return None
    if math.isnan(seconds) or seconds < 0:
        raise UsageError(
            f"{seconds} is no time to wait; give seconds from 0 on, or None for as long as it takes"
        )
    return seconds
