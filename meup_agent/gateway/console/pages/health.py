"""The health of the gateway and of the participant's space: counters, and limits near their end."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import fields
from itertools import pairwise
from typing import Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import anyio
from starlette.responses import Response

from meup_agent.gateway.console.context import ConsoleState, PageContext
from meup_agent.gateway.console.presence import MAX_PRESENCES
from meup_agent.gateway.console.sign_in import MAX_SESSIONS
from meup_agent.gateway.console.templating import size
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.owner import SpaceServer
from meup_agent.wording import duration

NEAR: Final = 0.8
"""Share of a limit from which on it is near its end."""

DROPPED: Final = {
    "dropped": "no reader",
    "repeated": "accepted before",
    "not_expressible": "no words in a dialect",
    "stream_frames_lost": "slow reader",
    "streams_refused": "too many",
}
"""Counter of something that is dropped for one reason alone → this reason."""


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


class DropCount(NamedTuple):
    """Number of times that something was refused or dropped for one reason."""

    what: str
    reason: str
    times: int

    @property
    def key(self) -> str:
        """Its name among the samples."""
        return f"{self.what} {self.reason}"


# --- plots ---
# Small plots of numbers over the last minutes, and the samples that they are drawn from.

SAMPLES: Final = 60
"""Points of a plot."""

SAMPLE_SECONDS: Final = 2.0
"""Seconds between two points at least; a page that is open asks every five."""

MAX_REASONS: Final = 32
"""Reasons that are sampled one by one, each with a plot; error codes and close codes are few."""

PLOT_WIDTH: Final = 240
PLOT_HEIGHT: Final = 44


def rate(value: float) -> str:
    """A number that has a fraction, as a person says it."""
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def count(value: float) -> str:
    """A whole number, as a person says it."""
    return f"{value:,.0f}"


class Plot(NamedTuple):
    """A small plot of what was counted in the last minutes."""

    name: str
    latest: float
    highest: float
    points: str = ""  # of the line; empty: there are too few samples yet
    seconds: float = 0.0  # between the first point and the last
    words: Callable[[float], str] = rate  # says a value

    @property
    def figure(self) -> str:
        return self.words(self.latest)

    @property
    def about(self) -> str:
        """Its highest value and the time that it goes over, in words."""
        if not self.points:
            return "measured while this page is open"
        over = f" in the last {duration(int(self.seconds))}" if self.seconds >= 1 else ""
        return f"at most {self.words(self.highest)}{over}"

    @property
    def label(self) -> str:
        """The plot in words, for those who do not see it."""
        return f"{self.name}: now {self.figure}, {self.about}"


class Samples:
    """Numbers, as they were at some moments; of each reason, how often it has come up."""

    def __init__(self) -> None:
        self._taken: deque[tuple[float, dict[str, int]]] = deque(maxlen=SAMPLES)
        self._reasons: set[str] = set()

    def is_due(self, at: float) -> bool:
        """True unless the last sample is of a moment ago."""
        return not self._taken or at - self._taken[-1][0] >= SAMPLE_SECONDS

    def note(
        self, at: float, numbers: Mapping[str, int], reasons: Mapping[str, int] | None = None
    ) -> None:
        """Note numbers as they are at a moment, and those of the first :data:`MAX_REASONS`."""
        followed = dict[str, int]()
        for reason, times in (reasons or {}).items():
            if reason not in self._reasons and len(self._reasons) >= MAX_REASONS:
                continue
            self._reasons.add(reason)
            followed[reason] = times
        self._taken.append((at, {**numbers, **followed}))

    def has(self, key: str) -> bool:
        """True for a number that was noted the last time."""
        return bool(self._taken) and key in self._taken[-1][1]

    def growth(self, name: str, key: str) -> Plot:
        """The plot of a number that only grows, as it grew a second."""
        return _draw(
            name,
            [
                # A reason that has not come up yet is not counted.
                (at, (numbers.get(key, 0) - before.get(key, 0)) / (at - was))
                for (was, before), (at, numbers) in pairwise(self._taken)
            ],
            rate,
        )

    def level(self, name: str, key: str, words: Callable[[float], str] = count) -> Plot:
        """The plot of a number, as it was."""
        return _draw(
            name,
            [(at, float(numbers[key])) for at, numbers in self._taken if key in numbers],
            words,
        )


def _draw(name: str, values: list[tuple[float, float]], words: Callable[[float], str]) -> Plot:
    if len(values) < 2:
        only = values[0][1] if values else 0.0
        return Plot(name, only, only, words=words)
    began, ended = values[0][0], values[-1][0]
    highest = max(value for _, value in values)
    top = max(highest, 1.0)
    wide, high = PLOT_WIDTH / (ended - began or 1.0), (PLOT_HEIGHT - 4) / top
    points = " ".join(
        f"{(at - began) * wide:.1f},{PLOT_HEIGHT - 2 - value * high:.1f}" for at, value in values
    )
    return Plot(name, values[-1][1], highest, points, ended - began, words)


# --- the page ---

# Of each space, since its slow members are nobody else's business.
_samples: WeakKeyDictionary[SpaceServer, Samples] = WeakKeyDictionary()


async def show_health(context: PageContext) -> Response:
    """The page."""
    runtime, host = context.state.runtime, context.space_server
    totals, drops = _read_counters(runtime)
    queued = ((each.participant, queued_bytes(each)) for each in host.delivery.members)
    slow = sorted((pair for pair in queued if pair[1]), key=lambda pair: -pair[1])
    journal_bytes = host.journal.size()
    samples = _samples.setdefault(host, Samples())
    if samples.is_due(at := anyio.current_time()):
        numbers = {
            "accepted": runtime.counters.accepted,
            "delivered": runtime.counters.delivered,
            "refused": sum(runtime.counters.refused.values()),
            "waiting": runtime.backlogs.bytes,
            "slow": len(slow),
        }
        if journal_bytes is not None:
            numbers["journal"] = journal_bytes
        samples.note(at, numbers, {each.key: each.times for each in drops})
    plots = [
        samples.growth("Envelopes accepted a second", "accepted"),
        samples.growth("Frames delivered a second", "delivered"),
        samples.growth("Envelopes refused a second", "refused"),
        samples.level("Bytes that wait for slow readers", "waiting", size),
        samples.level("Slow members", "slow"),
    ]
    if journal_bytes is not None:
        plots.append(samples.level("Size of the journal", "journal", size))
    return context.page(
        "health.html",
        gauges=_gauges(context.state, host, journal_bytes),
        plots=plots,
        width=PLOT_WIDTH,
        height=PLOT_HEIGHT,
        totals=totals,
        drops=[
            (
                each,
                samples.growth(f"{each.key}, a second", each.key)
                if samples.has(each.key)
                else None,
            )
            for each in drops
        ],
        slow=slow,
        journal={
            "floor": host.journal.floor(host.name),
            "latest": host.fanout.delivered,
            "bytes": journal_bytes,
            "behind": max(0, host.journal.latest(host.name) - host.fanout.delivered),
        },
    )


def queued_bytes(member: object) -> int:
    """Bytes that wait for a member; one without a connection has no queue."""
    return int(getattr(member, "queued_bytes", 0))


def _gauges(site: ConsoleState, host: SpaceServer, journal_bytes: int | None) -> list[Gauge]:
    runtime, limits = site.runtime, site.runtime.limits
    proposals = Counter(each.envelope.sender for each in host.owner.in_flight if each.is_proposal)
    gauges = [
        Gauge("Members", "in this space", len(host.delivery.members), limits.max_members),
        Gauge("Connections", "of the gateway", runtime.open_connections, limits.max_connections),
        Gauge("Observers", "in this space", host.delivery.observers, limits.max_observers),
        Gauge(
            "Open proposals",
            "of the participant in this space that has the most",
            max(proposals.values(), default=0),
            limits.max_open_proposals,
        ),
        Gauge("Browsers", "that are signed in", len(site.sessions), MAX_SESSIONS),
        Gauge("People", "at work in browsers now", len(site.presences), MAX_PRESENCES),
        Gauge(
            "Bytes that wait",
            "for slow readers of this gateway",
            runtime.backlogs.bytes,
            limits.max_gateway_queued_bytes,
            is_bytes=True,
        ),
    ]
    max_bytes = host.journal.max_bytes
    if journal_bytes is not None and max_bytes is not None:
        about = "of all spaces; beyond its limit it forgets the oldest"
        gauges.append(Gauge("Journal", about, journal_bytes, max_bytes, is_bytes=True))
    return gauges


def _read_counters(runtime: GatewayRuntime) -> tuple[list[tuple[str, int]], list[DropCount]]:
    """The counters of a gateway in words, and what it refused and dropped, by reason."""
    counters, totals, drops = runtime.counters, list[tuple[str, int]](), list[DropCount]()
    for each in fields(counters):
        value: object = getattr(counters, each.name)
        what = each.name.replace("_", " ")
        if isinstance(value, Counter):
            reasons = sorted(cast("Counter[object]", value).items(), key=str)
            drops += [DropCount(what, str(reason), count) for reason, count in reasons]
        elif isinstance(value, int):
            totals.append((what, value))
            if value and each.name in DROPPED:
                drops.append(DropCount(what, DROPPED[each.name], value))
    return totals, drops
