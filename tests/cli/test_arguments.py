"""Arguments as a person types them, and a tool's schema as far as that needs it."""

import json
from typing import Any

import pytest

from meup_agent.cli.arguments import (
    ToolInputs,
    convert_arguments,
    read_arguments,
    read_input_schema,
    unknown_arguments,
)


def inputs(schema: dict[str, Any], **more: Any) -> ToolInputs:
    """The inputs of a tool whose only argument, `a`, has this schema."""
    return read_input_schema({"type": "object", "properties": {"a": schema}, **more})


def read(word: str, known: ToolInputs | None = None) -> Any:
    return convert_arguments(read_arguments([word], None, None), known)


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
    ("schema", "words"),
    [
        ({"type": "integer"}, "integer"),
        ({"type": ["string", "null"]}, "null or string"),
        ({"type": "array", "items": {"type": "integer"}}, "array of integer"),
        ({"enum": ["x", 1]}, '"x" | 1'),
        ({"const": "x"}, '"x"'),
        ({"oneOf": [{"type": "object"}, {"type": "null"}]}, "object or null"),
        ({"anyOf": [{"type": "string"}] * 9}, "any"),
        ({"anyOf": [{"type": "string"}, {}]}, "string or any"),
        ({}, "any"),
    ],
    ids=json.dumps,
)
def test_a_type_has_words(schema: dict[str, Any], words: str) -> None:
    assert inputs(schema).arguments["a"].words == words


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
    assert read("a=x", read_input_schema(schema)) == {"a": "x"}


def test_a_schema_that_contains_itself_has_an_end() -> None:
    many = {"anyOf": [{"$ref": "#/$defs/a"}] * 8}
    known = inputs({"$ref": "#/$defs/a"}, **{"$defs": {"a": many}})
    assert read("a=5", known) == {"a": 5}


def test_what_a_tool_does_not_name_is_remarked() -> None:
    schema = {"properties": {"path": {"type": "string"}}}
    known = read_input_schema(schema)
    arguments = read("pth=x", known)
    assert unknown_arguments(arguments, known) == [
        "the tool has no argument 'pth' (did you mean path?)"
    ]
    assert (
        unknown_arguments(arguments, read_input_schema({**schema, "additionalProperties": {}}))
        == []
    )
