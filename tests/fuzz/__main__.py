"""Fuzzes the targets, two at a time, and keeps what is found among the cases.

    python -m tests.fuzz [TARGET …] [--seconds N]

Exits with 1 if anything was found, and says how to see it again.
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.fuzz.targets import CASES, MAX_BYTES, NAMES, cases, target

ROOT = Path(__file__).parents[2]

PARALLEL = min(2, os.cpu_count() or 1)

INPUT_SECONDS = 20
"""For one input, after which it counts as one that hangs."""

MEMORY_MB = 1_024

GRACE = 600.0
"""Seconds after its time for a fuzzer to begin and to end: some of CPU, beside what else runs."""

LAST_LINES = 40
"""Of a fuzzer that found something: the exception, and the input."""


class Outcome(NamedTuple):
    """The result of one target."""

    name: str
    runs: int
    reached: int | None
    failure: str

    def __str__(self) -> str:
        reached = "" if self.reached is None else f", {self.reached:,} branches reached"
        verdict = "FOUND SOMETHING" if self.failure else "nothing found"
        return f"{self.name:<11}{self.runs:>11,} inputs{reached}: {verdict}"


def command(name: str, seconds: int, corpus: Path, guided: bool) -> list[str]:
    """A process that fuzzes a target."""
    artifacts = CASES / name
    if not guided:
        return [sys.executable, "-m", "tests.fuzz.unguided", name, str(seconds), str(artifacts)]
    for number, seed in enumerate([*target(name).SEEDS, *(p.read_bytes() for p in cases(name))]):
        (corpus / f"seed-{number}").write_bytes(seed)
    options = {
        "max_total_time": seconds,
        "max_len": MAX_BYTES,
        "timeout": INPUT_SECONDS,
        "rss_limit_mb": MEMORY_MB,
        "artifact_prefix": f"{artifacts}/",
        "print_final_stats": 1,
    }
    given = [f"-{option}={value}" for option, value in options.items()]
    return [sys.executable, "-m", "tests.fuzz.guided", name, *given, str(corpus)]


def fuzz(name: str, seconds: int, guided: bool) -> Outcome:
    """Fuzz one target for some seconds."""
    before = set(cases(name))
    (CASES / name).mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"meup-fuzz-{name}-") as corpus:
        done = subprocess.run(
            command(name, seconds, Path(corpus), guided),
            cwd=ROOT,
            text=True,
            encoding="utf-8",
            errors="backslashreplace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds + GRACE,
            check=False,
        )
    found = [path.relative_to(ROOT) for path in cases(name) if path not in before]
    runs = re.search(r"number_of_executed_units: *(\d+)", done.stdout)
    reached = re.findall(r"cov: (\d+)", done.stdout)
    failure = ""
    if done.returncode or found:
        last = "\n".join(done.stdout.splitlines()[-LAST_LINES:])
        kept = f"kept as {', '.join(map(str, found))}: pytest tests/fuzz shows it again"
        failure = f"{last}\n{kept if found else f'ended with {done.returncode}'}"
    return Outcome(
        name, int(runs[1]) if runs else 0, int(reached[-1]) if reached else None, failure
    )


def main(names: list[str], seconds: int) -> int:
    """Fuzz the targets in so many seconds in all; the exit code."""
    guided = find_spec("atheris") is not None
    if not guided:
        sys.stdout.write(
            "atheris is not here, so inputs are made by chance and not by what they reach; where it"
            " has a build, pip install 'meup-agent[fuzz]'\n"
        )
    each = max(seconds * PARALLEL // max(len(names), PARALLEL), 1)
    sys.stdout.write(f"fuzzing {', '.join(names)}: {each} s each, {PARALLEL} at a time\n")
    sys.stdout.flush()
    failed = False
    with ThreadPoolExecutor(PARALLEL) as threads:
        for outcome in threads.map(lambda name: fuzz(name, each, guided), names):
            sys.stdout.write(f"{outcome}\n{outcome.failure}")
            sys.stdout.flush()
            failed = failed or bool(outcome.failure)
    return int(failed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--seconds", type=int, default=600, help="in all (default: 600)")
    given = parser.parse_args()
    unknown = set(given.targets) - set(NAMES)
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(NAMES)}")
    sys.exit(main(given.targets or list(NAMES), given.seconds))
