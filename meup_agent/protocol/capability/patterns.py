"""Patterns for any JSON value (PROTOCOL 7): strings, numbers, booleans, lists and objects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.glob import is_glob
from meup_agent.protocol.capability.paths import compile_path, descendants, is_path
from meup_agent.protocol.capability.strings import check_length, checked_glob, compile_string

Match = Callable[[object], bool]

MAX_NESTING: Final = 32
"""Levels of lists and objects in one pattern: MCP messages have about five, and we recurse."""

MAX_PARTS: Final = 1000
"""Strings, numbers, keys and alternatives in everything that one participant may do: each may be
held against every node of a payload, and compiles to a program of its own."""

_SHOWN_KEY_CHARS: Final = 40  # of a key, in a place


@dataclass(frozen=True, slots=True)
class Pattern:
    """A compiled pattern.

    Attributes:
        source: The pattern as it was written, as JSON values.
        matches: Whether a JSON value matches.
    """

    source: object
    matches: Match


def compile_pattern(pattern: object, *, place: str = "") -> Pattern:
    """Compile a pattern for a JSON value.

    Args:
        pattern: The pattern, as JSON values.
        place: Where it stands, for error messages.

    Raises:
        InvalidPattern: The pattern, or something in it, does not compile.
    """
    return Pattern(pattern, Compiler().compile(pattern, place))


class Compiler:
    """Compiles patterns and counts their parts; one for everything that shares the limit."""

    def __init__(self) -> None:
        self._parts = 0

    def count(self, place: str) -> None:
        """Take one part more.

        Raises:
            InvalidPattern: That is one too many.
        """
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidPattern(f"there are more than {MAX_PARTS} parts", place=place)

    def compile(self, pattern: object, place: str, depth: int = 0, below: bool = False) -> Match:
        """Compile one node of a pattern.

        Args:
            pattern: The node.
            place: Where it stands.
            depth: Levels above it.
            below: Whether it is matched with everything below some value.

        Raises:
            InvalidPattern: It does not compile.
        """
        self.count(place)
        if depth > MAX_NESTING:
            raise InvalidPattern(f"the pattern nests deeper than {MAX_NESTING} levels", place=place)
        if isinstance(pattern, str):
            return _string(pattern, place)
        if isinstance(pattern, dict):
            return self._object(cast("dict[object, object]", pattern), place, depth, below)
        if isinstance(pattern, list):
            alternatives = [
                self.compile(item, f"{place}[{index}]", depth + 1, below)
                for index, item in enumerate(cast("list[object]", pattern))
            ]
            return lambda value: any(matches(value) for matches in alternatives)
        if pattern is None or isinstance(pattern, bool):
            return lambda value: value is pattern
        if isinstance(pattern, int) or (isinstance(pattern, float) and math.isfinite(pattern)):
            return lambda value: (
                isinstance(value, int | float) and not isinstance(value, bool) and value == pattern
            )
        raise InvalidPattern(f"{type(pattern).__name__} is no JSON value", place=place)

    def _object(self, pattern: dict[Any, Any], place: str, depth: int, below: bool) -> Match:
        fields = [
            self._field(key, wanted, place, depth + 1, below) for key, wanted in pattern.items()
        ]
        return lambda value: (
            isinstance(value, dict)
            and all(field(cast("dict[str, Any]", value)) for field in fields)
        )

    def _field(
        self, key: object, wanted: object, place: str, depth: int, below: bool
    ) -> Callable[[dict[str, Any]], bool]:
        if not isinstance(key, str):
            raise InvalidPattern(f"the key {key!r} is no string; put quotes around it", place=place)
        shown = key if len(key) <= _SHOWN_KEY_CHARS else key[:_SHOWN_KEY_CHARS] + "…"
        place = f"{place}.{shown}" if place else shown
        check_length(key, place)
        if key == "**":
            matches = self._deep(wanted, place, depth, below)
            return lambda value: any(map(matches, descendants(value)))
        if is_path(key):
            path = compile_path(key, place)
            inner = self._deep if path.deep else self.compile
            matches = inner(wanted, place, depth, below)
            return lambda value: any(map(matches, path.select(value)))
        matches = self.compile(wanted, place, depth, below)
        if is_glob(key):
            fits = checked_glob(key, place)
            return lambda value: any(fits(name) and matches(value[name]) for name in value)
        return lambda value: key in value and matches(value[key])

    def _deep(self, wanted: object, place: str, depth: int, below: bool) -> Match:
        # Each node below each node, and so on: nesting would multiply the cost by the depth.
        if below:
            raise InvalidPattern(
                "** and .. cannot stand below one another; name the keys between", place=place
            )
        return self.compile(wanted, place, depth, below=True)


def _string(pattern: str, place: str) -> Match:
    matches, negated = compile_string(pattern, place=place)
    if negated:
        return lambda value: not (isinstance(value, str) and matches(value))
    return lambda value: isinstance(value, str) and matches(value)
