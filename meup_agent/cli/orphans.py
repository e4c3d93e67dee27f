"""Processes that outlive what started them, beside a gateway: adopted, reaped, and ended (Linux).

A program that calls ``setsid`` leaves the process group of its participant, so a signal to the
group does not reach it. As the subreaper of all that it starts, ``meup up`` becomes the parent of
each such process once its own parent has gone. Elsewhere than on Linux there is no such thing, and
what leaves its group stays.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import anyio

from meup_agent.transport.loops import background_tasks

PR_SET_CHILD_SUBREAPER: Final = 36

LOOK_SECONDS: Final = 5.0
"""Between two looks at our children: one that has ended before both of them is nobody's to reap,
since the owners of the others do so within milliseconds."""

TERM_SECONDS: Final = 1.0
"""Seconds that an orphan has to end by SIGTERM, before it is killed."""

END_SECONDS: Final = 3.0
"""Seconds after which what cannot be killed is left."""

LOOK_AGAIN: Final = 0.02


@asynccontextmanager
async def adopt_orphans() -> AsyncGenerator[None]:
    """The block in which orphans become our children; at its end all of our children are ended."""
    if not _become_subreaper(adopt=True):
        yield
        return
    try:
        async with background_tasks() as tasks:
            tasks.start_soon(_reap)
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await _end_children()
        _become_subreaper(adopt=False)


def _become_subreaper(*, adopt: bool) -> bool:
    if sys.platform != "linux":
        return False
    import ctypes

    try:
        return int(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0)) == 0
    except (OSError, AttributeError):
        return False


async def _reap() -> None:
    """Reap orphans that have ended: they would be kept as long as we run."""
    ended = set[int]()
    while True:
        await anyio.sleep(LOOK_SECONDS)
        now = {child for child in _children() if _has_ended(child)}
        for child in now & ended:
            _wait(child)
        ended = now


async def _end_children() -> None:
    """Terminate our children, then kill them, until there is none or the time is over."""
    told = set[int]()
    begun = anyio.current_time()
    while children := _children():
        passed = anyio.current_time() - begun
        if passed > END_SECONDS:
            return
        for child in children:
            if passed > TERM_SECONDS:
                _signal(child, signal.SIGKILL)
            elif child not in told:
                _signal(child, signal.SIGTERM)
            told.add(child)
            _wait(child)
        await anyio.sleep(LOOK_AGAIN)


def _children() -> list[int]:
    """Our children, of each thread."""
    found: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def _has_ended(child: int) -> bool:
    with suppress(OSError):
        # After the name, which may have anything in it, comes the state.
        state = Path(f"/proc/{child}/stat").read_bytes().rpartition(b") ")[2][:1]
        return state == b"Z"
    return False


def _signal(child: int, number: signal.Signals) -> None:
    with suppress(OSError):
        os.kill(child, number)


def _wait(child: int) -> None:
    with suppress(OSError):
        os.waitpid(child, os.WNOHANG)
