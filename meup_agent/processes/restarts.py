"""Restarts of a program or a server, with backoff."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import anyio

from meup_agent.session.reconnector import Backoff

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

RESTART: Final = Backoff(first=1.0, longest=60.0, stable=30.0)
"""Pauses before something is started again; what ran for 30 s has failed for the first time."""


async def keep_running(
    run_once: Callable[[], Awaitable[str | None]],
    failed: Callable[[str, float], Awaitable[None]],
    leaving: anyio.Event,
    backoff: Backoff = RESTART,
) -> None:
    """Run something, and again after a pause as long as it returns why it failed.

    Args:
        run_once: Runs it until its end; the reason if it is to run again.
        failed: Told the reason, and in how many seconds it is started again.
        leaving: Set when it is to end; it then ends by itself.
        backoff: The pauses.
    """
    failures = 0
    while not leaving.is_set():
        began = anyio.current_time()
        why = await run_once()
        if why is None or leaving.is_set():
            return
        if anyio.current_time() - began >= backoff.stable:
            failures = 0
        delay = backoff.pause(failures)
        failures += 1
        await failed(why, delay)
        with anyio.move_on_after(delay):
            await leaving.wait()
