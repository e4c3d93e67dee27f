"""Requests of our own: through the agent's layers, awaited, cancelled with their caller."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from meup_agent.client.messages import relay
from meup_agent.client.running_handler import (
    awaited,
    cause_of_leaving,
    handler_is,
    parent_in,
    release_slot,
)
from meup_agent.errors import NotExpressible, UsageError
from meup_agent.protocol.wire import kinds, payloads
from meup_agent.protocol.wire.envelope import draft
from meup_agent.protocol.wire.outcomes import (
    Rejection,
    Responded,
    Withdrawal,
    response_of,
    with_explain,
)
from meup_agent.session.pending_calls import checked_timeout, checked_total
from meup_agent.transport.base import background_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Iterable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskStatus

    from meup_agent.client.messages import OnProgress
    from meup_agent.protocol.exchange import FulfillmentTarget
    from meup_agent.protocol.wire.payloads import JsonObject
    from meup_agent.session import Session


# --- outbound middleware ---
# Every verb that sends passes the agent's layers, where it has any.
#
# In comes the call of a verb: `outbound` marks each that passes, and names the fields of the
# message that its parameters are. Out goes the same call, with what the layers have changed. Layers
# may refuse it (by raising), change and time it; a changed call is checked, and becomes a request
# or a proposal, as the call that it now is. Where there is no middleware, a verb runs as if it were
# not marked. The messages themselves, and the onion, are `middleware`.

log = logging.getLogger("meup_agent.agent")

P = ParamSpec("P")
T = TypeVar("T")

SendMessage = Callable[[Any], Awaitable[Any]]
"""Sends a message that passed; it reads the fields of it."""

Outbound = Callable[[str, dict[str, Any], SendMessage], Awaitable[Any]]
"""Passes a verb's message, by its fields, through the middleware to what sends it."""


def names(given: str | Iterable[str]) -> tuple[str, ...]:
    """Several names, or the only one."""
    return (given,) if isinstance(given, str) else tuple(given)


def _copy_object(given: JsonObject | None) -> JsonObject:
    return deepcopy(given or {})


# Copies: a layer that writes into them must not write into what its caller holds.
_SHOWN: Final[dict[str, Callable[[Any], Any]]] = {
    "to": names,
    "correlation": names,
    "kind": kinds.canonical,
    "reason": str,
    "arguments": _copy_object,
    "payload": deepcopy,
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
                log.error("a middleware failed after the proposal was made", exc_info=error)
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
    return response_of(ending, what=f"{method} to {to!r}", cancelled=method != "initialize")


# --- waits ---
# Waits for something to become true of the space: a participant's arrival, an explanation.


ANNOUNCED_SECONDS: Final = 1.0
"""Seconds in which the words that a rejection announces are waited for before it is raised."""


async def wait_for(session: Session, find: Callable[[], T], timeout: float | None) -> T:
    """Wait until something is found, and return it; what is not found in time is falsy."""
    with (
        anyio.move_on_after(checked_timeout(timeout)),
        # Looked at again at each envelope, which has taken effect by then.
        session.watchers.watch(lambda _: bool(find())) as heard,
    ):
        # It may be gone again before this task runs.
        while not (found := find()):
            with release_slot(session):
                await anext(heard)
        await checkpoint()
        return found
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
