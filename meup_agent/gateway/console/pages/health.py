"""The health of the gateway and of the participant's space: counters, and limits near their end."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import fields
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import anyio
from starlette.responses import Response

from meup_agent.gateway.console.context import PageContext
from meup_agent.gateway.console.presence import MAX_PRESENCES
from meup_agent.gateway.console.sign_in import MAX_SESSIONS

if TYPE_CHECKING:
    from meup_agent.gateway.console.console import ConsoleSite
    from meup_agent.gateway.runtime import GatewayRuntime
    from meup_agent.protocol.space.server import SpaceServer

SAMPLES: Final = 60
"""Points of a plot."""

SAMPLE_SECONDS: Final = 2.0
"""Seconds between two points at least; a page that is open asks every five."""

NEAR: Final = 0.8
"""Share of a limit from which on it is near its end."""

PLOT_WIDTH: Final = 240
PLOT_HEIGHT: Final = 44


class Gauge(NamedTuple):
    """A number beside its limit."""

    name: str
    about: str
    value: int
    most: int
    is_bytes: bool = False

    @property
    def is_near(self) -> bool:
        """True if little of the limit is left."""
        return self.value >= NEAR * self.most


class Plot(NamedTuple):
    """A small plot of what was counted in the last minutes."""

    name: str
    latest: float
    highest: float
    points: str


class Samples:
    """Counters, as they were at some moments."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES)

    def take(self, runtime: GatewayRuntime) -> None:
        """Note the counters, unless they were noted a moment ago."""
        at = anyio.current_time()
        if self._taken and at - self._taken[-1][0] < SAMPLE_SECONDS:
            return
        counters = runtime.counters
        self.note(
            at,
            {
                "accepted": counters.accepted,
                "delivered": counters.delivered,
                "refused": sum(counters.refused.values()),
                "waiting": runtime.backlogs.bytes,
            },
        )

    def note(self, at: float, counted: dict[str, int]) -> None:
        """Note what was counted until a moment."""
        self._taken.append((at, counted))

    def plot(self, name: str, key: str, *, rate: bool = True) -> Plot:
        """The plot of one number, as it grew a second, or as it was."""
        taken = list(self._taken)
        if rate:
            values = [
                (now[1][key] - was[1][key]) / (now[0] - was[0]) for was, now in pairwise(taken)
            ]
        else:
            values = [float(each[key]) for _, each in taken]
        top = max([*values, 1.0])
        step = PLOT_WIDTH / max(len(values) - 1, 1)
        points = " ".join(
            f"{at * step:.1f},{PLOT_HEIGHT - 2 - value / top * (PLOT_HEIGHT - 4):.1f}"
            for at, value in enumerate(values)
        )
        return Plot(name, values[-1] if values else 0.0, max([*values, 0.0]), points)


_samples: WeakKeyDictionary[GatewayRuntime, Samples] = WeakKeyDictionary()


async def show_health(context: PageContext) -> Response:
    """The page."""
    runtime, host = context.site.runtime, context.host
    samples = _samples.setdefault(runtime, Samples())
    samples.take(runtime)
    return context.page(
        "health.html",
        gauges=_gauges(context.site, host),
        plots=[
            samples.plot("Envelopes accepted a second", "accepted"),
            samples.plot("Frames delivered a second", "delivered"),
            samples.plot("Envelopes refused a second", "refused"),
            samples.plot("Bytes that wait for slow readers", "waiting", rate=False),
        ],
        width=PLOT_WIDTH,
        height=PLOT_HEIGHT,
        totals=_totals(runtime),
        drops=_drops(runtime),
        slow=sorted(
            ((each.participant, _queued(each)) for each in host.members if _queued(each)),
            key=lambda pair: -pair[1],
        ),
        journal={
            "kept": max(host.fanout.delivered - host.journal.floor(host.name), 0),
            "floor": host.journal.floor(host.name),
            "latest": host.fanout.delivered,
            "bytes": host.journal.size(),
            "behind": max(0, host.journal.latest(host.name) - host.fanout.delivered),
        },
        topics="",
    )


def _queued(member: object) -> int:
    return int(getattr(member, "queued_bytes", 0))


def _gauges(site: ConsoleSite, host: SpaceServer) -> list[Gauge]:
    runtime, limits = site.runtime, site.runtime.limits
    proposals = Counter(each.envelope.sender for each in host.in_flight if each.is_proposal)
    return [
        Gauge("Members", "in this space", len(host.members), limits.max_members),
        Gauge("Connections", "of the gateway", runtime.open_connections, limits.max_connections),
        Gauge("Observers", "in this space", len(host.observers), limits.max_observers),
        Gauge(
            "Open proposals",
            "of the participant in this space that has the most",
            max(proposals.values(), default=0),
            limits.max_open_proposals,
        ),
        Gauge("Browsers", "that are signed in", len(site.console.sessions), MAX_SESSIONS),
        Gauge("People", "at work in browsers now", len(site.presences), MAX_PRESENCES),
        Gauge(
            "Bytes that wait",
            "for slow readers of this gateway",
            runtime.backlogs.bytes,
            limits.max_gateway_queued_bytes,
            is_bytes=True,
        ),
    ]


def _totals(runtime: GatewayRuntime) -> list[tuple[str, int]]:
    counters = runtime.counters
    return [
        (each.name.replace("_", " "), value)
        for each in fields(counters)
        if isinstance(value := getattr(counters, each.name), int)
    ]


def _drops(runtime: GatewayRuntime) -> list[tuple[str, str, int]]:
    counters = runtime.counters
    return [
        (each.name.replace("_", " "), str(reason), count)
        for each in fields(counters)
        if isinstance(value := getattr(counters, each.name), Counter)
        for reason, count in sorted(cast("Counter[object]", value).items(), key=str)
    ]
