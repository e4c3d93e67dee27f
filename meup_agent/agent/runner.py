"""The runner: starts handlers in tasks of the loop, and tells the session how they ended."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from meup_agent.agent.context import LATE_SECONDS, Scope, is_failure, without_cancellations
from meup_agent.agent.decorators import HandlerDefinition, Invocation, Match, Registry
from meup_agent.agent.middleware import Layer, RequestRefused, pass_inbound
from meup_agent.agent.observers import HandlerMonitor
from meup_agent.agent.tool import (
    answer_method,
    encode_result,
    encode_whole_result,
    error_result,
    untyped_result,
)
from meup_agent.causes import Cause, Reason
from meup_agent.client.messages import RunningHandler, begin_handler
from meup_agent.errors import InvalidArguments, NotExpressible, RequestError
from meup_agent.protocol import exchange
from meup_agent.protocol.wire import payloads
from meup_agent.transport.base import (
    Condition,
    background_tasks,
    is_cancelled_here,
    runs_on_asyncio,
)

if TYPE_CHECKING:
    import asyncio

    from anyio.abc import TaskGroup

    from meup_agent.client.space import Space
    from meup_agent.protocol.exchange import Key, Work
    from meup_agent.protocol.exchange.table_context import FindHandler
    from meup_agent.session import Session
    from meup_agent.session.event_emitter import EventEmitter
    from meup_agent.tracing import CallSpan, Tracer


# --- the tasks that handlers run in ---
# No more than the loop's own task, and none outlives its block.


StartTask = Callable[[Callable[[], Coroutine[Any, Any, None]], str], None]
"""Starts a handler in a task of its own, under a name; what it raises ends the block.

A handler begins in the context of the agent: what starts it may be another handler's end, and
context variables that one has set are none of this one's.
"""


@asynccontextmanager
async def handler_tasks() -> AsyncGenerator[tuple[StartTask, TaskGroup]]:
    """Open a place for handlers' tasks, and a task group beside it for what else there is to do.

    The block ends with the last handler: the agent ends them before it leaves.
    """
    async with background_tasks() as group:
        context = copy_context()
        if not runs_on_asyncio():

            def start_in_group(handler: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
                context.copy().run(partial(group.start_soon, handler, name=name))

            yield start_in_group, group
            return

        # asyncio's own tasks, kept as a task group keeps them. A task of anyio's costs a fifth of
        # what a whole request may (docs/benchmarks.md): it gives each one a cancel scope and a
        # handle, of which a handler needs neither, since its scope is its own.
        import asyncio

        loop = asyncio.get_running_loop()
        tasks: set[asyncio.Task[None]] = set()
        failures: list[BaseException] = []
        emptied = Condition()

        def start(handler: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
            task = loop.create_task(handler(), name=name, context=context.copy())
            tasks.add(task)
            task.add_done_callback(note_end)

        def note_end(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None:
                failures.append(error)
                group.cancel_scope.cancel()
            if not tasks:
                emptied.notify_all()

        async def wait_closed() -> None:
            """Wait for every task, whatever becomes of the block; raise what one of them raised."""
            with anyio.CancelScope(shield=True):
                while tasks:
                    await emptied.wait()
            if len(failures) == 1:
                raise failures[0]
            if failures:
                raise BaseExceptionGroup("handlers' tasks failed", failures)

        try:
            yield start, group
        finally:
            if tasks or failures:
                group.start_soon(wait_closed, name="meup agent: handlers")


# --- the runner ---

log = logging.getLogger("meup_agent.agent")

MAX_LOGGED_CHARS: Final = 200
"""Characters of a sender's words in the log; they are escaped there."""


