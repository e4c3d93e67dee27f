"""A check of arguments against a tool's ``inputSchema``, which is a stranger's, in bounded time.

The check is ``jsonschema`` without what could harm us: a schema refers to nothing outside of
itself, its regular expressions are not run, and a check takes a bounded number of steps. What is
left out, too large, or unreadable is left to the tool, which checks its arguments itself. So
nothing is refused that the schema allows, nor what many tools take although their schema does not
say so: a number written as text, for example.

``jsonschema-rs`` (0.60.3, measured with its linear regular expressions) is a hundred times as fast
and has no bound on steps: 24 definitions of which each has ``oneOf`` with the next one twice, 1.7
kB, exhausted 6 GB. Nor can it leave a keyword out, which the lenient reading above needs.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meup_agent.errors import printable
from meup_agent.protocol.wire.envelope import encode_leniently
from meup_agent.protocol.wire.payloads import is_list, is_object

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

log = logging.getLogger("meup_agent.client")

MAX_SCHEMA_BYTES: Final = 65_536
"""Of one tool's schema; a larger one is left to its tool."""

MAX_SCHEMA_OBJECTS: Final = 512
"""Objects in a schema; one with more is left to its tool: reading so many takes a fifth of a
second, and most have twenty."""

MAX_STEPS: Final = 40_000
"""Members of schemas that one check reads, each twice as the library does, about a quarter of a
second: small schemas can be written that take years."""

MAX_COMPARED_ITEMS: Final = 256
"""Items of an array that must differ: comparing takes the square of their number."""

MAX_PROBLEMS: Final = 8
"""Problems that are told of one call."""

MAX_PROBLEM_CHARS: Final = 200
"""Characters of one problem: schemas and arguments may be long."""

MAX_VALUE_CHARS: Final = 40
"""Characters of a wrong value that are shown."""

LEFT_OUT: Final = (
    "pattern",  # every language has regular expressions of its own
    "patternProperties",
    "unevaluatedProperties",  # what patternProperties did not name
    "unevaluatedItems",
    "multipleOf",  # of fractions, every language has another opinion
    "not",
    "if",
    "contains",
)
"""Keywords that only the tool itself knows how to check, and the last three: with less checked
below them they would refuse more, not less. So would ``oneOf``, which is taken for ``anyOf``."""

_JSON_TYPES: Final[dict[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "number",
    float: "number",
    str: "string",
    list: "array",
}

REFERENCES: Final = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})

BOOLEANS: Final = frozenset(
    {"true", "false", "yes", "no", "on", "off", "t", "f", "y", "n", "0", "1"}
)
"""Texts, in small letters, that tools are known to take for a boolean."""


class SchemaViolation(NamedTuple):
    """A problem of one argument, such as ``items[0].name``, or of all of them."""

    argument: str
    problem: str

    def __str__(self) -> str:
        """Both, as a part of a sentence."""
        return f"{self.argument!r} {self.problem}" if self.argument else self.problem


_steps_left: ContextVar[list[int]] = ContextVar("meup_agent.schema_steps")


class TooManySteps(Exception):
    """A check took more than :data:`MAX_STEPS`."""


class ArgumentChecker:
    """Checks arguments against one schema.

    Args:
        schema: A tool's.
        whose: The tool, for the log.
        exact: Take no value of another type than the schema names, as a number in quotes.
    """

    def __init__(self, schema: object, whose: str, *, exact: bool = False) -> None:
        self._whose = whose
        self._validator: Any = None
        self._has_logged = False
        _steps_left.set([MAX_STEPS])
        try:
            self._validator = _validator_for(schema, exact)
        except Exception as error:  # whatever a stranger's schema makes of the library
            self._log(error)

    def problems(self, arguments: object) -> list[SchemaViolation] | None:
        """Problems of some arguments, at most so many; ``None`` where that is left open."""
        if self._validator is None:
            return None
        _steps_left.set([MAX_STEPS])
        try:
            errors = islice(self._validator.iter_errors(arguments), MAX_PROBLEMS)
            return list(dict.fromkeys(map(_violation_of, errors)))
        except TooManySteps as error:  # with other arguments it may take fewer
            self._log(error)
        except Exception as error:  # as above
            self._validator = None
            self._log(error)
        return None

    def _log(self, error: Exception) -> None:
        if not self._has_logged:
            self._has_logged = True
            said = printable(str(error))[:MAX_PROBLEM_CHARS]
            log.info("the arguments of %s are left to itself: %s", self._whose, said)


# --- the library, restricted ---


@cache
def _library() -> Any:
    # Loaded when first needed: it takes half as long as the whole package.
    return import_module("jsonschema")


def _validator_for(schema: object, exact: bool) -> Any:
    """A validator of the library's; raises if the schema is none, or does what is not allowed."""
    if not is_object(schema):
        raise TypeError("its schema is not an object")
    body = dict(schema)
    if len(encode_leniently(body)) > MAX_SCHEMA_BYTES:
        raise ValueError(f"its schema is larger than {MAX_SCHEMA_BYTES} bytes")
    library = _library()
    newest = library.Draft202012Validator  # MCP's own
    base = library.validators.validator_for(body, None if "$schema" in body else newest)
    if base is None:
        raise ValueError(f"its schema has the dialect {str(body['$schema'])[:64]!r}")
    body.pop("$schema", None)
    for number, each in enumerate(objects_of(body)):
        if number == MAX_SCHEMA_OBJECTS:
            raise ValueError(f"its schema has more than {MAX_SCHEMA_OBJECTS} objects")
        if "$schema" in each or (number and isinstance(each.get("$id"), str)):
            # The library would go on with keywords that are not ours, or look for references
            # at a place that is not looked for here.
            raise ValueError("its schema has another schema inside")
        if not all(str(each[name]).startswith("#") for name in REFERENCES & each.keys()):
            raise ValueError("its schema refers to something outside of itself")
    check_schema(base, body)
    registry = import_module("referencing").Registry()  # it retrieves nothing
    return _restricted(base, exact)(body, registry=registry)


