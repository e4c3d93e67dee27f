"""Small plots of numbers over the last minutes, and the samples that they are drawn from."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from meup_agent.wording import duration

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

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
        """Its latest value, in words."""
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
