"""Names and docstrings of the package: one class, one name; the thing first."""

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

import meup_agent

PACKAGE = Path(meup_agent.__file__).parent

UNFIT = {"How", "Nobody", "Somebody", "What", "Whether", "Who", "Whoever", "Whose"}
"""First words of a docstring that leave open which thing it describes."""

Named = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


parsed = cache(ast.parse)


@cache
def definitions(source: str) -> tuple[Named, ...]:
    return tuple(node for node in ast.walk(parsed(source)) if isinstance(node, Named))


def repeated(sources: dict[str, str]) -> dict[str, list[str]]:
    """Names of classes that several places define, with these places."""
    places: dict[str, list[str]] = defaultdict(list)
    for file, source in sources.items():
        for node in definitions(source):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{file}:{node.lineno}")
    return {name: found for name, found in places.items() if len(found) > 1}


def unfit(sources: dict[str, str]) -> list[str]:
    """Docstrings of modules, classes and functions that begin with an unfit word."""
    found: list[str] = []
    for file, source in sources.items():
        for node in (parsed(source), *definitions(source)):
            first = (ast.get_docstring(node) or "-").split()[0]
            if first.strip(",.:") in UNFIT:
                found.append(f"{file}: {ast.get_docstring(node)}")
    return found


def package() -> dict[str, str]:
    return {
        str(file.relative_to(PACKAGE)): file.read_text(encoding="utf-8")
        for file in sorted(PACKAGE.rglob("*.py"))
    }


def test_no_two_classes_have_one_name() -> None:
    assert repeated(package()) == {}


def test_docstrings_begin_with_the_thing() -> None:
    assert unfit(package()) == []


def test_a_second_class_of_a_name_is_found() -> None:
    twice = {"a.py": "class Limits: ...", "b.py": "\nclass Limits: ...", "c.py": "class Other: ..."}
    assert repeated(twice) == {"Limits": ["a.py:1", "b.py:2"]}


def test_an_unfit_docstring_is_found() -> None:
    sources = {"a.py": '"""What is said."""\ndef f() -> None:\n    """Sends it."""\n'}
    assert unfit(sources) == ["a.py: What is said."]
