"""Messages as handlers, callers and middleware see them, and the verbs that send and await them."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import threading
from abc import abstractmethod
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from contextvars import ContextVar, Token
from types import SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, ParamSpec, Self, TypeVar, overload

import anyio
import msgspec
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from meup_agent.causes import Cause, Reason, read_reason
from meup_agent.errors import (
    NotExpressible,
    NotSent,
    ReasoningCancelled,
    Refused,
    RequestError,
    UsageError,
    printable,
)
from meup_agent.protocol.exchange.handlers import cause_of_end
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import Envelope, draft
from meup_agent.protocol.wire.outcomes import (
    Rejection,
    Responded,
    Withdrawal,
    response_of,
    with_explain,
)
from meup_agent.protocol.wire.payloads import (
    INVALID_PARAMS,
    PROPOSER,
    Call,
    JsonObject,
    as_text,
    read_call,
    without_meta,
)
from meup_agent.session.outbox import checked_timeout, checked_total
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from anyio.abc import TaskStatus

    from meup_agent.protocol.exchange import FulfillmentTarget, Key, Progressed
    from meup_agent.session import Session


Send = Callable[..., Awaitable[str]]
""":meth:`Space.send`."""

Explainer = Callable[[Envelope, str], Awaitable[str]]
"""Sends the words that explain a reject or withdraw of ours; the id of the chat."""


# --- call scopes ---
# A caller that cancels its own calls, and says why.

_current_scope: ContextVar[CallScope | None] = ContextVar("meup_agent.call_scope", default=None)


class CallScope:
    """A block whose calls can be cancelled from outside, with a reason that travels along.

    The block is cancelled as that of :class:`anyio.CancelScope` is; what was begun in it (requests,
    calls, proposals, also by its tasks) is cancelled or withdrawn with the reason, in every process
    that it reached. Scopes nest: of those that were cancelled, the innermost gives the reason.

    Example::

        with CallScope() as scope:
            on_stop_button = partial(scope.cancel, text="stopped by the user")
            result = await space.call("printer", "print", {"page": 1})
        if scope.cancelled:
            ...
    """

    def __init__(self) -> None:
        self._scope = anyio.CancelScope()
        self._outer: CallScope | None = None
        self._reason: tuple[str, str] | None = None
        self._token: Token[CallScope | None] | None = None

    @property
    def cancelled(self) -> bool:
        """True once the block has ended because it was cancelled here."""
        return self._scope.cancelled_caught

    def cancel(self, reason: str = Reason.NO_LONGER_NEEDED, *, text: str = "") -> None:
        """Cancel the block; the first reason stays. No effect once the block has ended.

        Args:
            reason: The reason code that the others see.
            text: The words that a cancelled request is told, for example those of a person;
                a withdrawn proposal is told the code alone.
        """
        if self._reason is None:
            self._reason = (str(reason), text)
        self._scope.cancel(f"{reason}: {text}" if text else str(reason))

    def cause(self, by: str, at: float) -> Cause | None:
        """The cause of what ends with the block; ``None`` if no scope here was cancelled."""
        if self._reason is None:
            return None if self._outer is None else self._outer.cause(by, at)
        code, text = self._reason
        return Cause(code, by, text, at=at)

    def __enter__(self) -> Self:
        """Begin the block."""
        self._scope.__enter__()
        self._outer = _current_scope.get()
        self._token = _current_scope.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """End the block."""
        assert self._token is not None
        _current_scope.reset(self._token)
        return bool(self._scope.__exit__(kind, error, traceback))


# --- the handler that runs here ---


class RunningHandler(NamedTuple):
    """A handler that runs; without a session it is only a cause for ended waits."""

    key: Key
    session: Session | None
    cause: Callable[[], Cause | None]


_current: ContextVar[RunningHandler | None] = ContextVar("meup_agent.handler", default=None)


def parent_in(session: Session) -> Key | None:
    """The handler that runs here, if its exchange is one of this session.

    ``None`` outside handlers and in clean-ups.
    """
    handler = _current.get()
    return None if handler is None or handler.session is not session else handler.key


def release_slot(session: Session) -> AbstractContextManager[None]:
    """Give up the place of the handler that runs here, for the length of a block: it waits."""
    return session.pending_calls.release_slot(parent_in(session))


def begins_more(session: Session) -> bool:
    """True unless the handler that runs here has ended or is cancelled."""
    handler = _current.get()
    if handler is None or handler.session is not session:
        return True
    return handler.cause() is None and session.table.is_open(handler.key)


def cause_of_leaving(session: Session) -> Cause:
    """The cause of a wait given up here: a call scope's, or the handler's, in whatever space."""
    scope, handler, now = _current_scope.get(), _current.get(), session.now()
    cause = None if scope is None else scope.cause(session.me, now)
    if cause is None and handler is not None:
        cause = handler.cause()
    return cause or Cause(Reason.NO_LONGER_NEEDED, session.me, at=now)


def begin_handler(handler: RunningHandler) -> None:
    """Everything that this task begins from here on is part of this handler."""
    _current.set(handler)


@contextmanager
def handler_is(handler: RunningHandler | None) -> Generator[None]:
    """Everything begun in the block is part of this handler; ``None``: of none."""
    token = _current.set(handler)
    try:
        yield
    finally:
        _current.reset(token)


P = ParamSpec("P")
T = TypeVar("T")

_running: Final = threading.local()


@contextmanager
def plain_handler(name: str) -> Generator[None]:
    """In the block this thread runs a handler that is not ``async``.

    It is the thread's own, and not a context variable's: what such a handler has the event loop do
    has the handler's context.
    """
    _running.name = name
    try:
        yield
    finally:
        del _running.name


def awaited(verb: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Refuse a verb in a handler that cannot await it."""

    @functools.wraps(verb)
    def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        name = getattr(_running, "name", None)
        if name is not None:
            raise UsageError(
                f"{verb.__name__}() was called by {name}, which is not an async function, so "
                f"nothing was done; declare it with async def and await {verb.__name__}(), or call "
                f"anyio.from_thread.run(…) with it"
            )
        return verb(*args, **kwargs)

    return call


