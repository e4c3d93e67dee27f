"""A tool as MCP 2025-06-18 knows it, its results, and the methods that every agent answers."""

from __future__ import annotations

import copy
import inspect
import math
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import starmap
from types import NoneType
from typing import Any, Final, Never, NoReturn, cast, get_args

import msgspec
import pydantic
import pydantic_core

from meup_agent.agent.signature import (
    HandlerSignature,
    JsonObject,
    Source,
    ToolArguments,
    clip,
    first_line,
    json_schema,
    pydantic_hint,
    type_name,
    wrap_schema,
)
from meup_agent.errors import RequestError, UsageError, leaves_of
from meup_agent.protocol.wire.envelope import MAX_FRAME_BYTES, encode_json, is_finite
from meup_agent.protocol.wire.payloads import (
    EXCHANGE_ERROR,
    INTERNAL_ERROR,
    PING,
    TOOL_CALL,
    TOOL_LIST,
    WRAPPED,
    as_object,
    is_list,
    is_object,
)

# --- results of tools ---
# The output schema, MCP content (2025-06-18), and the answer on the wire.
#
# The classes of `mcp_types` are looked at only if the program has imported them already: a value
# cannot be an instance of a class that was never loaded, and loading them costs every agent time.

_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""Words in pydantic's JSON that may stand for a number that is not finite."""


_NUMBER: Final = (
    "it holds a number that is not finite (NaN or an infinity); return None or a text in its place"
)


@cache
def _any_adapter() -> pydantic.TypeAdapter[Any]:
    # Made at first use: the first adapter has pydantic look through all distributions for plugins.
    return pydantic.TypeAdapter(Any)


def _mcp_class(name: str) -> Any:
    """A class of ``mcp_types``; ``()``, of which nothing is an instance, where it is not loaded."""
    if "mcp_types" not in sys.modules:
        return ()
    import mcp_types  # waits, where another thread imports it just now

    return getattr(mcp_types, name)


def is_content(value: object) -> bool:
    """True if a value is one of MCP's content objects: text, image, audio, link, resource."""
    return isinstance(value, _mcp_class("ContentBlock"))


def is_content_class(hint: type) -> bool:
    """True if values of a class are MCP content, or whole results."""
    return issubclass(hint, (_mcp_class("ContentBlock"), _mcp_class("CallToolResult")))


def content_of(value: object) -> list[JsonObject]:
    """The content objects for a value that has no schema, as JSON values.

    ``None`` is not content, a string is its text, content objects are themselves, also several in a
    list; anything else is one text with the value's JSON.
    """
    if value is None:
        return []
    if is_content(value):
        return [_dumped(value)]
    if isinstance(value, list | tuple):
        items = cast("list[object]", value)
        if any(map(is_content, items)):
            return [block for item in items for block in content_of(item)]
    json = pydantic_core.to_json(value)
    if any(word in json for word in _NOT_FINITE):
        check_kept(_any_adapter().serializer.to_python(value), json)
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
    if is_object(written) and is_object(value):
        return len(value) == len(written) and any(
            starmap(_lost, zip(value.values(), written.values(), strict=True))
        )
    if is_list(written) and isinstance(value, list | tuple | set | frozenset):
        items = cast("list[object]", value)
        return any(starmap(_lost, zip(items, written, strict=False)))
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

    adapter: pydantic.TypeAdapter[Any]
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

    def check(self, structured: object) -> None:
        """Validate structured content that a tool has put together by itself."""
        if self.is_wrapped:
            members = as_object(structured)
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
        adapter: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(pydantic_hint(returns))
        schema = json_schema(adapter, mode="serialization")
    except Exception as error:  # types are the author's own: their hooks may raise anything
        raise source.error(
            f"it returns {type_name(returns)}, which cannot be a tool's result: "
            f"{first_line(error)}; return what pydantic can write as JSON, or MCP content"
        ) from error
    is_wrapped = schema.get("type") != "object"
    return OutputType(adapter, wrap_schema(schema) if is_wrapped else schema, is_wrapped)


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
    if isinstance(value, pydantic.BaseModel):
        value = value.model_dump(mode="json", by_alias=True, exclude_none=True)
    if not is_object(value):
        raise RequestError(
            INTERNAL_ERROR,
            f"the handler returned {type_name(type(value))}, and a result is an object",
        )
    raw = encode_json(value)
    if len(raw) > MAX_RESULT_BYTES:
        raise RequestError(
            EXCHANGE_ERROR,
            f"the result has {len(raw)} bytes; at most {MAX_RESULT_BYTES} can be sent",
        )
    return msgspec.Raw(raw)


# --- tool ---

PROTOCOL_VERSION: Final = "2025-06-18"
"""The version of MCP that we speak."""


ANSWERED_METHODS: Final = ("initialize", PING, TOOL_LIST, TOOL_CALL)
"""Every method that is answered; of these only ``tools/call`` runs a handler."""

MAX_ERROR_CHARS = 4_000
"""Length of the text of an error result; exceptions may quote whole documents."""

