"""Every Python program that a page shows is a file that the suite runs."""

import re
from collections.abc import Iterator

from tests.programs import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

BLOCK = re.compile(
    r"^( *)```+ *\{?\.?(py\w*|python\w*)\b[^\n]*\n(.*?)^\1```+ *$", re.DOTALL | re.MULTILINE
)
INCLUDED = re.compile(r'--8<-- "(examples/[\w/]+\.py)"')


def python_blocks(text: str) -> Iterator[str]:
    for _, _, code in BLOCK.findall(text):
        yield code.strip("\n")


def whole_examples() -> set[str]:
    return {
        path.read_text(encoding="utf-8").strip("\n") for path in (ROOT / "examples").rglob("*.py")
    }


def unproven(text: str) -> list[str]:
    """The Python blocks of a page that are neither an included example nor a whole one, copied."""
    examples = whole_examples()
    return [
        code
        for code in python_blocks(text)
        if INCLUDED.fullmatch(code.strip()) is None and code not in examples
    ]


def test_python_blocks_are_examples() -> None:
    blocks = {page: unproven(page.read_text(encoding="utf-8")) for page in PAGES}
    assert {page: found for page, found in blocks.items() if found} == {}


def test_every_example_is_run() -> None:
    tests = "".join(
        path.read_text(encoding="utf-8")
        for folder in ("examples", "docs", "adapters")
        for path in (ROOT / "tests" / folder).glob("test_*.py")
    )
    not_run = [
        path.name for path in (ROOT / "examples").rglob("*.py") if f'{path.name}"' not in tests
    ]
    assert not_run == []


def test_every_example_is_shown() -> None:
    shown = {name for page in PAGES for name in INCLUDED.findall(page.read_text(encoding="utf-8"))}
    examples = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")}
    assert examples == shown


def test_an_unproven_block_is_found() -> None:
    page = 'Text\n\n```python title="x.py"\nprint("hi")\n```\n\n    ```py\n    x = 1\n    ```\n'
    assert unproven(page) == ['print("hi")', "    x = 1"]