# --- as handlers and callers see them ---

log = logging.getLogger("meup_agent.client")


class Progress(msgspec.Struct, frozen=True):
    """Progress of a request.

    Attributes:
        done: How much is done; it grows.
        total: How much there is to do, where that is known.
        message: The step at hand, for a person.
    """

    done: float
    total: float | None = None
    message: str = ""


OnProgress = Callable[[Progress], None]
"""Called with each progress, by the reader of the connection: it must return at once, and
what it raises is only logged."""


def relay(on_progress: OnProgress) -> Callable[[Progressed], None]:
    """The session's callback for the caller's."""

    def report(told: Progressed) -> None:
        try:
            on_progress(Progress(told.done, told.total, told.message))
        except Exception:
            log.exception("on_progress failed")

    return report


class Chat:
    """A chat message.

    Attributes:
        id: Its id.
        sender: The participant that sent it.
        text: Its text. It is a stranger's: escape it where a person reads it.
        about: The id of the envelope that it refers to, for example a reject that it explains.
        envelope: The message as it came.
    """

    def __init__(self, envelope: Envelope) -> None:
        payload = envelope.payload_object
        self.id = envelope.id
        self.sender = envelope.sender
        self.text = as_text(payload.get("message", payload.get("text")))
        self.about = envelope.correlation[0] if envelope.correlation else None
        self.envelope = envelope

    def __repr__(self) -> str:
        """The sender, and the beginning of the text."""
        return f"<Chat of {self.sender!r}: {self.text[:60]!r}>"


