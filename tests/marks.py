"""Names that tests carry in a marker, read from the tests' sources without collecting them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def marks(marker: str, source: str, place: str) -> Iterator[tuple[str, str]]:
    """Every name that a `pytest.mark.MARKER(...)` gives, and where."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not _is_mark(marker, node.func):
            continue
        for argument in node.args:
            where = f"{place}:{node.lineno}"
            literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
            assert literal, f"{where}: name the {marker} as a plain string"
            yield ast.literal_eval(argument), where


@cache
def all_marks(marker: str) -> dict[str, list[str]]:
    """Name -> where it is given."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        place = str(path.relative_to(TESTS))
        source = path.read_text(encoding="utf-8")
        if f"mark.{marker}" not in source:
            continue  # half of the files, and parsing takes most of the time
        for name, where in marks(marker, source, place):
            found.setdefault(name, []).append(where)
    return found


def _is_mark(marker: str, node: ast.expr) -> bool:
    match node:
        case ast.Attribute(ast.Attribute(ast.Name("pytest"), "mark"), name):
            return name == marker
    return False
