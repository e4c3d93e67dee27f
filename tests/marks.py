"""Names that tests carry in a marker, read from the tests' sources without collecting them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parent


def marks(marker: str, source: str, file: str) -> Iterator[tuple[str, str]]:
    """Every name that a `pytest.mark.MARKER(...)` gives, and its file or `file::function`."""
    for statement in ast.parse(source).body:
        marked: list[ast.AST] = [statement]
        where = file
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            # Not its body, which is most of the file.
            marked, where = [*statement.decorator_list], f"{file}::{statement.name}"
        for node in (each for part in marked for each in ast.walk(part)):
            if isinstance(node, ast.Call) and _is_mark(marker, node.func):
                for argument in node.args:
                    literal = isinstance(argument, ast.Constant) and isinstance(argument.value, str)
                    assert literal, f"{file}:{node.lineno}: name the {marker} as a plain string"
                    yield ast.literal_eval(argument), where


@cache
def all_marks(marker: str) -> dict[str, list[str]]:
    """Name -> where it is given, below tests/."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        file = path.relative_to(TESTS).as_posix()
        source = path.read_text(encoding="utf-8")
        if f"mark.{marker}" not in source:
            continue  # half of the files, and parsing takes most of the time
        for name, where in marks(marker, source, file):
            found.setdefault(name, []).append(where)
    return found


def _is_mark(marker: str, node: ast.expr) -> bool:
    match node:
        case ast.Attribute(ast.Attribute(ast.Name("pytest"), "mark"), name):
            return name == marker
    return False
