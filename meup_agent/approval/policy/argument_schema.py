"""Argument schema: the arguments that a tool names, and takes where a call leaves them out.

A rule about an argument would otherwise be passed by leaving the argument out. What applies in any
case is filled in: ``properties``, in ``allOf`` and behind ``$ref``, in objects and arrays as deep
as the call has them. What may apply, as one of ``anyOf``, is not chosen here: the argument is
unsure, and no rule that looks at it is believed to leave the call alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from meup_agent.client.schema_check import objects_of
from meup_agent.protocol.capability.patterns import DefaultedObject
from meup_agent.protocol.wire.payloads import as_list, as_object

MAX_SCHEMAS_SEEN: Final = 5_000
"""Schemas that are looked at to find the defaults of one call: a hundred times what tools have."""

MAX_STEPS: Final = 500_000
"""Steps to find the defaults of one call, in half a second: one for each member, element or part of
a default, and for each schema that is held against it. A table of 20,000 cells takes 80,000."""

SCHEMA_STEPS: Final = MAX_STEPS // MAX_SCHEMAS_SEEN
"""Steps for each schema that is looked at."""

CHARS_PER_STEP: Final = 50
"""Characters of a default's JSON that are written in one step."""

MAX_LEVELS: Final = 128
"""Levels of a call's defaults: more than a message has, and a schema may refer to itself."""

MAX_REMEMBERED: Final = 1_000
"""Places of a schema of which it is kept what applies there: many elements share one."""

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_PERHAPS: Final = ("anyOf", "oneOf", "if", "then", "else", "not")
_PERHAPS_BY_NAME: Final = ("dependentSchemas", "dependencies")
_OF_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_OF_SOME_ELEMENTS: Final = ("contains", "unevaluatedItems")
_BY_PLACE: Final = ("prefixItems", "items")

_NONE: Final = object()
_UNSURE: Final = object()

_Schema = Mapping[str, Any]


class UnknownDefaults(Exception):
    """A schema is too large, or refers to what is not there, so its defaults are not known."""


class _Applied(NamedTuple):
    """A schema that applies to a value, or may."""

    schema: _Schema
    is_certain: bool


_Applying = list[_Applied]


