"""Results of tools: their schemas, and on the wire, where the official types read every one."""

import asyncio
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import mcp_types
import pytest
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, computed_field
from pydantic.alias_generators import to_camel

from meup_agent.agent import tool as limits
from meup_agent.agent.tool import error_result
from meup_agent.errors import HandlerDefinitionError, UsageError
from tests.agent.stand_ins import tool_of
from tests.agent.tool_types import Item, Old, Opaque, Point, Tree, returning
from tests.wire import WRAPPED

jsonschema: Any = import_module("jsonschema")  # comes with mcp, and without types


class SpecialItem(Item):
    secret: str = "s"


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel)

    file_name: str
    size: int = 0

    @computed_field
    def doubled(self) -> int:
        return self.size * 2


TEXT = mcp_types.TextContent(text="said")
IMAGE = mcp_types.ImageContent(data="AAAA", mime_type="image/png")
TEXT_JSON = {"type": "text", "text": "said"}
IMAGE_JSON = {"type": "image", "data": "AAAA", "mimeType": "image/png"}


def checked(result: dict[str, Any]) -> dict[str, Any]:
    """The result, after MCP's own types have read it and given it back the same."""
    read = mcp_types.CallToolResult.model_validate(result)
    again = read.model_dump(mode="json", by_alias=True, exclude_none=True)
    del again["resultType"]
    if "structuredContent" in result:
        again.setdefault("structuredContent", None)
    assert again == result
    return result


def texts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize(
    ("value", "content"),
    [
        (None, []),
        ("hi", texts("hi")),
        ("", texts("")),
        ('"ü☃"', texts('"ü☃"')),
        (True, texts("true")),
        ({"a": [1, None]}, texts('{"a":[1,null]}')),
        ([1, "a"], texts('[1,"a"]')),
        ([], texts("[]")),
        (Item(name="a"), texts('{"name":"a","count":1}')),
        (Point(1), texts('{"x":1,"y":0}')),
        (Path("a/b"), texts("a/b")),
        (TEXT, [TEXT_JSON]),
        ([TEXT, IMAGE], [TEXT_JSON, IMAGE_JSON]),
        ((IMAGE,), [IMAGE_JSON]),
        (["see", IMAGE, {"a": 1}], [*texts("see"), IMAGE_JSON, *texts('{"a":1}')]),
    ],
)
def test_value_without_a_schema_is_content(value: object, content: list[Any]) -> None:
    assert checked(tool_of(returning(Any)).result(value)) == {"content": content, "isError": False}


CAMEL = {"fileName": "a", "size": 2, "doubled": 4}
CAMEL_TEXT = '{"fileName":"a","size":2,"doubled":4}'
ITEM, ITEM_TEXT = {"name": "a", "count": 1}, '{"name":"a","count":1}'
STRUCTURED = [
    (str, "hi", {"result": "hi"}, "hi"),
    (float, 2, {"result": 2.0}, "2.0"),
    (int | None, 5, {"result": 5}, "5"),
    (int | None, None, {"result": None}, None),
    (list[int], (1, 2), {"result": [1, 2]}, "[1,2]"),
    (Path, Path("a/b"), {"result": "a/b"}, "a/b"),
    (Base64Bytes, "aGk=", {"result": "aGk="}, "aGk="),
    (dict[str, int], {"a": 1}, {"a": 1}, '{"a":1}'),
    (dict, {"a": None}, {"a": None}, '{"a":null}'),
    (Item, Item(name="a"), ITEM, ITEM_TEXT),
    (Item, {"name": "a"}, ITEM, ITEM_TEXT),
    (Item, SpecialItem(name="a"), ITEM, ITEM_TEXT),
    (Camel, Camel.model_validate({"fileName": "a", "size": 2}), CAMEL, CAMEL_TEXT),
    (Camel, {"file_name": "a", "size": 2}, CAMEL, CAMEL_TEXT),
    (Point, Point(1), {"x": 1, "y": 0}, '{"x":1,"y":0}'),
    (Old, {"name": "a"}, {"name": "a"}, '{"name":"a"}'),
    (list[Item], [Item(name="a")], {"result": [ITEM]}, f"[{ITEM_TEXT}]"),
    (Annotated[int, Field(ge=1)], 1, {"result": 1}, "1"),
]


@pytest.mark.parametrize(("annotation", "value", "structured", "text"), STRUCTURED)
def test_value_with_a_schema_is_structured_content(
    annotation: Any, value: object, structured: dict[str, Any], text: str | None
) -> None:
    tool = tool_of(returning(annotation))
    assert tool.describe().get("outputSchema") is not None
    result = checked(tool.result(value))
    marked = {"_meta": {WRAPPED: True}} if structured.keys() == {"result"} else {}
    assert result == {
        "content": [] if text is None else texts(text),
        "structuredContent": structured,
        "isError": False,
        **marked,
    }
    jsonschema.validate(result["structuredContent"], tool.describe().get("outputSchema"))


