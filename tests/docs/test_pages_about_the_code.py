"""Pages for readers of the source name files and classes that are there."""

import re
from collections import Counter

import pytest

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