def check_schema(base: Any, schema: object) -> None:
    """Check a schema against its dialect, without a look at formats; the library's error if wrong.

    One format is that of regular expressions, which the library compiles: a stranger writes one of
    300 characters that takes it half a second.
    """
    base.check_schema(schema, format_checker=_library().FormatChecker(formats=()))


@cache
def _restricted(base: Any, exact: bool) -> Any:
    """The library's class for a dialect, without what only the tool can check.

    Some keywords say more than the library's, take longer in it, or refuse what tools take.
    """
    library = _library()
    error, of_library = library.ValidationError, base.VALIDATORS

    def required(validator: Any, names: Any, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            yield from (
                error("is required", path=(each,)) for each in names if each not in instance
            )

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema or not validator.is_type(instance, "object"):
            return
        known = schema.get("properties", {})
        for name in [each for each in instance if each not in known]:
            if value is False:
                yield error(f"is not known; there is {listed(list(known))}", path=(name,))
            else:
                yield from validator.descend(instance[name], value, path=name)

    def unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "array") and len(instance) <= MAX_COMPARED_ITEMS:
            yield from of_library["uniqueItems"](validator, value, instance, schema)

    def expected(validator: Any, types: Any, instance: Any, schema: Any) -> Iterator[Any]:
        names = type_names(types)
        fits = any(validator.is_type(instance, each) for each in names)
        if not fits and (exact or not _may_be_converted(instance, names, schema)):
            yield error(should_be(names, instance))

    def one_of(validator: Any, values: Any, instance: Any, schema: Any) -> Iterator[Any]:
        types = [json_type(each) for each in values]
        if exact or not _may_be_converted(instance, types, schema):
            yield from of_library["enum"](validator, values, instance, schema)

    def counted_keywords(schema: dict[str, Any]) -> Iterable[tuple[str, Any]]:
        left = _steps_left.get()
        left[0] -= len(schema)
        if left[0] < 0:
            raise TooManySteps("too much to check for some arguments")
        # Until Draft 7 a reference stands for the whole schema that it stands in.
        is_old = "draft-0" in base.META_SCHEMA["$schema"]
        return (("$ref", schema["$ref"]),) if is_old and "$ref" in schema else schema.items()

    keywords = {name: each for name, each in of_library.items() if name not in LEFT_OUT}
    own = {
        "additionalProperties": additional,
        "enum": one_of,
        "oneOf": of_library.get("anyOf"),
        "required": required,
        "type": expected,
        "uniqueItems": unique,
    }
    return library.validators.create(
        meta_schema={},
        validators=keywords | own,
        type_checker=base.TYPE_CHECKER,
        applicable_validators=counted_keywords,
    )


def _may_be_converted(value: object, types: list[str], schema: Any) -> bool:
    """True where tools are known that make one of these types of a plain value."""
    is_numeric = "number" in types or "integer" in types
    if isinstance(value, bool):
        return is_numeric
    if isinstance(value, str):
        if "boolean" in types and value.lower() in BOOLEANS:
            return True
        try:
            float(value)
        except ValueError:
            return False
        return is_numeric
    # Texts of a certain form are often moments and spans of time, which numbers tell as well.
    return isinstance(value, int | float) and (
        ("boolean" in types and value in (0, 1)) or ("string" in types and "format" in schema)
    )


def objects_of(schema: object) -> Iterator[dict[str, Any]]:
    """Every object in a schema."""
    pending = [schema]
    while pending:
        value = pending.pop()
        if is_object(value):
            yield value
            pending += value.values()
        elif is_list(value):
            pending += value


# --- its errors, in our words ---


def _violation_of(error: Any) -> SchemaViolation:
    """One error of ``jsonschema``, in our words."""
    error = _library().exceptions.best_match([error]) or error
    path = "".join(
        f"[{each}]" if isinstance(each, int) else f".{each}" for each in error.absolute_path
    ).removeprefix(".")
    said, value = _wrong_type(error) or str(error.message), repr(error.instance)
    if said.startswith(value):
        shown = value if len(value) <= MAX_VALUE_CHARS else f"of type {json_type(error.instance)}"
        said = f"is {shown}, which{said[len(value) :]}"
    return SchemaViolation(printable(path)[:MAX_PROBLEM_CHARS], printable(said)[:MAX_PROBLEM_CHARS])


def _wrong_type(error: Any) -> str | None:
    """Words for a value that has none of several types, as an optional argument's."""
    causes: list[Any] = list(error.context or ())
    if not causes or any(each.validator != "type" or each.relative_path for each in causes):
        return None
    names = [name for each in causes for name in type_names(each.validator_value)]
    return should_be(names, error.instance)


def should_be(types: list[str], value: object) -> str:
    """Words for the expected types and the given one."""
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
    """JSON's name for a value's type."""
    return _JSON_TYPES.get(type(value), "object")
