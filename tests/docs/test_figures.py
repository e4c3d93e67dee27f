"""What the reference says about limits and settings is what the code says."""

import re
from dataclasses import fields
from importlib import import_module

from meup_agent.gateway.config import Limits
from tests.programs import ROOT

REFERENCE = ROOT / "docs" / "reference"

UNITS = {"": 1, "s": 1, "KiB": 2**10, "MiB": 2**20}


def number(text: str) -> float:
    """The number in a cell: `1,000`, `4 MiB`, `0.1 s`."""
    value, _, unit = text.partition(" ")
    return float(value.replace(",", "")) * UNITS[unit]


def rows(page: str) -> list[list[str]]:
    """The rows of a page's tables, as cells."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def test_named_limits_are_the_constants() -> None:
    constants = {
        (match[2], match[1]): cells[1]
        for cells in rows("settings.md")
        if (match := re.fullmatch(r"`([A-Z_]+)` in `([\w.]+)`", cells[-1]))
    }
    assert len(constants) > 20
    wrong: dict[str, tuple[str, object]] = {}
    for (module, constant), shown in constants.items():
        value = getattr(import_module(f"meup_agent.{module}"), constant, None)
        if value != number(shown):
            wrong[constant] = (shown, value)
    assert wrong == {}


def test_gateway_limits_are_the_defaults() -> None:
    names = {limit.name: limit.default for limit in fields(Limits)}
    shown = {
        cells[0].strip("`"): number(cells[1])
        for cells in rows("gateway.md")
        if cells[0].strip("`") in names
    }
    assert shown == names
