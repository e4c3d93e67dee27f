"""Decorators: they check a function, attach a record, and return the function unchanged.

The body of :class:`Decorators` is the table of handlers. A new type of handler is one row there:
its decorator's name, the role in which the exchange table starts it, and what it may ask for by
annotation, each with its reader. A registry finds the handler of an envelope.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from types import FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeVar, cast, overload

import msgspec

from meup_agent.agent.context import Context, Scope
from meup_agent.agent.signature import Handler, HandlerSignature, Source, read_signature, type_name
from meup_agent.agent.tool import (
    ANSWERED_METHODS,
    TOOL_OPTIONS,
    ToolDefinition,
    ToolOptions,
    define_tool,
)
from meup_agent.client.messages import Chat, Request, with_explanation
from meup_agent.client.proposal import Proposal
from meup_agent.client.space import Space
from meup_agent.client.streams import StreamReader
from meup_agent.errors import HandlerDefinitionError, InvalidPattern, UsageError
from meup_agent.protocol.capability import Pattern, compile_kind, compile_pattern
from meup_agent.protocol.exchange import Conflict, Gap, Participant, Role, StreamBuffer, Work
from meup_agent.protocol.roster import read_participant
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.envelope import Envelope
from meup_agent.protocol.wire.outcomes import Expiry, Explanation, Rejection, Withdrawal
from meup_agent.protocol.wire.payloads import (
    PREFIX,
    TOOL_CALL,
    Acknowledgement,
    Call,
    Clear,
    Compact,
    CompactDone,
    Forget,
    Grant,
    ParticipantStatus,
    Pause,
    Restart,
    Resumption,
    Revocation,
    Shutdown,
    StatusRequest,
)

if TYPE_CHECKING:
    from meup_agent.session import Session


# --- definitions ---
# The record that a decorator attaches to a function.
#
# A `HandlerType` is one row of the table of handlers, which stands in the body of `Decorators`:
# the decorator's name, the role in which the exchange table starts such a handler, and what it may
# ask for by annotation.

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


class HandlerType(msgspec.Struct, frozen=True):
    """A row of the table of handlers.

    It injects values by the types of annotations. Parameters of a tool that are not injected are
    its arguments.
    """

    decorator: str
    role: Role
    injects: Mapping[type, Reader]
    takes_arguments: bool = False
    keywords: tuple[str, ...] = ()  # of its decorator, those that a text may be meant for

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


class ProposalOptions(msgspec.Struct, frozen=True):
    """Arguments of ``@on_proposal(…)``: patterns of the method and of the tool's name."""

    method: str | tuple[str, ...]
    tool: str | tuple[str, ...] | None


class RequestOptions(msgspec.Struct, frozen=True):
    """Arguments of ``@on_request(…)``: patterns of methods, and which broadcast ones are ours."""

    methods: tuple[str, ...]
    broadcast: Callable[[Request], bool] | None


class KindOptions(msgspec.Struct, frozen=True):
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
            if options.tool is not None:
                name = _compile(source, "tool", options.tool, _pattern)
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
        raise source.error(f"{what}={pattern!r} is not a pattern: {error}") from error


def _pattern(pattern: str | tuple[str, ...]) -> Pattern:
    return compile_pattern(pattern if isinstance(pattern, str) else list(pattern))


# --- decorators ---

F = TypeVar("F", bound=Callable[..., Any])

Register = Callable[[HandlerDefinition], None]

ATTRIBUTE: Final = "__meup__"
"""Under this name a function carries the tuple of its definitions."""


# --- readers of what is injected ---


def _context(run: Invocation) -> Context:
    return Context(space=run.space, envelope=run.work.envelope, scope=run.scope, log=log)


def _subject(run: Invocation) -> object:
    return run.work.subject


def _request(run: Invocation) -> object:
    assert run.work.call is not None
    return Request(run.work.envelope, run.work.call)


def _rejection(run: Invocation) -> object:
    assert isinstance(run.work.subject, Rejection)
    return with_explanation(run.session, run.work.subject)


def _participant(run: Invocation) -> object:
    return read_participant(run.work.envelope.payload_object.get("participant"))


def _stream(run: Invocation) -> object:
    assert isinstance(run.work.subject, StreamBuffer)
    # Each of several handlers reads every frame.
    signatures = [each.signature.injected.values() for each in run.match.handlers]
    readers = sum(list(each).count(_stream) for each in signatures)
    return StreamReader(run.session, run.work.subject.claim(readers))


ANYWHERE: Final[Mapping[type, Reader]] = MappingProxyType(
    {Context: _context, Space: lambda run: run.space, Envelope: lambda run: run.work.envelope}
)
"""Types that every handler may ask for."""


# --- the decorators ---


