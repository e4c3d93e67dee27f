"""From a person's yes until the tool starts, with Claude Code as its maker ships it.

`python -m tests.bench.claude_click`, after `make .venv/doors.stamp`, which the other programs of
this folder do not need. Claude Code asks by its `http` hook; somebody who is in the space says yes
half a second after the call has come, and the command writes down when it begins.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import anyio

from meup_agent import Proposal
from meup_agent.doors.model_api import ModelApi
from tests.bench.figures import Figure, Program, main
from tests.bench.timing import percentile
from tests.doors.hooked import hooked
from tests.doors.hosts.cases import CASES
from tests.doors.hosts.check_doors import claude

TIMES = 20
THINKS_SECONDS = 0.5


async def click_to_start(folder: Path) -> tuple[float, float]:
    """Seconds from one yes to its permit, and to the start of the command."""
    mark, clicked, permitted = folder / "mark", 0, 0

    async def decide(proposal: Proposal) -> None:
        nonlocal clicked, permitted
        await anyio.sleep(THINKS_SECONDS)
        clicked = time.time_ns()
        await proposal.fulfill()
        permitted = time.time_ns()

    asked = {"command": f"date +%s%N > {mark}", "description": "note the time"}
    with ModelApi("Bash", asked) as api:
        async with hooked(decide) as at:
            command, env = claude(CASES[0], folder, at.url, api.url)
            env |= {"PATH": os.environ["PATH"], "HOME": str(folder)}
            env["MEUP_TOKEN"] = at.tokens["coder"]
            await anyio.run_process(command, env=env, cwd=folder)
    begun = int(mark.read_text(encoding="ascii"))
    return (permitted - clicked) / 1e9, (begun - clicked) / 1e9


def measure(scale: float = 1.0) -> Iterator[Figure]:
    ours: list[float] = []
    took: list[float] = []
    for _ in range(max(1, round(TIMES * scale))):
        with tempfile.TemporaryDirectory() as folder:
            permitted, begun = anyio.run(click_to_start, Path(folder))
            ours.append(permitted)
            took.append(begun)
    yield Figure("from the yes to the start of the command", percentile(took, 0.5) * 1e3, "ms")
    yield Figure("the same: p95", percentile(took, 0.95) * 1e3, "ms")
    yield Figure("of that, until it is permitted", percentile(ours, 0.5) * 1e3, "ms")


PROGRAM = Program("claude_click", "From a yes to the tool, with Claude Code", measure)

if __name__ == "__main__":
    main((PROGRAM,), sys.argv[1:])
