"""A check of arguments against a tool's ``inputSchema``, which is a stranger's, in bounded time.

The check is ``jsonschema`` without what could harm us: a schema refers to nothing outside of
itself, its regular expressions are not run, and a check takes a bounded number of steps. What is
left out, too large, or unreadable is left to the tool, which checks its arguments itself. So
nothing is refused that the schema allows, nor what many tools take although their schema does not
say so: a number written as text, for example.

``jsonschema-rs`` (0.60.3, measured with ``offline=True`` and its linear regular expressions) is a
hundred times as fast and has no bound on steps: 16 definitions of which each has ``anyOf`` with
the next one twice, 1.2 kB, took 10 s and 555 MB, 24 of them with ``oneOf``, 1.7 kB, exhausted 6
GB and aborted the process. Without errors to make (``is_valid``) the time still doubles with each
definition: 24 of them took 0.2 s, 28 took 2.8 s. Nor can it leave a keyword out, which the lenient
reading above needs.
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from meup_agent.errors import printable
from meup_agent.protocol.envelope import encode_leniently

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

log = logging.getLogger("meup_agent.client")

MAX_SCHEMA_BYTES: Final = 65_536
"""Of one tool's schema; a larger one is left to its tool."""

MAX_SCHEMA_OBJECTS: Final = 512
"""Objects in a schema; one with more is left to its tool: reading so many takes a fifth of a
second, and most have twenty."""

MAX_STEPS: Final = 20_000
"""Keywords that one check looks at, about a quarter of a second: small schemas can be written that
take years."""

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


class SchemaViolation(NamedTuple):
    """A problem of one argument, such as ``items[0].name``, or of all of them."""

    argument: str
    problem: str

    def __str__(self) -> str:
        """Both, as a part of a sentence."""
        return f"{self.argument!r} {self.problem}" if self.argument else self.problem


class TooManySteps(Exception):
    """A check took more than :data:`MAX_STEPS`."""


class _StepBudget:
    def __init__(self) -> None:
        self.left = MAX_STEPS


_steps: ContextVar[_StepBudget] = ContextVar("meup_agent.schema_steps")


@contextmanager
def steps_counted() -> Generator[None]:
    """A check in the block ends with :class:`TooManySteps` when it takes too many."""
    token = _steps.set(_StepBudget())
    try:
        yield
    finally:
        _steps.reset(token)


class ArgumentChecker:
    """Checks arguments against one schema."""

    def __init__(self, validator: Any, whose: str) -> None:
        self._validator = validator
        self._whose = whose
        self._useless = self._said_too_much = False

    def problems(self, arguments: object) -> list[SchemaViolation]:
        """Problems of some arguments, at most so many; none where that is left open."""
        return self.verdict(arguments) or []

    def verdict(self, arguments: object) -> list[SchemaViolation] | None:
        """As :meth:`problems`, but ``None`` where it is left open."""
        if self._useless:
            return None
        try:
            with steps_counted():
                errors = self._validator.iter_errors(arguments)
                found = [problem_of(error) for error in islice(errors, MAX_PROBLEMS)]
                return list(dict.fromkeys(found))
        except TooManySteps:
            # With other arguments it may take fewer.
            if not self._said_too_much:
                self._said_too_much = True
                log.info("some arguments of %s are left to itself: too much to check", self._whose)
        except Exception as error:  # whatever a stranger's schema makes of the library
            self._useless = True
            _log_unreadable(self._whose, error)
        return None


def checker_for(schema: object, whose: str, *, exact: bool = False) -> ArgumentChecker | None:
    """A checker for a tool's schema; ``None``, and a line in the log, if it cannot be read.

    An exact one takes no value of another type than the schema names, as a number in quotes.
    """
    try:
        if not isinstance(schema, dict):
            raise TypeError("it is no object")
        body = cast("dict[str, Any]", schema)
        if len(encode_leniently(body)) > MAX_SCHEMA_BYTES:
            raise ValueError(f"it is larger than {MAX_SCHEMA_BYTES} bytes")
        return ArgumentChecker(validator_for(body, exact=exact), whose)
    except Exception as error:  # as above
        _log_unreadable(whose, error)
        return None