class Request:
    """An MCP request of another participant.

    Attributes:
        id: The id of its envelope.
        sender: The participant that sent it.
        method: The MCP method.
        proposal: The id of the proposal that it carries out; ``None`` if it carries out none.
        proposer: The participant whose proposal that is, as its sender says (PROTOCOL 4.4).
        envelope: The request as it came.
    """

    def __init__(self, envelope: Envelope, call: Call) -> None:
        proposer = call.meta.get(PROPOSER)
        self.id = envelope.id
        self.sender = envelope.sender
        self.method = call.method
        self.proposer = proposer if isinstance(proposer, str) and envelope.correlation else None
        self.proposal = envelope.correlation[0] if self.proposer is not None else None
        self.envelope = envelope

    @functools.cached_property
    def params(self) -> dict[str, Any]:
        """The method's parameters, ``_meta`` included: a copy of its own."""
        # Decoded anew: a third of the time of a deep copy.
        return payloads.read_call(self.envelope.payload).params

    def __repr__(self) -> str:
        """The sender and the method."""
        return f"<Request of {self.sender!r}: {self.method[:60]!r}>"


def is_own_request(envelope: Envelope) -> bool:
    """True if its sender made a request of its own accord: it carries out no proposal.

    A fulfiller sends its proposer's arguments under its own name.
    """
    return not envelope.correlation and PROPOSER not in read_call(envelope.payload).meta


# --- what is seen of a space ---


class Snapshot(Sequence[T]):
    """The values that there are at the moment at which it is asked."""

    @abstractmethod
    def _all(self) -> Sequence[T]: ...

    @overload
    def __getitem__(self, at: int) -> T: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[T]: ...

    def __getitem__(self, at: int | slice) -> T | Sequence[T]:
        """One of them, or several."""
        return self._all()[at]

    def __len__(self) -> int:
        """Their number."""
        return len(self._all())

    def __iter__(self) -> Iterator[T]:
        """Each of them, as of the moment at which it begins."""
        return iter(self._all())


# --- method params ---
# Parameters of the methods of our own, as records: written, and read strictly.

Params = TypeVar("Params", bound=msgspec.Struct)


def write_params(params: msgspec.Struct) -> dict[str, Any]:
    """Parameters as JSON values."""
    written: dict[str, Any] = msgspec.to_builtins(params)
    return written


def read_params(request: Request, form: type[Params]) -> Params:
    """The parameters of a request.

    Raises:
        RequestError: They are not of that form.
    """
    try:
        return msgspec.convert(without_meta(request.params), form)
    except msgspec.ValidationError as error:
        said = f"{request.method} cannot be answered: {printable(str(error))}; correct its params"
        raise RequestError(INVALID_PARAMS, said) from None


# --- outbound middleware ---
# Every verb that sends passes the agent's layers, where it has any.
#
# In comes the call of a verb: `outbound` marks each that passes, and names the fields of the
# message that its parameters are. Out goes the same call, with what the layers have changed. Layers
# may refuse it (by raising), change and time it; a changed call is checked, and becomes a request
# or a proposal, as the call that it now is. Where there is no middleware, a verb runs as if it were
# not marked. The messages themselves, and the onion, are `middleware`.


SendMessage = Callable[[Any], Awaitable[Any]]
"""Sends a message that passed; it reads the fields of it."""

Outbound = Callable[[str, dict[str, Any], SendMessage], Awaitable[Any]]
"""Passes a verb's message, by its fields, through the middleware to what sends it."""


