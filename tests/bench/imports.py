"""The time of an import, in fresh processes, beside the import of the libraries alone.

CPU time, from bytecode that is there: the first import after an installation compiles more.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator

from tests.bench.figures import Figure, Program
from tests.bench.processes import BYTECODE

TIMES = 5
"""Processes for each figure and round."""

LIBRARIES = (
    "import anyio, anyio.from_thread, anyio.to_thread, msgspec, re2, rfc8785, typing_extensions\n"
    "import websockets.exceptions, websockets.protocol\n"
    "from tenacity import AsyncRetrying\n"
    "from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model"
)
"""Libraries that an agent with a tool imports, as it does; one without needs less of pydantic."""

IMPORTS = {
    "the libraries": LIBRARIES,
    "`from meup_agent import Agent`": "from meup_agent import Agent",
    "`import meup_agent`": "import meup_agent",
    "`import meup_agent.gateway.server`": "import meup_agent.gateway.server",
}


def seconds(statement: str) -> float:
    """CPU seconds of an import in a fresh process."""
    code = f"from time import process_time as now\nbegun = now()\n{statement}\nprint(now() - begun)"
    command, env = [sys.executable, "-c", code], {**os.environ, **BYTECODE}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout)


def measure(scale: float = 1.0) -> Iterator[Figure]:
    times = round(TIMES * scale)
    found: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for turn in range(1 + times):
        for name, statement in IMPORTS.items():
            took = seconds(statement)
            if turn or not times:  # the first may compile
                found[name].append(took)
    medians = {name: statistics.median(took) for name, took in found.items()}
    for name, median in medians.items():
        yield Figure(name, median * 1e3, "ms")
    libraries, agent, *_ = medians.values()
    yield Figure("the agent's import: times its libraries'", agent / libraries, "×", 1.5)


PROGRAM = Program("imports", "Import time", measure)
