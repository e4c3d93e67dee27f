"""What a tool returns, as MCP content (2025-06-18).

The classes of ``mcp_types`` are looked at only if the program has imported them already: a value
cannot be an instance of a class that was never loaded, and loading them costs every agent time.
"""

from __future__ import annotations

import sys
from typing import Any, cast

import pydantic_core

from .schema import JsonObject

_LISTS = (list, tuple)


def is_content(value: object) -> bool:
    """Whether a value is one of MCP's content objects: text, image, audio, link, resource."""
    if "mcp_types" not in sys.modules:
        return False
    import mcp_types

    return isinstance(value, mcp_types.ContentBlock)


def is_complete(value: object) -> bool:
    """Whether a value is a whole ``CallToolResult`` already."""
    if "mcp_types" not in sys.modules:
        return False
    import mcp_types

    return isinstance(value, mcp_types.CallToolResult)


def is_content_class(hint: type) -> bool:
    """Whether values of a class are MCP content, or whole results."""
    if "mcp_types" not in sys.modules:
        return False
    import mcp_types

    return issubclass(hint, mcp_types.ContentBlock | mcp_types.CallToolResult)


def content_of(value: object) -> list[JsonObject]:
    """The content objects for a value that has no schema, as JSON values.

    ``None`` is no content, a string is its text, content objects are themselves, also several in
    a list; anything else is one text with the value's JSON.

    Raises:
        ValueError: The value, or something in it, has no JSON form.
    """
    if value is None:
        return []
    if is_content(value):
        return [_dumped(value)]
    if isinstance(value, _LISTS) and any(is_content(item) for item in cast("list[object]", value)):
        return [block for item in cast("list[object]", value) for block in content_of(item)]
    return [text_content(text_of(pydantic_core.to_json(value)))]


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
    return dumped
