"""The suite itself: a program for node, which is a wheel of PyPI."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import yaml

from tests import npm

HERE = Path(__file__).parent

INSTALLED = Path(sys.prefix) / "conformance"
"""The folder into which npm puts it: beside what pip installs, so that both go away together."""

PACKAGE = INSTALLED / "node_modules" / "@modelcontextprotocol" / "conformance"

SCENARIO_SECONDS = 60
"""For one scenario, after which it counts as failed."""

PASSES = frozenset({"SUCCESS", "SKIPPED", "INFO"})

FURTHER = (
    "server-session-lifecycle",
    "http-header-validation",
    "http-custom-header-server-validation",
)
"""Scenarios that no revision requires, since they are newer or the suite's own server fails."""

_RESULT = re.compile(r"(server-)?(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")


class Check(NamedTuple):
    """The result of one check of a scenario."""

    scenario: str
    id: str
    status: str
    message: str

    @property
    def passes(self) -> bool:
        return self.status in PASSES


def install() -> None:
    """Install exactly what package-lock.json names."""
    npm.install(HERE, INSTALLED)


def required(revision: str) -> list[str]:
    """The scenarios of servers that a revision requires."""
    listed = yaml.safe_load((PACKAGE / "requirements" / f"{revision}.yaml").read_text())
    scenarios: list[str] = listed["server"]
    return scenarios


def sign_in_scenarios() -> list[str]:
    """The scenarios of clients that sign in, which 2026-07-28 requires."""
    listed = yaml.safe_load((PACKAGE / "requirements" / "2026-07-28.yaml").read_text())
    return [name for name in listed["client"] if name.startswith("auth/")]


def tasks_scenarios() -> list[str]:
    """The scenarios of the tasks extension."""
    listed = yaml.safe_load((PACKAGE / "requirements" / "2026-07-28.yaml").read_text())
    names = [each["scenario"] for each in listed["not_scored"]]
    return [name for name in names if name.startswith("tasks-")]


async def run_client(results: Path, scenario: str) -> None:
    """Run a scenario of a client, which is the bridge."""
    program = shlex.join([sys.executable, "-m", "tests.conformance_mcp.client"])
    command = [
        *(npm.NODE, str(PACKAGE / "dist" / "index.js"), "client", "--command", program),
        *("--scenario", scenario, "--spec-version", "2026-07-28"),
        *("--output-dir", str(results), "--timeout", str(SCENARIO_SECONDS * 1000)),
    ]
    await anyio.run_process(command, env=npm.environment(), check=False)


async def run(url: str, results: Path, *options: str) -> None:
    """Run scenarios against a server, which fills a folder for :func:`read_results`."""
    command = [
        *(npm.NODE, str(PACKAGE / "dist" / "index.js"), "server"),
        *("--url", url, "--output-dir", str(results), "--timeout", str(SCENARIO_SECONDS * 1000)),
        *options,
    ]
    # Its exit code is not asked for: it counts no warnings, and what is only reported.
    await anyio.run_process(command, env=npm.environment(), check=False)


def read_results(results: Path, scenarios: list[str]) -> list[Check]:
    """The checks of some scenarios; one that did not run, or checked nothing, is a failed one."""
    found: dict[str, list[Check]] = {name: [] for name in scenarios}
    for path in results.glob("**/checks.json"):
        match = _RESULT.fullmatch(str(path.parent.relative_to(results)))
        if match is not None and match["scenario"] in found:
            name = match["scenario"]
            checks: list[dict[str, Any]] = json.loads(path.read_text())
            found[name] += [
                Check(name, each["id"], each["status"], each.get("errorMessage") or "")
                for each in checks
            ]
    missing = [Check(name, "-", "MISSING", "it did not run") for name in found if not found[name]]
    return [check for checks in found.values() for check in checks] + missing


if __name__ == "__main__":
    install()