class Runner:
    """Runs an agent's handlers, each in a task and a cancel scope of its own."""

    def __init__(
        self,
        registry: Registry,
        name: str,
        start_task: StartTask,
        group: TaskGroup,
        events: EventEmitter,
        layers: Sequence[Layer] = (),
    ) -> None:
        self._registry = registry
        # The registry's own function: a method in between costs every message a call.
        self.find: FindHandler = registry.find
        self._name = name
        self._start_task = start_task
        self._group = group
        self._events = events
        self._handler_events = HandlerMonitor(events)
        self._scopes: dict[Key, Scope] = {}
        self._idle = Condition()
        # How many run at once is the exchange table's decision: a handler that awaits an exchange
        # gives its place to another, which then needs a thread of its own.
        self._threads = anyio.CapacityLimiter(math.inf)
        self._over = False
        self._layers = layers
        # Bound once: an agent without middleware has no step more in its way.
        self._handle: Callable[[Invocation], Awaitable[Any]] = (
            self._pass_layers if layers else self._run_handlers
        )

    def attach(self, session: Session, space: Space, bare: Space) -> None:
        """Set the session that the handlers work in, and its space, with and without middleware."""
        self._session = session
        self._space = space
        self._bare_space = bare

    # --- what the session asks ---

    def start(self, key: Key, work: Work) -> None:
        """Start the handlers for some work."""
        if self._over:
            return
        scope = Scope(key, _name_of(work))
        self._scopes[key] = scope
        self._start_task(partial(self._run, scope, work), scope.name)

    def cancel(self, key: Key, cause: Cause) -> None:
        """End the scope of a handler."""
        scope = self._scopes.get(key)
        if scope is None or scope.cause is not None:
            return
        log.info("%s is cancelled by %r: %r", scope.name, cause.by, str(cause)[:MAX_LOGGED_CHARS])
        if self._handler_events.begun:
            self._handler_events.asked_to_stop(key, cause)
        scope.cancel(cause)
        self._group.start_soon(self._watch_the_end, scope, name=f"end of {scope.name}")

    async def wait_idle(self) -> None:
        """Return when no handler runs."""
        while self._scopes:
            await self._idle.wait()

    def abandon_threads(self) -> None:
        """Stop waiting for worker threads that do not look whether they were cancelled."""
        for scope in self._scopes.values():
            if scope.abandon() and scope.key in self._handler_events.begun:
                self._handler_events.begun[scope.key].left_behind = True

    def end(self) -> None:
        """Begin nothing more and wait for no thread: the space has been left."""
        self._over = True
        for key, scope in list(self._scopes.items()):
            if scope.cause is None:
                cause = Cause(Reason.NO_LONGER_NEEDED, self._session.me, "the agent shuts down")
                self._handler_events.asked_to_stop(key, cause)
                scope.cancel(cause)
        self.abandon_threads()

    # --- one handler ---

    async def _run(self, scope: Scope, work: Work) -> None:
        session = self._session
        if self._events.observers and scope.cause is None:
            self._handler_events.started(scope.key, work, cast("Match", work.handler).name)
        if session.tracer is not None:
            scope.span = self._begin_span(session.tracer, work)
        try:
            begin_handler(RunningHandler(scope.key, session, scope.why))
            result = await scope.run(partial(self._result, scope, work))
        except BaseException as error:
            scope.end()
            self._handler_events.raised(scope.key, error)
            if not self._failed(scope, error):
                raise
        else:
            scope.end()
            self._returned(scope, result)
        finally:
            if self._handler_events.begun:
                self._handler_events.ended(scope.key, scope.cause)
            if scope.span is not None:
                scope.span.end(scope.cause)
            del self._scopes[scope.key]
            if not self._scopes:
                self._idle.notify_all()

    def _begin_span(self, tracer: Tracer, work: Work) -> CallSpan | None:
        """Begin the span of a request; what its handler begins belongs to it."""
        if work.role is not exchange.Role.REQUEST or work.call is None:
            return None
        session, envelope = self._session, work.envelope
        store, now = session.table.proposal_store, session.now()
        proposals = [each.call for name in envelope.correlation for each in store.under(name, now)]
        is_known = bool(cast("Match", work.handler).handlers)
        return tracer.begin_handler(work.call, proposals, is_known=is_known)

    def _returned(self, scope: Scope, result: Any) -> None:
        if scope.cause is not None:
            self._stopped(scope)
            return
        try:
            self._session.returned(scope.key, result)
        except NotExpressible as error:
            self._handler_events.raised(scope.key, error)
            self._answer_error(scope, error)

    def _stopped(self, scope: Scope) -> None:
        """Note the end of a cancelled handler, which owes no answer."""
        self._session.raised(scope.key, payloads.EXCHANGE_ERROR, "cancelled")
        log.info("%s has stopped", scope.name)

    def _failed(self, scope: Scope, raised: BaseException) -> bool:
        """Answer for a handler that raised: a sentence to the requester, the rest to the log.

        ``False`` for what is not the handler's own affair.
        """
        error = without_cancellations(raised)
        if error is None:
            self._stopped(scope)
        elif is_failure(error):
            self._answer_error(scope, error)
        elif isinstance(error, anyio.get_cancelled_exc_class()) and not is_cancelled_here():
            # A future of the handler's own was cancelled: its failure, and no end of ours.
            scope.note_failure(type(error).__qualname__)
            log.error("%s was interrupted", scope.name, exc_info=error)
            self._session.raised(
                scope.key, payloads.INTERNAL_ERROR, f"{scope.name} was interrupted"
            )
        else:
            self._stopped(scope)
            return False
        return True

    def _answer_error(self, scope: Scope, error: BaseException) -> None:
        if scope.cause is not None:
            log.info("%s failed while it was cancelled: %r", scope.name, error)
            self._session.raised(scope.key, payloads.EXCHANGE_ERROR, "cancelled")
        elif isinstance(error, RequestError) and error.by is None:
            log.info("%s answers with an error: %s", scope.name, error)
            code = error.code if isinstance(error.code, int) else payloads.EXCHANGE_ERROR
            scope.note_failure(str(code))
            begun = not isinstance(error, RequestRefused)
            self._session.raised(scope.key, code, error.message, error.data, begun=begun)
        else:
            scope.note_failure(type(error).__qualname__)
            log.error("%s failed", scope.name, exc_info=error)
            self._session.raised(scope.key, payloads.INTERNAL_ERROR, f"{scope.name} failed")

    async def _watch_the_end(self, scope: Scope) -> None:
        """Name a handler that does not end although it was cancelled."""
        with anyio.move_on_after(LATE_SECONDS):
            await scope.wait_ended()
        if scope.ended:
            return
        log.warning(
            "%s goes on %g s after its cancellation; it swallows it, or cleans up slowly",
            scope.name,
            LATE_SECONDS,
        )

    # --- which function, and what it gets ---

    def _result(self, scope: Scope, work: Work) -> Awaitable[Any]:
        """Run the handlers of some work; for a request, the result to answer with."""
        run = Invocation(self._space, self._session, scope, work, cast("Match", work.handler))
        call, handlers = work.call, run.match.handlers
        if work.role is exchange.Role.REQUEST and call is not None:
            if handlers and handlers[0].tool is None:
                return self._whole_result(run)
            if call.method == payloads.TOOL_CALL:
                return self._tool_result(run)
        return self._handle(run)

    async def _whole_result(self, run: Invocation) -> Any:
        """Run a handler whose value is the whole result."""
        value = await self._handle(run)
        if run.scope.cause is not None:
            return None
        run.scope.note_result(value)
        return encode_whole_result(value)

    async def _tool_result(self, run: Invocation) -> Any:
        """Run a tool; what it raises is a result, too, but for an answer of its own choice."""
        scope, handlers = run.scope, run.match.handlers
        try:
            value = await self._handle(run)
            if scope.cause is not None:
                return None
            tool = handlers[0].tool if handlers else None
            # Without a tool of that name, a middleware has answered in its place.
            result = untyped_result(value) if tool is None else tool.result(value)
            scope.note_result(result)
            return encode_result(result)
        except RequestError as error:
            if error.by is None:
                # The handler's own choice of an answer; what others answered it is a failure.
                raise
            failure: BaseException = error
        except BaseException as error:
            if not is_failure(error):
                raise
            failure = error
        self._handler_events.raised(scope.key, failure)
        if scope.cause is None:
            log.error("%s failed", scope.name, exc_info=failure)
        result = error_result(failure)
        scope.note_result(result)
        return encode_result(result)

    async def _pass_layers(self, run: Invocation) -> Any:
        return await pass_inbound(self._layers, run, self._bare_space, self._run_handlers)

    async def _run_handlers(self, run: Invocation) -> Any:
        """Run the handlers; for a request, the value that a tool returned, or a plain result."""
        handlers, call = run.match.handlers, run.work.call
        if len(handlers) == 1 and handlers[0].tool is None:
            return await self._invoke(run, handlers[0], {})
        if run.work.role is exchange.Role.REQUEST and call is not None:
            if call.method != payloads.TOOL_CALL:
                return answer_method(call.method, self._registry.tools(), self._name)
            return await self._invoke(run, *_bound(call, handlers))
        values: list[Any] = [None] * len(handlers)

        async def run_one(at: int, handler: HandlerDefinition) -> None:
            values[at] = await self._run_beside(run, handler)

        async with anyio.create_task_group() as tasks:
            for at, handler in enumerate(handlers):
                tasks.start_soon(run_one, at, handler)
        # What several add to one answer, as to a status, stands in it together.
        objects = [cast("dict[str, Any]", each) for each in values if isinstance(each, dict)]
        return {key: value for each in objects for key, value in each.items()} or None

    async def _run_beside(self, run: Invocation, handler: HandlerDefinition) -> Any:
        """Run one of several handlers for a notice: its failure is its own."""
        try:
            return await self._invoke(run, handler, {})
        except BaseException as error:
            if without_cancellations(error) is None:
                return None
            if not is_failure(error):
                raise
            self._handler_events.raised(run.scope.key, error)
            log.exception("%s failed", handler.name)
            return None

    async def _invoke(
        self, run: Invocation, handler: HandlerDefinition, arguments: dict[str, Any]
    ) -> Any:
        signature = handler.signature
        for parameter, read in signature.injected.items():
            arguments[parameter] = read(run)
        if signature.is_async:
            value = await handler.fn(**arguments)
        else:
            value = await run.scope.call_in_thread(handler.fn, arguments, self._threads)
        begun = self._handler_events.begun
        if begun and run.scope.key in begun:
            begun[run.scope.key].returned = True
        if isinstance(value, bool) and run.work.role is exchange.Role.PROPOSAL:
            # Approvals of other frameworks are returned; here the proposal would wait in silence.
            log.warning(
                "%s returned %s, which decides nothing: await proposal.fulfill() or "
                "proposal.reject(…) in it",
                run.scope.name,
                value,
            )
        return value


def _bound(
    call: payloads.Call, handlers: tuple[HandlerDefinition, ...]
) -> tuple[HandlerDefinition, dict[str, Any]]:
    """The tool's handler with its arguments."""
    tool = handlers[0].tool if handlers else None
    try:
        if tool is None:
            raise InvalidArguments(f"there is no tool {call.name!r} here")
        return handlers[0], tool.bind(call.params.get("arguments"))
    except InvalidArguments as error:
        data = {"problems": list(error.problems)} if error.problems else None
        raise RequestError(payloads.INVALID_PARAMS, str(error), data) from None


def _name_of(work: Work) -> str:
    """The handler's name and the exchange's, for the log."""
    envelope, call, name = work.envelope, work.call, cast("Match", work.handler).name
    if work.role is exchange.Role.REQUEST and call is not None:
        # Of an unknown tool, too: the name is the sender's word.
        name = repr((call.name if call.method == payloads.TOOL_CALL else call.method)[:64])
    return f"{name} for {envelope.sender!r} ({envelope.id[:32]!r})"
