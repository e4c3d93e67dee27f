"""Patterns for any JSON value (PROTOCOL 7): strings, numbers, booleans, lists and objects."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final, cast

import msgspec

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.glob import StringMatch, is_glob
from meup_agent.protocol.capability.paths import compile_path, descendants, is_path
from meup_agent.protocol.capability.strings import (
    Strings,
    begins,
    check_length,
    is_exact,
    split_negation,
)
from meup_agent.protocol.capability.work import NODE_WORK, WorkBudget, bounded

Match = Callable[[object, WorkBudget], bool]
"""Match function of a pattern, which spends work from the budget."""

MAX_NESTING: Final = 32
"""Levels of lists and objects in one pattern: MCP messages have about five, and we recurse."""

MAX_PARTS: Final = 1000
"""Strings, numbers, keys and alternatives in everything that one participant may do: each may be
held against every node of a payload, and compiles to a program of its own."""

_SHOWN_KEY_CHARS: Final = 40  # of a key, in a place
_MISSING: Final = object()


class Pattern(msgspec.Struct, frozen=True):
    """A compiled pattern."""

    source: object
    # A check that takes more than it may (:mod:`.work`) says no.
    matches: Callable[[object], bool]


def compile_pattern(pattern: object, *, place: str = "") -> Pattern:
    """Compile a pattern for a JSON value; InvalidPattern if anything in it does not compile."""
    return Pattern(pattern, bounded(PatternCompiler().compile(pattern, place)))


class PatternCompiler:
    """Compiles patterns and counts their parts; one for everything that shares the limit."""

    def __init__(self) -> None:
        self.strings = Strings()
        self._parts = 0

    def count(self, place: str) -> None:
        """Take one part more; InvalidPattern if that is one too many."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidPattern(f"there are more than {MAX_PARTS} parts", place=place)

    def compile(self, pattern: object, place: str, depth: int = 0, below: bool = False) -> Match:
        """Compile one node of a pattern; one ``below`` is matched with all below some value."""
        self.count(place)
        if depth > MAX_NESTING:
            raise InvalidPattern(f"the pattern nests deeper than {MAX_NESTING} levels", place=place)
        if isinstance(pattern, str):
            return self._string(pattern, place)
        if isinstance(pattern, dict):
            return self._object(cast("dict[object, object]", pattern), place, depth, below)
        if isinstance(pattern, list):
            return self._list(cast("list[object]", pattern), place, depth, below)
        if pattern is None or isinstance(pattern, bool):
            return lambda value, work: value is pattern
        if isinstance(pattern, int) or (isinstance(pattern, float) and math.isfinite(pattern)):
            return lambda value, work: (
                isinstance(value, int | float) and not isinstance(value, bool) and value == pattern
            )
        raise InvalidPattern(f"{type(pattern).__name__} is no JSON value", place=place)

    def again(self, pattern: object) -> Match:
        """Compile, in another arrangement and without limits, what has been compiled before."""
        parts, self._parts = self._parts, 0
        try:
            return self.compile(pattern, "", depth=-MAX_NESTING)
        finally:
            self._parts = parts

    def _string(self, pattern: str, place: str) -> Match:
        # A negation matches texts only, too: "!6" must not let the number 6 through.
        body, negated = split_negation(pattern, place)
        if is_exact(body):
            if negated:
                return lambda value, work: isinstance(value, str) and value != body
            return lambda value, work: value == body
        matches = self.strings.compile(body, place)
        if negated:
            return lambda value, work: isinstance(value, str) and not matches(value, work)
        return lambda value, work: isinstance(value, str) and matches(value, work)

    def _list(self, pattern: list[object], place: str, depth: int, below: bool) -> Match:
        exact: set[str] = set()
        starred: list[tuple[str, StringMatch]] = []
        others: list[Match] = []
        for index, item in enumerate(pattern):
            compiled = self.compile(item, f"{place}[{index}]", depth + 1, below)
            if not isinstance(item, str) or item.startswith("!"):
                others.append(compiled)
            elif is_exact(item):
                exact.add(item)
            elif begun := begins(item):
                starred.append((begun, self.strings.compile(item, place)))
            else:
                others.append(compiled)
        if exact or starred:
            others.insert(0, _any_string(frozenset(exact), starred))
        return _either(others)

    def _object(self, pattern: dict[Any, Any], place: str, depth: int, below: bool) -> Match:
        named: list[tuple[str, Match]] = []
        searched: list[Match] = []
        for key, wanted in pattern.items():
            if not isinstance(key, str):
                raise InvalidPattern(
                    f"the key {key!r} is no string; put quotes around it", place=place
                )
            shown = key if len(key) <= _SHOWN_KEY_CHARS else key[:_SHOWN_KEY_CHARS] + "…"
            inner = f"{place}.{shown}" if place else shown
            check_length(key, inner)
            if is_path(key) or is_glob(key):
                searched.append(self._search(key, wanted, inner, depth + 1, below))
            else:
                named.append((key, self.compile(wanted, inner, depth + 1, below)))

        def match(value: object, work: WorkBudget) -> bool:
            if not isinstance(value, dict):
                return False
            members = cast("dict[str, object]", value)
            for key, matches in named:
                member = members.get(key, _MISSING)
                if member is _MISSING or not matches(member, work):
                    return False
            for matches in searched:  # noqa: SIM110 - half the time of all() with a generator
                if not matches(members, work):
                    return False
            return True

        return match

    def _search(self, key: str, wanted: object, place: str, depth: int, below: bool) -> Match:
        """The test of an object for a key that several of its members may fit."""
        before = self._parts
        if key == "**":
            matches = self._deep(wanted, place, depth, below)
            cost = NODE_WORK * (1 + self._parts - before)
            return lambda value, work: _any(matches, descendants(value), work, cost)
        if is_path(key):
            path = compile_path(key, place)
            inner = self._deep if path.deep else self.compile
            matches = inner(wanted, place, depth, below)
            cost = NODE_WORK * (1 + self._parts - before)
            return lambda value, work: _any(matches, path.select(value, work), work, cost)
        matches = self.compile(wanted, place, depth, below)
        cost = NODE_WORK * (1 + self._parts - before)
        fits = self.strings.glob(key, place)

        def match(value: object, work: WorkBudget) -> bool:
            for name, member in cast("dict[str, object]", value).items():
                work.spend(cost)
                if fits(name, work) and matches(member, work):
                    return True
            return False

        return match

    def _deep(self, wanted: object, place: str, depth: int, below: bool) -> Match:
        # Each node below each node, and so on: nesting would multiply the cost by the depth.
        if below:
            raise InvalidPattern(
                "** and .. cannot stand below one another; name the keys between", place=place
            )
        return self.compile(wanted, place, depth, below=True)


def _any_string(exact: frozenset[str], starred: list[tuple[str, StringMatch]]) -> Match:
    """Match a string against exact texts and globs; only globs with its beginning are tried."""
    beginnings = tuple(begun for begun, _ in starred)

    def match(value: object, work: WorkBudget) -> bool:
        if not isinstance(value, str):
            return False
        if value in exact:
            return True
        if value.startswith(beginnings):
            for begun, matches in starred:
                if value.startswith(begun) and matches(value, work):
                    return True
        return False

    return match


def _either(alternatives: list[Match]) -> Match:
    if len(alternatives) == 1:
        return alternatives[0]

    def match(value: object, work: WorkBudget) -> bool:
        for matches in alternatives:  # noqa: SIM110 - half the time of any() with a generator
            if matches(value, work):
                return True
        return False

    return match


def _any(matches: Match, values: Iterable[object], work: WorkBudget, cost: int) -> bool:
    for value in values:
        work.spend(cost)
        if matches(value, work):
            return True
    return False
