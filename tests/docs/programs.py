"""Writes the programs and outputs that pages show into them, from their files.

``python -m tests.docs.programs``; a page names the file in a comment before the block. So a page
shows its program wherever it is read, on a code host, too.
"""

import re

from tests.programs import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

SHOWN = re.compile(
    r"^(?P<begin>(?P<indent> *)<!-- from (?P<file>[\w./-]+) -->\n(?P<fence> *`{3,})[^\n]*\n"
    r"(?P<commands>(?: *\$ [^\n]*\n)*))(?P<text>.*?)^(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)
"""A block that shows a file, perhaps behind the commands that print it."""


def written(page: str) -> str:
    """The text of a page, with the files as they are now."""
    return SHOWN.sub(_block, page)


def _block(shown: re.Match[str]) -> str:
    text = (ROOT / shown["file"]).read_text(encoding="utf-8").rstrip("\n")
    lines = [shown["indent"] + line if line else "" for line in text.split("\n")]
    return shown["begin"] + "\n".join(lines) + "\n" + shown["fence"]


def files_shown() -> set[str]:
    """The files that the pages show."""
    return {
        shown["file"]
        for page in PAGES
        for shown in SHOWN.finditer(page.read_text(encoding="utf-8"))
    }


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(written(each.read_text(encoding="utf-8")), encoding="utf-8")
