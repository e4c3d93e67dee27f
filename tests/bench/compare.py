"""Measure this tree and a commit by turns, and tell which figures are a step apart.

A machine is faster in one minute than in the next, so each round of this tree is compared with the
round of the commit beside it, and the median of these ratios counts. Each side measures itself,
with its own programs, in a process of its own.
"""

import argparse
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench.figures import number, say, table

ROOT: Final = Path(__file__).parent.parent.parent
BASELINE: Final = Path(__file__).with_name("baseline")
"""Names the commit that is compared with; after a step that is wanted, name a later one."""

QUICK: Final = ("request", "gateway_inbound", "gateway_fanout", "policy")
"""Programs that take a second each, and go by CPU time; most changes show in one of them."""

STEP: Final = 1.1
"""The ratio of a step that is told."""

SECONDS: Final = 36.0
MIN_PAIRS: Final = 3
SCALE: Final = 0.1


class Compared(NamedTuple):
    """A figure of both sides: the ratio of each pair of rounds, more than 1 where ours is worse."""

    name: str
    unit: str
    theirs: float
    ours: float
    ratios: Sequence[float]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_step(self) -> bool:
        """True if the median is a step away, and no pair says the opposite."""
        one_way = max(self.ratios) < 1 or min(self.ratios) > 1
        return one_way and not 1 / STEP < self.median < STEP


Measured = dict[str, tuple[float, str]]
"""The value and unit of each figure."""


def read_figures(lines: str) -> Measured:
    """The figures of the tables of a program; shares and ratios are left out."""
    found: Measured = {}
    for line in lines.splitlines():
        cells = [each.strip() for each in line.strip("| ").split(" | ")]
        if len(cells) < 3:
            continue
        value, _, unit = cells[2].removesuffix(" (missed)").partition(" ")
        try:
            measured = float(value.replace(",", ""))
        except ValueError:  # a table's head, or a ratio
            continue
        if measured > 0 and unit != "%":
            found[cells[0]] = (measured, unit)
    return found


def compare(pairs: Sequence[tuple[Measured, Measured]]) -> list[Compared]:
    """The figures that both sides have, in the order of the first round; theirs come first."""
    compared: list[Compared] = []
    for name, (_, unit) in pairs[0][1].items():
        both = [
            (theirs[name][0], ours[name][0])
            for theirs, ours in pairs
            if name in theirs and name in ours and theirs[name][1] == ours[name][1] == unit
        ]
        if both:
            more_is_better = unit.endswith("/s")
            ratios = [
                before / after if more_is_better else after / before for before, after in both
            ]
            theirs, ours = (statistics.median(each) for each in zip(*both, strict=True))
            compared.append(Compared(name, unit, theirs, ours, ratios))
    return compared


def report(revision: str, found: Sequence[Compared]) -> Iterator[str]:
    """The table, and behind it what is a step apart."""
    head = ("what", revision[:12], "now", "ratio", "lowest to highest", "")
    rows = [
        (
            each.name,
            f"{number(each.theirs)} {each.unit}",
            f"{number(each.ours)} {each.unit}",
            f"{each.median:.2f}",
            f"{min(each.ratios):.2f} to {max(each.ratios):.2f}",
            ("slower" if each.median > 1 else "faster") if each.is_step else "",
        )
        for each in found
    ]
    yield from table([head, *rows], markdown=False)
    yield ""
    steps = [f"{each.name} ×{each.median:.2f}" for each in found if each.is_step]
    told = "; ".join(steps) if steps else "none"
    yield f"steps of {STEP - 1:.0%} or more since {revision[:12]}: {told}"


def extract(revision: str, folder: Path) -> bool:
    """Put a commit's files into a folder; false where this clone does not have it."""
    done = subprocess.run(
        ["git", "archive", revision, "meup_agent", "tests"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        return False
    with tarfile.open(fileobj=BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    return True


def measure(folder: Path, name: str, scale: float) -> Measured:
    """One round of a program of the tree in a folder."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", name, "--rounds=1", f"--scale={scale}", "--markdown"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{name} failed in {folder}:\n{done.stderr}")
    return read_figures(done.stdout)


def measured_pairs(
    theirs: Path, names: Sequence[str], seconds: float, scale: float
) -> list[tuple[Measured, Measured]]:
    """Rounds of a tree and of this one, until the time is over."""
    pairs: list[tuple[Measured, Measured]] = []
    end = time.monotonic() + seconds
    while len(pairs) < MIN_PAIRS or time.monotonic() < end:
        say(f"pair {len(pairs) + 1}")
        before: Measured = {}
        after: Measured = {}
        for name in names:
            sides = [(theirs, before), (ROOT, after)]
            # By turns also within a pair: the second one may find a warmer machine.
            for folder, found in sides if len(pairs) % 2 == 0 else reversed(sides):
                found |= measure(folder, name, scale)
        pairs.append((before, after))
    return pairs


def main(arguments: Sequence[str]) -> None:
    """Compare, and print the table; a step is told, and is not a failure."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench compare", description=__doc__)
    parser.add_argument("revision", nargs="?", help="a commit; else the one that `baseline` names")
    parser.add_argument("names", nargs="*", help=f"programs; else {', '.join(QUICK)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"default: {SECONDS:g}")
    parser.add_argument("--scale", type=float, default=SCALE, help=f"default: {SCALE:g}")
    chosen = parser.parse_args(arguments)
    revision: str = chosen.revision or BASELINE.read_text(encoding="utf-8").strip()
    with tempfile.TemporaryDirectory(prefix="meup-bench-") as folder:
        theirs = Path(folder)
        if not extract(revision, theirs):
            say(f"nothing is compared: this clone has no commit {revision}; fetch it")
            return
        pairs = measured_pairs(theirs, chosen.names or QUICK, chosen.seconds, chosen.scale)
    for line in report(revision, compare(pairs)):
        sys.stdout.write(line + "\n")
