"""Who waits for an exchange of ours, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meup_agent.transport.loops import Wakeup

if TYPE_CHECKING:
    from collections.abc import Callable

    from meup_agent.protocol.exchange import Key, Progressed
    from meup_agent.protocol.outcomes import Ending
    from meup_agent.session.telling import Events


@dataclass(slots=True)
class _Wait:
    done: Wakeup
    kind: str
    since: float
    on_progress: Callable[[Progressed], None] | None
    ending: Ending | None = None


class Waits:
    """The exchanges of ours that somebody waits for, or has not looked at the end of.

    Args:
        events: Told of each end.
        now: Tells the time.
    """

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._events = events
        self._now = now
        self._waits: dict[Key, _Wait] = {}

    def begin(
        self, key: Key, kind: str, since: float, on_progress: Callable[[Progressed], None] | None
    ) -> None:
        """Somebody will wait for an exchange."""
        self._waits[key] = _Wait(Wakeup(), kind, since, on_progress)

    def end(self, key: Key, ending: Ending) -> None:
        """It has ended: wake who waits."""
        wait = self._waits.get(key)
        if wait is None:
            return
        if self._events.observers and wait.ending is None:
            self._events.ended(key, wait.kind, ending, self._now() - wait.since)
        wait.ending = ending
        wait.done.wake()

    def progressed(self, progress: Progressed) -> None:
        """It has made progress."""
        wait = self._waits.get(progress.key)
        if wait is not None and wait.on_progress is not None:
            wait.on_progress(progress)

    def __contains__(self, key: object) -> bool:
        """Whether an exchange is waited for, ended or not."""
        return key in self._waits

    def ended(self, key: Key) -> Ending | None:
        """How it ended; ``None`` while it is open."""
        wait = self._waits.get(key)
        return None if wait is None else wait.ending

    async def ending(self, key: Key) -> Ending:
        """Wait until it has ended."""
        wait = self._waits[key]
        while wait.ending is None:
            await wait.done.wait()
        return wait.ending

    def forget(self, key: Key) -> None:
        """Nobody will ask for the ending any more."""
        self._waits.pop(key, None)
