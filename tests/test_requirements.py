"""Each rule has a test, and each test that names a rule names one that exists.

The tests' sources are read, not collected, so it says the same when only this file runs.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.requirements import REQUIREMENTS

TESTS = Path(__file__).parent


def is_mark(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(ast.Attribute(ast.Name("pytest"), "mark"), "rule"):
            return True
    return False


def marks(source: str, place: str) -> Iterator[tuple[str, str]]:
    """Every rule that a `pytest.mark.rule(...)` names, and where."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not is_mark(node.func):
            continue
        for argument in node.args:
            where = f"{place}:{node.lineno}"
            literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            assert literal, f"{where}: name the rule as a plain string"
            yield ast.literal_eval(argument), where


@cache
def all_marks() -> dict[str, list[str]]:
    """Rule id -> where it is named."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        place = str(path.relative_to(TESTS))
        source = path.read_text(encoding="utf-8")
        if "mark.rule" not in source:
            continue  # half of the files, and parsing takes most of the time
        for rule, where in marks(source, place):
            found.setdefault(rule, []).append(where)
    return found


def test_each_rule_has_a_test() -> None:
    named = all_marks()
    missing = [f"{rule}: {says}" for rule, says in REQUIREMENTS.items() if rule not in named]
    assert missing == []


def test_each_test_names_rules_that_exist() -> None:
    unknown = [
        f"{rule} at {where}"
        for rule, places in all_marks().items()
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
@pytest.mark.anyio
def test_other(): ...
"""
    assert {rule for rule, _ in marks(source, "x")} == {"module", "a", "b", "parameter"}
