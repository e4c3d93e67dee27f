"""The page on reasons says of each code when to use it."""

import re
from pathlib import Path

import pytest

from meup_agent import Reason
from tests.wire import REASONS_TO_REJECT

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "reference/reasons.md").read_text(encoding="utf-8")
PROTOCOL = (DOCS / "protocol.md").read_text(encoding="utf-8")


def rows(section: str) -> list[list[str]]:
    """The rows of the table of a section, without its head."""
    text = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    (found,) = [each for each in text if each.startswith(section)]
    lines = [line for line in found.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_each_of_the_eleven_reasons_has_its_row_in_their_order() -> None:
    table = rows("When you reject")
    assert [row[0] for row in table] == [f"`{reason}`" for reason in REASONS_TO_REJECT]
    assert len(REASONS_TO_REJECT) == 11
    assert all(len(row) == 3 and row[1] and row[2] for row in table)


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_is_named(reason: Reason) -> None:
    assert f"`{reason}`" in PAGE


def test_page_names_no_code_that_does_not_exist() -> None:
    automatic = rows("Codes that come")
    named = {row[0].strip("`") for row in [*rows("When you reject"), *automatic]}
    assert named == {str(reason) for reason in Reason} & named
    assert {str(Reason.REVOKED), str(Reason.TIMEOUT)} <= {row[0].strip("`") for row in automatic}


def test_protocol_lists_the_codes() -> None:
    (rule,) = re.findall(r"^3\. Reasons: (.*?);", PROTOCOL, re.MULTILINE)
    assert " ".join(re.findall(r"`([^`]*)`", rule)).split() == list(Reason)
