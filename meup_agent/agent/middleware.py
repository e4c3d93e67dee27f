"""Middleware: an onion around the messages that an agent handles and sends.

A middleware is an async function of a message and ``call_next``; the annotation of its first
parameter tells which messages pass it: those that handlers handle (:class:`InboundMessage`), those
that the agent sends (:class:`OutboundMessage`), or both. The first one that is added is the
outermost. The onion is fixed when the agent starts; an agent without any has none of it in its way.

A message that is handled passes within its handler's own scope: a withdrawal or cancel ends the
layers with the handler, with its reason, and whatever a layer makes of that, nothing is answered.
It passes unchanged. What was approved is what runs: a layer can refuse it, and can change its
result, but never what a handler is asked for. A message that is sent is changed before it becomes
anything: it is judged as what it then is.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

from anyio import get_current_task
from anyio.lowlevel import checkpoint_if_cancelled

from meup_agent.agent.signature import read_source, resolve_hint
from meup_agent.client.messages import Outbound, RunningHandler, SendMessage, handler_is
from meup_agent.client.space import Space, allowed_words
from meup_agent.errors import (
    AlreadyDecided,
    AlreadyInProgress,
    HandlerCancelled,
    RejectMessage,
    RequestError,
    UsageError,
)
from meup_agent.protocol import exchange
from meup_agent.protocol.wire import payloads
from meup_agent.protocol.wire.outcomes import CallOutcome

if TYPE_CHECKING:
    from meup_agent.agent.decorators import Invocation
    from meup_agent.causes import Cause
    from meup_agent.client.proposal import Proposal
    from meup_agent.protocol.wire.envelope import Envelope

log = logging.getLogger("meup_agent.agent")

# --- what passes ---


@dataclass(frozen=True, slots=True, kw_only=True)
class InboundMessage:
    """A message that the agent handles; a middleware passes it on as it is.

    Attributes:
        role: The role of its handlers: ``request``, ``proposal``, ``chat``, ``join`` …
        handler: Their name: the tool's, or the function's; the method, where none runs.
        envelope: The message as it came.
        space: The space, to send in; what a middleware sends passes no middleware.
    """

    role: str
    handler: str
    envelope: Envelope
    space: Space
    _run: Invocation = field(repr=False, compare=False)

    @property
    def sender(self) -> str:
        """The participant that sent it."""
        return self.envelope.sender

    @property
    def method(self) -> str:
        """The MCP method of a request or proposal; empty for other messages."""
        return self._call.method

    @property
    def tool(self) -> str:
        """The tool that a request or proposal names; empty if it names none."""
        return self._call.name

    @property
    def arguments(self) -> dict[str, Any]:
        """The tool's arguments, as they came; a copy."""
        return copy.deepcopy(self._call.arguments)

    @property
    def proposal(self) -> Proposal | None:
        """The proposal, for one."""
        is_proposal = self._run.work.role is exchange.Role.PROPOSAL
        return self.space.proposals.get(self.envelope) if is_proposal else None

    @property
    def reason(self) -> Cause | None:
        """The reason why the handler was asked to stop; ``None`` while it was not."""
        return self._run.scope.cause

    @property
    def _call(self) -> payloads.Call:
        return self._run.work.call or payloads.Call("", {})


Verb = Literal["invoke", "request", "propose", "fulfill", "reject", "send"]

