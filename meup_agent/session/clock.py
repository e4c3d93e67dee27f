"""The clock of the loop that runs, found once: it is read several times for each envelope."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable


def runs_on_asyncio() -> bool:
    """Whether the loop that runs is asyncio's, or one in its place.

    Told by the name, so that importing an agent does not load a loop (a seventh of its time).
    """
    return anyio.get_cancelled_exc_class().__module__.partition(".")[0] == "asyncio"


def loop_clock() -> Callable[[], float]:
    """What :func:`anyio.current_time` tells, in seconds, without asking each time which loop runs.

    Only for as long as this loop runs.
    """
    if runs_on_asyncio():
        import asyncio

        return asyncio.get_running_loop().time
    return anyio.current_time