def names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Several names, or the only one."""
    return (given,) if isinstance(given, str) else tuple(given)


def _copy_object(given: JsonObject | None) -> JsonObject:
    return copy.deepcopy(given or {})


# Copies: a layer that writes into them must not write into what its caller holds.
_SHOWN: Final[dict[str, Callable[[Any], Any]]] = {
    "to": names,
    "correlation": names,
    "kind": kinds.canonical,
    "reason": str,
    "arguments": _copy_object,
    "payload": copy.deepcopy,
}


def shown(**fields: Any) -> dict[str, Any]:
    """The fields of a message as layers see them."""
    return {name: _SHOWN.get(name, lambda as_is: as_is)(each) for name, each in fields.items()}


def outbound(
    verb: str,
    *,
    about: Callable[[Any], dict[str, Any]] = lambda _: {},
    complete: Callable[[Any, dict[str, Any]], Awaitable[None]] | None = None,
    must_pass: bool = False,
    **parameters: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Pass a verb of a space or proposal through the middleware.

    Args:
        verb: Its name for layers.
        about: Fields of the message that none of its parameters has.
        complete: Fills in arguments that the layers are to see, where the caller left them out.
        must_pass: Its result is what it returned itself, and never the word of a layer.
        parameters: Each field of the message that may be changed, and its parameter.
    """

    def mark(send: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
        signature = inspect.signature(send)

        async def pass_on(through: Outbound, *args: P.args, **kwargs: P.kwargs) -> T:
            given = signature.bind(*args, **kwargs)
            given.apply_defaults()
            if complete is not None:
                await complete(args[0], given.arguments)
            fields = {name: given.arguments[each] for name, each in parameters.items()}

            async def send_changed(message: Any) -> T:
                for name, each in parameters.items():
                    given.arguments[each] = getattr(message, name)
                return await send(*given.args, **given.kwargs)

            said = shown(**fields) | about(args[0])
            if must_pass:
                return await pass_whole(through, verb, said, send_changed)
            result: T = await through(verb, said, send_changed)
            return result

        @functools.wraps(send)
        def call(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
            sender: Any = args[0]
            through: Outbound | None = sender._outbound
            if through is None:
                return send(*args, **kwargs)
            return pass_on(through, *args, **kwargs)

        return call

    return mark


async def pass_whole(
    through: Outbound, verb: str, fields: dict[str, Any], send: Callable[[Any], Awaitable[T]]
) -> T:
    """Pass a message whose result no layer can stand in for."""
    results: list[T] = []

    async def note(message: Any) -> T:
        results.append(await send(message))
        return results[-1]

    await through(verb, fields, note)
    if not results:
        raise _not_passed(verb)
    # The last one: a layer may send again what failed.
    return results[-1]


def _not_passed(verb: str) -> UsageError:
    return UsageError(
        f"a middleware returned without call_next, so there was no {verb}; "
        "raise an exception to refuse it"
    )


# --- proposals --------------------------------------------------------------------------------


@asynccontextmanager
async def proposing(
    through: Outbound,
    fields: dict[str, Any],
    propose: Callable[[Any], AbstractAsyncContextManager[T]],
) -> AsyncGenerator[T]:
    """Propose within the layers, which run beside the block and are told of its outcome.

    Beside it, since the block goes on while a layer waits in ``call_next``, and the outcome may
    come long before the block is left. In a group of the block's own, so that a layer ends with it.
    """
    made: Any = None  # the proposal
    raised: Exception | None = None
    failure: Exception | None = None
    begun = False
    opened, ended = anyio.Event(), anyio.Event()

    async def pass_layers(*, task_status: TaskStatus[Any]) -> None:
        """Pass the layers; the message that passed is the status of the task."""
        nonlocal failure

        async def send(message: Any) -> Any:
            nonlocal begun, raised
            if begun:
                raise UsageError("call_next makes a proposal once; it was called again")
            begun = True
            task_status.started(message)
            await opened.wait()
            if made is None:
                assert raised is not None
                raise raised
            try:
                # The layers wait beside the handler: it keeps its place, since it may be at work.
                with handler_is(None):
                    return await made.outcome()
            except Exception as error:
                raised = error
                raise

        try:
            await through("propose", fields, send)
            if not begun:
                raise _not_passed("propose")
        except Exception as error:
            if not begun:
                raise
            if error is not raised:  # which the block raises where it is asked for
                logging.getLogger("meup_agent.agent").error(
                    "a middleware failed after the proposal was made", exc_info=error
                )
                failure = error
        finally:
            ended.set()

    async with background_tasks() as tasks:
        given: Any = await tasks.start(pass_layers, name="meup middleware")
        try:
            async with propose(given) as made:
                opened.set()
                yield made
        except Exception as error:
            if made is None:
                raised = error
                opened.set()
            # The outcome is known by now: the layers see it, and end. A cancellation, which is not
            # caught here, ends them as it ends the block.
            await ended.wait()
            raise
        await ended.wait()
        if failure is not None:
            raise failure


# --- requests of our own ---

TIMEOUT = 60.0
"""Seconds after which a caller who says nothing else stops waiting."""


async def request(
    session: Session,
    to: str,
    method: str,
    params: dict[str, Any],
    *,
    timeout: float | None = TIMEOUT,
    idempotent: bool = False,
    on_progress: OnProgress | None = None,
    on_begun: Callable[[str], None] | None = None,
    fulfills: FulfillmentTarget | None = None,
    total_timeout: float | None = None,
) -> Responded:
    """Send an MCP request and wait for the response.

    A caller that is cancelled, or whose time is up, cancels the request (PROTOCOL 4.7). The time
    counts from the last progress, up to ``total_timeout`` seconds; of a request that fulfills a
    proposal it does not, since its proposer waits no longer.
    """
    timeout, total_timeout = checked_timeout(timeout), checked_total(timeout, total_timeout)
    if problem := payloads.request_problem({"method": method, "params": params}):
        raise NotExpressible(problem)
    request_id = session.table.new_id()
    if on_begun is not None:
        on_begun(request_id)
    report = None
    if on_progress is not None:
        report = relay(on_progress)
        meta = {
            **payloads.as_object(params.get(payloads.META)),
            payloads.PROGRESS_TOKEN: request_id,
        }
        params = {**params, payloads.META: meta}
    span, params = session.begin_span(method, params)
    envelope = draft(
        kinds.MCP_REQUEST,
        payloads.request(method, params, request_id),
        id=request_id,
        sender=session.me,
        to=(to,),
        correlation=(fulfills.proposal.id,) if fulfills is not None else (),
    )
    parent = parent_in(session)
    key = await session.pending_calls.open(
        envelope,
        timeout=timeout,
        parent=parent,
        idempotent=idempotent,
        fulfills=fulfills,
        on_progress=report,
        total=total_timeout if fulfills is None else None,
        span=span,
    )
    try:
        ending = await session.pending_calls.ending(key, parent=parent)
        if isinstance(ending, Withdrawal):
            # Our own handler was cancelled, and its cancel scope has the last word.
            await checkpoint_if_cancelled()
    finally:
        session.pending_calls.leave(key, functools.partial(cause_of_leaving, session))
    # MCP lets no client cancel `initialize`: what was asked for may still be done.
    return response_of(ending, what=f"{method} to {to!r}", cancelled=method != "initialize")


# --- waits ---
# Waits for something to become true of the space: a participant's arrival, an explanation.


ANNOUNCED_SECONDS: Final = 1.0
"""Seconds in which the words that a rejection announces are waited for before it is raised."""


async def wait_for(session: Session, find: Callable[[], T], timeout: float | None) -> T:
    """Wait until something is found, and return it; what is not found in time is falsy.

    So is what was not found before the space was left.
    """
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        # Looked at again at each envelope, which has taken effect by then.
        session.watchers.watch(lambda _: bool(find())) as heard,
    ):
        # It may be gone again before this task runs.
        while not (found := find()):
            with release_slot(session):
                if await anext(heard, None) is None:
                    break
        await checkpoint()
        return found
    # Once more: it may have come as the time was up.
    return find()


def with_explanation(session: Session, rejection: Rejection) -> Rejection:
    """The rejection of a proposal of ours, whose explanation can be waited for."""

    def so_far(rejected: Rejection) -> str:
        return session.table.explanations.get(rejected.by, rejected.id, session.now())

    @awaited
    async def explanation(rejected: Rejection, timeout: float | None) -> str:
        return await wait_for(session, lambda: so_far(rejected), timeout)

    return with_explain(rejection, explanation, so_far(rejection))


async def await_announced(session: Session, outcome: T) -> T | Rejection:
    """The outcome; a rejection that says that its words follow at once with these, if they do."""
    if not isinstance(outcome, Rejection) or not session.table.explanations.is_announced(
        outcome.by, outcome.id, session.now()
    ):
        return outcome
    await outcome.explanation(ANNOUNCED_SECONDS)
    return with_explanation(session, outcome)


class DecisionReceipt:
    """A reject or withdraw of ours that was sent, which can be explained later.

    Attributes:
        id: The id of its envelope; empty where there was nothing to send: the proposal was decided
            already, or had not been sent itself.
        proposal_ids: The proposals that it ends.
    """

    def __init__(
        self,
        sent: Envelope | None,
        proposal_ids: tuple[str, ...],
        explain: Explainer,
        *,
        explained: bool = False,
    ) -> None:
        self._sent = sent
        self._explain = explain
        self._explained = explained
        self.id = "" if sent is None else sent.id
        self.proposal_ids = proposal_ids

    def __repr__(self) -> str:
        return f"<DecisionReceipt {self.id or 'of nothing sent'} of {len(self.proposal_ids)}>"

    @awaited
    async def explain(self, text: str) -> str:
        """Say why, to those who heard of the decision; once, since readers keep the first words.

        Args:
            text: The words. Readers keep 4,000 characters.

        Returns:
            The id of the chat.

        Raises:
            UsageError: There are no words, or it was explained before.
            NotSent: Nothing was rejected or withdrawn that could be explained, or there will be no
                connection any more.
            Refused: Our capabilities do not allow a chat, or the gateway did not let it through.
        """
        if self._sent is None:
            raise NotSent(
                "the explanation was not sent: neither was a withdrawal, since the proposal was "
                "decided before, or had not been sent"
            )
        if not text:
            raise UsageError(f"an explanation of {self.id} needs words")
        if self._explained:
            raise UsageError(
                f"{self.id} was explained already, and its readers keep the first explanation"
            )
        self._explained = True
        try:
            return await self._explain(self._sent, text)
        except BaseException:
            self._explained = False
            raise


def explainer_of(session: Session, outbound: Outbound | None) -> Explainer:
    """Sends explanations over a session, through the middleware as the chats that they are."""

    async def explain(decision: Envelope, text: str) -> str:
        async def send(message: Any) -> str:
            payload, to = message.payload, message.to
            check_may_explain(session, payload, to=to)
            chat = session.send_message(kinds.CHAT, payload, to=to, correlation=(decision.id,))
            await session.taken((chat.id,))
            return chat.id

        fields = shown(
            kind=kinds.CHAT, payload={"message": text}, to=decision.to, correlation=decision.id
        )
        if outbound is None:
            return await send(SimpleNamespace(**fields))
        return str(await outbound("send", fields, send))

    return explain


def check_may_explain(
    session: Session,
    payload: Any,
    *,
    to: tuple[str, ...],
    what: str = "the explanation was not sent",
) -> None:
    """Raise Refused where no capability of ours allows the words, UsageError where none fit."""
    session.check_message(kinds.CHAT, payload, to=to, correlation=(session.table.new_id(),))
    check_may_send(session, kinds.CHAT, payload, what, to=to)


def check_may_decide(
    session: Session,
    kind: str,
    payload: dict[str, Any],
    what: str,
    *,
    to: tuple[str, ...],
    explain: str | None,
) -> None:
    """Raise for a decision, or its explanation, that may not be sent; nothing was, by then."""
    check_may_send(session, kind, payload, what, to=to)
    if explain:
        check_may_explain(session, {"message": explain}, to=to, what=what)


def check_may_send(
    session: Session, kind: str, payload: Any, what: str, *, to: tuple[str, ...]
) -> None:
    """Raise Refused for what our announced capabilities do not allow."""
    roster = session.table.roster
    # Some gateways announce nothing to those whom they have forgotten (PROTOCOL 2).
    known = bool(roster.my_capabilities) or roster.guarantees.identity_checked
    if known and not roster.is_allowed(roster.me, kind, payload, to):
        said = f" with the reason {payload['reason']!r}" if "reason" in payload else ""
        raise Refused(
            "capability_violation",
            f"{what}: none of the capabilities of {roster.me!r} allows {kind}{said}; ask a "
            f'participant that manages the space to grant {{"kind": "{kind}"}}',
        )


# --- talk in a space ---

REASONING_SECONDS: Final = 3600.0
"""Longest time of a line of thought; ``timeout=…`` changes it."""

MAX_THOUGHTS: Final = 10_000
"""Thoughts in one line of thought: each is kept by the gateway, and shown to people."""

MAX_REASONINGS: Final = 256
"""Lines of thought of one participant at once."""

WORD_SECONDS: Final = 5.0
"""Wait for the first word of a line of thought, and for the last where it is cancelled: they are
said whole, and pass middleware."""


class Reasoning:
    """A line of thought of ours, for the length of a block.

    Attributes:
        id: The id of its ``reasoning/start``, which is the context of all that belongs to it.
        concluded: A conclusion was sent.
        reason: The cause for which another participant stopped it; ``None`` while none did.
    """

    def __init__(self, send: Send, session: Session, scope: CallScope) -> None:
        self.id = ""
        self.concluded = False
        self._send_any = send
        self._session = session
        self._scope = scope
        self.reason: Cause | None = None
        self._thoughts = 0

    async def thought(self, text: str, **more: Any) -> None:
        """Send a thought.

        Args:
            text: The thought.
            more: More fields of the payload, for readers that know them.

        Raises:
            UsageError: It is concluded, or has had more thoughts than are taken.
        """
        self._check_open()
        self._thoughts += 1
        if self._thoughts > MAX_THOUGHTS:
            raise UsageError(
                f"a line of thought has at most {MAX_THOUGHTS} thoughts; conclude it, and begin"
                " another one, or send longer thoughts"
            )
        await self._send(kinds.REASONING_THOUGHT, {**more, "message": text})

    async def conclude(self, text: str, **more: Any) -> None:
        """Send the conclusion, which ends the line of thought.

        Args:
            text: The conclusion.
            more: More fields of the payload, for readers that know them.

        Raises:
            UsageError: It is concluded already.
        """
        self._check_open()
        self.concluded = True
        try:
            await self._send(kinds.REASONING_CONCLUSION, {**more, "message": text})
        except BaseException:
            # A middleware was left, or refused it: the others are owed an end still.
            self.concluded = False
            raise

    def put(self, envelope: Envelope) -> None:
        """Look whether an envelope stops it; only one who may stops it (PROTOCOL 4.18)."""
        if (
            envelope.kind != kinds.REASONING_CANCEL
            or envelope.context != self.id
            or self.reason is not None
        ):
            return
        session, sender = self._session, envelope.sender
        if sender == session.me or self.concluded:
            return
        payload, roster = envelope.payload_object, session.table.roster
        if sender in roster and not roster.is_allowed(
            sender, kinds.REASONING_CANCEL, payload, envelope.to
        ):
            return
        reason = read_reason(payload.get("reason"))
        self.reason = cause_of_end(sender, self.id, reason, "", session.now())
        self._scope.cancel(reason)

    async def stop(self, reason: str) -> None:
        """Tell the others that it ends without a conclusion, also where we are cancelled."""
        if not self.concluded:
            self.concluded = True
            with anyio.move_on_after(WORD_SECONDS, shield=True):
                await self._send(kinds.REASONING_CANCEL, {"reason": reason})

    def _check_open(self) -> None:
        if self.concluded:
            raise UsageError("this line of thought is concluded; begin another one")

    async def _send(self, kind: str, payload: dict[str, Any]) -> None:
        await self._send_any(kind, payload, context=self.id)


class Talk:
    """Lines of thought, and what follows a chat, as ``space.talk``."""

    def __init__(self, session: Session, send: Send) -> None:
        self._session = session
        self._send = send

    @awaited
    async def acknowledge(self, chat: Chat, status: str = "received") -> str:
        """Confirm a chat message to its sender; the id of the acknowledgement.

        Args:
            chat: The message.
            status: What became of it: ``received``, ``read``, ``processing`` …
        """
        return await self._send(
            kinds.CHAT_ACKNOWLEDGE, {"status": status}, to=chat.sender, correlation=chat.id
        )

    @awaited
    async def cancel(
        self,
        chat_id: str,
        *,
        to: str | Iterable[str] = (),
        reason: str = Reason.NO_LONGER_NEEDED,
    ) -> str:
        """Take a chat message of ours back: what handles it ends; the id of the cancel.

        Args:
            chat_id: The message, as :meth:`Space.chat` returned it.
            to: The addressees of the message; empty: every member.
            reason: Why; a handler of it finds that in ``ctx.reason``.
        """
        return await self._send(
            kinds.CHAT_CANCEL, {"reason": str(reason)}, to=to, correlation=chat_id
        )

    @asynccontextmanager
    async def reasoning(
        self,
        text: str = "",
        *,
        about: str | None = None,
        timeout: float | None = REASONING_SECONDS,
    ) -> AsyncGenerator[Reasoning]:
        """Think aloud, for the length of a block: others can follow it, and those who may stop it.

        A block that ends without :meth:`Reasoning.conclude` concludes without words; one that is
        left by an exception or a cancellation says that it was stopped.

        Args:
            text: What it is about, for people.
            about: The id of the envelope that it is about; ``ctx.reasoning`` knows it.
            timeout: Seconds after which it is stopped; ``None``: as long as it takes.

        Raises:
            ReasoningCancelled: Another participant stopped it, or its time was over; the block is
                cancelled, and its calls with it.
            Refused: We are paused.
            UsageError: Too many are open.
        """
        session = self._session
        payload = {"message": text}
        check_may_send(session, kinds.REASONING_START, payload, "the reasoning", to=())
        count = sum(isinstance(each, Reasoning) for each in session.watchers.listeners)
        if count >= MAX_REASONINGS:
            raise UsageError(f"{MAX_REASONINGS} lines of thought are open; conclude one of them")
        scope = CallScope()
        reasoning = Reasoning(self._send, session, scope)
        with session.watchers.listening(reasoning):
            # Else a cancellation at that moment would leave a beginning without an end.
            with anyio.move_on_after(WORD_SECONDS, shield=True):
                reasoning.id = await self._send(
                    kinds.REASONING_START,
                    payload,
                    correlation=about or (),
                )
            if not reasoning.id:
                held = "middleware held its beginning"
                raise ReasoningCancelled(Reason.TIMEOUT, session.me, held)
            with anyio.move_on_after(timeout) as clock, scope:
                try:
                    yield reasoning
                    if reasoning.reason is None and not reasoning.concluded:
                        await reasoning.conclude("")
                except BaseException as error:
                    reason = "error"
                    if reasoning.reason is not None:
                        reason = str(reasoning.reason.code)
                    elif clock.cancel_called:
                        reason = Reason.TIMEOUT
                    elif isinstance(error, anyio.get_cancelled_exc_class()):
                        reason = str(cause_of_leaving(session).code)
                    await reasoning.stop(reason)
                    raise
                if reasoning.reason is not None:
                    await reasoning.stop(reasoning.reason.code)
        if reasoning.reason is not None:
            raise ReasoningCancelled(reasoning.reason.code, reasoning.reason.by)
        if clock.cancelled_caught:
            raise ReasoningCancelled(Reason.TIMEOUT, session.me, f"it took more than {timeout:g} s")

    @awaited
    async def cancel_reasoning(
        self, reasoning_id: str, *, reason: str = Reason.NO_LONGER_NEEDED
    ) -> str:
        """Stop another participant's line of thought; the id of the cancel.

        Args:
            reasoning_id: The id of its ``reasoning/start``.
            reason: Why; the block of the line of thought is cancelled with it.
        """
        return await self._send(
            kinds.REASONING_CANCEL, {"reason": str(reason)}, context=reasoning_id
        )