class HandlerRow:
    """A row of the table: a type of handler whose decorator takes no options.

    It is the decorator itself, ``@agent.on_chat``, with or without parentheses.
    """

    def __init__(self, role: Role, injects: Mapping[type, Reader]) -> None:
        self._role = role
        self._injects = {**ANYWHERE, **injects}
        self._register: Register | None = None

    def __set_name__(self, owner: type, name: str) -> None:
        self._type = HandlerType(name, self._role, self._injects)

    def __get__(self, decorators: Decorators | None, owner: type) -> HandlerRow:
        row = copy(self)
        row._register = None if decorators is None else decorators.register
        return row

    @overload
    def __call__(self, fn: F, /) -> F: ...
    @overload
    def __call__(self, /) -> Callable[[F], F]: ...
    def __call__(self, fn: F | None = None, /) -> F | Callable[[F], F]:
        """Make a function such a handler."""
        return self if fn is None else attach(fn, define(self._type, fn), self._register)


TOOL: Final = HandlerType("tool", Role.REQUEST, ANYWHERE, takes_arguments=True, keywords=("name",))
PROPOSAL: Final = HandlerType(
    "on_proposal",
    Role.PROPOSAL,
    {**ANYWHERE, Proposal: lambda run: run.space.proposals.get(run.work.envelope)},
    keywords=("tool", "method"),
)
REQUEST: Final = HandlerType("on_request", Role.REQUEST, {**ANYWHERE, Request: _request})
KIND: Final = HandlerType("on", Role.KIND, ANYWHERE)


ControlEvent = Literal[
    "pause",
    "resume",
    "request_status",
    "forget",
    "compact",
    "clear",
    "restart",
    "shutdown",
    "status",
    "compact_done",
]
"""Control messages that a handler can be for."""

CONTROL: Final[Mapping[str, HandlerType]] = {
    event: HandlerType(f'on_control("{event}")', role, {**ANYWHERE, subject: _subject})
    for event, role, subject in (
        ("pause", Role.PAUSE, Pause),
        ("resume", Role.RESUME, Resumption),
        ("request_status", Role.STATUS_REQUEST, StatusRequest),
        ("forget", Role.FORGET, Forget),
        ("compact", Role.COMPACT, Compact),
        ("clear", Role.CLEAR, Clear),
        ("restart", Role.RESTART, Restart),
        ("shutdown", Role.SHUTDOWN, Shutdown),
        ("status", Role.STATUS, ParticipantStatus),
        ("compact_done", Role.COMPACT_DONE, CompactDone),
    )
}


