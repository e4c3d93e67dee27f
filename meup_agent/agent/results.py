"""Results of tools: the output schema, MCP content (2025-06-18), and the answer on the wire.

The classes of ``mcp_types`` are looked at only if the program has imported them already: a value
cannot be an instance of a class that was never loaded, and loading them costs every agent time.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from itertools import starmap
from types import NoneType
from typing import Any, Final, Never, NoReturn, cast, get_args

import msgspec
import pydantic_core
from pydantic import BaseModel, TypeAdapter

from meup_agent.agent.schema import JsonObject, json_schema, pydantic_hint, wrap_schema
from meup_agent.agent.source import Source, first_line, type_name
from meup_agent.errors import RequestError
from meup_agent.protocol.envelope import encode_json
from meup_agent.protocol.limits import MAX_FRAME_BYTES
from meup_agent.protocol.numbers import is_finite
from meup_agent.protocol.payloads import EXCHANGE_ERROR, INTERNAL_ERROR

_LISTS = (list, tuple)

_ANY: Final = TypeAdapter[Any](Any)

_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""Words in pydantic's JSON that may stand for a number that is not finite."""


_NUMBER: Final = (
    "it holds a number that is not finite (NaN or an infinity); return None or a text in its place"
)


def _mcp_class(name: str) -> Any:
    """A class of ``mcp_types``; ``()``, of which nothing is an instance, where it is not loaded."""
    if "mcp_types" not in sys.modules:
        return ()
    import mcp_types  # waits, where another thread imports it just now

    return getattr(mcp_types, name)


def is_content(value: object) -> bool:
    """True if a value is one of MCP's content objects: text, image, audio, link, resource."""
    return isinstance(value, _mcp_class("ContentBlock"))


def is_call_result(value: object) -> bool:
    """True if a value is a whole ``CallToolResult`` already."""
    return isinstance(value, _mcp_class("CallToolResult"))


def is_content_class(hint: type) -> bool:
    """True if values of a class are MCP content, or whole results."""
    return issubclass(hint, (_mcp_class("ContentBlock"), _mcp_class("CallToolResult")))


def content_of(value: object) -> list[JsonObject]:
    """The content objects for a value that has no schema, as JSON values.

    ``None`` is no content, a string is its text, content objects are themselves, also several in a
    list; anything else is one text with the value's JSON.
    """
    if value is None:
        return []
    if is_content(value):
        return [_dumped(value)]
    if isinstance(value, _LISTS) and any(is_content(item) for item in cast("list[object]", value)):
        return [block for item in cast("list[object]", value) for block in content_of(item)]
    json = pydantic_core.to_json(value)
    if any(word in json for word in _NOT_FINITE):
        check_kept(_ANY.serializer.to_python(value), json)
    return [text_content(text_of(json))]


def check_kept(value: object, json: bytes) -> None:
    """Check that no number of a result became ``null`` when it was written (PROTOCOL 1, Numbers).

    A type may have said that it writes texts instead.
    """
    # The exact look takes long, and only what is not finite needs it.
    if not is_finite(value) and _lost(value, pydantic_core.from_json(json)):
        raise ValueError(_NUMBER)


def _lost(value: object, written: object) -> bool:
    if written is None or isinstance(written, float):
        return isinstance(value, float) and not math.isfinite(value)
    if isinstance(written, dict) and isinstance(value, dict):
        before, after = cast("JsonObject", value), cast("JsonObject", written)
        return len(before) == len(after) and any(
            starmap(_lost, zip(before.values(), after.values(), strict=True))
        )
    if isinstance(written, list) and isinstance(value, list | tuple | set | frozenset):
        items, others = cast("list[object]", value), cast("list[object]", written)
        return any(starmap(_lost, zip(items, others, strict=False)))
    return False


def complete(value: Any) -> JsonObject:
    """A ``CallToolResult`` object as JSON values, without what later versions of MCP added."""
    result = _dumped(value)
    if result.get("resultType") == "complete":
        del result["resultType"]
    return result


def text_content(text: str) -> JsonObject:
    """A text as an MCP content object."""
    return {"type": "text", "text": text}


def text_of(json: bytes) -> str:
    """A JSON value as text for a reader: a string without its quotes, anything else as it is."""
    return str(pydantic_core.from_json(json)) if json.startswith(b'"') else json.decode()


