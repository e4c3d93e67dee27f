"""Schemas of tools at random, with defaults in all places, and a server's way to fill them in.

The server's way is another one than ours: each default that validation comes by is taken, whether
or not the schema that it stands in applies, as common validators do.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

from hypothesis import strategies as st

jsonschema: Any = import_module("jsonschema")  # comes with mcp, and without types

NAMES: Final = ["env", "force", "to"]
SCALARS: Final = st.sampled_from(["prod", "test", 1, 0, True, False, None])
VALUES: Final[st.SearchStrategy[Any]] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner),
    max_leaves=4,
)
ARGUMENTS: Final = st.dictionaries(st.sampled_from(NAMES), VALUES)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    members = st.dictionaries(st.sampled_from(NAMES), inner, min_size=1)
    some = st.lists(inner, min_size=1, max_size=2)
    keywords: dict[str, st.SearchStrategy[Any]] = {
        "properties": members,
        "allOf": some,
        "anyOf": some,
        "oneOf": some,
        "if": inner,
        "then": inner,
        "else": inner,
        "not": inner,
        "dependentSchemas": members,
        "additionalProperties": inner,
        "unevaluatedProperties": inner,
        "patternProperties": inner.map(lambda each: {"^e": each}),
        "items": inner,
        "prefixItems": some,
        "contains": inner,
        "unevaluatedItems": inner,
        "default": VALUES,
        "$ref": st.sampled_from([f"#/$defs/{name}" for name in NAMES]),
    }
    # Most are as tools have them.
    usual = st.fixed_dictionaries({"properties": members})
    chosen = st.lists(st.sampled_from([*keywords]), min_size=1, max_size=3, unique=True)
    return usual | chosen.flatmap(
        lambda names: st.fixed_dictionaries({name: keywords[name] for name in names})
    )


_LEAVES: Final = st.sampled_from([{}, {"type": "string"}]) | SCALARS.map(lambda it: {"default": it})
_PARTS: Final = st.recursive(_LEAVES, _nested, max_leaves=5)
SCHEMAS: Final = st.builds(
    lambda root, members, parts: {**root, "properties": members, "$defs": parts},
    _nested(_PARTS),
    st.dictionaries(st.sampled_from(NAMES), _PARTS, min_size=1),
    st.fixed_dictionaries(dict.fromkeys(NAMES, _PARTS)),
)
"""Schemas of a tool's arguments; a reference is to one that is there, and may have no end."""


class EndlessDefaults(Exception):
    """The defaults of a schema fill an object without an end."""


def fill_as_server(schema: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with which a tool runs.

    Raises:
        EndlessDefaults: There are no such.
    """
    given = arguments or schema.get("default")
    filled = copy.deepcopy(given if isinstance(given, dict) else {})
    validator: Any = _filling(schema)(schema)
    try:
        for _ in range(8):  # what one keyword fills in another may have seen before
            before = copy.deepcopy(filled)
            for _ in validator.iter_errors(filled):
                pass
            if before == filled:
                return filled
    except BaseException as error:
        # A reference without an end runs out of the stack anywhere, also in compiled code, which
        # panics then.
        if type(error).__name__ not in ("RecursionError", "PanicException"):
            raise
    raise EndlessDefaults


def _filling(root: dict[str, Any]) -> Any:
    plain = jsonschema.Draft202012Validator

    def properties(validator: Any, members: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, dict):
            for name, each in members.items():
                for default in [] if name in value else _defaults(root, each, 0):
                    value.setdefault(name, copy.deepcopy(default))
        yield from plain.VALIDATORS["properties"](validator, members, value, schema)

    def first_items(validator: Any, items: Any, value: Any, schema: Any) -> Iterator[Any]:
        if isinstance(value, list):
            for each in items[len(value) :]:
                found = list(_defaults(root, each, 0))
                if not found:
                    break
                value.append(copy.deepcopy(found[0]))
        yield from plain.VALIDATORS["prefixItems"](validator, items, value, schema)

    return jsonschema.validators.extend(
        plain, {"properties": properties, "prefixItems": first_items}
    )


def _defaults(root: dict[str, Any], schema: Any, level: int) -> Iterator[Any]:
    """The defaults of a value, the first of which counts."""
    if not isinstance(schema, dict) or level > 16:
        return
    if "default" in schema:
        yield schema["default"]
    if "$ref" in schema:
        yield from _defaults(root, root["$defs"][schema["$ref"].rpartition("/")[2]], level + 1)
    for each in [*schema.get("allOf", ()), *schema.get("anyOf", ())]:
        yield from _defaults(root, each, level + 1)
