"""Tools: how they are described, and which arguments they take."""

import functools
import sys
import typing
from collections.abc import Callable
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import AliasChoices, Field

from meup_agent.errors import HandlerDefinitionError, InvalidArguments
from tests.agent.stand_ins import Context, tool_of
from tests.agent.tool_types import (
    NAMES,
    Color,
    Endless,
    Item,
    Nested,
    New,
    Old,
    Opaque,
    Point,
    Tree,
    one,
)

jsonschema: Any = import_module("jsonschema")  # comes with mcp, and without types


async def write_file(path: str, text: str = "", *, ctx: Context) -> str:
    """Write a file
    of text.

    Everything below the first paragraph is for readers of the code.
    """
    return path + text


class Greeter:
    """Greets people."""

    async def __call__(self, name: str) -> str:
        return name

    async def method(self, name: str) -> str:
        """Greet as a method."""
        return name


def test_description_comes_from_the_function() -> None:
    assert tool_of(write_file).describe() == {
        "name": "write_file",
        "description": "Write a file of text.",
        "inputSchema": {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string", "default": ""}},
            "required": ["path"],
            "additionalProperties": False,
        },
        "outputSchema": {
            "type": "object",
            "properties": {"result": {"type": "string"}},
            "required": ["result"],
        },
    }


def test_description_comes_from_the_decorator() -> None:
    options: dict[str, Any] = {"name": "files.write-1", "title": "Write", "description": ""}
    hints = {"read_only": False, "destructive": True, "idempotent": True, "open_world": False}
    described = tool_of(write_file, **options, **hints).describe()
    assert options.items() <= described.items()
    assert described["annotations"] == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    # Hints that were not given are not said.
    described = tool_of(write_file, read_only=True).describe()
    assert described["annotations"] == {"readOnlyHint": True}


@pytest.mark.parametrize(
    ("fn", "options", "name", "description"),
    [
        (functools.partial(write_file, "a"), {}, "write_file", "Write"),
        (Greeter().method, {}, "method", "Greet as a method."),
        (Greeter(), {"name": "greet"}, "greet", "Greets people."),
        (lambda: 1, {"name": "one"}, "one", None),
    ],
)
def test_name_and_description_of_other_callables(
    fn: Callable[..., Any], options: dict[str, Any], name: str, description: str | None
) -> None:
    described = tool_of(fn, **options).describe()
    assert described["name"] == name
    assert (described.get("description") or "").startswith(description or "")
    assert ("description" in described) == (description is not None)


