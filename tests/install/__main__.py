"""Tests the package as a user has it: built, installed, and with its source out of reach.

On the oldest Python with the oldest dependencies that the package says it works with, every test
runs, with one of its inputs, that a Python or a dependency can break. On the newest of both, with
which `make test` has run from the source, what stands between the package and the world runs again:
there, only that it was built and installed is new. Then the package is tried without its extras.

    python -m tests.install
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tests.install.pythons import OLDEST, Python, oldest_and_newest

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parent.parent.parent
STARTED = time.monotonic()

# Developers' settings and source folders are none of a user's; and without bytecode each of the
# hundreds of processes would compile again what it imports.
CLEAN = {
    name: value
    for name, value in os.environ.items()
    if name not in ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
    and not name.startswith("MEUP_")
}

WORKERS = 2 * (os.cpu_count() or 1)
"""Many tests wait for other processes, so two of them share a core well."""

THE_SAME_EVERYWHERE = (
    *("bench", "docs", "fuzz", "install", "properties"),
    *("test_layers.py", "test_names.py", "test_requirements.py"),
    *("bypass", "conformance", "faults"),
    *("mcp/bridge", "mcp/hostile", "mcp/revisions", "mcp/server"),
)
"""Tests that find the same whatever is installed, and take time: those that measure, that read
pages and sources, that look for mistakes of thought in the protocol's rules or play whole stories
by them; and MCP but for its chain, since the oldest SDK that works is the newest."""

AT_THE_EDGE = (
    *("cli/test_demo_command.py", "cli/test_program.py", "examples"),
    *("gateway/console", "test_exports.py", "transport"),
)
"""Tests that use the package through a process, a socket, its files or its public names."""

PLAIN = ("-p", "no:cacheprovider", "--hypothesis-profile=installed")
"""Options of pytest."""

WHERE = """
import sys, pathlib, meup_agent
found, prefix = (pathlib.Path(each).resolve() for each in (meup_agent.__file__, sys.prefix))
sys.exit(None if found.is_relative_to(prefix) else f"{found} is imported")
"""


JOIN_ON_TRIO = """
import trio
from meup_agent import Agent
trio.run(Agent("a").join("ws://localhost:9", space="demo", token="t").__aenter__)
"""


AGENTS_IN_MEMORY = """
import anyio
from meup_agent import Agent
from meup_agent.testing import MemorySpace

tools = Agent("tools")

@tools.tool
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    space = MemorySpace(participants={name: [{"kind": "mcp/*"}] for name in ("caller", "tools")})
    async with tools.join(space.connector("tools"), token=space.token("tools")):
        caller = Agent("caller").join(space.connector("caller"), token=space.token("caller"))
        async with caller as joined:
            assert [each["name"] for each in await joined.offers.tools("tools")] == ["add"]
            assert await joined.call("tools", "add", {"a": 1, "b": 2}) == 3

anyio.run(main)
"""

MAX_BARE_BYTES = 25_000_000
"""Of the package without extras, with everything that it brings."""

FLOORS = {
    "pydantic-ai": ("pydantic-ai-slim", (2, 68)),
    "openai-agents": ("openai-agents", (0, 24)),
    "langchain": ("langchain-core", (1, 7)),
    "ag-ui": ("ag-ui-protocol", (1, 0)),
}
"""Extra → its framework, and the oldest version with the interface that the adapter uses."""


class Failed(Exception):
    """A part that does not work, in a sentence."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment of its own for one way to install the package."""

    name: str
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def run(self, *arguments: str, cwd: Path) -> None:
        """Run a Python program, with its output on ours."""
        done = subprocess.run([self.python, *arguments], cwd=cwd, env=CLEAN, check=False)
        if done.returncode:
            raise Failed(f"{self.name}: {' '.join(arguments[:2])} ended with {done.returncode}")


def say(text: str) -> None:
    """A line of progress, with the seconds since the start."""
    sys.stdout.write(f"[{time.monotonic() - STARTED:4.0f} s] {text}\n")
    sys.stdout.flush()