def _dumped(value: Any) -> JsonObject:
    dumped: JsonObject = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not is_finite(value.model_dump(by_alias=True)):
        raise ValueError(_NUMBER)
    return dumped


_SAYS_NOTHING = (Any, None, NoneType, Never, NoReturn, object)


class OutputType(msgspec.Struct, frozen=True):
    """The type of result that a tool promises.

    The schema is always an object's: a value that is none stands in it under ``result``.
    """

    adapter: TypeAdapter[Any]
    schema: JsonObject
    is_wrapped: bool

    def dump(self, value: object) -> bytes:
        """The JSON of a returned value, validated.

        Objects may come with their fields' names or with their aliases; aliases are written.
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
        """Validate structured content that a tool has put together by itself."""
        if self.is_wrapped:
            members = cast("JsonObject", structured) if isinstance(structured, dict) else {}
            if members.keys() != {"result"}:
                raise ValueError('structured content must be an object with one member "result"')
            structured = members["result"]
        self.adapter.validate_python(structured, by_alias=True, by_name=False)


def read_output_type(returns: Any, source: Source) -> OutputType | None:
    """The output type for a return annotation; ``None`` where it promises no structure.

    It promises none if it is missing, ``Any``, ``object`` or ``None``, or where MCP content is
    among what it names.
    """
    if returns in _SAYS_NOTHING or any(is_content_class(each) for each in _classes(returns)):
        return None
    if returns in (bytes, bytearray, memoryview):
        raise source.error(
            f"it returns {type_name(returns)}, and a result has no bytes in it; return base64 "
            "text, or an ImageContent or AudioContent of mcp_types"
        )
    try:
        return _output_type(returns)
    except Exception as error:  # types are the author's own: their hooks may raise anything
        raise source.error(
            f"it returns {type_name(returns)}, which cannot be a tool's result: "
            f"{first_line(error)}; return what pydantic can write as JSON, or MCP content"
        ) from error


def _output_type(returns: Any) -> OutputType:
    adapter: TypeAdapter[Any] = TypeAdapter(pydantic_hint(returns))
    schema = json_schema(adapter, mode="serialization")
    if schema.get("type") == "object":
        return OutputType(adapter, schema, is_wrapped=False)
    return OutputType(adapter, wrap_schema(schema), is_wrapped=True)


def _classes(hint: Any) -> Iterator[type]:
    """The classes that an annotation names, at any depth."""
    arguments = get_args(hint)
    if not arguments and isinstance(hint, type):
        yield hint
    for argument in arguments:
        yield from _classes(argument)


MAX_RESULT_BYTES: Final = MAX_FRAME_BYTES - 64 * 1024
"""Leaves room for the envelope around the result: ids and names are the sender's, but short."""


def encode_result(result: JsonObject) -> msgspec.Raw:
    """The JSON of a ``CallToolResult``, or of one that says why this one cannot be sent."""
    raw = encode_json(result)
    if len(raw) > MAX_RESULT_BYTES and "structuredContent" in result:
        # The text says the same for readers of an older MCP; what is structured comes first.
        raw = encode_json({**result, "content": []})
    if len(raw) > MAX_RESULT_BYTES:
        said = f"the result has {len(raw)} bytes; at most {MAX_RESULT_BYTES} can be sent"
        raw = encode_json({"content": [text_content(said)], "isError": True})
    return msgspec.Raw(raw)


def encode_whole_result(value: object) -> msgspec.Raw:
    """The JSON of a result that a handler has made whole: an object, or a model of pydantic.

    Raises:
        RequestError: It is neither, or too large for one frame.
        NotExpressible: A number in it has no JSON form.
    """
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not isinstance(value, dict):
        raise RequestError(
            INTERNAL_ERROR,
            f"the handler returned {type_name(type(value))}, and a result is an object",
        )
    raw = encode_json(cast("JsonObject", value))
    if len(raw) > MAX_RESULT_BYTES:
        raise RequestError(
            EXCHANGE_ERROR,
            f"the result has {len(raw)} bytes; at most {MAX_RESULT_BYTES} can be sent",
        )
    return msgspec.Raw(raw)
