"""The MCP methods that every agent answers (MCP 2025-06-18, lifecycle, ping and tools)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from meup_agent.agent.registry import Registry
    from meup_agent.protocol.payloads import Call, JsonObject

PROTOCOL_VERSION: Final = "2025-06-18"
"""The version of MCP that we speak."""

PLAIN_METHODS: Final = frozenset({"initialize", "ping", "tools/list"})
"""Methods that are answered without running a person's code."""

TOOL_CALL: Final = "tools/call"


def knows(registry: Registry, call: Call, *, addressed: bool) -> bool:
    """Whether we answer a request; of a broadcast one only what we have to offer."""
    if addressed:
        return call.method in PLAIN_METHODS or call.method == TOOL_CALL
    if call.method == "tools/list":
        return bool(registry.tools())
    return call.method == TOOL_CALL and registry.tool(call.name) is not None


def answer(registry: Registry, agent_name: str, call: Call) -> JsonObject:
    """The result of a plain method."""
    match call.method:
        case "initialize":
            return {
                "protocolVersion": PROTOCOL_VERSION,
                "capabilities": {"tools": {"listChanged": False}},
                "serverInfo": {"name": agent_name, "version": _version()},
            }
        case "tools/list":
            return {"tools": [tool.tool.describe() for tool in registry.tools()]}
        case _:
            return {}


def _version() -> str:
    # Loaded when it is asked for: it takes a twelfth of the whole package's import.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("meup-agent")
    except PackageNotFoundError:
        return "0"
