"""Explanations: their tables are those of the code, and the words of diagrams stay inside them."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from meup_agent.protocol.wire.membership import WELCOME_KEY
from meup_agent.types import Guarantees
from tests.programs import ROOT
from tests.wire import DIALECTS, INBOUND, OURS, PROPOSAL, InboundState, read_guarantees, said_by

DOCS = ROOT / "docs"
STEP = re.compile(r"(\w+) (\w+) (\w+)")


def steps_in(picture: str) -> list[tuple[str, ...]]:
    """The steps that the arrows of a diagram stand for, as (from, event, to)."""
    text = (DOCS / "img" / picture).read_text(encoding="utf-8")
    return [
        step for said in re.findall(r'data-steps="([^"]*)"', text) for step in STEP.findall(said)
    ]


def test_arrows_between_a_proposals_states_are_the_table() -> None:
    table = [(str(state), str(event), str(after)) for (state, event), after in PROPOSAL.items()]
    assert sorted(steps_in("states.svg")) == sorted(table)


def test_arrows_between_a_requests_states_are_the_table() -> None:
    table = [
        (str(state), str(event), str(after))
        for (state, event), (after, _) in INBOUND.items()
        # Only a proposal's handler rejects, and only then goes on with what is settled.
        if after != state and event != "rejected" and state != InboundState.SETTLED
    ]
    assert sorted(steps_in("handling.svg")) == sorted(table)


def test_what_gateways_give_is_what_the_code_takes_from_them() -> None:
    page = (DOCS / "explanation" / "gateways.md").read_text(encoding="utf-8")
    (head,) = re.findall(r"^\| what is known of it \|(.*)\|$", page, re.MULTILINE)
    dialects = re.findall(r"`([a-z]+/v[\d.]+)`", head)
    given = [
        read_guarantees(said_by(OURS) if dialect == "meup/v0.1" else {}, DIALECTS[dialect].seen)
        for dialect in dialects
    ]
    assert len(given) == 3
    for name in Guarantees.__struct_fields__:
        cells = " | ".join("yes" if getattr(each, name) else "no" for each in given)
        assert re.search(rf"^\| `{name}`: .* \| {re.escape(cells)} \|$", page, re.MULTILINE), (
            f"docs/explanation/gateways.md must say of {name}: {cells}"
        )


def test_of_an_unknown_gateway_the_worst_is_thought() -> None:
    seen = DIALECTS["mew/v0.4"].seen
    assert read_guarantees({}) == read_guarantees({WELCOME_KEY: {}}, seen) == Guarantees()


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