def test_whole_result_is_passed_on() -> None:
    whole = mcp_types.CallToolResult(
        content=[TEXT, IMAGE], structured_content={"a": None}, is_error=True, _meta={"m": 1}
    )
    assert checked(tool_of(returning(mcp_types.CallToolResult)).result(whole)) == {
        "content": [TEXT_JSON, IMAGE_JSON],
        "structuredContent": {"a": None},
        "isError": True,
        "_meta": {"m": 1},
    }


@pytest.mark.parametrize(
    ("annotation", "structured", "keeps"),
    [
        (Item, {"name": "a"}, True),
        (int, {"result": 5}, True),
        (Item, None, False),
        (Item, {"count": 1}, False),
        (int, 5, False),
        (int, {"result": "five"}, False),
        (int, {"result": 5, "more": 1}, False),
    ],
)
def test_whole_result_keeps_the_promise(annotation: Any, structured: Any, keeps: bool) -> None:
    whole = mcp_types.CallToolResult(content=[], structured_content=structured)
    if keeps:
        assert tool_of(returning(annotation)).result(whole)["structuredContent"] == structured
        return
    with pytest.raises(UsageError, match="tool 'fn' returned a value of type CallToolResult"):
        tool_of(returning(annotation)).result(whole)


def test_whole_error_needs_no_structure() -> None:
    whole = mcp_types.CallToolResult(content=[TEXT], is_error=True)
    assert tool_of(returning(Item)).result(whole)["isError"] is True


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("annotation", "value", "said"),
    [
        (Any, b"x", "type bytes .* base64"),
        (Any, bytearray(b"x"), "type bytearray .* base64"),
        (
            Any,
            object(),
            "type object .* Unable to serialize .*; return JSON values, a dataclass or",
        ),
        (Any, [object()], "type list .* Unable to serialize"),
        (Any, {"a": b"\xff"}, "type dict "),
        (Any, endless(), "Circular reference"),
        (Any, "\ud800", "type str .* surrogates"),
        (str, "\ud800", "type str .* surrogates"),
        (int, "five", "type str .*: Input should be a valid integer"),
        (int, None, "type NoneType .* valid integer"),
        (Item, {"count": 1}, "type dict .*: name: Field required"),
        (Item, Item.model_construct(name=5), "type Item .* annotation says"),
        (str, TEXT, "type TextContent"),
    ],
)
def test_value_that_cannot_be_a_result_fails(annotation: Any, value: object, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        tool_of(returning(annotation)).result(value)
    message = str(caught.value)
    assert message.startswith("tool 'fn' returned a value of type ")
    assert "\n" not in message


class Later:
    def __await__(self) -> Iterator[None]:
        yield


async def forgotten() -> str:
    return "x"


@pytest.mark.parametrize("annotation", [Any, str])
@pytest.mark.parametrize(("make", "said"), [(forgotten, "coroutine"), (Later, "Later")])
def test_what_nobody_awaits_fails(annotation: Any, make: Callable[[], object], said: str) -> None:
    with pytest.raises(UsageError, match=rf"type {said} .* async def"):
        tool_of(returning(annotation)).result(make())


NESTED = ExceptionGroup("h", [ValueError("a")])


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (FileNotFoundError("no such file: a"), "FileNotFoundError: no such file: a"),
        (ValueError(), "ValueError"),
        (KeyError("a"), "KeyError: 'a'"),
        (Mute(), "Mute"),
        (asyncio.CancelledError(), "CancelledError"),
        (OSError("caf\udce9"), "OSError: caf\\udce9"),
        (BaseExceptionGroup("tasks", [ValueError("a")]), "ValueError: a"),
        (ExceptionGroup("g", [NESTED, KeyError("b")]), "ValueError: a; KeyError: 'b'"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_exception_is_a_result_with_its_type_and_message(error: BaseException, text: str) -> None:
    assert checked(error_result(error)) == {"content": texts(text), "isError": True}


def test_text_of_an_exception_is_bounded() -> None:
    (content,) = error_result(ValueError("x" * 1_000_000))["content"]
    assert len(content["text"]) == limits.MAX_ERROR_CHARS


WITHOUT_MCP_TYPES = """
import sys
from typing import Any
from pydantic import BaseModel
from meup_agent.agent.decorators import Decorators
from meup_agent.agent.decorators import Registry
from meup_agent.agent.tool import error_result

class Item(BaseModel):
    name: str

registry = Registry()
agent = Decorators(registry.add)

@agent.tool
async def item(name: str) -> Item: ...
@agent.tool
async def anything(name: str) -> Any: ...

tools = {tool.name: tool for tool in registry.tools()}
bound = tools["item"].bind({"name": "a"})
assert tools["item"].result(Item(**bound))["structuredContent"] == {"name": "a"}
for value in ("text", [1], {"a": 1}, None, Item(name="a")):
    tools["anything"].result(value)
error_result(ValueError("x"))
tools["item"].describe()
assert "mcp_types" not in sys.modules
"""


def test_mcp_types_are_not_loaded_for_it() -> None:
    command = [sys.executable, "-W", "error", "-c", WITHOUT_MCP_TYPES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
