"""The Pythons of this machine that the package can be installed into."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

OLDEST = (3, 11)
"""The first version that the package supports."""

NAMES = [f"python3.{minor}" for minor in range(11, 20)]

ASK = "import sys, venv; print(*sys.version_info[:3], sys.version_info.releaselevel)"


@dataclass(frozen=True, order=True)
class Python:
    """An interpreter that works: its version, and where it is."""

    version: tuple[int, int, int]
    path: Path

    def __str__(self) -> str:
        return f"Python {'.'.join(map(str, self.version))} ({self.path})"


def candidates() -> Iterator[Path]:
    """Wherever a Python may be: this one, those on the path, and those that pyenv keeps."""
    yield Path(sys.executable)
    for name in NAMES:
        if found := which(name):
            yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/*/bin/python"))


def asked(path: Path) -> Python | None:
    """The Python that answers there, if it is a release that the package supports.

    Some systems have commands that only say that they are absent, so each is run.
    """
    try:
        done = subprocess.run(
            [path, "-c", ASK], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    major, minor, patch, level = done.stdout.split()
    version = (int(major), int(minor), int(patch))
    return Python(version, path) if level == "final" and version >= OLDEST else None


def ends(found: Sequence[Python]) -> tuple[Python, Python]:
    """The oldest and the newest; of several with the same minor version, the first."""
    return (
        min(found, key=lambda python: python.version[:2]),
        max(found, key=lambda python: python.version[:2]),
    )


def oldest_and_newest() -> tuple[Python, Python]:
    """The two ends of what there is; the same one twice where there is only one."""
    return ends([python for path in candidates() if (python := asked(path)) is not None])
