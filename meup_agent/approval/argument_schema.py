"""Argument schema: the arguments that a tool names, and takes where a call leaves them out.

A rule about an argument would otherwise be passed by leaving the argument out. What applies in any
case is filled in: ``properties``, in ``allOf`` and behind ``$ref``, in objects and arrays as deep
as the call has them. What may apply, as one of ``anyOf``, is not chosen here: the argument is
unsure, and no rule that looks at it is believed to leave the call alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote

from meup_agent.client.schema_check import objects_of
from meup_agent.protocol.capability.patterns import DefaultedObject
from meup_agent.protocol.payloads import as_list, as_object

MAX_SCHEMAS_SEEN: Final = 5_000
"""Schemas that are looked at to find the defaults of one call: a hundred times what tools have."""

MAX_STEPS: Final = 500_000
"""Steps to find the defaults of one call, in half a second: one for each member, element or part of
a default, and for each schema that is held against it. A table of 20,000 cells takes 80,000."""

CHARS_PER_STEP: Final = 50
"""Characters of a default's JSON that are written in one step."""

MAX_LEVELS: Final = 128
"""Levels of a call's defaults: more than a message has, and a schema may refer to itself."""

MAX_REMEMBERED: Final = 1_000
"""Places of a schema of which it is kept what applies there: many elements share one."""

_ALTERNATIVES: Final = ("anyOf", "oneOf")
_CONDITIONAL: Final = ("if", "then", "else", "not")
_BY_NAME: Final = ("dependentSchemas", "dependencies")
_OF_MEMBERS: Final = ("additionalProperties", "unevaluatedProperties")
_OF_SOME_ELEMENTS: Final = ("contains", "unevaluatedItems")

_NONE: Final = object()
_UNSURE: Final = object()

_Schema = Mapping[str, Any]


class UnknownDefaults(Exception):
    """A schema is too large, or refers to what is not there, so its defaults are not known."""


class FilledArguments(NamedTuple):
    """The arguments of a call with the defaults of its tool.

    Attributes:
        arguments: The arguments; those that a default gave are marked.
        unsure: The arguments of which the schema does not say for certain what they are.
    """

    arguments: dict[str, Any]
    unsure: frozenset[str] = frozenset()


class _Applying(NamedTuple):
    """The schemas of one value: those that apply, and those that may."""

    certain: list[_Schema]
    possible: list[_Schema]

    @property
    def all(self) -> list[_Schema]:
        return [*self.certain, *self.possible]

    @property
    def size(self) -> int:
        return len(self.certain) + len(self.possible)