class Decorators:
    """The decorators of one agent, or the free-standing ones of a module.

    Those of an agent register the function at once. Free-standing ones only leave their record on
    it, for ``agent.include(module)`` or, in a class, ``agent.include(instance)``. Each raises
    :class:`~meup_agent.errors.HandlerDefinitionError` for a function that cannot work.
    """

    def __init__(self, register: Register | None = None) -> None:
        self.register = register

    @overload
    def tool(self, fn: F, /) -> F: ...
    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        title: str | None = None,
        description: str | None = None,
        read_only: bool | None = None,
        destructive: bool | None = None,
        idempotent: bool | None = None,
        open_world: bool | None = None,
    ) -> Callable[[F], F]: ...
    def tool(  # noqa: D417 - the overload above declares the options, which are described here
        self, fn: F | None = None, /, **options: Any
    ) -> F | Callable[[F], F]:
        """Offer a function to others as an MCP tool.

        Parameters that are not injected are the tool's arguments, validated by pydantic; a return
        annotation that pydantic can describe gives its results structured content.

        Args:
            fn: The function, where the decorator is used without parentheses.
            name: The tool's name; the function's if not given.
            title: A name for people.
            description: What it does; the docstring's first paragraph if not given.
            read_only: Whether it changes nothing.
            destructive: Whether it may delete or overwrite.
            idempotent: Whether calling it twice does no more than calling it once.
            open_world: Whether it deals with things outside the agent's own reach.

        Raises:
            HandlerDefinitionError: The function cannot work as a tool, or there is no such option.
        """
        unknown = [name for name in options if name not in TOOL_OPTIONS]
        if unknown:
            raise HandlerDefinitionError(
                f"@tool has no option {unknown[0]!r}; it has {', '.join(TOOL_OPTIONS)}"
            )
        return self._decorate(fn, TOOL, ToolOptions(**options))

    @overload
    def on_proposal(self, fn: F, /) -> F: ...
    @overload
    def on_proposal(
        self,
        /,
        *,
        method: str | Sequence[str] = TOOL_CALL,
        tool: str | Sequence[str] | None = None,
    ) -> Callable[[F], F]: ...
    def on_proposal(
        self,
        fn: F | None = None,
        /,
        *,
        method: str | Sequence[str] = TOOL_CALL,
        tool: str | Sequence[str] | None = None,
    ) -> F | Callable[[F], F]:
        """Decide proposals of others; of several handlers that match, the first one is asked.

        Args:
            fn: The function, where the decorator is used without parentheses.
            method: Pattern, or patterns, of the proposed MCP method (PROTOCOL 7).
            tool: Pattern, or patterns, of the proposed tool's name; any if not given.

        Raises:
            HandlerDefinitionError: The function cannot work as a handler of proposals.
        """
        options = ProposalOptions(_frozen(method), None if tool is None else _frozen(tool))
        return self._decorate(fn, PROPOSAL, options)

    def on_request(
        self, *methods: str, broadcast: Callable[[Request], bool] | None = None
    ) -> Callable[[F], F]:
        """Answer MCP requests of some methods; gets a :class:`Request`, and returns the result.

        It comes before tools and before the methods that every agent answers by itself
        (``initialize``, ``ping``, ``tools/list``, ``tools/call``); of several handlers that match,
        the first one answers. The result, an object of JSON values or a model of pydantic, is sent
        as it is; a :class:`~meup_agent.errors.RequestError` is answered as the error that it is.

        Args:
            methods: Patterns of methods: ``"resources/**"``, ``"prompts/get"``, ``"**"``. A method
                that begins with ``dev.meup/`` is taken by its own name alone, and by no pattern.
            broadcast: Tells of a request without a recipient if it is ours to answer; must return
                at once. None is, if not given.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        # Without its parentheses, the decorator gets the function where a method should be.
        if not methods or not all(isinstance(each, str) for each in cast("Any", methods)):
            raise HandlerDefinitionError(
                f"on_request(…) takes patterns of methods, not {methods!r}; "
                'write @on_request("method") on top of it'
            )
        return self._decorator(REQUEST, RequestOptions(methods, broadcast))

    def on(self, *kinds: str) -> Callable[[F], F]:
        """See every envelope of some kinds, also of kinds that this package does not know.

        Args:
            kinds: Patterns of kinds, with slashes or with dots: ``"acme/event"``, ``"system/*"``.

        Raises:
            HandlerDefinitionError: The function cannot work as such a handler.
        """
        # Without its parentheses, the decorator gets the function where a kind should be.
        if not kinds or not all(isinstance(kind, str) for kind in cast("Sequence[object]", kinds)):
            raise HandlerDefinitionError(
                f'on(…) takes patterns of kinds, not {kinds!r}; write @on("kind") on top of it'
            )
        return self._decorator(KIND, KindOptions(kinds))

    on_reject = HandlerRow(Role.REJECT, {Rejection: _rejection})
    """Learn that a participant rejected a proposal of ours; gets a :class:`Rejection`."""

    on_withdraw = HandlerRow(Role.WITHDRAW, {Withdrawal: _subject})
    """Learn that a proposal which we handled was withdrawn; its handler has ended by then.

    Gets a :class:`Withdrawal`.
    """

    on_explanation = HandlerRow(Role.EXPLANATION, {Explanation: _subject})
    """Learn why a participant rejected a proposal of ours, or withdrew one of its own.

    The words come after the decision, at once or an hour later, and only from the participant that
    decided; each decision is explained once. Gets an :class:`Explanation`.
    """

    on_expire = HandlerRow(Role.EXPIRE, {Expiry: _subject})
    """Learn that a proposal which we handled has expired undecided; its handler has ended by then.

    Gets an :class:`Expiry`. Expired is not rejected: the proposer can ask anew.
    """

    on_conflict = HandlerRow(Role.CONFLICT, {Conflict: _subject})
    """Learn that a result came for what we had given up or rejected; gets a :class:`Conflict`."""

    on_chat = HandlerRow(Role.CHAT, {Chat: lambda run: Chat(run.work.envelope)})
    """Read the messages of others; gets a :class:`Chat`."""

    on_acknowledge = HandlerRow(Role.ACKNOWLEDGE, {Acknowledgement: _subject})
    """Learn that a participant has got a chat message of ours; gets an :class:`Acknowledgement`."""

    on_join = HandlerRow(Role.JOIN, {Participant: _participant})
    """Learn that a participant has come, also while our connection was away.

    Gets a :class:`Participant`. Participants that were there before our first welcome stand in
    ``space.participants``.
    """

    on_leave = HandlerRow(Role.LEAVE, {Participant: _participant})
    """Learn that a participant has gone, also while our connection was away.

    Gets a :class:`Participant`.
    """

    on_gap = HandlerRow(Role.GAP, {Gap: _subject})
    """Learn that some of what was sent while we were away will never reach us.

    On a gateway that resumes (``space.gateway.guarantees.resume``) an agent that comes back gets
    what it missed, in order. Where the gateway does not know all of that any more, this is the
    first handler that runs afterwards. It gets a :class:`Gap`.
    """

    on_stream = HandlerRow(Role.STREAM, {StreamReader: _stream})
    """Read the streams of others that are for us or for all; gets a :class:`StreamReader`.

    A handler runs for each, also for those that were open before we came; it is meant to end with
    its stream. While it waits for a frame, another handler has its place.
    """

    on_grant = HandlerRow(Role.GRANT, {Grant: _subject})
    """Learn that we were granted something; it is acknowledged by itself.

    Gets a :class:`Grant`. What we may send now, ``space.may`` tells: the gateway has announced it
    before.
    """

    on_revoke = HandlerRow(Role.REVOKE, {Revocation: _subject})
    """Learn that something which we may send was revoked; gets a :class:`Revocation`.

    Grants of others that rested on it end without a word: ``space.may`` tells.
    """

    def on_control(self, event: ControlEvent) -> Callable[[F], F]:
        """Handle a control message, or the answer to one of ours.

        | event | when | the handler gets |
        |---|---|---|
        | `pause` | we were paused, and begin nothing new; what runs goes on | `Pause` |
        | `resume` | a pause is over, by a participant or by its time | `Resumption` |
        | `request_status` | our status is asked for | `StatusRequest` |
        | `forget` | a part of the agent's context is to be dropped | `Forget` |
        | `compact` | the agent's context is to be shortened | `Compact` |
        | `clear` | all of the agent's context is to be dropped | `Clear` |
        | `restart` | the agent begins anew; what ran has been cancelled | `Restart` |
        | `shutdown` | the agent leaves; what runs, this too, gets some seconds | `Shutdown` |
        | `status` | another participant told its status | `ParticipantStatus` |
        | `compact_done` | another participant has shortened its context | `CompactDone` |

        A handler of `request_status` returns a dict of JSON values, which stand beside what every
        agent tells: `status`, `handlers`, `queued`, `waiting`, `uptime_seconds` and
        `messages_in_context`; later statuses repeat it. A handler of `compact` returns a dict as
        `{"freed_tokens": 2048}`, which is told with the end; without one an agent answers that
        there was nothing to do. After `forget` and `clear` the status is told by itself.

        Raises:
            HandlerDefinitionError: There is no such event, or the function cannot work as its
                handler.
        """
        row = CONTROL.get(event) if isinstance(cast("object", event), str) else None
        # Without its parentheses, the decorator gets the function where an event should be.
        if row is None:
            raise HandlerDefinitionError(
                f"on_control(…) takes one of {', '.join(map(repr, CONTROL))}, not {event!r}"
            )
        return self._decorator(row, None)

    def _decorate(
        self, fn: F | None, type: HandlerType, options: ToolOptions | ProposalOptions
    ) -> F | Callable[[F], F]:
        decorator = self._decorator(type, options)
        given = cast("object", fn)
        if isinstance(given, str):
            keywords = " or ".join(f"{type.decorator}({each}={given!r})" for each in type.keywords)
            raise HandlerDefinitionError(
                f"{type.decorator}({given!r}) does not say what {given!r} is; write {keywords}"
            )
        return decorator if fn is None else decorator(fn)

    def _decorator(self, type: HandlerType, options: Options) -> Callable[[F], F]:
        return lambda fn: attach(fn, define(type, fn, options), self.register)


def attach(fn: F, definition: HandlerDefinition, register: Register | None) -> F:
    """Register a definition where the decorator is an agent's, and leave it on the function."""
    if register is not None:
        register(definition)
    try:
        setattr(fn, ATTRIBUTE, (*definitions_of(fn), definition))
    except AttributeError as error:
        # A bound method, for one, carries nothing: fine where it is registered already.
        if register is None:
            raise definition.signature.source.error(
                "nothing can be attached to it; use the decorator of an agent"
            ) from error
    return fn


def definitions_of(fn: object) -> tuple[HandlerDefinition, ...]:
    """The definitions that a function carries; none if it carries none."""
    if isinstance(fn, MethodType):
        fn = fn.__func__
    # Looked up without running code: a module's values may be proxies that are not ready yet.
    carried: object = inspect.getattr_static(fn, ATTRIBUTE, ())
    return cast("tuple[HandlerDefinition, ...]", carried) if isinstance(carried, tuple) else ()


def _frozen(pattern: str | Sequence[str]) -> str | tuple[str, ...]:
    return pattern if isinstance(pattern, str) else tuple(pattern)


handlers: Final = Decorators()
"""Decorators for functions and methods that belong to no agent yet: ``@handlers.tool``.

They only mark; :meth:`Agent.include` takes a module, an object or a function that has marks.
"""


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