_PLAIN = frozenset({str, int, float, bool, dict, list, type(None)})
"""Types of results that are what they are."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
"""Names that MCP allows for a tool (2025-11-25; before, it did not say)."""


_HINTS: Final = {
    "read_only": "readOnlyHint",
    "destructive": "destructiveHint",
    "idempotent": "idempotentHint",
    "open_world": "openWorldHint",
}
"""Hints of a tool about itself, and their names in MCP's ``ToolAnnotations``."""


class ToolOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of ``@tool(…)``; ``None`` leaves one unsaid, or to the function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


TOOL_OPTIONS: Final = ToolOptions.__struct_fields__
"""Names of the arguments of ``@tool(…)``."""


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool as ``tools/list`` describes it (MCP's ``Tool``), with what ``tools/call`` needs."""

    name: str
    _described: JsonObject
    _arguments: ToolArguments = field(repr=False, compare=False)
    _output: OutputType | None = field(repr=False, compare=False)

    def describe(self) -> JsonObject:
        """MCP's ``Tool`` object; the caller may change it."""
        return copy.deepcopy(self._described)

    def bind(self, arguments: object) -> dict[str, Any]:
        """The keyword arguments for a call, validated, defaults included."""
        return self._arguments.bind(self.name, arguments)

    def result(self, value: object) -> JsonObject:
        """MCP's ``CallToolResult`` for what the function returned, as JSON values."""
        try:
            return self._result(value)
        except ValueError as error:
            advice = "; return what its annotation says" if self._output else ""
            if isinstance(error, pydantic_core.PydanticSerializationError) and not advice:
                advice = "; return JSON values, a dataclass or a pydantic model"
            raise UsageError(
                f"tool {self.name!r} returned a value of type {type(value).__name__} that cannot "
                f"be its result: {first_line(error)}{advice}"
            ) from error

    def _result(self, value: object) -> JsonObject:
        if isinstance(value, _mcp_class("CallToolResult")):  # it is whole already
            result = complete(value)
            if self._output is not None and not result["isError"]:
                self._output.check(result.get("structuredContent"))
            return result
        _refuse_awaitable(value)
        if self._output is None:
            if isinstance(value, bytes | bytearray | memoryview):
                raise ValueError(
                    "a result has no bytes in it, so return base64 text, or an ImageContent or "
                    "AudioContent of mcp_types"
                )
            return untyped_result(value)
        json = self._output.dump(value)
        written = pydantic_core.from_json(json)
        structured: JsonObject = {
            # Readers that know no structured content get the same as text (MCP, tools).
            "content": [] if value is None else [text_content(text_of(json))],
            "structuredContent": {"result": written} if self._output.is_wrapped else written,
            "isError": False,
        }
        if self._output.is_wrapped:
            # MCP wants an object; a caller of ours gets the plain value back.
            structured["_meta"] = {WRAPPED: True}
        return structured


def untyped_result(value: object) -> JsonObject:
    """MCP's ``CallToolResult`` for a value that no annotation describes."""
    return {"content": content_of(value), "isError": False}


def error_result(error: BaseException) -> JsonObject:
    """MCP's ``CallToolResult`` for a tool that raised: type and message, no traceback."""
    said = "; ".join(_describe(each) for each in leaves_of(error))
    return {"content": [text_content(clip(said, MAX_ERROR_CHARS))], "isError": True}


def define_tool(signature: HandlerSignature, options: ToolOptions) -> ToolDefinition:
    """A tool from its function's signature and what the decorator was told."""
    source = signature.source
    assert signature.arguments is not None  # the signature was read for a tool
    name = source.name if options.name is None else options.name
    if name is None:
        raise source.error("it has no name of its own; pass name=…")
    if not _NAME.fullmatch(name):
        raise source.error(
            f"the name {clip(name, 130)!r} is none that a tool may have; use 1 to 128 letters, "
            "digits, '_', '-' and '.'"
        )
    output = read_output_type(signature.returns, source)
    said = {mcp_name: getattr(options, hint) for hint, mcp_name in _HINTS.items()}
    described = {
        "name": name,
        "title": options.title,
        "description": (source.doc or None) if options.description is None else options.description,
        "inputSchema": signature.arguments.schema,
        "outputSchema": None if output is None else output.schema,
        "annotations": _without_none(said) or None,
    }
    return ToolDefinition(name, _without_none(described), signature.arguments, output)


def _without_none(members: JsonObject) -> JsonObject:
    return {name: each for name, each in members.items() if each is not None}


def _refuse_awaitable(value: object) -> None:
    # Looked at first, since most results are these, and the question takes long.
    if type(value) not in _PLAIN and inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise ValueError(
            "it must be awaited: await it, in a function that is declared with async def"
        )


def _describe(error: BaseException) -> str:
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # an exception that cannot say what it is must still be reported
        return name
    return f"{name}: {text}" if text else name


def answer_method(method: str, tools: Iterable[ToolDefinition], agent_name: str) -> JsonObject:
    """The result of a method that runs no handler."""
    if method == "initialize":
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": agent_name, "version": own_version()},
        }
    return {"tools": [tool.describe() for tool in tools]} if method == TOOL_LIST else {}


def own_version() -> str:
    """The version of this package; "0" where it is run from its source."""
    # Loaded when it is asked for: it takes a twelfth of the whole package's import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("meup-agent")
    except PackageNotFoundError:
        return "0"