def uv(*arguments: str | Path) -> str:
    """Run uv, for its output; what it says is shown only if it fails."""
    command = [sys.executable, "-m", "uv", *arguments]
    done = subprocess.run(command, env=CLEAN, capture_output=True, text=True, check=False)
    if done.returncode:
        shown = " ".join(str(argument) for argument in arguments)
        raise Failed(f"uv {shown} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(folder: Path) -> tuple[Path, Path]:
    """Build the source distribution, and the wheel from that; the tests' folder, and the wheel.

    The tests are those of the source distribution, from which the package itself is removed: so
    they can only find the installed one.
    """
    uv("build", ROOT, "--out-dir", folder / "dist")
    (archive,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as contents:
        names = contents.namelist()
    alien = {name.split("/")[0] for name in names} - {"meup_agent"}
    if "meup_agent/py.typed" not in names or not all(n.endswith(".dist-info") for n in alien):
        raise Failed(f"the wheel holds {', '.join(sorted(alien))}, or no py.typed")
    with tarfile.open(archive) as contents:
        contents.extractall(folder / "unpacked", filter="data")
    (tests,) = (folder / "unpacked").iterdir()
    (tests / "meup_agent").rename(folder / "source")
    return tests, wheel


def install_oldest(environment: Environment, python: Python, project: Path, wheel: Path) -> None:
    """The lowest versions of what the package and its tests name themselves."""
    uv("venv", "--python", python.path, environment.folder)
    into = ("--python", environment.python)
    lowest = ("--resolution", "lowest-direct")
    # Of a wheel's own dependencies uv does not take the lowest: those are the project file's.
    install = ("pip", "install", "--compile-bytecode", *into)
    uv(*install, *lowest, "-r", project / "pyproject.toml", "--extra", "test")
    uv(*install, "--no-deps", wheel)
    uv("pip", "check", *into)


def install_newest(environment: Environment, python: Python, wheel: str, *options: str) -> None:
    """The newest versions that fit together."""
    uv("venv", "--python", python.path, environment.folder)
    uv("pip", "install", *options, "--python", environment.python, wheel)


def compile_tests(environment: Environment, folder: Path, selection: Sequence[str]) -> None:
    """Compile the tests once, or each worker would: twice the time of collecting them."""
    command = [str(environment.python), "-m", "pytest", "--collect-only", "-qq", *PLAIN, *selection]
    # Errors are told by the run itself.
    subprocess.run(command, cwd=folder, env=CLEAN, capture_output=True, check=False)


def run_suite(environment: Environment, folder: Path, selection: Sequence[str]) -> None:
    """Run a selection of the tests on what is installed."""
    environment.run("-c", WHERE, cwd=folder)
    environment.run(
        *("-m", "pytest", f"--numprocesses={WORKERS}", "--dist=worksteal", "--quiet", *PLAIN),
        f"--basetemp={environment.folder / 'tmp'}",
        *selection,
        cwd=folder,
    )


def try_bare(environment: Environment, folder: Path, wheel: Path) -> None:
    """Check that agents work without extras, and each command, or it says what to install."""
    environment.run("-W", "error", "-c", AGENTS_IN_MEMORY, cwd=folder)
    brought = sum(each.stat().st_size for each in environment.folder.glob("lib/**/*"))
    if brought > MAX_BARE_BYTES:
        raise Failed(f"bare: the package and what it brings take {brought // 1_000_000} MB")
    try_meup(environment, folder, ["--help"], works=False, expected="meup-agent[cli]")
    uv("pip", "install", "--python", environment.python, f"{wheel}[cli]")
    try_meup(environment, folder, ["--help"], works=True, expected="Usage: meup")
    for command in (["gateway", "--dev"], ["demo"]):
        try_meup(environment, folder, command, works=False, expected="meup-agent[gateway]")


def try_meup(
    environment: Environment, folder: Path, arguments: list[str], *, works: bool, expected: str
) -> None:
    """Check that a command of the package says something, and no traceback."""
    meup = environment.folder / "bin" / "meup"
    done = subprocess.run(
        [meup, *arguments], cwd=folder, env=CLEAN, capture_output=True, text=True, check=False
    )
    said = done.stdout + done.stderr
    if expected not in said or (done.returncode == 0) != works or "Traceback" in said:
        shown = " ".join(arguments)
        raise Failed(f"bare: meup {shown} ended with {done.returncode} and said:\n{said}")


def try_older_websockets(environment: Environment, folder: Path) -> None:
    """Connections on asyncio work with it; on trio one sentence says what is needed."""
    uv("pip", "install", "--python", environment.python, "--no-deps", "websockets==16.0")
    connections = ("tests/transport", "tests/interaction/test_connection.py")
    run_suite(environment, folder, [*connections, "-k", "not trio"])
    done = subprocess.run(
        [environment.python, "-c", JOIN_ON_TRIO],
        cwd=folder,
        env=CLEAN,
        capture_output=True,
        text=True,
        check=False,
    )
    if "pip install 'meup-agent[trio]'" not in done.stderr:
        raise Failed(f"on trio with websockets 16 a join said:\n{done.stderr}")


def check_extras(project: Path) -> None:
    """An installer finds current versions for each extra, and for all that go together.

    A floor that contradicts another one makes it take a version of years ago without a word.
    """
    alone = [[name] for name in (*FLOORS, "gateway", "mcp", "trio")]
    for chosen in [*alone, [*FLOORS, "gateway", "mcp"]]:
        extras = [part for name in chosen for part in ("--extra", name)]
        found = uv("pip", "compile", "--quiet", "--no-header", project / "pyproject.toml", *extras)
        versions = dict(line.split("==") for line in found.split() if "==" in line)
        for name in chosen:
            package, floor = FLOORS.get(name, ("anyio", (4,)))
            numbers = tuple(int(part) for part in versions[package].split(".")[: len(floor)])
            if numbers < floor:
                raise Failed(f"extras {chosen}: an installer takes {package} {versions[package]}")


def main(folder: Path) -> None:
    """Do it all in a folder that is removed afterwards."""
    old, new = oldest_and_newest()
    if old.version[:2] != OLDEST:
        say(f"there is no Python {'.'.join(map(str, OLDEST))} here, so an older one is not tested")
    say("building the source distribution and the wheel")
    tests, wheel = build(folder)
    oldest, newest, bare = (
        Environment(name, folder / name) for name in ("oldest", "newest", "bare")
    )
    everywhere = [f"--ignore=tests/{name}" for name in THE_SAME_EVERYWHERE]
    at_the_edge = [f"tests/{name}" for name in AT_THE_EDGE]

    def prepare_oldest() -> None:
        install_oldest(oldest, old, tests, wheel)
        compile_tests(oldest, tests, everywhere)

    def prepare_newest() -> None:
        install_newest(newest, new, f"{wheel}[test]", "--compile-bytecode")
        compile_tests(newest, tests, at_the_edge)

    def check_bare() -> None:
        install_newest(bare, new, str(wheel))
        try_bare(bare, tests, wheel)

    say(f"installing: the oldest dependencies, the newest, and none of the extras ({new})")
    # They wait for an index and a disk, each for its own.
    with ThreadPoolExecutor() as threads:
        steps = (prepare_oldest, prepare_newest, check_bare, lambda: check_extras(tests))
        for job in [threads.submit(step) for step in steps]:
            job.result()
    failures: list[str] = []
    for environment, python, selection in ((oldest, old, everywhere), (newest, new, at_the_edge)):
        say(f"the {environment.name} dependencies, {python}")
        try:
            run_suite(environment, tests, selection)
        except Failed as failure:
            # What the other one says helps to find out why.
            failures.append(str(failure))
    say(f"an older websockets on asyncio, {old}")
    try:
        try_older_websockets(oldest, tests)
    except Failed as failure:
        failures.append(str(failure))
    if failures:
        raise Failed("; ".join(failures))
    say("the installed package works")


def run(arguments: Sequence[str]) -> int | str:
    """The exit code, or what went wrong."""
    if arguments:
        return "python -m tests.install takes no arguments"
    with TemporaryDirectory(prefix="meup-install-") as folder:
        try:
            main(Path(folder))
        except Failed as failure:
            return f"test-installed: {failure}"
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
