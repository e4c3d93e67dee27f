"""Limits and settings in the reference are those of the code."""

from collections.abc import Callable
from runpy import run_path
from typing import Any

import pytest

from meup_agent import Proposal, ProposalHandle
from meup_agent.types import ProposalRecord
from tests.gateways import LIMIT_ROWS
from tests.programs import ROOT

REFERENCE = ROOT / "docs" / "reference"


@pytest.fixture(scope="module")
def hook() -> dict[str, Any]:
    """The names of the hook that writes tables when the docs are built."""
    return run_path(str(ROOT / "docs" / "tables_from_code.py"))


def cells_of(text: str) -> list[list[str]]:
    """The rows of all tables of a text, as cells."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_metrics_are_those_of_the_collector(hook: dict[str, Any]) -> None:
    built = hook["on_page_markdown"]((REFERENCE / "http.md").read_text(encoding="utf-8"))
    shown = {cells[0]: cells[1:] for cells in cells_of(built)}
    assert shown["`meup_members`"] == ["`space`", "Members of a space."]
    assert shown["`meup_envelopes_refused_total`"][0] == "`code`"


def test_gateway_limits_are_those_of_the_table(hook: dict[str, Any]) -> None:
    text = (REFERENCE / "gateway.md").read_text(encoding="utf-8")
    names = {row.name for row in LIMIT_ROWS}
    assert not [cells for cells in cells_of(text) if cells[0].strip("`") in names]
    built = hook["on_page_markdown"](text)
    shown = [cells for cells in cells_of(built) if cells[0].strip("`") in names]
    assert shown == [[f"`{row.name}`", row.shown, row.about] for row in LIMIT_ROWS]


@pytest.mark.thorough
def test_limits_of_the_package_are_written_from_its_code(hook: dict[str, Any]) -> None:
    text = (REFERENCE / "limits.md").read_text(encoding="utf-8")
    built = cells_of(hook["on_page_markdown"](text))
    assert ["4 MiB", "`MAX_FRAME_BYTES` in `envelope`"] in [cells[1:] for cells in built]
    assert len(built) > 300


@pytest.mark.thorough
def test_classes_for_proposals_are_written_from_the_code(hook: dict[str, Any]) -> None:
    text = (REFERENCE / "glossary.md").read_text(encoding="utf-8")
    written = {cells[0]: cells[1:] for cells in cells_of(hook["on_page_markdown"](text))}
    for each in (Proposal, ProposalHandle, ProposalRecord):
        about = (each.__doc__ or "").partition("\n\n")[0]
        module = each.__module__.removeprefix("meup_agent.")
        assert written[f"`{each.__name__}`"] == [about, f"`{module}`"]


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (
            'MAX_BYTES: Final = 4 * 2**20\n"""Bytes of it."""',
            [("MAX_BYTES", "4 MiB", "Bytes of it.")],
        ),
        ('WAIT_SECONDS = 1.5\n"""Wait\nfor it."""', [("WAIT_SECONDS", "1.5 s", "Wait for it.")]),
        ('KEPT_AGE = 604_800.0\n"""Age."""', [("KEPT_AGE", "7 days", "Age.")]),
        ('MAX_PART = 0.05\n"""Part of it."""', [("MAX_PART", "0.05", "Part of it.")]),
        ("MAX_BYTES = 5", []),
        ('_MAX_BYTES = 5\n"""Ours."""', []),
        ('CLOSE_CODE = 1000\n"""A code."""', []),
        ('MAX_NAME = "a"\n"""A text."""', []),
    ],
)
def test_limit_is_a_row(
    hook: dict[str, Any], source: str, rows: list[tuple[str, str, str]]
) -> None:
    constants: Callable[[str], Any] = hook["constants"]
    assert list(constants(source)) == rows
