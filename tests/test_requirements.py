"""Each rule has a test, and each test that names a rule names one that exists.

The tests' sources are read, not collected, so it says the same when only this file runs.
"""

from tests.marks import all_marks, marks
from tests.requirements import REQUIREMENTS


def test_each_rule_has_a_test() -> None:
    named = all_marks("rule")
    missing = [f"{rule}: {says}" for rule, says in REQUIREMENTS.items() if rule not in named]
    assert missing == []


def test_each_test_names_rules_that_exist() -> None:
    unknown = [
        f"{rule} at {where}"
        for rule, places in all_marks("rule").items()
        if rule not in REQUIREMENTS
        for where in places
    ]
    assert unknown == []


def test_marks_are_found_wherever_they_stand() -> None:
    source = """
pytestmark = [pytest.mark.rule("module")]
@pytest.mark.rule("a", "b")
async def test_it(): ...
CASES = [pytest.param(1, marks=pytest.mark.rule("parameter"))]
def test_other(): ...
"""
    assert {rule for rule, _ in marks("rule", source, "x")} == {"module", "a", "b", "parameter"}
