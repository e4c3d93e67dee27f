"""Sizes of the package and of its tests at a commit, by folder.

    python -m tests.size [COMMIT] [--against COMMIT]

Counts files, lines that hold code, and tokens of Python's grammar. Comments, docstrings, blank
lines and the tokens that only lay out lines count for nothing, so neither words nor line breaks
change a size.
"""

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple

LAYOUT: Final = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}

TOPS: Final = ("meup_agent", "tests", "examples")
"""Folders that are counted; of the first two, each folder within."""


class Size(NamedTuple):
    files: int = 0
    lines: int = 0
    tokens: int = 0

    def plus(self, other: "Size") -> "Size":
        return Size(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def size_of(source: str) -> Size:
    """The size of one module."""
    words = set(_docstrings(source))
    lines: set[int] = set()
    tokens = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in words:
            continue
        tokens += 1
        lines.update(range(token.start[0], token.end[0] + 1))
    return Size(1, len(lines), tokens)


def _docstrings(source: str) -> Iterator[int]:
    """Lines of texts that stand alone: docstrings, of constants too."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(ast.Constant(str())):
                yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)
            case _:
                pass


def sources(commit: str) -> Iterator[tuple[str, str]]:
    """Path and text of each Python file of a commit."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", commit, *TOPS], capture_output=True, check=False
    )
    if done.returncode:
        sys.exit(f"git has no commit {commit!r} with {', '.join(TOPS)}: {done.stderr.decode()}")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            if member.name.endswith(".py") and (file := archive.extractfile(member)):
                yield member.name, file.read().decode()


def sizes(commit: str) -> dict[str, Size]:
    """The size of each folder of a commit, those of whole trees first."""
    found: dict[str, Size] = defaultdict(Size)
    for path, source in sources(commit):
        size = size_of(source)
        top, *folders = PurePosixPath(path).parent.parts
        for place in {top, "/".join([top, *folders[:2]])}:
            found[place] = found[place].plus(size)
    return dict(sorted(found.items(), key=lambda item: (item[0].count("/") > 0, item[0])))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.size", description=__doc__)
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--against", metavar="COMMIT", help="show what has changed since it")
    options = parser.parse_args()
    now = sizes(options.commit)
    before = sizes(options.against) if options.against else {}
    sys.stdout.write(
        f"{'folder':32}{'files':>8}{'lines':>10}{'tokens':>10}" + " change" * bool(before) + "\n"
    )
    for folder in sorted({*now, *before}, key=lambda each: ("/" in each, each)):
        size = now.get(folder, Size())
        row = f"{folder:32}{size.files:8,}{size.lines:10,}{size.tokens:10,}"
        if before:
            old = before.get(folder, Size())
            row += f"   {size.files - old.files:+,} {size.lines - old.lines:+,}"
            row += f" {size.tokens - old.tokens:+,}"
        sys.stdout.write(row + "\n")


if __name__ == "__main__":
    main()
