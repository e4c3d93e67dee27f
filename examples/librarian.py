"""A librarian for a folder: it lists, searches and reads its text files.

It needs a gateway alone. Run it as tools, with a folder or in it.
"""

import sys
from pathlib import Path

from meup_agent import Agent
from meup_agent.errors import RequestError

MAX_BYTES = 100_000  # larger files are left out
agent = Agent("librarian")
folder = Path(*sys.argv[1:2]).resolve()


def files() -> dict[str, Path]:
    """The files in the folder, without hidden ones and links out of it."""
    return {
        name: path
        for path in sorted(folder.rglob("*"))
        if "/." not in f"/{(name := path.relative_to(folder).as_posix())}"
        and path.is_file()
        and path.resolve().is_relative_to(folder)
        and path.stat().st_size <= MAX_BYTES
    }


@agent.tool(name="list", read_only=True)
def list_files() -> list[str]:
    """List the files."""
    return list(files())


@agent.tool(read_only=True)
def search(words: str) -> list[str]:
    """Find the files that have these very words in them."""
    return [
        name
        for name, path in files().items()
        if words in path.read_text(errors="replace")
    ]


@agent.tool(read_only=True)
def read(path: str) -> str:
    """Read a file of those that are listed."""
    found = files().get(path)
    if found is None:
        raise RequestError(-32602, "no such file; call list")
    return found.read_text(errors="replace")


if __name__ == "__main__":
    if not folder.is_dir():
        sys.exit(f"there is no folder {folder}")
    agent.run()
