"""Stand-ins for what is injected: a handler's definition needs the types, not what they can do."""

from collections.abc import Callable, Mapping
from typing import Any

from meup_agent.agent.definitions import Role
from meup_agent.agent.signature import HandlerSignature, read_signature
from meup_agent.agent.tool import ToolDefinition, ToolOptions, define_tool


class Context:
    pass


class Proposal:
    pass


class Envelope:
    pass


class SpecialContext(Context):
    pass


COMMON: dict[type, str] = {Context: "context", Envelope: "envelope"}
INJECTABLES: Mapping[Role, Mapping[type, str]] = {
    role: {**COMMON, Proposal: "proposal"} if role is Role.PROPOSAL else COMMON for role in Role
}


def read(fn: Callable[..., Any], *, tool: bool = True) -> HandlerSignature:
    """The signature of a tool, or of a handler of proposals."""
    role = Role.TOOL if tool else Role.PROPOSAL
    return read_signature(
        fn,
        injectable=INJECTABLES[role],
        takes_arguments=tool,
        role=role,
        elsewhere={Proposal},
    )


def tool_of(fn: Callable[..., Any], **options: Any) -> ToolDefinition:
    """The tool that a function makes."""
    return define_tool(read(fn), ToolOptions(**options))
