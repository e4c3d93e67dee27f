"""What a tool returns, as MCP content (2025-06-18).

The classes of ``mcp_types`` are looked at only if the program has imported them already: a value
cannot be an instance of a class that was never loaded, and loading them costs every agent time.
"""

from __future__ import annotations

import math
import sys
from itertools import starmap
from typing import Any, Final, cast

import pydantic_core
from pydantic import TypeAdapter

from meup_agent.protocol.numbers import is_finite

from .schema import JsonObject

_LISTS = (list, tuple)

_ANY: Final = TypeAdapter[Any](Any)

_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""Words in pydantic's JSON that may stand for a number that is not finite."""


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
    json = pydantic_core.to_json(value)
    if any(word in json for word in _NOT_FINITE):
        check_kept(_ANY.serializer.to_python(value), json)
    return [text_content(text_of(json))]


def check_kept(value: object, json: bytes) -> None:
    """Check that no number of a result became ``null`` when it was written (PROTOCOL 1, Numbers).

    Args:
        value: The result as Python values.
        json: What pydantic wrote for it; a type may have said that it writes texts instead.

    Raises:
        ValueError: A number in it is NaN or an infinity.
    """
    # The exact look takes long, and only what is not finite needs it.
    if not is_finite(value) and _lost(value, pydantic_core.from_json(json)):
        raise ValueError(
            "it holds a number that is not finite (NaN or an infinity); return None or a text in "
            "its place"
        )


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
        raise ValueError(
            "it holds a number that is not finite (NaN or an infinity); put null or a text in "
            "its place"
        )
    return dumped
