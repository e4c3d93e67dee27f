"""The words in a diagram stay inside it, whichever font a reader's system has."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.programs import ROOT

DIAGRAMS = sorted((ROOT / "docs" / "img").glob("*.svg"))
WIDTH_PER_CHAR = 0.58
"""Of the font's size: a wide system font, such as Verdana, has this much in English text."""
SIZES = {"meup-small": 12.0}
SIZE = 13.5
"""As `docs/stylesheets/extra.css` says them."""


def words_outside(svg: ElementTree.Element) -> list[str]:
    _, _, width, height = (float(each) for each in svg.get("viewBox", "").split())
    found: list[str] = []
    for text in svg.iter("{http://www.w3.org/2000/svg}text"):
        words = text.text or ""
        room = len(words) * SIZES.get(text.get("class", ""), SIZE) * WIDTH_PER_CHAR
        x, y = float(text.get("x", 0)), float(text.get("y", 0))
        left = {"start": x, "end": x - room}.get(text.get("text-anchor", ""), x - room / 2)
        if left < 0 or left + room > width or not 12 <= y <= height - 4:
            found.append(words)
    return found


@pytest.mark.parametrize("path", DIAGRAMS, ids=lambda path: path.stem)
def test_no_words_are_clipped(path: Path) -> None:
    assert words_outside(ElementTree.parse(path).getroot()) == []


def test_words_that_are_clipped_are_found() -> None:
    svg = ElementTree.fromstring(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 548">'
        '<text class="meup-small" x="615" y="536" text-anchor="start">stops; no response</text>'
        '<text x="60" y="20" text-anchor="end">propose, then wait</text><text x="90" y="4">a</text>'
        '<text x="300" y="100">inside</text></svg>'
    )
    assert words_outside(svg) == ["stops; no response", "propose, then wait", "a"]
