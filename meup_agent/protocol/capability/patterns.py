"""Patterns for any JSON value, and paths into one (PROTOCOL 7).

In the wide reading a wildcard alone takes all that is not empty, a pattern takes an array, too,
where it takes one of its elements, or its texts with blanks between, a negated one takes whatever
is not text, and a key takes each member whose name has its plain form. The patterns of arguments
differ in two ways (:class:`ArgumentCompiler`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final, NamedTuple, cast

import msgspec

from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability.reading import (
    NODE_WORK,
    Reading,
    WorkBudget,
    bounded,
    fold_text,
)
from meup_agent.protocol.capability.strings import (
    ANY,
    StringMatch,
    Strings,
    begins,
    check_length,
    is_exact,
    is_glob,
    split_negation,
)

# --- paths into a JSON value (PROTOCOL 7) ---
# `$.a`, `$['a']`, `$[0]`, `$.*`, `$..a`, `**`.
#
# Children and descendants, no filters. Each step turns the nodes found so far into the next ones
# and visits no node twice, so each costs time linear in the value; a path may have hundreds of
# steps, so every visit counts.

MAX_PATH_STEPS: Final = 100
"""Steps of one path: each leads one level down, and no frame has more levels."""

_Step = Callable[[Iterator[object], WorkBudget], Iterator[object]]

_STEP: Final = re.compile(
    r"""(?P<deep>\.\.(?=[^.])|(?:\.(?=[^.\[])|(?=\[)))"""
    r"""(?:(?P<every>\*(?=[.\[]|\Z)|\[\*\])|\[(?P<index>0|[1-9][0-9]{0,8})\]"""
    r"""|\[(?:'(?P<single>[^'\\]*)'|"(?P<double>[^"\\]*)")\]|(?P<name>[^.\[\]'"*?()@]+))"""
)


class Path(msgspec.Struct, frozen=True):
    """A compiled path."""

    deep: bool  # it looks at everything below some node
    select: Callable[[object, WorkBudget], Iterable[object]]


def is_path(key: str) -> bool:
    """True if a key is a path; ``$ref`` and the like are names."""
    return key in ("$", "**") or key.startswith(("$.", "$["))


def compile_path(key: str, place: str, reading: Reading = Reading.NARROW) -> Path:
    """Compile a path of children and descendants; InvalidPattern for anything else."""
    if key == "**":
        return Path(True, lambda value, work: descendants(value))
    steps: list[_Step] = []
    deep = False
    at = 1
    levels = 0
    while at < len(key):
        levels += 1
        if levels > MAX_PATH_STEPS:
            raise InvalidPattern(f"the path has more than {MAX_PATH_STEPS} steps", place=place)
        step = _STEP.match(key, at)
        if step is None:
            raise InvalidPattern(
                f"the path is not understood at position {at}; it takes .name, ..name, ['name'], "
                "[0] and *",
                place=place,
            )
        at = step.end()
        if step["deep"] == "..":
            deep = True
            steps.append(_with_descendants)
        steps.append(_child_step(step, reading))

    def select(value: object, work: WorkBudget) -> Iterator[object]:
        nodes: Iterator[object] = iter((value,))
        for take in steps:
            nodes = take(nodes, work)
        return nodes

    return Path(deep, select)


def _children(value: object) -> Collection[object]:
    """The values that stand directly in an object or array."""
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def descendants(value: object) -> Iterator[object]:
    """Everything below a value, without the value."""
    waiting = [iter(_children(value))]
    while waiting:
        for child in waiting[-1]:
            yield child
            if below := _children(child):
                waiting.append(iter(below))
                break
        else:
            waiting.pop()


def _with_descendants(nodes: Iterator[object], work: WorkBudget) -> Iterator[object]:
    """The objects and arrays among the nodes and below them, each once."""
    # A node may stand below another one: without this, depth would multiply the cost.
    seen: set[int] = set()
    waiting = [nodes]
    while waiting:
        for node in waiting[-1]:
            below = _children(node)
            if below and id(node) not in seen:
                work.spend(NODE_WORK * len(below))
                seen.add(id(node))
                yield node
                waiting.append(iter(below))
                break
        else:
            waiting.pop()


def _child_step(step: re.Match[str], reading: Reading) -> _Step:
    if step["every"]:
        return _every_child
    if step["index"]:
        index = int(step["index"])
        return lambda nodes, work: (
            cast("list[object]", node)[index]
            for node in _counted(nodes, work)
            if isinstance(node, list) and index < len(cast("list[object]", node))
        )
    name = next(found for found in step.group("name", "single", "double") if found is not None)
    if reading is Reading.WIDE:
        plain = fold_text(name)
        return lambda nodes, work: (
            member
            for node in _counted(nodes, work)
            if isinstance(node, dict)
            for member in work.members(cast("dict[str, Any]", node)).get(plain, ())
        )
    return lambda nodes, work: (
        cast("dict[str, Any]", node)[name]
        for node in _counted(nodes, work)
        if isinstance(node, dict) and name in node
    )


def _every_child(nodes: Iterator[object], work: WorkBudget) -> Iterator[object]:
    return (child for node in nodes for child in _counted(_children(node), work))


def _counted(nodes: Iterable[object], work: WorkBudget) -> Iterator[object]:
    for node in nodes:
        work.spend(NODE_WORK)
        yield node


# --- patterns for any JSON value (PROTOCOL 7) ---

Match = Callable[[object, WorkBudget], bool]
"""Match function of a pattern, which spends work from the budget."""

MAX_NESTING: Final = 32
"""Levels of lists and objects in one pattern: MCP messages have about five, and we recurse."""

MAX_PARTS: Final = 1000
"""Strings, numbers, keys and alternatives in everything that one participant may do: each may be
held against every node of a payload, and compiles to a program of its own."""

_SHOWN_KEY_CHARS: Final = 40  # of a key, in a place
_MISSING: Final = object()
_EMPTY: Final[tuple[object, ...]] = (None, [], {})  # in which no reader would say that there is any


class Pattern(msgspec.Struct, frozen=True):
    """A compiled pattern."""

    source: object
    # A check that takes more than it may (:mod:`.work`) says no.
    matches: Callable[[object], bool]


class _Spot(NamedTuple):
    """The place of a node in a pattern.

    Attributes:
        place: Its name, for an error.
        depth: The nodes above it.
        below: It is matched with all below some value.
    """

    place: str
    depth: int = 0
    below: bool = False

    def inner(self, place: str) -> _Spot:
        """The place of a node within it."""
        return _Spot(place, self.depth + 1, self.below)


class DefaultedObject(dict[str, Any]):
    """An object with members that its sender left out, and a schema's defaults gave.

    Attributes:
        filled: The names of those members.
    """

    __slots__ = ("filled",)

    def __init__(self, members: dict[str, Any], filled: Collection[str]) -> None:
        super().__init__(members)
        self.filled = frozenset(filled)


def compile_pattern(pattern: object, *, reading: Reading = Reading.NARROW) -> Pattern:
    """Compile a pattern for a JSON value; InvalidPattern if anything in it does not compile."""
    return Pattern(pattern, bounded(PatternCompiler(reading).compile(pattern, "")))


class PatternCompiler:
    """Compiles patterns and counts their parts; one for everything that shares the limit."""

    def __init__(self, reading: Reading = Reading.NARROW) -> None:
        self.strings = Strings()
        self.reading = reading
        self._parts = 0

    def count(self, place: str) -> None:
        """Take one part more; InvalidPattern if that is one too many."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise InvalidPattern(f"there are more than {MAX_PARTS} parts", place=place)

    def compile(self, pattern: object, place: str) -> Match:
        """Compile a pattern; InvalidPattern names what of it does not compile."""
        return self._value(pattern, _Spot(place))

    def _value(self, pattern: object, at: _Spot) -> Match:
        compiled = self._node(pattern, at)
        return compiled if self.reading is Reading.NARROW else _or_element(compiled)

    def again(self, pattern: object) -> Match:
        """Compile, in another arrangement and without limits, what has been compiled before."""
        parts, self._parts = self._parts, 0
        try:
            return self._value(pattern, _Spot("", depth=-MAX_NESTING))
        finally:
            self._parts = parts

    def _node(self, pattern: object, at: _Spot) -> Match:
        self.count(at.place)
        if at.depth > MAX_NESTING:
            raise InvalidPattern(
                f"the pattern nests deeper than {MAX_NESTING} levels", place=at.place
            )
        if isinstance(pattern, str):
            return self._string(pattern, at.place)
        if isinstance(pattern, dict):
            return self._object(cast("dict[object, object]", pattern), at)
        if isinstance(pattern, list):
            return self._list(cast("list[object]", pattern), at)
        if pattern is None or isinstance(pattern, bool):
            return lambda value, work: value is pattern
        if isinstance(pattern, int) or (isinstance(pattern, float) and math.isfinite(pattern)):
            return lambda value, work: (
                isinstance(value, int | float) and not isinstance(value, bool) and value == pattern
            )
        raise InvalidPattern(f"{type(pattern).__name__} is not a JSON value", place=at.place)

    def _string(self, pattern: str, place: str) -> Match:
        body, negated = split_negation(pattern, place)
        reading = self.reading.opposite if negated else self.reading
        if is_exact(body) and reading is Reading.NARROW and not negated:
            return lambda value, work: value == body
        if body in ANY and reading is Reading.WIDE and not negated:
            return lambda value, work: value not in _EMPTY
        matches = self._text(body, place, reading)
        if not negated:
            return lambda value, work: isinstance(value, str) and matches(value, work)
        if self.reading is Reading.NARROW:
            # Texts only: "!6" must not let the number 6 through.
            return lambda value, work: isinstance(value, str) and not matches(value, work)
        return lambda value, work: not isinstance(value, str) or not matches(value, work)

    def _text(self, body: str, place: str, reading: Reading) -> StringMatch:
        """The test of a text for a pattern without its ``!``."""
        return self.strings.compile(body, place, reading)

    def _list(self, pattern: list[object], at: _Spot) -> Match:
        is_narrow = self.reading is Reading.NARROW
        exact: set[str] = set()
        starred: list[tuple[str, StringMatch]] = []
        others: list[Match] = []
        for index, item in enumerate(pattern):
            compiled = self._node(item, at.inner(f"{at.place}[{index}]"))
            if not isinstance(item, str) or item.startswith("!"):
                others.append(compiled)
            elif is_exact(item):
                exact.add(item if is_narrow else fold_text(item))
            elif is_narrow and (begun := begins(item)):
                starred.append((begun, self._text(item, at.place, self.reading)))
            else:
                others.append(compiled)
        if exact or starred:
            some = frozenset(exact)
            others.insert(0, _any_string(some, starred) if is_narrow else _any_folded(some))
        return _either(others)

    def _object(self, pattern: dict[Any, Any], at: _Spot) -> Match:
        named: list[tuple[str, Match]] = []
        keyed: list[tuple[StringMatch, Match]] = []
        searched: list[Match] = []
        for key, wanted in pattern.items():
            if not isinstance(key, str):
                raise InvalidPattern(
                    f"the key {key!r} is not a string; put quotes around it", place=at.place
                )
            shown = key if len(key) <= _SHOWN_KEY_CHARS else key[:_SHOWN_KEY_CHARS] + "…"
            inner = at.inner(f"{at.place}.{shown}" if at.place else shown)
            check_length(key, inner.place)
            if is_path(key):
                searched.append(self._search(key, wanted, inner))
            elif is_glob(key):
                fits, matches, search = self._members(key, wanted, inner)
                keyed.append((fits, matches))
                searched.append(search)
            else:
                named.append((key, self._value(wanted, inner)))

        is_narrow = self.reading is Reading.NARROW
        if not is_narrow:
            named = [(fold_text(key), matches) for key, matches in named]

        def match(value: object, work: WorkBudget) -> bool:
            if not isinstance(value, dict):
                return False
            members = cast("dict[str, object]", value)
            for key, matches in named:
                if is_narrow:
                    member = members.get(key, _MISSING)
                    if member is _MISSING or not matches(member, work):
                        return False
                elif not _any(matches, work.members(members).get(key, ()), work, NODE_WORK):
                    return False
            for matches in searched:  # noqa: SIM110 - half the time of all() with a generator
                if not matches(members, work):
                    return False
            return True

        names = frozenset(key for key, _ in named)
        return self._closed(match, names, keyed) if pattern else match

    def _closed(
        self, match: Match, names: frozenset[str], keyed: list[tuple[StringMatch, Match]]
    ) -> Match:
        """The match of an object, as far as its other members are free."""
        return match

    def _members(self, key: str, wanted: object, at: _Spot) -> tuple[StringMatch, Match, Match]:
        """The tests of a name and of a value, and that of an object for a member with both."""
        matches, cost = self._costed(self._value, wanted, at)
        fits = self.strings.glob(key, at.place, self.reading)

        def search(value: object, work: WorkBudget) -> bool:
            for name, member in cast("dict[str, object]", value).items():
                work.spend(cost)
                if fits(name, work) and matches(member, work):
                    return True
            return False

        return fits, matches, search

    def _search(self, key: str, wanted: object, at: _Spot) -> Match:
        """The test of an object for a value anywhere below it, or on a path."""
        path = compile_path(key, at.place, self.reading)
        compile = self._deep if path.deep else self._value
        matches, cost = self._costed(compile, wanted, at)
        return lambda value, work: _any(matches, path.select(value, work), work, cost)

    def _costed(
        self, compile: Callable[[object, _Spot], Match], wanted: object, at: _Spot
    ) -> tuple[Match, int]:
        """A pattern of many values, and the work of holding one against its parts."""
        before = self._parts
        matches = compile(wanted, at)
        return matches, NODE_WORK * (1 + self._parts - before)

    def _deep(self, wanted: object, at: _Spot) -> Match:
        # Each node below each node, and so on: nesting would multiply the cost by the depth.
        if at.below:
            raise InvalidPattern(
                "** and .. cannot stand below one another; name the keys between", place=at.place
            )
        compiled = self._node(wanted, at._replace(below=True))
        # The elements of an array are below it themselves.
        return compiled if self.reading is Reading.NARROW else _or_row(compiled)


class ArgumentCompiler(PatternCompiler):
    """Compiles the pattern of a tool's arguments, in which a wildcard alone takes every text.

    Args:
        reading: Its reading.
        others: Members that an object may have besides those that its pattern names, where that
            has any; ``None``: all. A member is named by its key, or by a key with wildcards whose
            pattern takes it; one that a default gave is no other one.
    """

    def __init__(self, reading: Reading, others: Collection[str] | None = None) -> None:
        super().__init__(reading)
        self._others = None if others is None else frozenset(others)

    def _text(self, body: str, place: str, reading: Reading) -> StringMatch:
        if body in ANY:
            return lambda text, work: True
        return super()._text(body, place, reading)

    def _closed(
        self, match: Match, names: frozenset[str], keyed: list[tuple[StringMatch, Match]]
    ) -> Match:
        if self._others is None:
            return match
        free = names | self._others

        def match_all(value: object, work: WorkBudget) -> bool:
            if not match(value, work):
                return False
            members = cast("dict[str, object]", value)
            filled = value.filled if isinstance(value, DefaultedObject) else ()
            for name, member in members.items():
                if name in free or name in filled:
                    continue
                work.spend(NODE_WORK)
                if not any(fits(name, work) and takes(member, work) for fits, takes in keyed):
                    return False
            return True

        return match_all


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


def _any_folded(folded: frozenset[str]) -> Match:
    return lambda value, work: (
        isinstance(value, str) and not folded.isdisjoint(work.plain_forms(value))
    )


def _or_element(matches: Match) -> Match:
    """Match a value, or an array by one of its elements, however deep, or by its texts in a row."""
    matches_one = _or_row(matches)

    def match(value: object, work: WorkBudget) -> bool:
        if not isinstance(value, list):
            return matches(value, work)
        pending: list[object] = [value]
        while pending:
            each = pending.pop()
            if matches_one(each, work):
                return True
            if isinstance(each, list):
                elements = cast("list[object]", each)
                work.spend(NODE_WORK * len(elements))
                pending += elements
        return False

    return match


def _or_row(matches: Match) -> Match:
    """Match a value, or an array by its texts in a row, with blanks between, as a command has.

    With the numbers among them, and without.
    """

    def match(value: object, work: WorkBudget) -> bool:
        if matches(value, work):
            return True
        if not isinstance(value, list):
            return False
        elements = cast("list[object]", value)
        work.spend(NODE_WORK * len(elements))
        texts = [each for each in elements if isinstance(each, str)]
        rows = [" ".join(texts)] if len(texts) > 1 else []
        if 0 < len(texts) < len(elements):
            scalars = [each for each in elements if isinstance(each, str | int | float)]
            work.spend(2 * NODE_WORK * len(scalars))
            if len(scalars) > len(texts):
                rows.append(" ".join(map(written, scalars)))
        for row in rows:
            work.spend(len(row))
            if matches(row, work):
                return True
        return False

    return match


def written(value: str | float) -> str:
    """A text, or a number, or true or false as a text has it."""
    return value if isinstance(value, str) else str(value).casefold().removesuffix(".0")


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
