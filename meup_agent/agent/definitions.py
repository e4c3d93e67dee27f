"""Definitions: the record that a decorator attaches to a function.

A :class:`HandlerType` is one row of the table of handlers, which stands in the body of
:class:`~meup_agent.agent.decorators.Decorators`: the decorator's name, the role in which the
exchange table starts such a handler, and what it may ask for by annotation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from meup_agent.agent.signature import HandlerSignature, read_signature
from meup_agent.agent.source import Handler, Source
from meup_agent.agent.tool import ToolDefinition, ToolOptions, define_tool
from meup_agent.client.messages import Request
from meup_agent.errors import InvalidPattern
from meup_agent.protocol.capability import Pattern, compile_kind, compile_pattern
from meup_agent.protocol.exchange import Role
from meup_agent.protocol.payloads import PREFIX

if TYPE_CHECKING:
    from meup_agent.agent.scope import Scope
    from meup_agent.client.space import Space
    from meup_agent.protocol.envelope import Envelope
    from meup_agent.protocol.exchange import Work
    from meup_agent.protocol.payloads import Call
    from meup_agent.session import Session

log = logging.getLogger("meup_agent.agent")

_Compiled = TypeVar("_Compiled")


class Invocation(NamedTuple):
    """One run of a handler, from which its injected values are read."""

    space: Space
    session: Session
    scope: Scope
    work: Work
    match: Match


Reader = Callable[[Invocation], Any]
"""Reads an injected value."""

_injectable: set[type] = set()


@dataclass(frozen=True, slots=True)
class HandlerType:
    """A row of the table of handlers.

    It injects values by the types of annotations. Parameters of a tool that are not injected are
    its arguments.
    """

    decorator: str
    role: Role
    injects: Mapping[type, Reader] = field(repr=False)
    takes_arguments: bool = False

    def __post_init__(self) -> None:
        """Note the types: in a handler of another type they are a mistake, and no argument."""
        _injectable.update(self.injects)

    def read(self, fn: Handler) -> HandlerSignature:
        """The signature of a function as a handler of this type."""
        return read_signature(
            fn,
            injectable=self.injects,
            takes_arguments=self.takes_arguments,
            role=self.decorator,
            elsewhere=_injectable,
        )


@dataclass(frozen=True, slots=True)
class ProposalOptions:
    """Arguments of ``@on_proposal(…)``: patterns of the method and of the tool's name."""

    method: str | tuple[str, ...]
    name: str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """Arguments of ``@on_request(…)``: patterns of methods, and which broadcast ones are ours."""

    methods: tuple[str, ...]
    broadcast: Callable[[Request], bool] | None


@dataclass(frozen=True, slots=True)
class KindOptions:
    """Arguments of ``@on(…)``: patterns of kinds, with slashes or dots."""

    kinds: tuple[str, ...]


Options = ToolOptions | ProposalOptions | RequestOptions | KindOptions | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerDefinition:
    """A handler. Two are equal if they are the same function of one type with equal options.

    A method is bound to its instance.
    """

    type: HandlerType
    fn: Handler
    options: Options = None
    signature: HandlerSignature = field(repr=False, compare=False)
    tool: ToolDefinition | None = field(default=None, repr=False, compare=False)
    _method: Pattern | None = field(default=None, repr=False, compare=False)
    _name: Pattern | None = field(default=None, repr=False, compare=False)
    _kinds: tuple[Callable[[str], bool], ...] = field(default=(), repr=False, compare=False)

    @property
    def role(self) -> Role:
        """The role in which the exchange table starts it."""
        return self.type.role

    @property
    def name(self) -> str:
        """Its name for the log and for observers."""
        return self.signature.source.qualname if self.tool is None else self.tool.name

    def matches_call(self, method: str, name: str | None) -> bool:
        """True if it decides proposals of this method, for this tool."""
        if self._method is None or not self._method.matches(method):
            return False
        return self._name is None or (name is not None and self._name.matches(name))

    def matches_request(self, envelope: Envelope, call: Call) -> bool:
        """True if it answers this request; one without a recipient, if its author says so."""
        assert isinstance(self.options, RequestOptions)
        if call.method.startswith(PREFIX):
            # A handler that passes on whatever comes must not pass these on (PROTOCOL 5).
            is_named = call.method in self.options.methods
        else:
            is_named = self._method is not None and self._method.matches(call.method)
        if not is_named:
            return False
        if envelope.to:
            return True
        if self.options.broadcast is None:
            return False
        try:
            return bool(self.options.broadcast(Request(envelope, call)))
        except Exception:
            log.exception("broadcast= of %s failed", self.name)
            return False

    def matches_kind(self, kind: str) -> bool:
        """True if it takes envelopes of this kind, in its form in memory."""
        return any(matches(kind) for matches in self._kinds)


class Match(NamedTuple):
    """The handlers that one envelope starts; none for a request that is answered without one.

    No sender's word is its name in the log and for observers, so that names are few.
    """

    handlers: tuple[HandlerDefinition, ...]
    name: str

    @classmethod
    def of(cls, handlers: tuple[HandlerDefinition, ...]) -> Match | None:
        """The match of some handlers; ``None`` for none."""
        return cls(handlers, ", ".join(each.name for each in handlers)) if handlers else None


def define(type: HandlerType, fn: Handler, options: Options = None) -> HandlerDefinition:
    """Define a handler."""
    signature = type.read(fn)
    source, tool, method, name = signature.source, None, None, None
    kinds: tuple[str, ...] = ()
    match options:
        case ToolOptions():
            tool = define_tool(signature, options)
        case ProposalOptions():
            method = _compile(source, "method", options.method, _pattern)
            if options.name is not None:
                name = _compile(source, "name", options.name, _pattern)
        case RequestOptions():
            method = _compile(source, "method", options.methods, _pattern)
        case KindOptions():
            kinds = options.kinds
        case None:
            pass
    return HandlerDefinition(
        type=type,
        fn=fn,
        options=options,
        signature=signature,
        tool=tool,
        _method=method,
        _name=name,
        _kinds=tuple(_compile(source, "kind", kind, compile_kind) for kind in kinds),
    )


def _compile(
    source: Source, what: str, pattern: Any, compiled: Callable[[Any], _Compiled]
) -> _Compiled:
    if not pattern:
        raise source.error(f"{what}={pattern!r} matches nothing; give a pattern")
    try:
        return compiled(pattern)
    except InvalidPattern as error:
        raise source.error(f"{what}={pattern!r} is no pattern: {error}") from error


def _pattern(pattern: str | tuple[str, ...]) -> Pattern:
    return compile_pattern(pattern if isinstance(pattern, str) else list(pattern))
