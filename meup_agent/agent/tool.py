"""A tool as MCP 2025-06-18 knows it, and the methods that every agent answers without a handler."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final, cast

from meup_agent.agent.arguments import ToolArguments
from meup_agent.agent.results import (
    OutputType,
    complete,
    content_of,
    is_call_result,
    read_output_type,
    text_content,
    text_of,
)
from meup_agent.agent.schema import JsonObject
from meup_agent.agent.signature import HandlerSignature
from meup_agent.agent.source import clip, first_line
from meup_agent.errors import UsageError
from meup_agent.protocol.payloads import TOOL_CALL, TOOL_LIST, WRAPPED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.protocol.payloads import JsonObject

PROTOCOL_VERSION: Final = "2025-06-18"
"""The version of MCP that we speak."""


METHODS: Final = ("initialize", "ping", TOOL_LIST, TOOL_CALL)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOptions:
    """Arguments of ``@tool(…)``; ``None`` leaves one unsaid, or to the function."""

    name: str | None = None
    title: str | None = None
    description: str | None = None
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


TOOL_OPTIONS: Final = tuple(each.name for each in fields(ToolOptions))
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
            raise UsageError(
                f"tool {self.name!r} returned a value of type {type(value).__name__} that cannot "
                f"be its result: {first_line(error)}{advice}"
            ) from error

    def _result(self, value: object) -> JsonObject:
        if is_call_result(value):
            result = complete(value)
            if self._output is not None and not result["isError"]:
                self._output.check(result.get("structuredContent"))
            return result
        _refuse_awaitable(value)
        if self._output is None:
            _refuse_bytes(value)
            return untyped_result(value)
        json = self._output.dump(value)
        structured: JsonObject = {
            # Readers that know no structured content get the same as text (MCP, tools).
            "content": [] if value is None else [text_content(text_of(json))],
            "structuredContent": self._output.structured(json),
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
    said = "; ".join(_describe(each) for each in _leaves(error))
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
        raise ValueError("it must be awaited, so declare the function with async def")


def _refuse_bytes(value: object) -> None:
    if isinstance(value, bytes | bytearray | memoryview):
        raise ValueError(
            "a result has no bytes in it, so return base64 text, or an ImageContent or "
            "AudioContent of mcp_types"
        )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions in a group: a task group's own words tell a caller nothing."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for each in group.exceptions:
            yield from _leaves(each)
    else:
        yield error


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
