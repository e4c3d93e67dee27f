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
from tests.agent.tool_types import Item, Old, Opaque, Point, Tree, returning

jsonschema: Any = import_module("jsonschema")  # comes with mcp, and without types


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param(None, id="none"),
        pytest.param(Any, id="any"),
        pytest.param(object, id="object"),
        pytest.param(typing.Never, id="never"),
        pytest.param(mcp_types.TextContent, id="text"),
        pytest.param(mcp_types.ContentBlock, id="any-content"),
        pytest.param(list[mcp_types.ImageContent], id="contents"),
        pytest.param(str | mcp_types.ImageContent, id="text-or-image"),
        pytest.param(list[str | mcp_types.ResourceLink] | None, id="deep"),
        pytest.param(Annotated[mcp_types.TextContent, "said"], id="annotated"),
        pytest.param(mcp_types.CallToolResult, id="result"),
    ],
)
def test_some_annotations_promise_no_structure(annotation: Any) -> None:
    assert tool_of(returning(annotation)).output_schema is None


def test_no_annotation_promises_no_structure() -> None:
    assert tool_of(lambda: 1, name="one").output_schema is None


def under_result(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"result": schema}, "required": ["result"]}


ITEM_SCHEMA = {
    "type": "object",
    "title": "Item",
    "properties": {"name": {"type": "string"}, "count": {"type": "integer", "default": 1}},
    "required": ["name"],
}
INTEGER = {"type": "integer"}

RETURNS = [
    pytest.param(str, under_result({"type": "string"}), id="str"),
    pytest.param(int, under_result(INTEGER), id="int"),
    pytest.param(bool, under_result({"type": "boolean"}), id="bool"),
    pytest.param(list[int], under_result({"type": "array", "items": INTEGER}), id="list"),
    pytest.param(int | None, under_result({"anyOf": [INTEGER, {"type": "null"}]}), id="optional"),
    pytest.param(Path, under_result({"type": "string", "format": "path"}), id="path"),
    pytest.param(
        Annotated[int, Field(description="n")],
        under_result({"type": "integer", "description": "n"}),
        id="annotated",
    ),
    pytest.param(dict, {"type": "object", "additionalProperties": True}, id="dict"),
    pytest.param(
        dict[str, int], {"type": "object", "additionalProperties": INTEGER}, id="dict-of-int"
    ),
    pytest.param(Item, ITEM_SCHEMA, id="model"),
    pytest.param(
        Point,
        {
            "type": "object",
            "title": "Point",
            "properties": {"x": INTEGER, "y": {"type": "integer", "default": 0}},
            "required": ["x"],
        },
        id="dataclass",
    ),
    pytest.param(
        Old,
        {
            "type": "object",
            "title": "Old",
            "properties": {"name": {"type": "string"}, "size": INTEGER},
            "required": ["name"],
        },
        id="stdlib-typeddict",
    ),
    pytest.param(
        list[Item],
        {
            **under_result({"type": "array", "items": {"$ref": "#/$defs/Item"}}),
            "$defs": {"Item": ITEM_SCHEMA},
        },
        id="models",
    ),
    pytest.param(
        Tree,
        {
            "type": "object",
            "title": "Tree",
            "properties": {
                "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}, "default": []}
            },
            "$defs": {
                "Tree": {
                    "type": "object",
                    "title": "Tree",
                    "properties": {
                        "children": {
                            "type": "array",
                            "items": {"$ref": "#/$defs/Tree"},
                            "default": [],
                        }
                    },
                }
            },
        },
        id="recursive",
    ),
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
        pytest.param(bytes, "it returns bytes, and a result has no bytes in it", id="bytes"),
        pytest.param(Opaque, "it returns Opaque, which cannot be a tool's result", id="class"),
        pytest.param(list[Opaque], "which cannot be a tool's result", id="inside"),
    ],
)
def test_result_without_a_json_form_fails(annotation: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=said) as caught:
        tool_of(returning(annotation))
    assert "\n" not in str(caught.value)
