"""Signatures and tools of functions, without an agent around them."""

from collections.abc import Callable
from typing import Any

from meup_agent import Context, Envelope, Proposal
from meup_agent.agent.decorators import PROPOSAL, TOOL
from meup_agent.agent.signature import HandlerSignature
from meup_agent.agent.tool import ToolDefinition, ToolOptions, define_tool

__all__ = ["Context", "Envelope", "Proposal", "SpecialContext", "read", "reads", "tool_of"]


class SpecialContext(Context):
    pass


def reads(**types: type) -> dict[str, Callable[[Any], Any]]:
    return {name: PROPOSAL.injects[type] for name, type in types.items()}


def read(fn: Callable[..., Any], *, tool: bool = True) -> HandlerSignature:
    """The signature of a tool, or of a handler of proposals."""
    return (TOOL if tool else PROPOSAL).read(fn)


def tool_of(fn: Callable[..., Any], **options: Any) -> ToolDefinition:
    return define_tool(read(fn), ToolOptions(**options))