_CALL: Final = frozenset({"participant", "to", "tool", "arguments"})
CHANGEABLE: Final[dict[str, frozenset[str]]] = {
    "invoke": _CALL,
    "propose": _CALL,
    "request": frozenset({"participant", "method", "arguments"}),
    "fulfill": frozenset({"participant", "arguments"}),
    "reject": frozenset({"reason", "explain"}),
    "send": frozenset({"to", "payload"}),
}
"""Verb → what a layer may change. Of a fulfillment the tool stays: it was proposed; other
arguments are told to the proposer as the difference that they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboundMessage:
    """A message that the agent is about to send; a middleware passes it on, changed or not.

    Attributes:
        verb: The verb of :class:`Space` or :class:`Proposal` that was called: ``invoke`` (also for
            a call), ``request``, ``propose``, ``fulfill``, ``reject`` or ``send`` (also for a
            chat).
        space: The space, to send in; what a middleware sends passes no middleware.
        participant: The participant that should carry it out; ``None``: it is not said.
        to: Participants that it is addressed to besides; empty: every participant.
        method: The MCP method of a request.
        tool: The tool's name; empty for ``request``, whatever its method.
        arguments: The tool's arguments; of ``request`` the parameters.
        kind: The envelope's kind, of ``send``.
        payload: JSON values, of ``send``; of a chat ``{"message": text}``.
        correlation: Ids of the envelopes that it refers to, of ``send``.
        reason: The reason code, of ``reject``.
        explain: Longer words for the proposer, of ``reject``.
        proposal: The proposal that is decided, of ``fulfill`` and ``reject``.
    """

    verb: Verb
    space: Space
    participant: str | None = None
    to: tuple[str, ...] = ()
    method: str = ""
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict[str, Any])
    kind: str = ""
    payload: Any = None
    correlation: tuple[str, ...] = ()
    reason: str = ""
    explain: str | None = None
    proposal: Proposal | None = None
    _token: object = field(default_factory=object, repr=False, compare=False)

    def replace(self, **changes: Any) -> OutboundMessage:
        """The message with some attributes changed, to pass on in its place.

        Args:
            changes: Of a call and a proposal ``participant``, ``to``, ``tool`` and ``arguments``;
                of a request ``participant``, ``method`` and ``arguments``; of a fulfillment
                ``participant`` and ``arguments``; of a rejection ``reason`` and ``explain``; else
                ``to`` and ``payload``.

        Raises:
            UsageError: Something else was to be changed.
        """
        if fixed := changes.keys() - CHANGEABLE[self.verb]:
            raise UsageError(
                f"the {', '.join(sorted(fixed))} of a {self.verb} cannot be changed; "
                f"change {', '.join(sorted(CHANGEABLE[self.verb]))}, or raise to refuse it"
            )
        return dataclasses.replace(self, **changes)

    def is_of(self, other: OutboundMessage) -> bool:
        """True if it is another message, or a changed form of it."""
        return self._token is other._token and self.verb == other.verb


CallNext = Callable[[InboundMessage | OutboundMessage], Awaitable[Any]]
"""Passes a message on: to the next middleware, in the end to the handler or into the space."""

Layer = Callable[[Any, CallNext], Awaitable[Any]]

Middleware = (
    Callable[[InboundMessage, CallNext], Awaitable[Any]]
    | Callable[[OutboundMessage, CallNext], Awaitable[Any]]
)

M = TypeVar("M", bound=Middleware)


class RequestRefused(RequestError):
    """The answer to a request that was refused before anything was done for it.

    A layer refuses it before its handler begins, or a handler that passes it on before it does so.
    """

    def __init__(self, rejection: RejectMessage) -> None:
        # Of a fulfillment, this says that the proposal waits on (PROTOCOL 4.4).
        data = {"reason": payloads.REFUSED}
        super().__init__(payloads.EXCHANGE_ERROR, f"{payloads.REFUSED}: {rejection}", data)


# --- the onion ---


def wrap(layers: Sequence[Layer], innermost: CallNext) -> CallNext:
    """Put layers around what they end in; the first one is the outermost."""
    for layer in reversed(layers):
        innermost = partial(_pass, layer, innermost)
    return innermost


async def _pass(
    layer: Layer, call_next: CallNext, message: InboundMessage | OutboundMessage
) -> Any:
    return await layer(message, call_next)


def messages_of(middleware: Layer) -> frozenset[type]:
    """The messages that pass a middleware, by the annotation of its first parameter."""
    source = read_source(middleware, "middleware")
    if not source.is_async:
        raise source.error("it is not an async function; declare it with async def")
    parameters = list(inspect.signature(middleware).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if len(parameters) < 2 or any(each.kind not in positional for each in parameters[:2]):
        raise source.error("a middleware takes a message and call_next, by position")
    first = parameters[0]
    choices = "InboundMessage, OutboundMessage or both (InboundMessage | OutboundMessage)"
    if first.annotation is inspect.Parameter.empty:
        raise source.error(
            f"parameter {first.name!r} has no annotation; annotate it with the messages that are "
            f"to pass: {choices}"
        )
    hint = resolve_hint(first.annotation, source, f"parameter {first.name!r}: its annotation")
    is_union = get_origin(hint) in (Union, UnionType)
    messages = frozenset(get_args(hint) if is_union else (hint,))
    if not messages <= {InboundMessage, OutboundMessage}:
        raise source.error(f"parameter {first.name!r} is {hint}; annotate it as {choices}")
    return messages


# --- what is sent ---


def outbound_through(layers: Sequence[Layer], bare: Space) -> Outbound:
    """Passes messages through the layers, which send on the bare space.

    What a layer sends passes no middleware, or it would never end.
    """

    async def pass_outbound(verb: str, fields: dict[str, Any], send: SendMessage) -> Any:
        if (proposal := fields.get("proposal")) is not None:
            fields["proposal"] = bare.proposals.get(proposal.envelope)
        message = OutboundMessage(verb=cast("Verb", verb), space=bare, **fields)

        async def innermost(given: InboundMessage | OutboundMessage) -> Any:
            if not (isinstance(given, OutboundMessage) and given.is_of(message)):
                raise UsageError(
                    f"call_next got {given!r:.100}; pass on the message that came, or what its "
                    "replace() gave"
                )
            return await send(given)

        result = await wrap(layers, innermost)(message)
        if verb == "invoke" and not isinstance(result, CallOutcome):
            raise UsageError(
                f"a middleware returned {result!r:.100} for a call; return the outcome that "
                "call_next gave"
            )
        return result

    return pass_outbound


# --- what is handled ---


async def pass_inbound(
    layers: Sequence[Layer],
    run: Invocation,
    space: Space,
    handle: Callable[[Invocation], Awaitable[Any]],
) -> Any:
    """Pass a message through the layers to its handlers; a layer sends on the bare space."""
    scope, work = run.scope, run.work
    message = InboundMessage(
        role=str(work.role), handler=run.match.name, envelope=work.envelope, space=space, _run=run
    )
    begun = False
    task = get_current_task().id

    async def innermost(given: InboundMessage | OutboundMessage) -> Any:
        nonlocal begun
        if given is not message:
            raise UsageError(
                "call_next got another message than came; what is handled cannot be changed, "
                "only refused: raise RejectMessage"
            )
        if begun or scope.ended:
            when = "after the handler's end" if scope.ended else "a second time"
            raise UsageError(f"call_next was called {when}; a message is handled once")
        if scope.cause is not None:
            # A layer swallowed the cancellation: what was withdrawn does not begin for that.
            await checkpoint_if_cancelled()
            raise HandlerCancelled(str(scope.cause))
        begun = True
        if get_current_task().id == task:
            return await handle(run)
        # A task of the layer's: a withdrawal must reach the handler there, too, and what the
        # handler sends is its own.
        with handler_is(RunningHandler(scope.key, run.session, scope.why)):
            return await scope.run_outside(partial(handle, run))

    try:
        return await wrap(layers, innermost)(message)
    except RejectMessage as rejection:
        if begun or scope.cause is not None:
            raise
        log.info("%s is refused by a middleware: %s", scope.name, rejection)
        begun = True  # what is refused does not begin while its sender is told
        await _refuse(message, rejection)
    finally:
        # No handler outlives its layers.
        scope.end_outside()


async def _refuse(message: InboundMessage, rejection: RejectMessage) -> None:
    """Tell the sender that nothing was begun, where an answer is owed."""
    if message.role == exchange.Role.REQUEST:
        raise RequestRefused(rejection)
    if (proposal := message.proposal) is not None:
        with suppress(AlreadyDecided, AlreadyInProgress):
            words = allowed_words(proposal, message.space, rejection.explain)
            await proposal.reject(rejection.reason, explain=words)
