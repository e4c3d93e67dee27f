"""The page about conformance says what is required, and what shows it."""

from tests.conformance.lines import LINES
from tests.conformance.page import PAGE, page, shown_by_rule


def test_the_page_is_made_of_the_requirements() -> None:
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert written == page(), "run: python -m tests.conformance"


def test_each_line_is_shown_by_a_test_on_a_socket() -> None:
    tests = shown_by_rule()
    for line in LINES:
        if not line.shown_by:
            assert all(test.startswith("conformance/") for test in tests[line.id]), line.id