class ArgumentSchema:
    """The schema of one tool's arguments.

    Attributes:
        root: The schema as the tool has it.
    """

    def __init__(self, schema: _Schema) -> None:
        self.root = schema
        self._has_any = any("default" in each for each in objects_of(schema))
        self._left = 0
        self._steps_left = 0
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], _Applying] = {}
        self._defaults: dict[int, tuple[_Applying, Any]] = {}

    def named(self) -> dict[str, list[Any]]:
        """The arguments that it names, and the values that it lists for each, if it lists any."""
        self._begin()
        try:
            applying = self._expanded(_Applying([self.root], []), 0)
            found: dict[str, list[Any]] = {}
            for name in _names(applying):
                self._take_steps(1)
                if name in found:
                    continue
                self._take_steps(applying.size)
                found[name] = []
                for each in self._expanded(_of_member(applying, name, is_there=False), 1).all:
                    values = as_list(each.get("enum"))
                    self._take_steps(1 + len(values))
                    found[name] += values
            return found
        except UnknownDefaults:
            return {name: [] for name in as_object(self.root.get("properties"))}

    def fill(self, arguments: dict[str, Any]) -> FilledArguments:
        """Fill in what a call leaves out.

        Raises:
            UnknownDefaults: It cannot be told what its tool takes there.
        """
        if not self._has_any:
            return FilledArguments(arguments)
        self._begin()
        root = _Applying([self.root], [])
        if not arguments and any(each.get("default") for each in self._expanded(root, 0).all):
            raise UnknownDefaults  # some tools take it for arguments that are left out as a whole
        filled, unsure = self._fill_object(arguments, root, 0)
        return FilledArguments(filled, frozenset(unsure))

    def _fill_object(
        self, value: dict[str, Any], given: _Applying, level: int
    ) -> tuple[dict[str, Any], set[str]]:
        """An object with its defaults, and the names of its members that are unsure."""
        applying = self._expanded(given, level)
        found, unsure = dict(value), set[str]()
        filled = set(value.filled) if isinstance(value, DefaultedObject) else set[str]()
        self._take_steps(applying.size)
        names = [*_names(applying), *value]
        self._take_steps(len(names))
        for name in dict.fromkeys(names):
            of_member = _of_member(applying, name, is_there=name in value)
            self._take_steps(applying.size + of_member.size)
            if name not in value:
                default = self._default(of_member, level + 1)
                if default is _UNSURE:
                    unsure.add(name)
                if default is _UNSURE or default is _NONE:
                    continue
                found[name] = self._marked(default)
                filled.add(name)
                of_member = _of_member(applying, name, is_there=True)
                self._take_steps(applying.size + of_member.size)
            found[name], is_sure = self._fill_any(found[name], of_member, level + 1)
            if not is_sure:
                unsure.add(name)
        return (DefaultedObject(found, filled) if filled else found), unsure

    def _fill_any(self, value: object, given: _Applying, level: int) -> tuple[Any, bool]:
        """A value with its defaults, and whether all of them are certain."""
        if not given.all or not isinstance(value, dict | list):
            return cast("Any", value), True
        if isinstance(value, dict):
            filled, unsure = self._fill_object(cast("dict[str, Any]", value), given, level)
            return filled, not unsure
        applying = self._expanded(given, level)
        elements: list[Any] = []
        are_sure = True
        for index, each in enumerate(cast("list[object]", value)):
            of_element = _Applying(
                list(_of_element(applying.certain, index)),
                [*_of_element(applying.possible, index), *_of_some_element(applying.all)],
            )
            self._take_steps(1 + applying.size + of_element.size)
            element, is_sure = self._fill_any(each, of_element, level + 1)
            elements.append(element)
            are_sure = are_sure and is_sure
        # Few tools append what is missing, so nothing is chosen here.
        self._take_steps(sum(map(_count_places, applying.all)))
        missing = _Applying(_of_missing_elements(applying.all, len(elements)), [])
        return elements, are_sure and self._default(missing, level + 1) is _NONE

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
        certain = _distinct(each["default"] for each in applying.certain if "default" in each)
        possible = _distinct(each["default"] for each in applying.possible if "default" in each)
        self._take_steps(sum(map(len, [*certain, *possible])) // CHARS_PER_STEP)
        if len(certain) == 1 and possible.keys() <= certain.keys():
            return next(iter(certain.values()))
        is_unsure = certain or possible or self._has_below(applying, level, set())
        return _UNSURE if is_unsure else _NONE

    def _has_below(self, applying: _Applying, level: int, seen: set[int]) -> bool:
        """True if a member of a missing object has a default: its tool may make the object."""
        fresh = [each for each in applying.all if id(each) not in seen]
        seen.update(map(id, fresh))
        for name in _names(_Applying(fresh, [])):
            self._take_steps(1 + len(fresh))
            of_member = _of_member(_Applying(fresh, []), name, is_there=False)
            below = self._expanded(of_member, level + 1)
            if any("default" in each for each in below.all):
                return True
            if self._has_below(below, level + 1, seen):
                return True
        return False

    # --- the schemas that apply together ---

    def _expanded(self, given: _Applying, level: int) -> _Applying:
        """Schemas with those that they refer to, all of them, and any of which may apply."""
        if level > MAX_LEVELS:
            raise UnknownDefaults
        key = (tuple(map(id, given.certain)), tuple(map(id, given.possible)))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
                self._defaults.clear()
            known = self._known[key] = self._expand(given)
        return known

    def _expand(self, given: _Applying) -> _Applying:
        found = _Applying([], [])
        pending = [(each, True) for each in given.certain]
        pending += [(each, False) for each in given.possible]
        seen: set[tuple[int, bool]] = set()
        for schema, is_certain in pending:
            if (id(schema), is_certain) in seen:
                continue
            seen.add((id(schema), is_certain))
            self._spend()
            (found.certain if is_certain else found.possible).append(schema)
            pending += [(each, is_certain) for each in self._together(schema)]
            pending += [(each, False) for each in _perhaps(schema)]
        return found

    def _begin(self) -> None:
        self._left, self._steps_left = MAX_SCHEMAS_SEEN, MAX_STEPS

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnknownDefaults

    def _take_steps(self, count: int) -> None:
        self._steps_left -= count
        if self._steps_left < 0:
            raise UnknownDefaults

    def _together(self, schema: _Schema) -> Iterator[_Schema]:
        yield from map(as_object, as_list(schema.get("allOf")))
        for name in ("$ref", "$dynamicRef", "$recursiveRef"):
            if name in schema:
                yield self._referred(schema[name])

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
        if not isinstance(found, dict):
            # True and false are schemas, too, and have no defaults.
            if isinstance(found, bool):
                return {}
            raise UnknownDefaults
        return cast("dict[str, Any]", found)

    def _anchored(self, anchor: str) -> _Schema:
        for each in objects_of(self.root):
            self._spend()
            if anchor in (each.get("$anchor"), each.get("$dynamicAnchor")):
                return each
        raise UnknownDefaults


def _names(applying: _Applying) -> Iterator[str]:
    """The members that schemas of an object name."""
    for each in applying.all:
        yield from as_object(each.get("properties"))


def _of_member(applying: _Applying, name: str, *, is_there: bool) -> _Applying:
    """The schemas of one member."""

    def named(schemas: list[_Schema]) -> list[_Schema]:
        members = (as_object(each.get("properties")).get(name) for each in schemas)
        return _objects([*members])

    by_rule = list(_of_any_member(applying.all)) if is_there else []
    return _Applying(named(applying.certain), [*named(applying.possible), *by_rule])


def _objects(value: object) -> list[_Schema]:
    """The schemas in a list of them; those that are true or false have no defaults."""
    return [cast("_Schema", each) for each in as_list(value) if isinstance(each, dict)]


def _perhaps(schema: _Schema) -> Iterator[_Schema]:
    """The schemas in one that may apply beside it."""
    for name in _ALTERNATIVES:
        yield from map(as_object, as_list(schema.get(name)))
    for name in _CONDITIONAL:
        if isinstance(schema.get(name), dict):
            yield as_object(schema[name])
    for name in _BY_NAME:
        yield from (as_object(each) for each in as_object(schema.get(name)).values())


def _of_any_member(schemas: list[_Schema]) -> Iterator[_Schema]:
    """The schemas of members that are known by a pattern, or by none."""
    for schema in schemas:
        for each in as_object(schema.get("patternProperties")).values():
            yield as_object(each)
        for name in _OF_MEMBERS:
            if isinstance(schema.get(name), dict):
                yield as_object(schema[name])


def _of_element(schemas: list[_Schema], index: int) -> Iterator[_Schema]:
    """The schemas of an element of an array."""
    for schema in schemas:
        items = schema.get("items")
        first = as_list(schema.get("prefixItems")) or as_list(items)
        if index < len(first):
            items = first[index]
        elif isinstance(items, list):
            items = schema.get("additionalItems")
        yield from _objects([items])


def _of_some_element(schemas: list[_Schema]) -> Iterator[_Schema]:
    """The schemas of elements that are known by what they are, or by what others are not."""
    for schema in schemas:
        for name in _OF_SOME_ELEMENTS:
            if isinstance(schema.get(name), dict):
                yield as_object(schema[name])


def _count_places(schema: _Schema) -> int:
    """The elements that a schema describes by their places, and one."""
    return 1 + sum(len(as_list(schema.get(name))) for name in ("prefixItems", "items"))


def _of_missing_elements(schemas: list[_Schema], size: int) -> list[_Schema]:
    """The schemas of elements that an array of some size would have by their places."""
    return [
        each
        for schema in schemas
        for name in ("prefixItems", "items")
        for each in _objects(as_list(schema.get(name))[size:])
    ]


def _distinct(values: Iterator[Any]) -> dict[str, Any]:
    """Values by their JSON: true is not 1."""
    return {json.dumps(each, sort_keys=True, default=str): each for each in values}
