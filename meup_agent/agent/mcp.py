"""MCP methods that every agent answers (MCP 2025-06-18, lifecycle, ping and tools)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meup_agent.agent.tool import ToolDefinition
    from meup_agent.protocol.payloads import JsonObject

PROTOCOL_VERSION: Final = "2025-06-18"
"""The version of MCP that we speak."""

TOOL_CALL: Final = "tools/call"
TOOL_LIST: Final = "tools/list"

METHODS: Final = ("initialize", "ping", TOOL_LIST, TOOL_CALL)
"""Every method that is answered; of these only ``tools/call`` runs a handler."""


def answer(method: str, tools: Iterable[ToolDefinition], agent_name: str) -> JsonObject:
    """The result of a method that runs no handler."""
    match method:
        case "initialize":
            return {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": agent_name, "version": _version()},
            }
        case "tools/list":
            return {"tools": [tool.describe() for tool in tools]}
        case _:
            return {}


def _version() -> str:
    # Loaded when it is asked for: it takes a twelfth of the whole package's import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("meup-agent")
    except PackageNotFoundError:
        return "0"
