"""Health and metrics, for what watches over a gateway. No label names a participant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import partial
from typing import Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from meup_agent.gateway.admission import UNAVAILABLE
from meup_agent.gateway.edge.http.context import Json, Problem, await_callback
from meup_agent.gateway.runtime import GatewayRuntime
from meup_agent.protocol.space.server import SpaceServer

PREFIX: Final = "meup_"

_ABOUT: Final = {
    "frames_in": ("messages_received", "Messages that members sent."),
    "accepted": ("envelopes_accepted", "Envelopes of members that were accepted."),
    "delivered": ("frames_delivered", "Frames handed to members, the gateway's own included."),
    "dropped": ("envelopes_dropped", "Envelopes of kinds that no participant reads."),
    "repeated": ("envelopes_repeated", "Envelopes that had been accepted before."),
    "slowed": ("participants_slowed", "Times that a participant said more than is read at once."),
    "too_slow": ("queues_dropped", "Queues of readers that were too slow, by the limit's name."),
    "streams_refused": ("streams_refused", "Event streams beyond those a participant may have."),
    "stream_frames": ("stream_frames_accepted", "Frames of streams that were accepted."),
    "stream_frames_delivered": ("stream_frames_delivered", "Frames of streams handed to readers."),
    "stream_frames_lost": (
        "stream_frames_lost",
        "Frames of streams that slow readers lost.",
    ),
    "not_expressible": ("envelopes_not_expressible", "Envelopes that a dialect has no words for."),
    "joined": ("connections_joined", "Connections that joined a space."),
    "taken_over": ("connections_taken_over", "Connections that a newer one replaced."),
    "observed": ("connections_observed", "Connections that began to look on."),
    "left": ("participants_left", "Participants that left a space."),
    "refused": ("envelopes_refused", "Envelopes that were refused, by the error's code."),
    "closed": ("connections_closed", "Members that the gateway closed, by close code."),
    "not_admitted": ("connections_not_admitted", "Callers that did not get in, by status."),
}
"""The metric for each counter, and what it says; a further counter is shown under its own name."""


_OF_A_SPACE: Final[dict[str, tuple[str, Callable[[GatewayRuntime, SpaceServer], int]]]] = {
    "members": ("Members of a space.", lambda _, host: len(host.delivery.members)),
    "observers": (
        "Connections that look on a space, and are no members of it.",
        lambda _, host: host.delivery.observers,
    ),
    "streams": ("Open streams of a space.", lambda _, host: len(host.owner.streams)),
    "queued_bytes": (
        "Bytes that wait for slow readers of a space, observers included.",
        lambda runtime, host: runtime.backlogs.waiting_in(host.name),
    ),
    "journal_behind": (
        "Envelopes of a space that are on their way into the journal.",
        lambda _, host: max(0, host.journal.latest(host.name) - host.fanout.delivered),
    ),
}
"""The gauges of each space."""


class RuntimeCollector(Collector):
    """Reads the gateway's numbers when they are asked for."""

    def __init__(self, runtime: GatewayRuntime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Every number at this moment."""
        runtime = self._runtime
        counters = runtime.counters
        for field in fields(counters):
            value: object = getattr(counters, field.name)
            name, about = _ABOUT.get(field.name, (field.name, field.name.replace("_", " ")))
            if isinstance(value, Counter):
                family = CounterMetricFamily(PREFIX + name, about, labels=["code"])
                for code, count in sorted(cast("Counter[object]", value).items(), key=str):
                    family.add_metric([str(code)], count)
                yield family
            elif isinstance(value, int):
                yield CounterMetricFamily(PREFIX + name, about, value=value)
        yield GaugeMetricFamily(
            PREFIX + "connections",
            "Connections of members, those that have not joined yet included.",
            value=runtime.open_connections,
        )
        for name, (about, measure) in _OF_A_SPACE.items():
            gauge = GaugeMetricFamily(PREFIX + name, about, labels=["space"])
            for space, host in runtime.spaces.items():
                gauge.add_metric([space], measure(runtime, host))
            yield gauge
        yield GaugeMetricFamily(
            PREFIX + "backlog_bytes",
            "Bytes that wait for slow readers; what waits for several counts once.",
            value=runtime.backlogs.bytes,
        )


async def get_alive(runtime: GatewayRuntime, request: Request) -> Response:
    """The process answers."""
    return Json({"status": "ok"})


async def get_ready(runtime: GatewayRuntime, request: Request) -> Response:
    """Members can join, and the journal keeps what they say."""
    if not runtime.accepting:
        raise Problem(UNAVAILABLE, "unavailable", "the gateway does not listen")

    def ask(tell: Callable[[None], None]) -> None:
        runtime.journal.call_when_kept(partial(tell, None))

    await await_callback(ask)
    return Json({"status": "ok"})


async def get_metrics(runtime: GatewayRuntime, request: Request) -> Response:
    """Everything that is counted, in Prometheus' form."""
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(RuntimeCollector(runtime)), media_type=media_type)
