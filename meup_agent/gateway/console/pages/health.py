"""The health of the gateway and of the participant's space: counters, and limits near their end."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields
from typing import Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import anyio
from starlette.responses import Response

from meup_agent.gateway.console.context import ConsoleState, PageContext
from meup_agent.gateway.console.presence import MAX_PRESENCES
from meup_agent.gateway.console.sign_in import MAX_SESSIONS
from meup_agent.gateway.console.templating import PLOT_HEIGHT, PLOT_WIDTH, Samples, size
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.owner import SpaceServer

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


# Of each space, since its slow members are nobody else's business.
_samples: WeakKeyDictionary[SpaceServer, Samples] = WeakKeyDictionary()


async def show_health(context: PageContext) -> Response:
    """The page."""
    runtime, host = context.state.runtime, context.space_server
    totals, drops = _read_counters(runtime)
    slow = sorted(
        ((each.participant, _queued(each)) for each in host.delivery.members if _queued(each)),
        key=lambda pair: -pair[1],
    )
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


def _queued(member: object) -> int:
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