@pytest.mark.parametrize(
    ("fn", "options", "said"),
    [
        (Greeter(), {}, "pass name="),
        (lambda: 1, {}, "pass name="),
        (write_file, {"name": ""}, "use 1 to 128"),
        (write_file, {"name": "write file"}, "'write file'"),
        (write_file, {"name": "a\n"}, "use 1 to 128"),
        (write_file, {"name": "a" * 129}, "use 1 to 128"),
    ],
)
def test_tool_without_a_name_fails(
    fn: Callable[..., Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(HandlerDefinitionError, match=said):
        tool_of(fn, **options)


def test_description_is_the_callers_to_change() -> None:
    tool = tool_of(write_file)
    tool.describe()["inputSchema"]["properties"].clear()
    tool.describe()["outputSchema"].clear()
    assert list(tool.describe()["inputSchema"]["properties"]) == ["path", "text"]
    assert tool.describe()["outputSchema"]


WHERE = {"description": "Where"}
DESCRIBED = Annotated[str, Field(**WHERE, min_length=1, examples=["a"])]
ARGUMENTS = [
    (str, {"type": "string"}, "a", "a"),
    (int, {"type": "integer"}, "5", 5),
    (Any, {}, {"x": [None]}, {"x": [None]}),
    (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}, None, None),
    (NAMES, {"type": "array", "items": {"type": "string"}}, ["a"], ["a"]),
    (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, [1], {1}),
    (Color, {"type": "string", "enum": ["red", "blue"], "title": "Color"}, "red", Color.RED),
    (Path, {"type": "string", "format": "path"}, "a/b", Path("a/b")),
    (DESCRIBED, {"type": "string", "minLength": 1, "examples": ["a"]} | WHERE, "x", "x"),
]


@pytest.mark.parametrize(("annotation", "schema", "sent", "got"), ARGUMENTS)
def test_argument_is_described(
    annotation: Any, schema: dict[str, Any], sent: Any, got: Any
) -> None:
    tool = tool_of(one(annotation))
    described = tool.describe()["inputSchema"]
    value = described["properties"]["value"]
    if "$ref" in value:
        value = described["$defs"][value["$ref"].removeprefix("#/$defs/")]
    assert value == schema
    assert described["required"] == ["value"]
    jsonschema.Draft202012Validator.check_schema(described)
    bound = tool.bind({"value": sent})
    assert bound == {"value": got}
    assert type(bound["value"]) is type(got)


NESTED = {"must": 1, "inner": [{"name": "a"}]}


@pytest.mark.parametrize(
    ("annotation", "sent", "got"),
    [
        (Item, {"name": "a"}, Item(name="a")),
        (list[Item], [{"name": "a"}], [Item(name="a")]),
        (Tree, {"children": [{}]}, Tree(children=[Tree()])),
        (Point, {"x": 1}, Point(1)),
        (New, {"name": "a"}, {"name": "a"}),
        (Old, {"name": "a"}, {"name": "a"}),
        (list[Old | None], [None, {"name": "a", "size": 1}], [None, Old(name="a", size=1)]),
        (typing.Optional[Old], {"name": "a"}, {"name": "a"}),  # noqa: UP045
        (Annotated[Nested, Field(description="n")], NESTED, NESTED),
        (Decimal, "1.50", Decimal("1.50")),
    ],
)
def test_structured_argument_is_read(annotation: Any, sent: Any, got: Any) -> None:
    tool = tool_of(one(annotation))
    jsonschema.validate({"value": sent}, tool.describe()["inputSchema"])
    bound = tool.bind({"value": sent})["value"]
    assert bound == got
    assert type(bound) is type(got)


def test_stdlib_typed_dict_keeps_what_is_required() -> None:
    wrong: dict[Any, list[dict[str, Any]]] = {
        Old: [{"size": 1}, {"name": "a", "size": "big"}],
        Nested: [{}, {"must": 0}, {"must": 1, "inner": [{}]}],
    }
    for annotation, value in ((each, value) for each in wrong for value in wrong[each]):
        with pytest.raises(InvalidArguments):
            tool_of(one(annotation)).bind({"value": value})


@pytest.mark.parametrize(
    ("annotation", "said"),
    [
        (Opaque, "'value' is Opaque, which cannot be an argument"),
        # Later, pydantic takes it.
        *([(Endless, "Endless contains itself")] if sys.version_info < (3, 12) else []),
        (Callable[[], None], "cannot be an argument"),
        (int | Callable[[], None], "cannot be an argument"),
        (5, "cannot be an argument"),
    ],
)
def test_argument_that_json_cannot_carry_fails(annotation: Any, said: str) -> None:
    with pytest.raises(HandlerDefinitionError, match=said) as caught:
        tool_of(one(annotation))
    assert "\n" not in str(caught.value)


def test_failure_that_does_not_come_again_is_reported() -> None:
    class Moody:
        asked = False

        @classmethod
        def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
            if not cls.asked:
                cls.asked = True
                raise RuntimeError("not now")
            return handler(int)

    with pytest.raises(HandlerDefinitionError, match="its arguments have no JSON Schema: not now"):
        tool_of(one(Moody))


NOTHING = object()


@pytest.mark.parametrize(
    ("annotation", "default", "got", "described"),
    [
        (int, 3, 3, {"type": "integer", "default": 3}),
        (int, None, None, {"type": "integer", "default": None}),
        (int, Field(4, description="n"), 4, {"type": "integer", "default": 4, "description": "n"}),
        (Annotated[int, Field(default=5)], None, None, {"type": "integer", "default": None}),
        (Color, Color.BLUE, Color.BLUE, None),
        (Any, NOTHING, NOTHING, {}),
        (list[int], Field(default_factory=list), [], None),
    ],
)
def test_default_reaches_the_function(
    annotation: Any, default: Any, got: Any, described: dict[str, Any] | None
) -> None:
    tool = tool_of(one(annotation, default))
    assert tool.bind({}) == {"value": got}
    assert tool.bind(None) == {"value": got}
    assert "required" not in tool.describe()["inputSchema"]
    if described is not None:
        assert tool.describe()["inputSchema"]["properties"]["value"] == described


def test_default_in_the_annotation_counts_and_a_mutable_one_is_not_shared() -> None:
    assert tool_of(one(Annotated[int, Field(default=5)])).bind({}) == {"value": 5}
    tool = tool_of(one(list[int], [1]))
    tool.bind({})["value"].append(2)
    assert tool.bind({}) == {"value": [1]}


def test_annotations_that_are_equal_keep_their_order_and_defaults() -> None:
    text, number = "string", "integer"
    for annotation, order in ((str | int, [text, number]), (int | str, [number, text])):
        schema = tool_of(one(annotation)).describe()["inputSchema"]["properties"]["value"]
        assert [each["type"] for each in schema["anyOf"]] == order
    for default in (1, True, 1.0, -0.0):
        bound = tool_of(one(int | bool | float, default)).bind({})
        assert repr(bound) == repr({"value": default})


async def reserved(
    schema: str,
    copy: bool,
    json: dict[str, Any],
    model_config: int,
    model_fields: int,
    model_dump: int,
    validate: int,
    self_: int,
    _private: int,
    __dunder: int,
    cls: int,
    arg_schema: int,
) -> None: ...


def test_names_that_pydantic_keeps_for_itself_are_arguments() -> None:
    tool = tool_of(reserved)
    names = list(tool.describe()["inputSchema"]["properties"])
    assert names == [*reserved.__annotations__][:-1]
    sent: dict[str, Any] = {name: index for index, name in enumerate(names)}
    sent |= {"schema": "s", "copy": True, "json": {"a": 1}}
    assert tool.bind(sent) == sent


def test_the_models_own_names_are_no_arguments() -> None:
    with pytest.raises(InvalidArguments, match="'arg_value' is not an argument"):
        tool_of(one(int)).bind({"arg_value": 1})


def test_alias_is_the_name_that_callers_use() -> None:
    tool = tool_of(one(Annotated[int, Field(alias="the-value")]))
    assert list(tool.describe()["inputSchema"]["properties"]) == ["the-value"]
    assert tool.bind({"the-value": 1}) == {"value": 1}
    with pytest.raises(InvalidArguments, match="'the-value' is required"):
        tool.bind({"value": 1})
    tool = tool_of(one(int, Field(validation_alias=AliasChoices("first", "second"))))
    assert tool.bind({"second": 1}) == {"value": 1}


def test_two_arguments_of_one_name_fail() -> None:
    async def fn(a: Annotated[int, Field(alias="b")], b: int) -> None: ...

    with pytest.raises(HandlerDefinitionError, match="the same alias"):
        tool_of(fn)
