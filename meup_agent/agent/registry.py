"""What an agent has registered, and which handler is meant."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from meup_agent.agent.decorators import definitions_of
from meup_agent.agent.definitions import (
    HandlerDefinition,
    Injectables,
    KindHandler,
    ProposalHandler,
    Role,
    ToolHandler,
)
from meup_agent.agent.source import Handler
from meup_agent.agent.text import type_name
from meup_agent.errors import UsageError


class Registry:
    """An agent's handlers, in the order in which they were registered.

    Args:
        injectables: Which types the handlers of each role may ask for.
    """

    def __init__(self, injectables: Injectables) -> None:
        self._injectables = injectables
        self._definitions: list[HandlerDefinition] = []
        self._tools: dict[str, ToolHandler] = {}
        self._proposals: list[ProposalHandler] = []
        self._kinds: list[KindHandler] = []
        self._frozen = False

    def add(self, definition: HandlerDefinition) -> None:
        """Register a handler; registering it once more changes nothing.

        Raises:
            HandlerDefinitionError: It is a method without its instance, or a tool of this name
                exists.
            UsageError: The agent has started.
        """
        source = definition.signature.source
        if self._frozen:
            raise UsageError(
                f"{source.role} {source.qualname} comes too late: the agent has started; "
                "register all handlers before"
            )
        if definition.signature.unbound:
            raise source.error(
                "it is a method without its instance; use the free-standing decorator, and "
                "include(…) an instance of its class"
            )
        if definition in self._definitions:
            return
        if isinstance(definition, ToolHandler):
            self._add_tool(definition)
        elif isinstance(definition, ProposalHandler):
            self._proposals.append(definition)
        elif isinstance(definition, KindHandler):
            self._kinds.append(definition)
        self._definitions.append(definition)

    def include(self, source: object) -> None:
        """Register what free-standing decorators have marked.

        Args:
            source: A module (the functions that it defines, and those that its ``__all__``
                names), an object (its marked methods, bound to it; a method that a subclass
                overrides without a mark is none), or one marked function.

        Raises:
            HandlerDefinitionError: One of them cannot work as a handler.
            UsageError: Nothing in it is marked, it is a class, or the agent has started.
        """
        if isinstance(source, type):
            raise UsageError(
                f"a class cannot be included: {source.__qualname__}; include an instance of it"
            )
        found = list(_marked(source))
        if not found:
            raise UsageError(
                f"there is no handler to include in {_shown(source)}; mark its functions with "
                "@tool, @on_proposal or another decorator"
            )
        for fn in found:
            for definition in definitions_of(fn):
                same = definition.fn == fn
                self.add(definition if same else definition.rebound(fn, self._injectables))

    def freeze(self) -> None:
        """Refuse further handlers: the agent starts."""
        self._frozen = True

    def tool(self, name: str) -> ToolHandler | None:
        """The tool of this name."""
        return self._tools.get(name)

    def tools(self) -> tuple[ToolHandler, ...]:
        """Every tool."""
        return tuple(self._tools.values())

    def proposal_handler(self, method: str, name: str | None) -> ProposalHandler | None:
        """The first handler for proposals of this method and tool.

        Args:
            method: The proposed MCP method.
            name: The proposed tool's name; ``None`` where the method has none.
        """
        for definition in self._proposals:
            if definition.matches(method, name):
                return definition
        return None

    def handlers(self, role: Role) -> tuple[HandlerDefinition, ...]:
        """Every handler of a role."""
        return tuple(each for each in self._definitions if each.role is role)

    def for_kind(self, kind: str) -> tuple[KindHandler, ...]:
        """Every ``on(…)`` handler for envelopes of this kind, in its form in memory."""
        return tuple(each for each in self._kinds if each.matches(kind))

    def _add_tool(self, definition: ToolHandler) -> None:
        name = definition.tool.name
        other = self._tools.get(name)
        if other is not None:
            first = other.signature.source
            where = f" ({first.location})" if first.location else ""
            raise definition.signature.source.error(
                f"a tool named {name!r} exists already, {first.qualname}{where}; "
                "pass another name=…"
            )
        self._tools[name] = definition


def _marked(source: object) -> Iterator[Handler]:
    """What carries definitions in a module or an object, in the order in which it is written."""
    if callable(source) and definitions_of(source):
        yield source
    elif isinstance(source, ModuleType):
        yield from _marked_in_module(source)
    else:
        yield from _marked_in_object(source)


def _marked_in_module(module: ModuleType) -> Iterator[Handler]:
    exported = getattr(module, "__all__", ())
    for name, value in vars(module).items():
        # What a module imports to use it is not thereby what it offers.
        imported = isinstance(value, FunctionType) and value.__module__ != module.__name__
        offered = not imported or name in exported
        if offered and definitions_of(value):
            yield value


def _marked_in_object(instance: object) -> Iterator[Handler]:
    names = dict.fromkeys(name for each in reversed(type(instance).__mro__) for name in vars(each))
    for name in names:
        static: Any = inspect.getattr_static(instance, name)
        if isinstance(static, staticmethod | classmethod):
            static = cast("Any", static).__func__
        if definitions_of(static):
            yield getattr(instance, name)


def _shown(source: object) -> str:
    if isinstance(source, ModuleType):
        return f"module {source.__name__}"
    return f"an object of type {type_name(type(source))}"
