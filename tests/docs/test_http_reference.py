"""The page about the HTTP API has every endpoint, with its parameters."""

import re

import pytest

from meup_agent.gateway.edge.http.api import Operation
from tests.gateways import OPERATIONS
from tests.programs import ROOT

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_endpoint_is_described(operation: Operation) -> None:
    said = f"## {operation.method} {operation.path}\n\n{operation.about}\n"
    assert said in PAGE
    section = PAGE.partition(said)[2].partition("\n## ")[0]
    for each in operation.parameters:
        if each.where != "path":
            assert f"| `{each.name}` | {each.where} | {each.about} |" in section
    assert operation.open is ("No token is needed." in section)


def test_no_other_endpoint_is_described() -> None:
    described = re.findall(r"^## (\w+ \S+)$", PAGE, re.MULTILINE)
    assert described == [f"{each.method} {each.path}" for each in OPERATIONS]
