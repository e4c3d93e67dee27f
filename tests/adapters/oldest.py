"""Runs the contract of the adapters on the oldest versions of their frameworks that are supported.

`make test-frameworks` has run it on the newest; so only those are run again whose oldest version is
another one.

    python -m tests.adapters.oldest FOLDER

The folder has the oldest versions and nothing that they need: of that the newest is taken.
"""

import os
import subprocess
import sys
from importlib.metadata import distributions, version

PACKAGES = {
    "pydantic_ai": "pydantic-ai-slim",
    "openai_agents": "openai-agents",
    "langchain": "langchain-core",
}
"""Framework, as the contract names it → the package that its adapter is for."""

VERSION = "import sys, importlib.metadata as m; sys.stdout.write(m.version(sys.argv[1]))"


def main(folder: str) -> int:
    """The exit code; each framework is told with its versions."""
    oldest = {each.name: each.version for each in distributions(path=[folder])}
    older = [name for name, package in PACKAGES.items() if oldest[package] != version(package)]
    for name, package in PACKAGES.items():
        known = "tested above" if name not in older else f"the newest is {version(package)}"
        sys.stdout.write(f"{package} {oldest[package]}: {known}\n")
    sys.stdout.flush()
    if not older:
        return 0
    environment = {**os.environ, "PYTHONPATH": folder}
    for name in older:
        command = [sys.executable, "-c", VERSION, PACKAGES[name]]
        found = subprocess.check_output(command, env=environment, text=True)
        if found != oldest[PACKAGES[name]]:
            sys.stderr.write(f"{PACKAGES[name]} {found} is imported in place of the oldest\n")
            return 1
    tests = [
        *("-m", "pytest", "--override-ini=addopts=--import-mode=importlib"),
        *("-p", "no:cacheprovider", "-k", " or ".join(older), "tests/adapters/test_contract.py"),
    ]
    return subprocess.run([sys.executable, *tests], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
