"""Calls, timed one by one and many at once."""

import math
import statistics
from collections.abc import Awaitable, Callable, Sequence
from time import perf_counter, process_time
from typing import NamedTuple

import anyio

WARM_UP = 20
"""Calls before the first that counts."""


class Calls(NamedTuple):
    """Numbers of calls: one after the other, and with `in_flight` under way."""

    alone: int
    together: int
    in_flight: int


class Times(NamedTuple):
    """Seconds of calls made alone (median, 99th of 100), and calls in a second of the others."""

    median: float
    p99: float
    rate: float


async def measured(call: Callable[[], Awaitable[None]], wanted: Calls) -> Times:
    """Make the calls."""
    for _ in range(WARM_UP):
        await call()
    took: list[float] = []
    for _ in range(wanted.alone):
        begun = perf_counter()
        await call()
        took.append(perf_counter() - begun)

    async def some() -> None:
        for _ in range(max(1, wanted.together // wanted.in_flight)):
            await call()

    begun = perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(wanted.in_flight):
            tasks.start_soon(some)
    elapsed = perf_counter() - begun
    made = max(1, wanted.together // wanted.in_flight) * wanted.in_flight
    return Times(statistics.median(took), percentile(took, 0.99), made / elapsed)


def microseconds(run: Callable[[], object], times: int) -> float:
    """CPU time of one run, after a first one that does not count."""
    run()
    begun = process_time()
    for _ in range(times):
        run()
    return (process_time() - begun) / times * 1e6


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of the values does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
