"""Tools: the schemas of their results."""

import typing
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import mcp_types
import pytest
from pydantic import Field

from meup_agent.errors import HandlerDefinitionError
from tests.agent.stand_ins import tool_of
from tests.agent.tool_types import Item, Old, Opaque, Tree, returning

jsonschema: Any = import_module("jsonschema")  # comes with mcp, and without types


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        Any,
        object,
        typing.Never,
        mcp_types.TextContent,
        mcp_types.ContentBlock,
        list[mcp_types.ImageContent],
        str | mcp_types.ImageContent,
        list[str | mcp_types.ResourceLink] | None,
        Annotated[mcp_types.TextContent, "said"],
        mcp_types.CallToolResult,
    ],
)
def test_some_annotations_promise_no_structure(annotation: Any) -> None:
    assert tool_of(returning(annotation)).describe().get("outputSchema") is None
    assert tool_of(lambda: 1, name="one").describe().get("outputSchema") is None


def under_result(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}


def named(title: str, properties: dict[str, Any], *required: str) -> dict[str, Any]:
    schema = {"type": "object", "title": title, "properties": properties}
    return schema | ({"required": list(required)} if required else {})


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
ITEM_SCHEMA = named("Item", {"name": STRING, "count": {**INTEGER, "default": 1}}, "name")
ITEMS = {"type": "array", "items": {"$ref": "#/$defs/Item"}}
CHILDREN = {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}
TREE_SCHEMA = named("Tree", {"children": CHILDREN})

RETURNS = [
    (str, under_result({"type": "string"})),
    (list[int], under_result({"type": "array", "items": INTEGER})),
    (int | None, under_result({"anyOf": [INTEGER, {"type": "null"}]})),
    (Path, under_result({"type": "string", "format": "path"})),
    (Annotated[int, Field(description="n")], under_result({"type": "integer", "description": "n"})),
    (dict, {"type": "object", "additionalProperties": True}),
    (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
    (Item, ITEM_SCHEMA),
    (Old, named("Old", {"name": STRING, "size": INTEGER}, "name")),
    (list[Item], {**under_result(ITEMS), "$defs": {"Item": ITEM_SCHEMA}}),
    (Tree, {**TREE_SCHEMA, "$defs": {"Tree": TREE_SCHEMA}}),
]


@pytest.mark.parametrize(("annotation", "schema"), RETURNS)
def test_result_is_described(annotation: Any, schema: dict[str, Any]) -> None:
    described = tool_of(returning(annotation)).describe()
    assert described["outputSchema"] == schema
    jsonschema.Draft202012Validator.check_schema(described["outputSchema"])
    tool = mcp_types.Tool.model_validate(described)
    assert tool.output_schema == schema


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (bytes, "it returns bytes, and a result has no bytes in it"),
        (Opaque, "it returns Opaque, which cannot be a tool's result"),
        (list[Opaque], "which cannot be a tool's result"),
    ],
)
def test_result_without_a_json_form_fails(annotation: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=said) as caught:
        tool_of(returning(annotation))
    assert "\n" not in str(caught.value)
