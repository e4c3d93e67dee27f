"""Figures of a program, shown as medians of several rounds, with their spread."""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

ROUNDS = 5


class Figure(NamedTuple):
    """One thing measured.

    `goal` is an upper bound unless `at_least`; without a goal it is there to compare with.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    at_least: bool = False


Measure = Callable[[float], Iterator[Figure]]
"""One round of a program. Its argument scales what is repeated: 1 is a full round."""


class Program(NamedTuple):
    """A program of this folder: what it measures, and its round."""

    name: str
    title: str
    measure: Measure


class Summary(NamedTuple):
    """A figure over all rounds."""

    figure: Figure
    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def met(self) -> bool:
        goal = self.figure.goal
        if goal is None:
            return True
        return self.median >= goal if self.figure.at_least else self.median <= goal


def summaries(rounds: Iterable[Iterable[Figure]]) -> list[Summary]:
    """The figures of all rounds, gathered by name in the order of the first round."""
    gathered: dict[str, list[Figure]] = {}
    for figures in rounds:
        for figure in figures:
            gathered.setdefault(figure.name, []).append(figure)
    return [
        Summary(found[-1], tuple(figure.value for figure in found)) for found in gathered.values()
    ]


def number(value: float) -> str:
    """A number with three digits that mean something."""
    for limit, decimals in ((10, 2), (100, 1)):
        if abs(value) < limit:
            return f"{value:.{decimals}f}"
    return f"{value:,.0f}"


def with_unit(value: str, unit: str) -> str:
    return value + unit if unit.startswith("×") else f"{value} {unit}".rstrip()


def cells(summary: Summary) -> tuple[str, str, str, str]:
    """Its name, its goal, its median, and the spread of its rounds."""
    figure, values = summary.figure, summary.values
    goal = ""
    if figure.goal is not None:
        bound = "≥" if figure.at_least else "≤"
        goal = f"{bound} {with_unit(f'{figure.goal:g}', figure.unit)}"
    measured = with_unit(number(summary.median), figure.unit)
    if not summary.met:
        measured += " (missed)"
    spread = f"{number(min(values))} to {number(max(values))}" if len(values) > 1 else ""
    return figure.name, goal, measured, spread


def table(rows: Sequence[tuple[str, ...]], *, markdown: bool) -> Iterator[str]:
    """Lines of a table; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for index, row in enumerate(rows):
        padded = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield f"| {' | '.join(padded)} |" if markdown else "   ".join(padded).rstrip()
        if index == 0 and markdown:
            yield "|" + "|".join("---" for _ in row) + "|"


def report(program: Program, found: Sequence[Summary], *, markdown: bool) -> Iterator[str]:
    """The title and the table of one program."""
    yield f"## {program.title}" if markdown else program.title
    yield ""
    head = ("what", "goal", "median", "lowest to highest")
    yield from table([head, *map(cells, found)], markdown=markdown)
    yield ""


def say(text: str) -> None:
    """Progress, on standard error: the tables are on standard output."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def rounds(program: Program, count: int, scale: float) -> Iterator[list[Figure]]:
    """Measure so many rounds, telling where it is."""
    for done in range(count):
        say(f"{program.name}: round {done + 1} of {count}")
        yield list(program.measure(scale))


def main(programs: Sequence[Program], arguments: Sequence[str]) -> None:
    """Run programs and print their tables."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measure. " + " ".join(f"{each.name}: {each.title}." for each in programs),
    )
    names = [program.name for program in programs]
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(names)}")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--scale", type=float, default=1.0, help="of each round's repetitions")
    parser.add_argument("--markdown", action="store_true", help="tables for docs/benchmarks.md")
    chosen = parser.parse_args(arguments)
    unknown = set(chosen.names) - set(names)
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    for program in programs:
        if not chosen.names or program.name in chosen.names:
            found = summaries(rounds(program, chosen.rounds, chosen.scale))
            for line in report(program, found, markdown=chosen.markdown):
                sys.stdout.write(line + "\n")
            sys.stdout.flush()
