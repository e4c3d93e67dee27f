"""The clock of the loop that runs, found once: it is read several times for each envelope."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


def loop_clock() -> Callable[[], float]:
    """What :func:`anyio.current_time` tells, in seconds, without asking each time which loop runs.

    Only for as long as this loop runs.
    """
    if anyio.get_cancelled_exc_class() is asyncio.CancelledError:
        return asyncio.get_running_loop().time
    return anyio.current_time
