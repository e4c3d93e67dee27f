"""The folder that the demo works in: the user's own or a sample, guarded at its border.

Nothing outside of it is read or written, nothing in it is overwritten, and what the scenes wrote is
removed at the end.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from importlib.resources import as_file, files
from pathlib import Path
from typing import Final

from meup_agent.cli.failures import Failure, Misuse

MAX_FILES: Final = 200
"""Files that the tools look at: a demo on a home folder must not take all day."""

MAX_FOLDERS: Final = 2_000  # folders that are looked into, for the same reason
MAX_BYTES: Final = 256 * 1024  # bytes of a file that are read or written
INDEX: Final = "meup-demo-index.json"
PARTIAL: Final = "meup-demo-index.json.partial"
NOTE: Final = "meup-demo-note.md"
SETTINGS_FILE: Final = "meup-demo-settings.txt"
OUTSIDE: Final = "../meup-demo-outside.txt"
"""A path that a scene tries to write to, and must not get to."""

WRITTEN_FILES: Final = (NOTE, SETTINGS_FILE, OUTSIDE, INDEX, PARTIAL)
"""The files that the scenes write, all of them, so that no other is touched."""


class NotAllowed(Exception):
    """A path is outside of the folder, or not the demo's to change."""


class Workspace:
    """A folder; a path out of it, or a change of what was not made here, is :class:`NotAllowed`."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self._made: list[Path] = []

    def inside(self, path: str) -> Path:
        """The file that a path names, with every symbolic link on the way followed.

        What counts is where the path really leads: ``..``, an absolute path or a link may lead
        out of the folder.
        """
        try:
            real = (self.root / path).resolve()
        except (OSError, RuntimeError, ValueError):  # a loop of links, a name that cannot be one
            raise NotAllowed(f"{path!r} is no path") from None
        if not real.is_relative_to(self.root):
            raise NotAllowed(f"{path!r} leads out of the folder")
        return real

    def files(self) -> list[str]:
        """The paths of the files, hidden ones and links left out, in order."""
        found: list[str] = []
        for visited, (folder, folders, names) in enumerate(os.walk(self.root)):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            here = Path(folder)
            for name in sorted(names):
                file = here / name
                if not name.startswith(".") and file.is_file() and not file.is_symlink():
                    found.append(file.relative_to(self.root).as_posix())
            if len(found) >= MAX_FILES or visited >= MAX_FOLDERS:
                break
        return sorted(found[:MAX_FILES])

    def read(self, path: str) -> str:
        """The text of a file; of a large one, its beginning."""
        file = self.inside(path)
        if not file.is_file():  # a pipe or a device would be waited for
            raise NotAllowed(f"{path!r} is no file")
        with file.open("rb") as opened:
            return opened.read(MAX_BYTES).decode(errors="replace")

    def create(self, path: str, text: str) -> int:
        """Write a new file; the number of its bytes."""
        data = text.encode()
        if len(data) > MAX_BYTES:
            raise NotAllowed(f"{path!r} would have more than {MAX_BYTES} bytes")
        file = self.inside(path)
        try:
            # "x" creates the file or fails: it never overwrites, and follows no link.
            with file.open("xb") as opened:
                self._made.append(file)
                opened.write(data)
        except FileExistsError:
            raise NotAllowed(f"{path!r} exists; nothing is overwritten here") from None
        return len(data)

    def append(self, path: str, text: str) -> None:
        """Add to a file that :meth:`create` has made."""
        with self._own(path).open("ab") as opened:
            opened.write(text.encode())

    def rename(self, path: str, new: str) -> None:
        """Give a file that :meth:`create` has made its final name."""
        file, target = self._own(path), self.inside(new)
        if os.path.lexists(target):
            raise NotAllowed(f"{new!r} exists; nothing is overwritten here")
        file.rename(target)
        self._made.remove(file)
        self._made.append(target)

    def remove(self, path: str) -> None:
        """Remove a file that :meth:`create` has made."""
        file = self._own(path)
        file.unlink(missing_ok=True)
        self._made.remove(file)

    def clean(self) -> None:
        """Remove every file that :meth:`create` has made."""
        while self._made:
            self._made.pop().unlink(missing_ok=True)

    def _own(self, path: str) -> Path:
        file = self.inside(path)
        if file not in self._made:
            raise NotAllowed(f"{path!r} was not made here")
        return file


@contextmanager
def workspace_in(folder: Path | None) -> Generator[Workspace]:
    """The folder for the length of a block; afterwards it is as it was before."""
    with ExitStack() as at_end:
        if folder is None:
            temporary = at_end.enter_context(tempfile.TemporaryDirectory(prefix="meup-demo-"))
            # A folder below, since a scene tries to write beside it.
            sample = Path(temporary) / "harbour"
            with as_file(files("meup_agent.cli.demo") / "sample") as shipped:
                shutil.copytree(shipped, sample)
            workspace = Workspace(sample)
        else:
            workspace = _checked(folder)
        at_end.callback(workspace.clean)
        yield workspace


def _checked(folder: Path) -> Workspace:
    if not folder.is_dir():
        raise Misuse(f"{folder} is no folder; give one to --dir")
    workspace = Workspace(folder)
    taken = [name for name in WRITTEN_FILES if os.path.lexists(workspace.root / name)]
    if taken:
        raise Failure(
            f"{folder} has {', '.join(taken)} already, and the demo overwrites nothing;"
            " move that away, or give another folder"
        )
    if not os.access(workspace.root, os.W_OK | os.X_OK):
        raise Failure(f"nothing can be written in {folder}; give another folder")
    return workspace
