"""Fuzzes one target by chance, where atheris has no build: it finds less, but something.

python -m tests.fuzz.unguided TARGET SECONDS ARTIFACTS
"""

import secrets
import sys
import time
from pathlib import Path
from random import Random

from tests.fuzz.mutator import Mutator
from tests.fuzz.targets import MAX_BYTES, cases, target

KEPT = 0.02
"""Share of the inputs that are changed further."""


def main(name: str, seconds: float, artifacts: Path) -> int:
    """Try inputs until the time is over or one fails, which is kept; the exit code."""
    found = target(name)
    pool = [*found.SEEDS, *(path.read_bytes() for path in cases(name))]
    mutate, random = Mutator(pool), Random(secrets.randbits(64))
    runs, ends = 0, time.monotonic() + seconds
    while time.monotonic() < ends:
        data = mutate(random.choice(pool), MAX_BYTES, random.getrandbits(32))
        runs += 1
        try:
            found.run(data)
        except BaseException:
            artifacts.mkdir(parents=True, exist_ok=True)
            (artifacts / f"crash-{secrets.token_hex(8)}").write_bytes(data)
            raise
        if random.random() < KEPT:
            pool.append(data)
    sys.stdout.write(f"stat::number_of_executed_units: {runs}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])))
