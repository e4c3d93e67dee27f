"""Arguments as a person types them, and a tool's schema as far as that needs it."""

import json
from typing import Any

import pytest

from meup_agent.cli.failures import Failure
from meup_agent.cli.reading import arguments_for, read_given, unknown_among
from meup_agent.cli.schema import Inputs, read_inputs


def inputs(schema: dict[str, Any], **more: Any) -> Inputs:
    """What a tool takes whose only argument, `a`, has this schema."""
    return read_inputs({"type": "object", "properties": {"a": schema}, **more})


def read(word: str, known: Inputs | None = None) -> Any:
    return arguments_for(read_given([word], None, None), "tool", known)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("5.5", 5.5),
        ("true", True),
        ("null", None),
        ('"5"', "5"),
        ("[1, 2]", [1, 2]),
        ("text", "text"),
        ("", ""),
        ("x=y", "x=y"),
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("[" * 100_000, "[" * 100_000),
        ("9" * 5_000, "9" * 5_000),
    ],
    ids=lambda each: str(each)[:12],
)
def test_a_value_is_json_where_it_is_json(text: str, value: Any) -> None:
    assert read(f"a={text}") == {"a": value}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        ({"type": "string"}, "5", "5"),
        ({"type": "string"}, "true", "true"),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": ["string", "integer"]}, "5", 5),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "5", "5"),
        ({"enum": ["1", "2"]}, "1", "1"),
        ({"type": "number"}, "5", 5),
        ({"type": "integer"}, "5.0", 5.0),
        ({"$ref": "#/$defs/Name"}, "5", "5"),
        ({}, "5", 5),
    ],
    ids=json.dumps,
)
def test_a_schema_says_what_is_meant(schema: dict[str, Any], text: str, value: Any) -> None:
    known = inputs(schema, **{"$defs": {"Name": {"type": "string"}}})
    assert read(f"a={text}", known) == {"a": value}
    assert type(read(f"a={text}", known)["a"]) is type(value)


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ({"type": "integer"}, "x", 'a must be integer, not "x"'),
        ({"type": "integer"}, "5.5", "a must be integer, not 5.5"),
        ({"type": "integer"}, "true", "a must be integer, not true"),
        ({"type": "array", "items": {"type": "integer"}}, "1", "a must be array of integer"),
        ({"enum": ["x", 1]}, "y", 'a must be "x" | 1, not "y"'),
        ({"const": "x"}, "y", 'a must be "x", not "y"'),
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, "1", "a must be object or null"),
        ({"type": "\x1b[2J"}, "1", "a must be \\e[2J, not 1"),
    ],
    ids=json.dumps,
)
def test_what_a_schema_does_not_allow_is_told(
    schema: dict[str, Any], text: str, problem: str
) -> None:
    with pytest.raises(Failure, match="tool cannot be called so: ") as failed:
        read(f"a={text}", inputs(schema))
    assert problem in str(failed.value)


@pytest.mark.parametrize(
    "schema",
    [
        None,
        [],
        {"properties": 5, "required": 5},
        {"properties": {"a": 5}, "required": [{}]},
        {"properties": {"a": {"type": 5, "enum": 5, "anyOf": 5}}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"properties": {"a": {"anyOf": [{"$ref": "#/properties/a"}]}}},
        {"properties": {"a": {"enum": list(range(1000))}}},
    ],
    ids=lambda each: json.dumps(each)[:40],
)
def test_a_schema_that_says_nothing_allows_everything(schema: Any) -> None:
    assert read("a=x", read_inputs(schema)) == {"a": "x"}


def test_a_schema_that_contains_itself_has_an_end() -> None:
    alternatives = {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}
    known = inputs({"$ref": "#/$defs/a"}, **{"$defs": {"a": alternatives}})
    assert read("a=x", known) == {"a": "x"}


def test_what_a_tool_does_not_name_is_remarked_or_refused() -> None:
    schema = {"properties": {"path": {"type": "string"}}}
    open_one = read_inputs(schema)
    assert unknown_among(read("pth=x", open_one), open_one) == [
        "'pth' is none of its arguments (did you mean path?)"
    ]
    with pytest.raises(Failure, match=r"pth is none of its arguments \(did you mean path\?\)"):
        read("pth=x", read_inputs({**schema, "additionalProperties": False}))
