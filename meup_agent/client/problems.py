"""What is wrong with arguments, in words."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final, NamedTuple

from meup_agent.errors import printable

MAX_PROBLEMS: Final = 8
"""Problems that are told of one call."""

MAX_PROBLEM_CHARS: Final = 200
"""Characters of one problem: schemas and arguments may be long."""

MAX_VALUE_CHARS: Final = 40
"""Characters of a wrong value that are shown."""


class Problem(NamedTuple):
    """What is wrong with one argument.

    Attributes:
        argument: Which, for example ``items[0].name``; empty: all of them.
        problem: What was expected.
    """

    argument: str
    problem: str

    def __str__(self) -> str:
        """Both, as a part of a sentence."""
        return f"{self.argument!r} {self.problem}" if self.argument else self.problem


def problem_of(error: Any) -> Problem:
    """One error of ``jsonschema``, in our words."""
    error = import_module("jsonschema").exceptions.best_match([error]) or error
    path = "".join(
        f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.absolute_path
    ).removeprefix(".")
    said, value = _wrong_type(error) or str(error.message), repr(error.instance)
    if said.startswith(value):
        shown = value if len(value) <= MAX_VALUE_CHARS else f"of type {json_type(error.instance)}"
        said = f"is {shown}, which{said[len(value) :]}"
    return Problem(printable(path)[:MAX_PROBLEM_CHARS], printable(said)[:MAX_PROBLEM_CHARS])


def _wrong_type(error: Any) -> str | None:
    """Words for a value that has none of several types, as an optional argument's."""
    causes: list[Any] = list(error.context or ())
    if not causes or any(each.validator != "type" or each.relative_path for each in causes):
        return None
    names = [name for each in causes for name in type_names(each.validator_value)]
    return should_be(names, error.instance)


def should_be(types: list[str], value: object) -> str:
    """What a value should be, and what it is."""
    return f"should be {' or '.join(dict.fromkeys(types))}, not {json_type(value)}"


def type_names(types: Any) -> list[str]:
    """The types that a schema allows: it names one, or several."""
    return [types] if isinstance(types, str) else list(types)


def listed(names: list[str]) -> str:
    """The arguments that there are."""
    shown = ", ".join(repr(name) for name in names[:MAX_PROBLEMS])
    more = ", …" if len(names) > MAX_PROBLEMS else ""
    return f"{shown}{more}" if names else "no argument at all"


def json_type(value: object) -> str:
    """What JSON calls a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
