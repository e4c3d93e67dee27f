"""The clock of the loop that runs, found once: it is read several times for each envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from meup_agent.transport.loops import asyncio_loop

if TYPE_CHECKING:
    from collections.abc import Callable


def loop_clock() -> Callable[[], float]:
    """What :func:`anyio.current_time` tells, in seconds, without asking each time which loop runs.

    Only for as long as this loop runs.
    """
    loop = asyncio_loop()
    return anyio.current_time if loop is None else loop.time
