"""``jsonschema`` without what a stranger's schema could harm us by.

A schema refers to nothing outside of itself, its regular expressions are not run, and a check takes
a bounded number of steps. What is left out is left to whoever has the tool. So nothing is refused
that the schema allows, nor what many tools take although their schema does not say so: a number
written as text, for example.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, cast

from meup_agent.client.problems import json_type, listed, should_be, type_names

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

MAX_SCHEMA_OBJECTS: Final = 512
"""Objects in a schema; one with more is left to its tool: reading so many takes a fifth of a
second, and most have twenty."""

MAX_STEPS: Final = 20_000
"""Keywords that one check looks at, about a quarter of a second: small schemas can be written that
take years."""

MAX_COMPARED_ITEMS: Final = 256
"""Items of an array that must differ: comparing takes the square of their number."""

LEFT_OUT: Final = (
    "pattern",  # every language has regular expressions of its own
    "patternProperties",
    "unevaluatedProperties",  # what patternProperties did not name
    "unevaluatedItems",
    "multipleOf",  # of fractions, every language has another opinion
)
"""Keywords that only the tool itself knows how to check."""

REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

NOT_MONOTONE: Final = ("not", "if", "contains")
"""Keywords that are left out as well: with less checked below them they would refuse more, not
less. So would ``oneOf``, which is taken for ``anyOf``."""

BOOLEANS: Final = frozenset(
    {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1"}
)
"""Texts, in small letters, that tools are known to take for a boolean."""


class TooManySteps(Exception):
    """A check took more than :data:`MAX_STEPS`."""


class _Steps:
    def __init__(self) -> None:
        self.left = MAX_STEPS


_steps: ContextVar[_Steps] = ContextVar("meup_agent.schema_steps")


@contextmanager
def steps_counted() -> Generator[None]:
    """A check in the block ends with :class:`TooManySteps` when it takes too many."""
    token = _steps.set(_Steps())
    try:
        yield
    finally:
        _steps.reset(token)


@cache
def _library() -> Any:
    # Loaded when first needed: it takes half as long as the whole package.
    return import_module("jsonschema")


def validator_for(schema: dict[str, Any]) -> Any:
    """A validator of the library's.

    Raises:
        Exception: The schema is none, or does what is not allowed.
    """
    dialect = schema.get("$schema")
    body = {name: value for name, value in schema.items() if name != "$schema"}
    objects = list(islice(_objects(body), MAX_SCHEMA_OBJECTS + 1))
    if len(objects) > MAX_SCHEMA_OBJECTS:
        raise ValueError(f"it has more than {MAX_SCHEMA_OBJECTS} objects")
    if any("$schema" in each for each in objects):
        # Below it, the library would go on with keywords that are not ours.
        raise ValueError("it changes its dialect in the middle")
    if any(isinstance(each.get("$id"), str) for each in objects[1:]):
        # Its references are then relative to a place that is not looked for here.
        raise ValueError("it has another schema inside")
    if any(
        not str(each[name]).startswith("#") for each in objects for name in REFERENCES & each.keys()
    ):
        raise ValueError("it refers to something outside of itself")
    base = _base(dialect)
    base.check_schema(body)
    registry = import_module("referencing").Registry()  # it retrieves nothing
    return _restricted(base)(body, registry=registry)


def _base(dialect: object) -> Any:
    """The library's class for a dialect of JSON Schema; MCP's own where none is named."""
    library = _library()
    if dialect is None:
        return library.Draft202012Validator
    for each in (
        library.Draft202012Validator,
        library.Draft201909Validator,
        library.Draft7Validator,
        library.Draft6Validator,
    ):
        if str(each.META_SCHEMA["$schema"]).rstrip("#") == str(dialect).rstrip("#"):
            return each
    raise ValueError(f"there is no dialect {str(dialect)[:64]!r} here")


@cache
def _restricted(base: Any) -> Any:
    """The library's class without what only the tool can check."""
    library = _library()
    keywords: dict[str, Any] = dict(base.VALIDATORS)
    for name in (*LEFT_OUT, *NOT_MONOTONE):
        keywords.pop(name, None)
    keywords["oneOf"] = keywords["anyOf"]
    error = library.ValidationError
    keywords["required"] = _required(error)
    keywords["additionalProperties"] = _additional_properties(error, base)
    keywords["uniqueItems"] = _unique_items(base)
    keywords["type"] = _type(error)
    keywords["enum"] = _enum(base)
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    old = base in (library.Draft7Validator, library.Draft6Validator)
    return library.validators.create(
        meta_schema={},
        validators=counted,
        type_checker=base.TYPE_CHECKER,
        applicable_validators=_or_only_reference if old else _all_keywords,
    )


def _all_keywords(schema: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    return schema.items()


def _or_only_reference(schema: dict[str, Any]) -> Iterable[tuple[str, Any]]:
    """Until Draft 7 a reference stands for the whole schema that it stands in."""
    return (("$ref", schema["$ref"]),) if "$ref" in schema else schema.items()


def _counted(keyword: Any) -> Any:
    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps = _steps.get()
        steps.left -= 1
        if steps.left < 0:
            raise TooManySteps
        return keyword(validator, value, instance, schema)

    return counting


def _required(error: Any) -> Any:
    def required(validator: Any, names: Any, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for name in names:
                if name not in instance:
                    yield error("is required", path=(name,))

    return required


def _additional_properties(error: Any, base: Any) -> Any:
    of_library = base.VALIDATORS["additionalProperties"]

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema or not validator.is_type(instance, "object"):
            return
        if value is not False:
            yield from of_library(validator, value, instance, schema)
            return
        known = list(schema.get("properties", ()))
        for name in instance:
            if name not in known:
                yield error(f"is not known; there is {listed(known)}", path=(name,))

    return additional


def _unique_items(base: Any) -> Any:
    of_library = base.VALIDATORS["uniqueItems"]

    def unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "array") and len(instance) <= MAX_COMPARED_ITEMS:
            yield from of_library(validator, value, instance, schema)

    return unique


def _type(error: Any) -> Any:
    def expected(validator: Any, types: Any, instance: Any, schema: Any) -> Iterator[Any]:
        names = type_names(types)
        fits = any(validator.is_type(instance, each) for each in names)
        if not fits and not _may_be_converted(instance, names, schema):
            yield error(should_be(names, instance))

    return expected


def _enum(base: Any) -> Any:
    of_library = base.VALIDATORS["enum"]

    def one_of(validator: Any, values: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not _may_be_converted(instance, [json_type(each) for each in values], schema):
            yield from of_library(validator, values, instance, schema)

    return one_of


def _may_be_converted(value: object, types: list[str], schema: Any) -> bool:
    """Whether tools are known that make one of these types of a plain value."""
    numeric = "number" in types or "integer" in types
    if isinstance(value, bool):
        return numeric
    if isinstance(value, str):
        return (numeric and _is_number(value)) or ("boolean" in types and value.lower() in BOOLEANS)
    if isinstance(value, int | float):
        # Texts of a certain form are often moments and spans of time, which numbers tell as well.
        return ("boolean" in types and value in (0, 1)) or (
            "string" in types and "format" in schema
        )
    return False


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _objects(schema: object) -> Iterator[dict[str, Any]]:
    """Every object in a schema."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            item = cast("dict[str, Any]", value)
            yield item
            pending += item.values()
        elif isinstance(value, list):
            pending += cast("list[object]", value)
