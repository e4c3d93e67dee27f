"""Counts what happens to an agent, for whoever watches over it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from meup_agent.session.events import (
    Connected,
    Disconnected,
    Dropped,
    Event,
    ExchangeBegan,
    ExchangeEnded,
    HandlerFailed,
    HandlerFinished,
    HandlerStarted,
    HandlerStopped,
    Resumed,
    Retrying,
)


@dataclass(slots=True)
class HandlerCounts:
    """What one handler has done.

    Attributes:
        started: How often it began.
        finished: How often it ended well.
        failed: How often it raised.
        stopped: How often it ended because it was asked to.
        seconds: How long it ran in all, of what has ended.
    """

    started: int = 0
    finished: int = 0
    failed: int = 0
    stopped: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Counts:
    handlers: dict[str, HandlerCounts] = field(default_factory=dict[str, HandlerCounts])
    dropped: Counter[str] = field(default_factory=Counter[str])
    outcomes: Counter[str] = field(default_factory=Counter[str])
    exchanges: int = 0
    connected: int = 0
    disconnected: int = 0
    reconnected: int = 0
    resumed: int = 0
    gaps: int = 0
    retries: int = 0


class Counters:
    """Counts an agent's events: ``agent.observe(counters)``.

    What is counted under has few names, whatever strangers send: handlers of the agent's own,
    codes of drops, names of endings. So the counts may go to any system of metrics.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts = _Counts()

    def __call__(self, event: Event) -> None:
        """Count an event."""
        with self._lock:
            self._count(event)

    def snapshot(self) -> dict[str, Any]:
        """The counts at this moment; may be asked for from any thread.

        Returns:
            ``handlers`` (by name: ``started``, ``finished``, ``failed``, ``stopped``, ``running``,
            ``seconds``), ``dropped`` (by code), ``exchanges`` and ``outcomes`` of our own (by
            name, for example ``rejected``), ``connected``, ``disconnected``, ``reconnected``,
            ``resumed`` (what was missed has been read), ``gaps`` (not all of it could be) and
            ``retries``; a dictionary of its own, of plain values.
        """
        with self._lock:
            counts = self._counts
            return {
                "handlers": {name: _shown(each) for name, each in counts.handlers.items()},
                "dropped": dict(counts.dropped),
                "exchanges": counts.exchanges,
                "outcomes": dict(counts.outcomes),
                "connected": counts.connected,
                "disconnected": counts.disconnected,
                "reconnected": counts.reconnected,
                "resumed": counts.resumed,
                "gaps": counts.gaps,
                "retries": counts.retries,
            }

    def _count(self, event: Event) -> None:
        counts = self._counts
        match event:
            case HandlerStarted():
                self._handler(event.handler).started += 1
            case HandlerFinished():
                handler = self._handler(event.handler)
                handler.finished += 1
                handler.seconds += event.seconds
            case HandlerFailed():
                handler = self._handler(event.handler)
                handler.failed += 1
                handler.seconds += event.seconds
            case HandlerStopped():
                handler = self._handler(event.handler)
                handler.stopped += 1
                handler.seconds += event.seconds
            case ExchangeBegan():
                counts.exchanges += 1
            case ExchangeEnded():
                counts.outcomes[event.outcome] += 1
            case Dropped():
                counts.dropped[event.why] += 1
            case Connected():
                counts.connected += 1
                counts.reconnected += event.reconnect
            case Resumed():
                counts.resumed += 1
                counts.gaps += event.gap
            case Disconnected():
                counts.disconnected += 1
            case Retrying():
                counts.retries += 1
            case _:
                pass

    def _handler(self, name: str) -> HandlerCounts:
        return self._counts.handlers.setdefault(name, HandlerCounts())


def _shown(counts: HandlerCounts) -> dict[str, int | float]:
    ended = counts.finished + counts.failed + counts.stopped
    return {
        "started": counts.started,
        "finished": counts.finished,
        "failed": counts.failed,
        "stopped": counts.stopped,
        # An observer that came later has not seen the start of everything.
        "running": max(counts.started - ended, 0),
        "seconds": counts.seconds,
    }
