"""The registry: an agent's handlers, and the ones that an envelope is for."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any, cast

from meup_agent.agent.decorators import HandlerDefinition, Match, define, definitions_of
from meup_agent.agent.signature import Handler, type_name
from meup_agent.agent.tool import ANSWERED_METHODS, ToolDefinition
from meup_agent.errors import UsageError
from meup_agent.protocol.exchange import Role
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import Envelope


class Registry:
    """An agent's handlers, in the order in which they were registered."""

    def __init__(self) -> None:
        self._definitions: list[HandlerDefinition] = []
        self._tools: dict[str, Match] = {}
        self._requests: list[Match] = []
        self._proposals: list[Match] = []
        self._kinds: list[HandlerDefinition] = []
        self._notices: dict[Role, Match] = {}
        self._plain = {method: Match((), method) for method in ANSWERED_METHODS}
        self.frozen = False
        """True once the agent has started: further handlers are refused."""

    def add(self, definition: HandlerDefinition) -> None:
        """Register a handler; registering it once more changes nothing."""
        source = definition.signature.source
        if self.frozen:
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
        match = Match((definition,), definition.name)
        match definition.role:
            case Role.REQUEST if definition.tool is None:
                self._requests.append(match)
            case Role.REQUEST:
                other = self._tools.get(definition.name)
                if other is not None:
                    first = other.handlers[0].signature.source
                    where = f" ({first.location})" if first.location else ""
                    raise source.error(
                        f"a tool named {definition.name!r} exists already, {first.qualname}{where};"
                        " pass another name=…"
                    )
                self._tools[definition.name] = match
            case Role.PROPOSAL:
                self._proposals.append(match)
            case Role.KIND:
                self._kinds.append(definition)
            case role:
                before = self._notices.get(role)
                both = (*before.handlers, definition) if before else (definition,)
                self._notices[role] = Match.of(both) or match
        self._definitions.append(definition)

    def include(self, source: object) -> None:
        """Register what free-standing decorators have marked.

        Of a module: the functions that it defines, and those that its ``__all__`` names. Of an
        object: its marked methods, bound to it; a method that a subclass overrides without a mark
        is none.
        """
        if isinstance(source, type):
            raise UsageError(
                f"a class cannot be included: {source.__qualname__}; include an instance of it"
            )
        found = list(_marked(source))
        if not found:
            what = f"an object of type {type_name(type(source))}"
            if isinstance(source, ModuleType):
                what = f"module {source.__name__}"
            raise UsageError(
                f"there is no handler to include in {what}; mark its functions with @tool,"
                " @on_proposal or another decorator"
            )
        for fn in found:
            for definition in definitions_of(fn):
                same = definition.fn == fn
                # A bound method, or a wrapper, stands in the place of the marked function.
                self.add(definition if same else define(definition.type, fn, definition.options))

    def tools(self) -> tuple[ToolDefinition, ...]:
        """Every tool."""
        found = [match.handlers[0].tool for match in self._tools.values()]
        return tuple(tool for tool in found if tool is not None)

    def find(self, role: Role, envelope: Envelope, call: payloads.Call | None) -> Match | None:
        """Find the handlers for an envelope; a call is what a request or a proposal asks for."""
        if role is Role.KIND:
            kind = envelope.kind
            if not self._kinds:  # as in most agents, and it is asked for each envelope
                return None
            return Match.of(tuple(each for each in self._kinds if each.matches_kind(kind)))
        if call is None:
            return self._notices.get(role)
        if role is Role.REQUEST:
            return self._for_request(envelope, call)
        for match in self._proposals:
            if match.handlers[0].matches_call(call.method, call.name or None):
                return match
        return None

    def _for_request(self, envelope: Envelope, call: payloads.Call) -> Match | None:
        """Match a request; of a broadcast one, only what we have to offer is answered."""
        for handler in self._requests:
            if handler.handlers[0].matches_request(envelope, call):
                return handler
        if call.method == payloads.TOOL_CALL:
            match = self._tools.get(call.name)
            return match if match or not envelope.to else self._plain[payloads.TOOL_CALL]
        offered = call.method == payloads.TOOL_LIST and bool(self._tools)
        return self._plain.get(call.method) if envelope.to or offered else None


def _marked(source: object) -> Iterator[Handler]:
    """The marked functions of a module or an object, in the order in which they are written."""
    if callable(source) and definitions_of(source):
        yield source
    elif isinstance(source, ModuleType):
        exported = getattr(source, "__all__", ())
        for name, value in vars(source).items():
            # What a module imports to use it is not thereby what it offers.
            imported = isinstance(value, FunctionType) and value.__module__ != source.__name__
            if (not imported or name in exported) and definitions_of(value):
                yield value
    else:
        yield from _marked_in_object(source)


def _marked_in_object(instance: object) -> Iterator[Handler]:
    names = dict.fromkeys(name for each in reversed(type(instance).__mro__) for name in vars(each))
    for name in names:
        static: Any = inspect.getattr_static(instance, name)
        if isinstance(static, staticmethod | classmethod):
            static = cast("Any", static).__func__
        if definitions_of(static):
            yield getattr(instance, name)
