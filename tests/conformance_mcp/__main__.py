"""Runs the suite; see the package."""

import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from time import perf_counter
from typing import IO

import anyio
from anyio.streams.text import TextReceiveStream

from meup_agent.gateway import Gateway
from tests.conformance_mcp import suite
from tests.conformance_mcp.participant import agent
from tests.patience import PATIENCE

EXPECTED = {
    "2025-11-25": 30,
    "2026-07-28": 37,
    "tasks": 10,
    "further": 3,
    "schemas": 1,
    "sign-in": 25,
}
"""Scenarios of each set: another number means that something was left out."""

REVISIONS = ("2025-11-25", "2026-07-28")

PARALLEL = 3
"""Scenarios at once that are started one by one: most of their time they wait for a job to end."""

SUITE_SECONDS = 480

MAX_LOG_BYTES = 20_000
"""Of what the servers log, shown if a check fails."""

EVERY = [{"kind": "*"}]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@asynccontextmanager
async def served(log: IO[bytes], *arguments: str, **environment: str) -> AsyncGenerator[str]:
    """``meup mcp --http`` in a process of its own; its address."""
    program = [sys.executable, "-m", "meup_agent.cli", "mcp"]
    # The suite's client has no token.
    command = [*program, "--http", "127.0.0.1:0", "--anonymous", *arguments]
    async with await anyio.open_process(
        command, stderr=log, env={**os.environ, **environment}
    ) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(PATIENCE):
                line = await TextReceiveStream(process.stdout).receive()
            yield line.split()[-1]
        finally:
            process.terminate()


async def run_sets(only: list[str], log: IO[bytes]) -> list[suite.Check]:
    """Run the sets of scenarios, or some scenarios only; what came of each check."""
    checks: list[suite.Check] = []

    async def run_set(name: str, scenarios: list[str], url: str) -> None:
        if name in EXPECTED and not only and len(scenarios) != EXPECTED[name]:
            text = f"{len(scenarios)} scenarios, not {EXPECTED[name]}"
            checks.append(suite.Check(name, "-", "MISSING", text))
        began = perf_counter()
        with TemporaryDirectory(prefix="meup-conformance-") as folder:
            results = Path(folder)
            if name not in REVISIONS or only:
                version = ("--spec-version", name) if name in REVISIONS else ()
                limiter = anyio.CapacityLimiter(PARALLEL)
                async with anyio.create_task_group() as group:
                    for scenario in scenarios:
                        group.start_soon(run_one, limiter, url, results, scenario, *version)
            else:
                await suite.run(url, results, "--requirements", name)
            found = suite.read_results(results, scenarios)
        checks.extend(found)
        passed = {each.scenario for each in found} - {
            each.scenario for each in found if not each.passes
        }
        seconds = perf_counter() - began
        say(f"{name}: {len(passed)} of {len(scenarios)} scenarios pass ({seconds:.0f} s)")

    async def run_one(
        limiter: anyio.CapacityLimiter, url: str, results: Path, scenario: str, *options: str
    ) -> None:
        async with limiter:
            if url:
                await suite.run(url, results, "--scenario", scenario, *options)
            else:
                await suite.run_client(results, scenario)

    def chosen(scenarios: list[str]) -> list[str]:
        return [each for each in scenarios if each in only] if only else scenarios

    async with (
        Gateway(participants={"test": EVERY, "client": EVERY}) as gateway,
        agent.join(gateway.url, space="demo", token=gateway.token("test")),
        served(
            log, MEUP_URL=gateway.url, MEUP_SPACE="demo", MEUP_TOKEN=gateway.token("client")
        ) as space_url,
        served(log, "tests.conformance_mcp.tasks_agent:agent") as tasks_url,
        anyio.create_task_group() as group,
    ):
        for revision in REVISIONS:
            group.start_soon(run_set, revision, chosen(suite.required(revision)), space_url)
        group.start_soon(run_set, "tasks", chosen(suite.tasks_scenarios()), tasks_url)
        group.start_soon(run_set, "further", chosen([*suite.FURTHER]), space_url)
        # Of these the suite is the server, and the bridge its client.
        group.start_soon(run_set, "sign-in", chosen(suite.sign_in_scenarios()), "")
        group.start_soon(run_set, "schemas", chosen(["json-schema-2020-12"]), tasks_url)
    return checks


async def main(only: list[str]) -> int:
    """Run it all; the exit code."""
    with TemporaryFile() as log:
        with anyio.fail_after(SUITE_SECONDS):
            checks = await run_sets(only, log)
        failed = [each for each in checks if not each.passes]
        if failed:
            log.seek(0)
            say(log.read()[-MAX_LOG_BYTES:].decode(errors="replace"))
    for check in failed:
        say(f"{check.status}: {check.scenario}: {check.id}: {check.message}")
    say(f"{len(checks) - len(failed)} of {len(checks)} checks pass")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(anyio.run(main, sys.argv[1:]))
