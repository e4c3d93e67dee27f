"""Chaos for as long as wanted, and its page: ``python -m tests.cluster --seconds 600 --write``."""

import argparse
import logging
import math
import os
import secrets
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import median

import anyio

from meup_agent.cli.cluster.checker import Stall
from tests.cluster import standby
from tests.cluster.chaos import FAULTS, Report, run
from tests.programs import ROOT

PAGE = ROOT / "docs" / "explanation" / "chaos.md"
PLOT = ROOT / "docs" / "img" / "stalls.svg"

WIDTH, LEFT, ROW, HEAD = 800, 290, 24, 34

TICKS = (0.1, 0.3, 1, 3, 10, 30)


def by_cause(stalls: Sequence[Stall]) -> list[tuple[str, list[float]]]:
    """The pauses of each cause, in the order of the causes."""
    order = [fault.cause for fault in FAULTS]
    ordered = sorted(stalls, key=lambda each: order.index(each.cause))
    return [
        (cause, sorted(each.pause for each in group))
        for cause, group in groupby(ordered, key=lambda each: each.cause)
    ]


def plot(stalls: Sequence[Stall]) -> str:
    """A dot for each stall, by cause, as SVG; the seconds grow by their logarithm."""
    rows = by_cause(stalls)
    height = HEAD + ROW * len(rows) + 8
    low, high = math.log(0.05), math.log(60)

    def x(seconds: float) -> float:
        at = (math.log(min(max(seconds, 0.05), 60)) - low) / (high - low)
        return LEFT + at * (WIDTH - LEFT - 20)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img"'
        ' aria-labelledby="stalls-title" font-family="sans-serif" font-size="13" fill="#808080">',
        '<title id="stalls-title">How long nothing was accepted, by what was done</title>',
    ]
    for tick in TICKS:
        lines += [
            f'<line x1="{x(tick):.0f}" x2="{x(tick):.0f}" y1="{HEAD - 8}" y2="{height - 4}"'
            ' stroke="#808080" stroke-opacity="0.35"/>',
            f'<text x="{x(tick):.0f}" y="{HEAD - 16}" text-anchor="middle">{tick:g} s</text>',
        ]
    for row, (cause, pauses) in enumerate(rows):
        y = HEAD + ROW * row + ROW // 2
        lines.append(f'<text x="{LEFT - 12}" y="{y + 4}" text-anchor="end">{cause}</text>')
        lines += [
            f'<circle cx="{x(pause):.1f}" cy="{y}" r="4.5" fill="#3f51b5" fill-opacity="0.65"/>'
            for pause in pauses
        ]
    return "\n".join([*lines, "</svg>", ""])


MISTAKES = {
    "lost": "accepted, and not in the stream, or not read by an agent that was in the space",
    "twice": "twice in the stream, or read twice by one agent",
    "out of order": "not in the order in which it was said",
    "fulfilled twice": "a proposal with two fulfillments",
    "refused and accepted": "refused to its sender, and in the stream",
    "read, not in the stream": "read by an agent, and something else or nothing in the stream",
    "by a former owner": "written by a gateway after another one had taken over",
    "carried out twice": "a call that ran twice",
    "calls without an end": "the proposer still waits",
    "ended by itself": "a program that ended without having been killed or stopped",
}

TEXT = """# What kills and cuts do to a cluster

Three servers of NATS, three gateways and eight agents run on one machine. The agents talk, propose
calls, approve them and carry them out, in one space. One gateway is the [owner of the
space](../how-to/keep-the-journal-on-nats.md#run-several-gateways), and the others stand by. One
thing after the other fails, chosen at random: a program is killed (`kill -9`), paused (`SIGSTOP`)
or stopped in order, the link between two programs is cut or silent, or the disk of a NATS server
is full. After some seconds the failure is over. At the end, what each agent said and read is
compared with the stream on NATS.

The last run, {day}: {times} failures in {minutes:.0f} minutes (seed {seed}), on {cores} cores that
other programs used as well: {load:.1f} at a time ran or waited for one (the load average of its
last five minutes), which makes each stall longer. Of {said:,} chats that were said, {accepted:,}
were accepted. The stream has {entries:,} entries, written by {owners} owners in turn.

| mistake | what it is | found |
|---|---|--:|
{wrong}

This is how long nothing was accepted after each failure. What was said in that time was accepted
afterwards.

--8<-- "docs/img/stalls.svg"

| failure | times | median | longest |
|---|--:|--:|--:|
{rows}

When the server that leads a stream fails, NATS takes some seconds to elect another. The gateway
that takes over has followed the stream, so it need not read it first. A pause is a short stall if
the program wakes before another one has taken its place. `make soak` makes this page; `make
cluster` runs half a minute of it.
"""


def page(report: Report) -> str:
    """The page about a run."""
    found = report.result
    mistakes = {**found.mistakes, "ended by itself": report.ended}
    return TEXT.format(
        day=f"{datetime.now(UTC):%Y-%m-%d}",
        times=len(report.stalls),
        minutes=report.seconds / 60,
        seed=report.seed,
        cores=os.cpu_count(),
        load=os.getloadavg()[1],
        said=found.said,
        accepted=found.accepted,
        entries=found.entries,
        owners=report.owners,
        wrong="\n".join(
            f"| {name} | {MISTAKES[name]} | {len(each)} |" for name, each in mistakes.items()
        ),
        rows="\n".join(
            f"| {cause} | {len(pauses)} | {median(pauses):.2f} s | {pauses[-1]:.2f} s |"
            for cause, pauses in by_cause(report.stalls)
        ),
    )


def main() -> int:
    """Run, and tell; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="how long; 600")
    parser.add_argument("--longest", type=float, default=20.0, help="the longest pause; 20")
    parser.add_argument("--seed", type=int, help="of a run that is to be made again")
    parser.add_argument(
        "--journal", choices=["nats", "postgres"], default="nats", help="where it is kept; nats"
    )
    parser.add_argument("--write", action="store_true", help="write the page, and its plot")
    asked = parser.parse_args()
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    sys.stdout.write(f"seed {seed}\n")
    logging.getLogger("meup_agent").addHandler(logging.NullHandler())

    async def play() -> Report:
        with tempfile.TemporaryDirectory(
            prefix="meup-chaos-", ignore_cleanup_errors=True
        ) as folder:
            more = {"longest": asked.longest, "tell": True}
            if asked.journal == "postgres":
                more |= {"joined": standby.joined, "faults": standby.FAULTS}
            return await run(Path(folder), seed, asked.seconds, **more)

    report = anyio.run(play)
    for name, wrong in {**report.result.mistakes, "ended": report.ended}.items():
        sys.stdout.write(f"{name}: {len(wrong)}\n")
        sys.stdout.writelines(f"    {each}\n" for each in wrong[:10])
    if asked.write:
        PAGE.write_text(page(report), encoding="utf-8")
        PLOT.write_text(plot(report.stalls), encoding="utf-8")
    return 0 if report.is_right else 1


if __name__ == "__main__":
    raise SystemExit(main())
