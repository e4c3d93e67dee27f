"""What a person's code may give as a number of seconds."""

from __future__ import annotations

import math
from typing import Final

from meup_agent.errors import UsageError

EXTENSIONS: Final = 10
"""So many times its timeout a request waits in all, if progress comes and nothing else is said."""


def checked_total(timeout: float | None, total: float | None) -> float:
    """Seconds that a request may wait in all, however often progress comes.

    Args:
        timeout: Seconds from the beginning, and from each progress.
        total: As the caller gave it; ``None``: ten times the timeout.

    Raises:
        UsageError: It is negative, not a number, or less than the timeout.
    """
    if timeout is None or total == math.inf:
        return math.inf
    if total is None:
        return EXTENSIONS * timeout
    if not total >= timeout:
        raise UsageError(
            f"a total_timeout of {total:g} is less than the timeout of {timeout:g} s that it is to"
            " extend; give as much, or more"
        )
    return total


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