class ArgumentSchema:
    """The schema of one tool's arguments.

    Attributes:
        root: The schema as the tool has it.
    """

    def __init__(self, schema: _Schema) -> None:
        self.root = schema
        self._has_any = any("default" in each for each in objects_of(schema))
        self._steps_left = 0
        self._known: dict[tuple[tuple[int, bool], ...], _Applying] = {}
        self._defaults: dict[int, tuple[_Applying, Any]] = {}

    def named(self) -> dict[str, list[Any]]:
        """The arguments that it names, and the values that it lists for each, if it lists any."""
        self._steps_left = MAX_STEPS
        try:
            applying = self._expanded([_Applied(self.root, True)], 0)
            names = [*_names(applying)]
            self._take_steps(len(names))
            found: dict[str, list[Any]] = {}
            for name in dict.fromkeys(names):
                self._take_steps(len(applying))
                found[name] = []
                for each, _ in self._expanded(_of_member(applying, name), 1):
                    values = as_list(each.get("enum"))
                    self._take_steps(1 + len(values))
                    found[name] += values
            return found
        except UnknownDefaults:
            return {name: [] for name in as_object(self.root.get("properties"))}

    def fill(self, arguments: dict[str, Any]) -> tuple[dict[str, Any], frozenset[str]]:
        """Fill in what a call leaves out, marked; and the arguments that are unsure.

        Of those the schema does not say for certain what they are.

        Raises:
            UnknownDefaults: It cannot be told what its tool takes there.
        """
        if not self._has_any:
            return arguments, frozenset()
        self._steps_left = MAX_STEPS
        root = [_Applied(self.root, True)]
        if not arguments and any(each.get("default") for each, _ in self._expanded(root, 0)):
            raise UnknownDefaults  # some tools take it for arguments that are left out as a whole
        filled, unsure = self._fill_object(arguments, root, 0)
        return filled, frozenset(unsure)

    def _fill_object(
        self, value: dict[str, Any], given: _Applying, level: int
    ) -> tuple[dict[str, Any], set[str]]:
        """An object with its defaults, and the names of its members that are unsure."""
        applying = self._expanded(given, level)
        found, unsure = dict(value), set[str]()
        filled = set(value.filled) if isinstance(value, DefaultedObject) else set[str]()
        names = [*_names(applying), *value]
        self._take_steps(len(applying) + len(names))
        for name in dict.fromkeys(names):
            of_member = _of_member(applying, name)
            if name not in value:
                self._take_steps(len(applying) + len(of_member))
                default = self._default(of_member, level + 1)
                if default is _UNSURE:
                    unsure.add(name)
                if default is _UNSURE or default is _NONE:
                    continue
                found[name] = self._marked(default)
                filled.add(name)
            of_member = [*of_member, *_of_any_member(applying)]
            self._take_steps(len(applying) + len(of_member))
            found[name], is_sure = self._fill_any(found[name], of_member, level + 1)
            if not is_sure:
                unsure.add(name)
        return (DefaultedObject(found, filled) if filled else found), unsure

    def _fill_any(self, value: object, given: _Applying, level: int) -> tuple[Any, bool]:
        """A value with its defaults, and whether all of them are certain."""
        if not given or not isinstance(value, dict | list):
            return cast("Any", value), True
        if isinstance(value, dict):
            filled, unsure = self._fill_object(cast("dict[str, Any]", value), given, level)
            return filled, not unsure
        applying = self._expanded(given, level)
        elements: list[Any] = []
        are_sure = True
        for index, each in enumerate(cast("list[object]", value)):
            of_element = [*_of_element(applying, index)]
            self._take_steps(1 + len(applying) + len(of_element))
            element, is_sure = self._fill_any(each, of_element, level + 1)
            elements.append(element)
            are_sure = are_sure and is_sure
        # Few tools append what is missing, so nothing is chosen here.
        places = [as_list(each.get(name)) for each, _ in applying for name in _BY_PLACE]
        self._take_steps(sum(1 + len(each) for each in places))
        behind = [
            _Applied(each, True) for some in places for each in _schemas_in(some[len(elements) :])
        ]
        return elements, are_sure and self._default(behind, level + 1) is _NONE

    def _marked(self, value: Any) -> Any:
        """A default, in which no member was given by the call."""
        self._take_steps(1)
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            marked = {name: self._marked(each) for name, each in members.items()}
            return DefaultedObject(marked, marked)
        if isinstance(value, list):
            return [self._marked(each) for each in cast("list[object]", value)]
        return value

    def _default(self, given: _Applying, level: int) -> Any:
        """The default of a member that is missing, where there is one, and only one."""
        applying = self._expanded(given, level)
        known = self._defaults.get(id(applying))
        if known is None:
            # The schemas are kept as long as what is known about them.
            known = self._defaults[id(applying)] = applying, self._find_default(applying, level)
        return known[1]

    def _find_default(self, applying: _Applying, level: int) -> Any:
        found: dict[str, list[_Applied]] = {}  # by its JSON: true is not 1
        for each in applying:
            if "default" in each.schema:
                text = json.dumps(each.schema["default"], sort_keys=True, default=str)
                self._take_steps(len(text) // CHARS_PER_STEP)
                found.setdefault(text, []).append(each)
        for same in found.values():
            if len(found) == 1 and any(each.is_certain for each in same):
                return same[0].schema["default"]
        return _UNSURE if found or self._has_below(applying, level, set()) else _NONE

    def _has_below(self, applying: _Applying, level: int, seen: set[int]) -> bool:
        """True if a member of a missing object has a default: its tool may make the object."""
        fresh = [each for each in applying if id(each.schema) not in seen]
        seen.update(id(each.schema) for each in fresh)
        for name in _names(fresh):
            self._take_steps(1 + len(fresh))
            below = self._expanded(_of_member(fresh, name), level + 1)
            if any("default" in each for each, _ in below):
                return True
            if self._has_below(below, level + 1, seen):
                return True
        return False

    # --- the schemas that apply together ---

    def _expanded(self, given: _Applying, level: int) -> _Applying:
        """Schemas with those that they refer to, all of them, and any of which may apply."""
        if level > MAX_LEVELS:
            raise UnknownDefaults
        key = tuple((id(each.schema), each.is_certain) for each in given)
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
                self._defaults.clear()
            known = self._known[key] = self._expand(given)
        return known

    def _expand(self, given: _Applying) -> _Applying:
        found: dict[tuple[int, bool], _Applied] = {}
        pending = [*given]
        for schema, is_certain in pending:
            key = (id(schema), is_certain)
            if key in found:
                continue
            self._take_steps(SCHEMA_STEPS)
            found[key] = _Applied(schema, is_certain)
            referred = [self._referred(schema[name]) for name in _REFERENCES if name in schema]
            surely = [*_under(schema, "allOf"), *referred]
            perhaps = [*_under(schema, *_PERHAPS), *_by_name(schema, *_PERHAPS_BY_NAME)]
            pending += [_Applied(each, is_certain) for each in surely]
            pending += [_Applied(each, False) for each in perhaps]
        return [*found.values()]

    def _take_steps(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise UnknownDefaults

    def _referred(self, reference: object) -> _Schema:
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise UnknownDefaults
        pointer = unquote(reference[1:])
        if pointer and not pointer.startswith("/"):
            return self._anchored(pointer)
        found: object = self.root
        steps = pointer.split("/")[1:]
        self._take_steps(len(steps))
        for step in steps:
            key = step.replace("~1", "/").replace("~0", "~")
            listed = as_list(found)
            if key.isdecimal() and int(key) < len(listed):
                found = listed[int(key)]
            else:
                found = as_object(found).get(key)
        if not isinstance(found, dict | bool):
            raise UnknownDefaults
        return as_object(
            cast("object", found)
        )  # true and false are schemas, too, and have no defaults

    def _anchored(self, anchor: str) -> _Schema:
        for each in objects_of(self.root):
            self._take_steps(SCHEMA_STEPS)
            if anchor in (each.get("$anchor"), each.get("$dynamicAnchor")):
                return each
        raise UnknownDefaults


def _schemas_in(values: Iterable[object]) -> Iterator[_Schema]:
    """The schemas among some values; those that are true or false have no defaults."""
    return (cast("_Schema", each) for each in values if isinstance(each, dict))


def _under(schema: _Schema, *keywords: str) -> Iterator[_Schema]:
    """The schemas behind keywords of one, alone or in a list."""
    for keyword in keywords:
        found = schema.get(keyword)
        yield from _schemas_in(cast("list[object]", found) if isinstance(found, list) else [found])


def _by_name(schema: _Schema, *keywords: str) -> Iterator[_Schema]:
    """The schemas behind keywords of one that have a name each."""
    for keyword in keywords:
        yield from _schemas_in(as_object(schema.get(keyword)).values())


def _names(applying: _Applying) -> Iterator[str]:
    """The members that schemas of an object name."""
    for each, _ in applying:
        yield from as_object(each.get("properties"))


def _of_member(applying: _Applying, name: str) -> _Applying:
    """The schemas of one member by its name."""
    return [
        _Applied(each, is_certain)
        for schema, is_certain in applying
        for each in _schemas_in([as_object(schema.get("properties")).get(name)])
    ]


def _of_any_member(applying: _Applying) -> _Applying:
    """The schemas of members that are known by a pattern, or by none."""
    return [
        _Applied(each, False)
        for schema, _ in applying
        for each in [*_by_name(schema, "patternProperties"), *_under(schema, *_OF_MEMBERS)]
    ]


def _of_element(applying: _Applying, index: int) -> Iterator[_Applied]:
    """The schemas of an element: by its place, or by what it is, or others are not."""
    for schema, is_certain in applying:
        items = schema.get("items")
        first = as_list(schema.get("prefixItems")) or as_list(items)
        if index < len(first):
            items = first[index]
        elif isinstance(items, list):
            items = schema.get("additionalItems")
        yield from (_Applied(each, is_certain) for each in _schemas_in([items]))
        yield from (_Applied(each, False) for each in _under(schema, *_OF_SOME_ELEMENTS))
