"""Pages name files and classes that are there, and show programs that the suite runs."""

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.docs.programs import PAGES, files_shown, written
from tests.programs import ROOT

PATH = re.compile(r"`((?:meup_agent|tests|docs|examples)/[\w/.-]+|\w+\.py)`")
CLASS = re.compile(r"^\| `([A-Z]\w+)` \|", re.MULTILINE)


@pytest.mark.parametrize("page", ["docs/explanation/where-to-change.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(page: str) -> None:
    named = PATH.findall((ROOT / page).read_text(encoding="utf-8"))
    assert named
    # A bare name is that of a module of the package itself.
    paths = [ROOT / each if "/" in each else ROOT / "meup_agent" / each for each in named]
    assert [path for path in paths if not path.exists()] == []


def test_classes_of_the_glossary_are_defined_once() -> None:
    named = CLASS.findall((ROOT / "docs/reference/glossary.md").read_text(encoding="utf-8"))
    assert named
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "meup_agent").rglob("*.py"))
    defined = Counter(
        name for source in sources for name in re.findall(r"^class (\w+)", source, re.MULTILINE)
    )
    assert {name: defined[name] for name in named} == dict.fromkeys(named, 1)


BLOCK = re.compile(
    r"^( *)```+ *\{?\.?(py\w*|python\w*)\b[^\n]*\n(.*?)^\1```+ *$", re.DOTALL | re.MULTILINE
)


def python_blocks(text: str) -> Iterator[str]:
    for _, _, code in BLOCK.findall(text):
        yield code.strip("\n")


def whole_examples() -> set[str]:
    return {
        path.read_text(encoding="utf-8").strip("\n") for path in (ROOT / "examples").rglob("*.py")
    }


def unproven(text: str) -> list[str]:
    """The Python blocks of a page that are not a whole example."""
    examples = whole_examples()
    return [code for code in python_blocks(text) if code not in examples]


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
    examples = {str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.py")}
    assert examples - files_shown() == set()


def test_pages_show_files_as_they_are() -> None:
    stale = [each.name for each in PAGES if written(each.read_text()) != each.read_text()]
    assert stale == [], "python -m tests.docs.programs writes them anew"


def test_an_unproven_block_is_found() -> None:
    page = 'Text\n\n```python title="x.py"\nprint("hi")\n```\n\n    ```py\n    x = 1\n    ```\n'
    assert unproven(page) == ['print("hi")', "    x = 1"]
