"""The page about conformance says what is required, and what shows it."""

from tests.conformance.lines import LINES, NOT_HERE
from tests.conformance.page import PAGE, page
from tests.marks import all_marks


def test_the_page_is_made_of_the_requirements() -> None:
    written = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert written == page(), "run: python -m tests.conformance"


def test_every_line_of_the_specifications_has_its_place() -> None:
    """Part A has 31 lines, part C 28, part E 10."""
    listed = {line.id for line in LINES} | set(NOT_HERE)
    everything = [
        *(f"A.G{number}" for number in range(1, 32)),
        *(f"C.W{number}" for number in range(1, 29)),
        *(f"E.E{number}" for number in range(1, 11)),
    ]
    assert [id for id in everything if id not in listed] == []
    assert len({line.id for line in LINES}) == len(LINES)


def test_each_line_is_shown_by_a_test_on_a_socket() -> None:
    tests = all_marks("rule")
    for line in LINES:
        if not line.shown_by:
            assert all(test.startswith("conformance/") for test in tests[line.id]), line.id
