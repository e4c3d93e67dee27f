"""The record that a decorator attaches to a function: which handler it is, and of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self, TypeVar

from meup_agent.agent.signature import HandlerSignature, read_signature
from meup_agent.agent.source import Handler, read_source
from meup_agent.agent.tool import ToolDefinition, ToolOptions, define_tool
from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import Pattern, compile_kind, compile_pattern

ATTRIBUTE = "__meup__"
"""Under this name a function carries the tuple of its definitions."""


_Written = TypeVar("_Written", str, str | Sequence[str])
_Compiled = TypeVar("_Compiled")


class Role(StrEnum):
    """What a handler is for; the value is the decorator's name."""

    TOOL = "tool"
    PROPOSAL = "on_proposal"
    REJECT = "on_reject"
    WITHDRAW = "on_withdraw"
    CONFLICT = "on_conflict"
    CHAT = "on_chat"
    KIND = "on"
    JOIN = "on_join"
    LEAVE = "on_leave"
    GAP = "on_gap"
    GRANT = "on_grant"
    REVOKE = "on_revoke"


Injectables = Mapping[Role, Mapping[type, str]]
"""Role → the types that its handlers may ask for → what is put there (``context``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDefinition:
    """A handler. Two are equal if they are the same function in the same role.

    Attributes:
        role: What it is for.
        fn: The function as it is called: bound, where it is a method.
        signature: Its parameters.
    """

    role: Role
    fn: Handler
    signature: HandlerSignature = field(repr=False, compare=False)

    def rebound(self, fn: Handler, injectables: Injectables) -> Self:
        """The same definition for what stands in the function's place: a bound method, a wrapper.

        Raises:
            HandlerDefinitionError: That one cannot work as this kind of handler.
        """
        return replace(self, fn=fn, signature=_read(self.role, fn, injectables))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHandler(HandlerDefinition):
    """A tool.

    Attributes:
        options: What the decorator was told.
        tool: The tool itself.
    """

    options: ToolOptions
    tool: ToolDefinition = field(compare=False)

    def rebound(self, fn: Handler, injectables: Injectables) -> Self:
        """See :meth:`HandlerDefinition.rebound`."""
        signature = _read(self.role, fn, injectables)
        tool = define_tool(signature, self.options)
        return replace(self, fn=fn, signature=signature, tool=tool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalHandler(HandlerDefinition):
    """A handler for incoming proposals.

    Attributes:
        method: Pattern of the proposed MCP method.
        name: Pattern of the proposed tool's name; ``None`` takes any, and none.
    """

    method: str | tuple[str, ...]
    name: str | tuple[str, ...] | None
    _method: Pattern = field(repr=False, compare=False)
    _name: Pattern | None = field(repr=False, compare=False)

    def matches(self, method: str, name: str | None) -> bool:
        """Whether a proposal of this method, for this tool, is for this handler."""
        if not self._method.matches(method):
            return False
        return self._name is None or (name is not None and self._name.matches(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class KindHandler(HandlerDefinition):
    """A handler for envelopes of some kinds.

    Attributes:
        kinds: Patterns of kinds, with slashes or dots.
    """

    kinds: tuple[str, ...]
    _kinds: tuple[Callable[[str], bool], ...] = field(repr=False, compare=False)

    def matches(self, kind: str) -> bool:
        """Whether an envelope of this kind, in its form in memory, is for this handler."""
        return any(matches(kind) for matches in self._kinds)


def tool_handler(fn: Handler, options: ToolOptions, injectables: Injectables) -> ToolHandler:
    """Define a tool.

    Raises:
        HandlerDefinitionError: The function cannot work as a tool.
    """
    signature = _read(Role.TOOL, fn, injectables)
    tool = define_tool(signature, options)
    return ToolHandler(role=Role.TOOL, fn=fn, signature=signature, options=options, tool=tool)


def proposal_handler(
    fn: Handler,
    method: str | Sequence[str],
    name: str | Sequence[str] | None,
    injectables: Injectables,
) -> ProposalHandler:
    """Define a handler for proposals.

    Raises:
        HandlerDefinitionError: The function cannot work as one, or a pattern does not compile.
    """
    return ProposalHandler(
        role=Role.PROPOSAL,
        fn=fn,
        signature=_read(Role.PROPOSAL, fn, injectables),
        method=_frozen(method),
        name=None if name is None else _frozen(name),
        _method=_compiled(fn, Role.PROPOSAL, "method", method, _pattern),
        _name=None if name is None else _compiled(fn, Role.PROPOSAL, "name", name, _pattern),
    )


def kind_handler(fn: Handler, kinds: Sequence[str], injectables: Injectables) -> KindHandler:
    """Define a handler for kinds of envelopes.

    Raises:
        HandlerDefinitionError: The function cannot work as one, or a pattern does not compile.
    """
    return KindHandler(
        role=Role.KIND,
        fn=fn,
        signature=_read(Role.KIND, fn, injectables),
        kinds=tuple(kinds),
        _kinds=tuple(_compiled(fn, Role.KIND, "kind", kind, compile_kind) for kind in kinds),
    )


def handler(fn: Handler, role: Role, injectables: Injectables) -> HandlerDefinition:
    """Define a handler of a role that takes no options.

    Raises:
        HandlerDefinitionError: The function cannot work in this role.
    """
    return HandlerDefinition(role=role, fn=fn, signature=_read(role, fn, injectables))


def _compiled(
    fn: Handler, role: Role, what: str, pattern: _Written, compiled: Callable[[_Written], _Compiled]
) -> _Compiled:
    if not pattern:
        raise read_source(fn, role).error(f"{what}={pattern!r} matches nothing; give a pattern")
    try:
        return compiled(pattern)
    except InvalidPattern as error:
        raise read_source(fn, role).error(f"{what}={pattern!r} is no pattern: {error}") from error


def _pattern(pattern: str | Sequence[str]) -> Pattern:
    return compile_pattern(pattern if isinstance(pattern, str) else list(pattern))


def _frozen(pattern: str | Sequence[str]) -> str | tuple[str, ...]:
    return pattern if isinstance(pattern, str) else tuple(pattern)


def _read(role: Role, fn: Handler, injectables: Injectables) -> HandlerSignature:
    return read_signature(
        fn,
        injectable=injectables.get(role, {}),
        takes_arguments=role is Role.TOOL,
        role=role,
        elsewhere={each for types in injectables.values() for each in types},
    )
