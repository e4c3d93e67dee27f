"""The page of the doors is made of the cases that the door suite tries."""

from tests.doors.hosts.cases import page
from tests.programs import ROOT


def test_the_page_is_made_of_the_cases() -> None:
    said = (ROOT / "docs" / "explanation" / "doors.md").read_text(encoding="utf-8")
    assert said == page(), "run python -m tests.doors.hosts"
