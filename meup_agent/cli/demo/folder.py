"""The folder that the demo is played on: the user's own, or a sample in a temporary place."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import as_file, files
from pathlib import Path

from meup_agent.cli import exit_codes
from meup_agent.cli.demo import names
from meup_agent.cli.demo.workspace import Workspace
from meup_agent.cli.failures import Failure


@contextmanager
def workspace_in(folder: Path | None) -> Generator[Workspace]:
    """The folder for the length of a block; afterwards it is as it was before.

    Args:
        folder: The user's; ``None``: the sample.

    Raises:
        Failure: The user's folder is none, or has files of the names that the scenes write.
    """
    if folder is not None:
        with _cleaned(_checked(folder)) as workspace:
            yield workspace
        return
    with tempfile.TemporaryDirectory(prefix="meup-demo-") as temporary:
        # A folder below, since a scene tries to write beside it.
        sample = Path(temporary) / "harbour"
        with as_file(files("meup_agent.cli.demo") / "sample") as shipped:
            shutil.copytree(shipped, sample)
        with _cleaned(Workspace(sample)) as workspace:
            yield workspace


@contextmanager
def _cleaned(workspace: Workspace) -> Generator[Workspace]:
    try:
        yield workspace
    finally:
        workspace.clean()


def _checked(folder: Path) -> Workspace:
    if not folder.is_dir():
        raise Failure(f"{folder} is no folder; give one to --dir", exit_codes.USAGE)
    workspace = Workspace(folder)
    taken = [name for name in names.ALL if os.path.lexists(workspace.root / name)]
    if taken:
        raise Failure(
            f"{folder} has {', '.join(taken)} already, and the demo overwrites nothing;"
            " move that away, or give another folder"
        )
    if not os.access(workspace.root, os.W_OK | os.X_OK):
        raise Failure(f"nothing can be written in {folder}; give another folder")
    return workspace
