"""A tool's input schema for people: its arguments' names, and what kind of value each takes.

That is enough to read ``key=value`` as it was meant, and to show what a tool takes. Whether
arguments fit is checked by :mod:`meup_agent.client.schema_check`. The schema is a stranger's:
references
are followed within it only, and only so far.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, cast

from meup_agent.protocol.payloads import as_object, objects_in

MAX_DEPTH: Final = 3
"""Alternatives and items within each other that are looked at: ``list[str | int] | None``."""

MAX_ALTERNATIVES: Final = 8
"""Alternatives that are looked at: more say nothing, since their number is taken to the power of
the depth, and any of them may refer to all of them again."""

MAX_REFERENCES: Final = 8
"""References that lead to each other."""

MAX_ARGUMENTS: Final = 256
"""Arguments of a tool that are looked at."""

MAX_VALUES: Final = 64
"""Fixed values that are looked at."""

_DEFINITION: Final = ("#/$defs/", "#/definitions/")

_NAMES: Final[dict[type, str]] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class InputField(NamedTuple):
    """One argument of a tool.

    Attributes:
        name: Its name.
        types: The JSON types that it may have; empty: any.
        required: A call must give it.
        default: Its default as JSON text; empty where the schema has none.
        about: The schema's description of it.
        words: Its type, for a person.
    """

    name: str
    types: frozenset[str]
    required: bool
    default: str
    about: str
    words: str

    def takes(self, value: object) -> bool:
        """Tell whether a value has one of its types."""
        kind = type_of(value)
        if not self.types or kind in self.types:
            return True
        if kind == "integer":
            return "number" in self.types
        return "integer" in self.types and isinstance(value, float) and value.is_integer()


class ToolInputs(NamedTuple):
    """The arguments of a tool.

    Attributes:
        arguments: By name, in the schema's order.
        others: It expects others, too, which the schema does not name.
    """

    arguments: dict[str, InputField]
    others: bool


def read_input_schema(schema: object) -> ToolInputs:
    """Read an input schema; what cannot be understood may be anything."""
    root = as_object(schema)
    required = root.get("required")
    names = cast("list[object]", required) if isinstance(required, list) else []
    properties = list(as_object(root.get("properties")).items())[:MAX_ARGUMENTS]
    arguments = {name: _argument(name, body, root, name in names) for name, body in properties}
    return ToolInputs(arguments, root.get("additionalProperties", False) is not False)


def type_of(value: object) -> str:
    """The JSON type of a value."""
    return _NAMES.get(type(value), "object")


def _argument(name: str, body: object, root: dict[str, Any], required: bool) -> InputField:
    said = as_object(body)
    resolved = _resolved(said, root)
    about = said.get("description", resolved.get("description"))
    return InputField(
        name=name,
        types=_types(said, root, MAX_DEPTH),
        required=required,
        default=json.dumps(said["default"], ensure_ascii=False) if "default" in said else "",
        about=about if isinstance(about, str) else "",
        words=_words(said, root, MAX_DEPTH),
    )


def _resolved(schema: dict[str, Any], root: dict[str, Any]) -> dict[str, Any]:
    """The schema that a reference names, or the schema itself."""
    for _ in range(MAX_REFERENCES):
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith(_DEFINITION):
            break
        name = reference.rpartition("/")[2]
        definitions = as_object(root.get(reference.split("/")[1]))
        schema = as_object(definitions.get(name))
    return schema


def _values(schema: dict[str, Any]) -> tuple[Any, ...]:
    if "const" in schema:
        return (schema["const"],)
    said: object = schema.get("enum")
    values = cast("list[object]", said) if isinstance(said, list) else []
    return tuple(values) if len(values) <= MAX_VALUES else ()


def _alternatives(schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = objects_in(schema.get("anyOf", schema.get("oneOf")))
    return found if len(found) <= MAX_ALTERNATIVES else []


def _types(schema: dict[str, Any], root: dict[str, Any], depth: int) -> frozenset[str]:
    """The JSON types that a schema allows; empty: any."""
    schema = _resolved(schema, root)
    said = schema.get("type")
    if isinstance(said, str):
        return frozenset({said})
    if isinstance(said, list):
        return frozenset(each for each in cast("list[object]", said) if isinstance(each, str))
    if values := _values(schema):
        return frozenset(map(type_of, values))
    alternatives = _alternatives(schema)
    if not alternatives or depth == 0:
        return frozenset()
    each = [_types(one, root, depth - 1) for one in alternatives]
    return frozenset[str]().union(*each) if all(each) else frozenset()


def _words(schema: dict[str, Any], root: dict[str, Any], depth: int) -> str:
    """A type for a person: ``string or null``, ``array of integer``."""
    schema = _resolved(schema, root)
    if values := _values(schema):
        return " | ".join(json.dumps(each, ensure_ascii=False) for each in values)
    alternatives = _alternatives(schema)
    if alternatives and depth:
        return " or ".join(dict.fromkeys(_words(one, root, depth - 1) for one in alternatives))
    types = _types(schema, root, 0)
    if types == frozenset({"array"}) and depth and (items := as_object(schema.get("items"))):
        return f"array of {_words(items, root, depth - 1)}"
    return " or ".join(sorted(types)) or "any"
