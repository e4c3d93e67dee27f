"""A tool's output schema, from its return annotation, and the structured content it promises."""

from __future__ import annotations

from collections.abc import Iterator
from types import NoneType
from typing import Any, Never, NoReturn, cast, get_args

import msgspec
import pydantic_core
from pydantic import TypeAdapter

from .content import check_kept, is_content_class
from .schema import JsonObject, json_schema, wrapped
from .source import Source
from .text import first_line, type_name
from .typed_dicts import readable

_SAYS_NOTHING = (Any, None, NoneType, Never, NoReturn, object)


class OutputType(msgspec.Struct, frozen=True):
    """What a tool promises to return.

    Attributes:
        adapter: Validates a returned value and writes it as JSON.
        schema: JSON Schema of the structured content, always an object.
        is_wrapped: Whether the value stands under ``result``, because it is no object itself.
    """

    adapter: TypeAdapter[Any]
    schema: JsonObject
    is_wrapped: bool

    def dump(self, value: object) -> bytes:
        """The JSON of a returned value, validated.

        Objects may come with their fields' names or with their aliases; aliases are written.

        Raises:
            ValueError: The value is not what the annotation promised, or has no JSON form.
        """
        # The adapter's own methods do the same, and look at a dozen other arguments before.
        validated = self.adapter.validator.validate_python(value, by_alias=True, by_name=True)
        serializer = self.adapter.serializer
        json = serializer.to_json(validated, by_alias=True, warnings="error")
        if b"null" in json:
            check_kept(serializer.to_python(validated, by_alias=True), json)
        return json

    def structured(self, json: bytes) -> JsonObject:
        """The structured content for the JSON of a value."""
        value = pydantic_core.from_json(json)
        return {"result": value} if self.is_wrapped else value

    def check(self, structured: object) -> None:
        """Validate structured content that a tool has put together by itself.

        Raises:
            ValueError: It is not what the annotation promised.
        """
        if self.is_wrapped:
            members = cast("JsonObject", structured) if isinstance(structured, dict) else {}
            if members.keys() != {"result"}:
                raise ValueError('structured content must be an object with one member "result"')
            structured = members["result"]
        self.adapter.validate_python(structured, by_alias=True, by_name=False)


def read_output(returns: Any, source: Source) -> OutputType | None:
    """The output type for a return annotation; ``None`` where it promises no structure.

    It promises none if it is missing, ``Any``, ``object`` or ``None``, or where MCP content is
    among what it names.

    Raises:
        HandlerDefinitionError: Values of this type have no JSON form.
    """
    if returns in _SAYS_NOTHING or any(is_content_class(each) for each in _classes(returns)):
        return None
    if returns in (bytes, bytearray, memoryview):
        raise source.error(
            f"it returns {type_name(returns)}, and a result has no bytes in it; return base64 "
            "text, or an ImageContent or AudioContent of mcp_types"
        )
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(readable(returns))
        schema = json_schema(adapter, mode="serialization")
    except Exception as error:  # a stranger's types: their hooks may raise anything
        raise source.error(
            f"it returns {type_name(returns)}, which cannot be a tool's result: "
            f"{first_line(error)}; return what pydantic can write as JSON, or MCP content"
        ) from error
    if schema.get("type") == "object":
        return OutputType(adapter, schema, is_wrapped=False)
    return OutputType(adapter, wrapped(schema), is_wrapped=True)


def _classes(hint: Any) -> Iterator[type]:
    """The classes that an annotation names, at any depth."""
    arguments = get_args(hint)
    if not arguments and isinstance(hint, type):
        yield hint
    for argument in arguments:
        yield from _classes(argument)