def _log_unreadable(whose: str, error: Exception) -> None:
    said = printable(str(error))[:MAX_PROBLEM_CHARS]
    log.info("the arguments of %s are left to itself: its schema cannot be read: %s", whose, said)


# --- the library, restricted ---


@cache
def _library() -> Any:
    # Loaded when first needed: it takes half as long as the whole package.
    return import_module("jsonschema")


def validator_for(schema: dict[str, Any], *, exact: bool = False) -> Any:
    """A validator of the library's; raises if the schema is none, or does what is not allowed."""
    dialect = schema.get("$schema")
    body = {name: value for name, value in schema.items() if name != "$schema"}
    objects = list(islice(objects_of(body), MAX_SCHEMA_OBJECTS + 1))
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
    check_schema(base, body)
    registry = import_module("referencing").Registry()  # it retrieves nothing
    return _restricted(base, exact)(body, registry=registry)


def check_schema(base: Any, schema: object) -> None:
    """Check a schema against its dialect, without a look at formats; the library's error if wrong.

    One format is that of regular expressions, which the library compiles: a stranger writes one of
    300 characters that takes it half a second.
    """
    base.check_schema(schema, format_checker=_library().FormatChecker(formats=()))


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
def _restricted(base: Any, exact: bool) -> Any:
    """The library's class without what only the tool can check."""
    library = _library()
    keywords: dict[str, Any] = dict(base.VALIDATORS)
    for name in (*LEFT_OUT, *NOT_MONOTONE):
        keywords.pop(name, None)
    keywords["oneOf"] = keywords["anyOf"]
    own = _lenient_keywords(base, library.ValidationError)
    if exact:
        own |= {name: base.VALIDATORS[name] for name in ("type", "enum")}
    keywords |= own
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
    def count(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        steps = _steps.get()
        steps.left -= 1
        if steps.left < 0:
            raise TooManySteps
        return keyword(validator, value, instance, schema)

    return count


def _lenient_keywords(base: Any, error: Any) -> dict[str, Any]:
    """Keywords that say more than the library's, take longer in it, or refuse what tools take."""
    of_library = base.VALIDATORS

    def required(validator: Any, names: Any, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "object"):
            for name in names:
                if name not in instance:
                    yield error("is required", path=(name,))

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" in schema or not validator.is_type(instance, "object"):
            return
        if value is not False:
            yield from of_library["additionalProperties"](validator, value, instance, schema)
            return
        known = list(schema.get("properties", ()))
        for name in instance:
            if name not in known:
                yield error(f"is not known; there is {listed(known)}", path=(name,))

    def unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if validator.is_type(instance, "array") and len(instance) <= MAX_COMPARED_ITEMS:
            yield from of_library["uniqueItems"](validator, value, instance, schema)

    def expected(validator: Any, types: Any, instance: Any, schema: Any) -> Iterator[Any]:
        names = type_names(types)
        fits = any(validator.is_type(instance, each) for each in names)
        if not fits and not _may_be_converted(instance, names, schema):
            yield error(should_be(names, instance))

    def one_of(validator: Any, values: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not _may_be_converted(instance, [json_type(each) for each in values], schema):
            yield from of_library["enum"](validator, values, instance, schema)

    return {
        "required": required,
        "additionalProperties": additional,
        "uniqueItems": unique,
        "type": expected,
        "enum": one_of,
    }


def _may_be_converted(value: object, types: list[str], schema: Any) -> bool:
    """True where tools are known that make one of these types of a plain value."""
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


def objects_of(schema: object) -> Iterator[dict[str, Any]]:
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


# --- its errors, in our words ---


def problem_of(error: Any) -> SchemaViolation:
    """One error of ``jsonschema``, in our words."""
    error = import_module("jsonschema").exceptions.best_match([error]) or error
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
